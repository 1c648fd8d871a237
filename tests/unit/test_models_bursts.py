"""Bursts: what dispersion over two lengths of windows says, and what replicas feel of it."""

import math

import pytest
from tests.cards import H100, H100_LIMITS
from tests.model_fleets import ReplicaGroup, predict

from servingslo.models.engine.service_time import request_demand
from servingslo.models.fleet.latency import Routing
from servingslo.models.running.bursts import (
    bursts_of,
    correlation_seconds,
    lasting_change,
    swing_of,
)
from servingslo.models.workload import LengthDistribution, Workload

WORKLOAD = Workload(
    arrival_rate_per_second=10.0,
    prompt=LengthDistribution.constant(1000.0),
    output=LengthDistribution.constant(200.0),
)


def excess(rate: float, swing: float, memory: float, window: float) -> float:
    """Index of dispersion, less 1, of a two-valued rate over a window, in closed form."""
    ratio = window / memory
    return 2.0 * rate * swing**2 * memory * (1.0 + math.expm1(-ratio) / ratio)


@pytest.mark.parametrize("memory", [0.25, 1.0, 8.0])
def test_two_windows_give_the_memory_of_the_rate(memory):
    """The correlation time is found again from the dispersion that it makes."""
    short, long = (excess(10.0, 0.5, memory, window) for window in (1.0, 4.0))
    assert correlation_seconds(short, 1.0, long, 4.0) == pytest.approx(memory, rel=1e-3)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        pytest.param(0.0, 1.0, id="poisson in short windows"),
        pytest.param(-0.2, -0.1, id="evener than poisson"),
        pytest.param(2.0, 1.0, id="falls with the window"),
    ],
)
def test_no_memory_is_read_from_counts_that_show_none(short, long):
    """Unknown is None, never a number."""
    assert correlation_seconds(short, 1.0, long, 4.0) is None


def test_the_swing_is_that_of_the_rate_when_its_memory_is_known():
    """A dispersion measured over a residence gives back the swing that made it."""
    running, rate = 40.0, 10.0
    measured = excess(rate, 0.5, 1.0, running / rate)
    bursts = bursts_of(request_demand(WORKLOAD, H100), rate, measured, 1.0, running)
    assert swing_of(bursts, 0.1) == pytest.approx(0.5)
    assert bursts.limit_excess == pytest.approx(2.0 * rate * 0.25, rel=1e-3)
    assert bursts.relaxed_excess < bursts.limit_excess


@pytest.mark.parametrize("metric", ["ttft_seconds", "tpot_seconds"])
def test_the_same_dispersion_over_shorter_bursts_is_a_higher_peak(metric):
    """Short bursts of the same index of dispersion swing further, and make first tokens later."""
    group = ReplicaGroup(law=H100, limits=H100_LIMITS, replica_count=1, routing=Routing.POOLED)
    rows = []
    for memory in (8.0, 0.3):
        workload = Workload(
            arrival_rate_per_second=10.0,
            prompt=WORKLOAD.prompt,
            output=WORKLOAD.output,
            arrival_dispersion=3.0,
            arrival_correlation_seconds=memory,
        )
        rows.append(getattr(predict(workload, group), metric)(95.0))
    steady = getattr(predict(WORKLOAD, group), metric)(95.0)
    assert min(rows) > steady
    if metric == "ttft_seconds":
        assert rows[1] > rows[0]


def test_steps_of_uneven_lengths_follow_a_rate_later():
    """They are met in proportion to their length, and their prompts came before they began."""
    running, rate = 40.0, 10.0
    demand = request_demand(WORKLOAD, H100)
    bursts = bursts_of(demand, rate, excess(rate, 0.5, 0.25, running / rate), 0.25, running)
    even = lasting_change(bursts, 0.5, 0.012, 0.3)
    uneven = lasting_change(bursts, 0.5, 0.012, 0.3, 0.02)
    assert 0.0 < uneven < even < 0.5
    # As much as half of what steps met are longer than steps; to first order in a small change.
    slight = lasting_change(bursts, 1e-6, 0.012, 0.3, 0.02)
    memory = 0.012 / 0.7**2 + 0.5 * 0.02 / (1.0 - 0.3**2)
    assert slight == pytest.approx(1e-6 / (1.0 + memory / bursts.correlation_seconds), rel=1e-4)
