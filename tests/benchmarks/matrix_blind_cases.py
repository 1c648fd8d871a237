"""Cases that the planner was not made on: courses of demand, cards, objectives and lengths."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tests.benchmarks.matrix import COLD_START_SECONDS, LARGE, SMALL, TRACE

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.workloads import (
    RateCourse,
    generated,
    lengths_of,
    markov_modulated,
)

# A card that no rule was tuned on; it takes the settings of the large one. tests/validation/grid.py
MIDDLE = FleetSpec(
    engine=LARGE,
    law=ServiceLaw(
        step_fixed_seconds=11e-3, step_per_sequence_seconds=8e-5,
        prefill_per_token_seconds=5e-5, context_per_token_seconds=1e-7,
    ),
    limits=EngineLimits(
        max_num_seqs=256, max_num_batched_tokens=4096, kv_capacity_tokens=200_000
    ),
)  # fmt: skip
CARDS = {"h100": FleetSpec(engine=LARGE), "a100": MIDDLE, "l4": FleetSpec(engine=SMALL)}
# Demand of a card relative to the large one, so that all need about as many replicas.
CARD_RATES = {"h100": 1.0, "a100": 0.5, "l4": 0.26}
_MINUTE = 60.0


def points(*minutes_and_rates: tuple[float, float]) -> RateCourse:
    """The course through these points; two at one minute make a step."""
    return RateCourse(
        times_seconds=tuple(_MINUTE * minute for minute, _ in minutes_and_rates),
        rates_per_second=tuple(float(rate) for _, rate in minutes_and_rates),
    )


def waves(one: Sequence[tuple[float, float]], count: int) -> RateCourse:
    """The same points again and again; the last one is where the next wave begins."""
    length = one[-1][0]
    return points(*((i * length + minute, rate) for i in range(count) for minute, rate in one))


def walk(rng: np.random.Generator, mean: float, step: float, minutes: int) -> RateCourse:
    """A random walk of the logarithm of the rate, drawn back to the mean within half an hour."""
    log_ratio, found = 0.0, []
    for minute in range(minutes + 1):
        found.append((minute, mean * math.exp(log_ratio)))
        log_ratio += step * float(rng.normal()) - log_ratio / 30.0
    return points(*found)


def noise(rng: np.random.Generator, mean: float, minutes: int) -> RateCourse:
    """Another rate every minute, a quarter around the mean."""
    rates = mean * np.exp(0.25 * rng.normal(size=minutes))
    return points(*((m + end, float(rates[m])) for m in range(minutes) for end in (0, 1)))


def bursty_ramp(rng: np.random.Generator) -> RateCourse:
    """A ramp on which bursts of 1.6 times the rate last a minute and a half, every four minutes."""
    bursts = markov_modulated(
        1.0, 1.6, mean_low_seconds=240.0, mean_high_seconds=90.0, duration_seconds=3000.0, rng=rng
    )
    moments = sorted({*bursts.times_seconds, *np.arange(0.0, 3000.0, 60.0).tolist()})
    found: list[tuple[float, float]] = []
    for moment in moments:
        before = int(np.searchsorted(bursts.times_seconds, moment, side="left"))
        after = int(np.searchsorted(bursts.times_seconds, moment, side="right")) - 1
        ramp = float(np.interp(moment, (300.0, 2100.0), (30.0, 120.0)))
        found += [
            (moment / _MINUTE, ramp * bursts.rates_per_second[index])
            for index in dict.fromkeys((min(before, after), after))
        ]
    return points(*found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blind:
    """A case: a course of the rate on the large card, and what it is played on.

    longer: factors of the lengths of prompts and outputs in the second half of the time.
    """

    course: Callable[[np.random.Generator], RateCourse]
    card: str = "h100"
    cold_start_seconds: float = COLD_START_SECONDS
    longer: tuple[int, int] = (1, 1)


def _fixed(course: RateCourse) -> Callable[[np.random.Generator], RateCourse]:
    return lambda _: course


TWO_CROWDS = _fixed(points((0, 30), (10, 30), (11, 120), (14, 120), (15, 30), (25, 30), (26, 120),
                           (36, 120), (37, 30), (50, 30)))  # fmt: skip
SAWTOOTH = _fixed(waves(((0, 30), (20, 150), (20, 30)), 3))
LUNCH = _fixed(points((0, 120), (15, 120), (25, 50), (40, 50), (50, 120), (65, 120)))
HALVING = _fixed(points((0, 120), (20, 120), (20, 60), (35, 60), (35, 120), (55, 120)))
SQUARE_10 = _fixed(waves(((0, 60), (5, 60), (5, 120), (10, 120)), 7))
SQUARE_25 = _fixed(waves(((0, 60), (12.5, 60), (12.5, 120), (25, 120)), 4))
CLIMB = _fixed(points((0, 0.5), (10, 0.5), (60, 60), (65, 60)))
ON_OFF = _fixed(waves(((0, 80), (12, 80), (12, 0), (22, 0)), 4))
SHIFT = _fixed(points((0, 100), (30, 100), (30, 50), (60, 50)))
CASES = {
    "walk": Blind(course=lambda rng: walk(rng, 80.0, 0.10, 60)),
    "walk l4": Blind(course=lambda rng: walk(rng, 80.0, 0.10, 60), card="l4"),
    "walk, small l4": Blind(course=lambda rng: walk(rng, 30.0, 0.10, 60), card="l4"),
    "walk, large l4": Blind(course=lambda rng: walk(rng, 450.0, 0.05, 45), card="l4"),
    "walk a100": Blind(course=lambda rng: walk(rng, 80.0, 0.10, 60), card="a100"),
    "noise": Blind(course=lambda rng: noise(rng, 90.0, 50)),
    "bursty ramp": Blind(course=bursty_ramp),
    "two crowds": Blind(course=TWO_CROWDS),
    "sawtooth": Blind(course=SAWTOOTH),
    "sawtooth l4": Blind(course=SAWTOOTH, card="l4"),
    "sawtooth a100, cold start 180 s": Blind(
        course=SAWTOOTH, card="a100", cold_start_seconds=180.0
    ),
    "halving": Blind(course=HALVING),
    "halving l4": Blind(course=HALVING, card="l4"),
    "lunch": Blind(course=LUNCH),
    "square 10": Blind(course=SQUARE_10),
    "square 25 l4": Blind(course=SQUARE_25, card="l4"),
    "climb l4": Blind(course=CLIMB, card="l4"),
    "climb": Blind(course=CLIMB),
    "on-off": Blind(course=ON_OFF),
    "longer prompts": Blind(course=SHIFT, longer=(3, 1)),
    "longer prompts l4": Blind(course=SHIFT, card="l4", longer=(3, 1)),
    "longer outputs": Blind(course=SHIFT, longer=(1, 3)),
    "longer outputs l4": Blind(course=SHIFT, card="l4", longer=(1, 3)),
}


def trace_of(case: Blind, seed: int) -> Trace:
    """The requests of a case."""
    rng = np.random.default_rng([seed, 77])
    course = case.course(rng).scaled(CARD_RATES[case.card])
    trace = generated(course, lengths_of(read_trace(TRACE)), rng)
    late = trace.arrival_seconds > trace.duration_seconds / 2
    prompt, output = case.longer
    return replace(
        trace,
        prompt_tokens=np.where(late, prompt, 1) * trace.prompt_tokens,
        output_tokens=np.where(late, output, 1) * trace.output_tokens,
    )
