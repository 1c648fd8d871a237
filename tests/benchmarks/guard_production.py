"""Rows of production traffic of a model cloud (ServeGen), from `examples/traces`.

The past of each is the earlier part of the same file.
"""

import csv
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from tests.benchmarks.guard_row import Row, rates_of
from tests.benchmarks.guard_unseen import fleet_of
from tests.benchmarks.matrix import TRACE

from servingslo.units import SECONDS_PER_DAY, SECONDS_PER_HOUR
from servingslo_lab.sim.past import BIN_SECONDS, RECENT_BIN_SECONDS
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.transforms import scaled, window
from servingslo_lab.sim.traces.workloads import RateCourse, generated, lengths_of

_TAG = 101  # of random generators
# Seconds of each file that are past.
EARLIER_SECONDS = SECONDS_PER_HOUR
# Eight days and fifteen hours: the evening of the ninth day is played, at a thousandth of the rate
# times ten, a load for a handful of small cards.
EVENING_SECONDS, EVENING_HOURS, EVENING_RATE = 8.0 * SECONDS_PER_DAY + 15.0 * 3600.0, 5.0, 0.008
RATE_WINDOW_SECONDS = 600.0


@cache
def _read(name: str) -> Trace:
    return read_trace(TRACE.with_name(f"{name}.csv"))


def _later(name: str, copies: float) -> Callable[[int], Trace]:
    """The trace after its past, so many times over itself."""

    def traffic(seed: int) -> Trace:
        trace = _read(name)
        played = window(trace, EARLIER_SECONDS, trace.duration_seconds)
        return scaled(played, copies, np.random.default_rng([seed, _TAG]))

    return traffic


def _earlier(name: str, copies: float) -> Callable[[int], Mapping[float, np.ndarray]]:
    def before(seed: int) -> dict[float, np.ndarray]:
        trace = window(_read(name), 0.0, EARLIER_SECONDS)
        trace = scaled(trace, copies, np.random.default_rng([seed, _TAG]))
        return {width: rates_of(trace, width) for width in (BIN_SECONDS, RECENT_BIN_SECONDS)}

    return before


@cache
def published_rates() -> np.ndarray:
    """Of the whole model, in windows of RATE_WINDOW_SECONDS."""
    with TRACE.with_name("servegen_m-small_rates.csv").open(encoding="utf-8") as file:
        return np.array([float(row["requests_per_second"]) for row in csv.DictReader(file)])


def _evening(seed: int) -> Trace:
    first = round(EVENING_SECONDS / RATE_WINDOW_SECONDS)
    rates = EVENING_RATE * published_rates()[first : first + round(6.0 * EVENING_HOURS) + 1]
    course = RateCourse(
        times_seconds=tuple((RATE_WINDOW_SECONDS * np.arange(len(rates))).tolist()),
        rates_per_second=tuple(rates.tolist()),
    )
    return generated(course, lengths_of(read_trace(TRACE)), np.random.default_rng([seed, _TAG]))


def _days(_seed: int) -> dict[float, np.ndarray]:
    rates = EVENING_RATE * published_rates()[: round(EVENING_SECONDS / RATE_WINDOW_SECONDS)]
    return {BIN_SECONDS: np.repeat(rates, round(RATE_WINDOW_SECONDS / BIN_SECONDS))}


PRODUCTION = (
    Row(
        name="reasoning",
        kind="production",
        fleet=fleet_of("h100"),
        traffic=_later("servegen_deepseek-r1", 1.0),
        before=_earlier("servegen_deepseek-r1", 1.0),
    ),
    Row(
        name="small chat",
        kind="production",
        fleet=fleet_of("l4"),
        traffic=_later("servegen_m-small", 20.0),
        before=_earlier("servegen_m-small", 20.0),
    ),
    Row(
        name="an evening after eight days",
        kind="production",
        fleet=fleet_of("l4"),
        traffic=_evening,
        before=_days,
    ),
)
