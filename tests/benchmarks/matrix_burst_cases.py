"""Bursts of minutes with near silence between them, and mixtures with very long prompts.

Rates from 5 to 150/s on the large card. Where prompts are long, answers are short: documents that
are classified or summarized, by batch jobs rather than by people.
"""

from dataclasses import replace

import numpy as np
from tests.benchmarks.matrix import TRACE
from tests.benchmarks.matrix_blind_cases import Blind, points, walk

from servingslo.traces.trace import read_trace
from servingslo_lab.sim.production import benchmark_targets
from servingslo_lab.sim.traces.workloads import (
    RateCourse,
    lengths_of,
    mixed_lengths,
    uniform_lengths,
)

DOCUMENTS = uniform_lengths((2_000, 8_000), (10, 60))
BOOKS = uniform_lengths((15_000, 50_000), (20, 200))
MIXTURE = mixed_lengths(lengths_of(read_trace(TRACE)), BOOKS, 0.05)
# A step of so many tokens lasts 70 ms on the large card and 115 ms on the middle one.
_STEP_TOKENS = 2_048
_PATIENT = benchmark_targets(ttft_seconds=2.0, tpot_seconds=0.1)
_LONG = benchmark_targets(ttft_seconds=5.0, tpot_seconds=0.1)


def bursts(
    rng: np.random.Generator,
    *,
    high: float,
    low: float,
    burst_minutes: tuple[float, float],
    rest_minutes: tuple[float, float],
    minutes: float,
) -> RateCourse:
    """Bursts and rests whose lengths are uniform between two bounds; each a fifth around `high`."""
    now = float(rng.uniform(*rest_minutes))
    found = [(0.0, low)]
    while now < minutes:
        end = min(now + float(rng.uniform(*burst_minutes)), minutes)
        rate = high * float(rng.uniform(0.8, 1.2))
        found += [(now, low), (now + 0.25, rate), (end, rate), (end + 0.25, low)]
        now = end + 0.25 + float(rng.uniform(*rest_minutes))
    return points(*found, (max(minutes, found[-1][0]), found[-1][1]))


def _often(rng: np.random.Generator, high: float) -> RateCourse:
    return bursts(
        rng, high=high, low=high / 100.0, burst_minutes=(2, 5), rest_minutes=(4, 12), minutes=80
    )


def _rarely(rng: np.random.Generator, high: float) -> RateCourse:
    return bursts(
        rng, high=high, low=high / 60.0, burst_minutes=(3, 6), rest_minutes=(20, 35), minutes=120
    )


_DOCUMENTS = Blind(
    course=lambda rng: _often(rng, 40.0),
    targets=_PATIENT,
    lengths=DOCUMENTS,
    batched_tokens=_STEP_TOKENS,
)
ONCE = points((0, 2), (40, 2), (41, 60), (45, 60), (46, 2), (90, 2))
BURST_CASES = {
    "bursts, documents": _DOCUMENTS,
    "bursts, documents, rare": replace(_DOCUMENTS, course=lambda rng: _rarely(rng, 60.0)),
    "burst once, documents": replace(_DOCUMENTS, course=lambda _: ONCE),
    "bursts, documents a100, small": replace(
        _DOCUMENTS, course=lambda rng: _often(rng, 10.0), card="a100"
    ),
    "bursts": Blind(course=lambda rng: _often(rng, 150.0)),
    "bursts l4": Blind(course=lambda rng: _often(rng, 150.0), card="l4"),
    "bursts, rare l4": Blind(course=lambda rng: _rarely(rng, 100.0), card="l4"),
    "books in talk": Blind(
        course=lambda rng: walk(rng, 40.0, 0.10, 60),
        targets=_LONG,
        lengths=MIXTURE,
        batched_tokens=_STEP_TOKENS,
    ),
    "bursts, books in talk": Blind(
        course=lambda rng: _often(rng, 40.0),
        targets=_LONG,
        lengths=MIXTURE,
        batched_tokens=_STEP_TOKENS,
    ),
}
