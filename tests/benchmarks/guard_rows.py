"""The rows of the guard: standard cases, traffic no setting was chosen on, kinds, production.

Others are kept out of any choice (`guard_kept`).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tests.benchmarks.guard_kinds import BY_KIND
from tests.benchmarks.guard_production import PRODUCTION
from tests.benchmarks.guard_row import Row
from tests.benchmarks.guard_unseen import UNSEEN
from tests.benchmarks.matrix import COLD_START_SECONDS, LARGE, SMALL, TRACE
from tests.benchmarks.matrix_blind_cases import (
    CARDS,
    CASES,
    TWO_CROWDS,
    Blind,
    points,
    trace_of,
)

from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.standard import standard_case
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.workloads import (
    LengthSource,
    RateCourse,
    generated,
    lengths_of,
    mixed_lengths,
    uniform_lengths,
)

# Minutes of a burst of documents and of the near silence that follows it, and their rates.
BURST_MINUTES, SILENT_MINUTES = (2.0, 6.0), (3.0, 14.0)
BURST_RATES, SILENT_RATE = (15.0, 70.0), 0.3
DOCUMENTS = uniform_lengths((1_500, 9_000), (8, 40))
"""Long prompts and short outputs."""
VERY_LONG = uniform_lengths((10_000, 20_000), (50, 400))
"""Prompts whose first token takes 0.3 to 0.6 s alone on the large card, of 1 s allowed."""
VERY_LONG_SHARE = 0.08
# Its prompts weigh so much that this rate of the mixture is the work of a hundred conversations.
MIXTURE_RATE = 45.0
_SHARED_TAG = 79  # of random generators, beside 77 of the blind cases


def document_bursts(rng: np.random.Generator, minutes: float = 60.0) -> RateCourse:
    """Bursts of some minutes, each of its own height, with near silence between them."""
    now, found = 0.0, [(0.0, SILENT_RATE)]
    while now < minutes:
        begins = now + float(rng.uniform(*SILENT_MINUTES))
        ends = begins + float(rng.uniform(*BURST_MINUTES))
        rate = float(np.exp(rng.uniform(*np.log(BURST_RATES))))
        found += [(begins, SILENT_RATE), (begins, rate), (ends, rate), (ends, SILENT_RATE)]
        now = ends
    inside = [(minute, rate) for minute, rate in found if minute < minutes]
    return points(*inside, (minutes, inside[-1][1]))


def wandering(rng: np.random.Generator, mean: float, minutes: int) -> RateCourse:
    """A rate that changes every five minutes, by a third up or down around the mean."""
    count = minutes // 5 + 1
    rates = mean * np.exp(rng.uniform(-0.33, 0.33, count))
    return points(*((5.0 * place, float(rate)) for place, rate in enumerate(rates)))


def noisy_crowds(rng: np.random.Generator) -> RateCourse:
    """Two crowds within the hour, every minute a quarter off their course."""
    times = np.array(TWO_CROWDS(rng).times_seconds)
    rates = np.array(TWO_CROWDS(rng).rates_per_second)
    found: list[tuple[float, float]] = []
    for minute in range(int(times[-1] // 60)):
        factor = float(np.exp(0.25 * rng.normal()))
        ends = np.interp((60.0 * minute, 60.0 * (minute + 1)), times, rates)
        found += [(minute + place, factor * float(rate)) for place, rate in enumerate(ends)]
    return points(*found)


def _standard(kind: str, case: str, engine: str, *, knobs: bool = False) -> Row:
    def traffic(seed: int) -> Trace:
        return standard_case(case, engine, read_trace(TRACE), seed=seed).trace

    cold_start = ColdStart(mean_seconds=COLD_START_SECONDS)
    return Row(
        name=_name(engine.partition("-")[0], case, knobs=knobs),
        kind=kind,
        fleet=FleetSpec(engine=engine, cold_start=cold_start),
        traffic=traffic,
        knobs=knobs,
    )


def _name(card: str, case: str, *, knobs: bool) -> str:
    return f"{card} {case}{' +knobs' if knobs else ''}"


def _unseen(
    kind: str, card: str, case: str, traffic: Callable[[int], Trace], *, knobs: bool = False
) -> Row:
    return Row(
        name=_name(card, case, knobs=knobs),
        kind=kind,
        fleet=replace(CARDS[card], cold_start=ColdStart(mean_seconds=COLD_START_SECONDS)),
        traffic=traffic,
        knobs=knobs,
        unseen=True,
    )


BLIND_CASES = ("on-off", "bursty ramp", "longer outputs l4")
"""Of the blind cases, those that are rows here."""


def _blind(name: str) -> Callable[[int], Trace]:
    return lambda seed: trace_of(CASES[name], seed)


def _generated(
    course: Callable[[np.random.Generator], RateCourse], lengths: Callable[[], LengthSource]
) -> Callable[[int], Trace]:
    def traffic(seed: int) -> Trace:
        rng = np.random.default_rng([seed, _SHARED_TAG])
        return generated(course(rng), lengths(), rng)

    return traffic


def _conversation() -> LengthSource:
    return lengths_of(read_trace(TRACE))


_ROWS = (
    _standard("level", "azure-conv", LARGE),
    _standard("rise", "ramp", LARGE),
    _standard("burst once", "flash", LARGE),
    _standard("burst recurring", "mmpp", LARGE),
    _standard("level", "long-context", LARGE),
    _standard("level", "azure-conv", SMALL),
    _standard("burst once", "flash", SMALL, knobs=True),
    _standard("mix", "long-mix", SMALL, knobs=True),
    _unseen(
        "burst recurring", "h100", "document bursts",
        _generated(document_bursts, lambda: DOCUMENTS),
    ),
    _unseen(
        "mix", "h100", "very long mixture",
        _generated(
            lambda rng: wandering(rng, MIXTURE_RATE, 50),
            lambda: mixed_lengths(_conversation(), VERY_LONG, VERY_LONG_SHARE),
        ),
    ),
    _unseen("burst recurring", "h100", "on-off", _blind("on-off")),
    _unseen("burst recurring", "h100", "bursty ramp", _blind("bursty ramp")),
    _unseen("mix", "l4", "longer outputs", _blind("longer outputs l4")),
    _unseen(
        "burst recurring", "a100", "noisy crowds",
        lambda seed: trace_of(Blind(course=noisy_crowds, card="a100"), seed), knobs=True,
    ),
)  # fmt: skip
ROWS = {row.name: row for row in (*_ROWS, *UNSEEN, *BY_KIND, *PRODUCTION)}
