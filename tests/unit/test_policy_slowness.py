"""A fleet with slow pods: percentiles are theirs, and routing by load spares them."""

from dataclasses import replace

import pytest
from tests.cards import H100, H100_LIMITS
from tests.sizing_cases import WORKLOAD, case, sized

from servingslo.estimation.law.rows import Row
from servingslo.models.fleet.latency import Objective, Routing, latency_model
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.replicas.sizing import (
    EVEN,
    LEAST_SLOW_PERCENTILE,
    Load,
    Slowness,
    size_of_serving,
)

TTFT = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0)
TPOT = Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=0.05)
RATE = 120.0


def test_an_even_fleet_is_sized_as_before():
    """No slow pod changes nothing, to the digit."""
    plain = case(TTFT, TPOT)
    even = replace(plain, slowness=EVEN)
    assert sized(even, RATE) == sized(plain, RATE)
    assert even.load_factor == 1.0
    assert even.percentile(99.0) == 99.0


@pytest.mark.parametrize("routing", list(Routing))
def test_a_fleet_that_is_slow_as_a_whole_is_an_even_one_on_a_slower_clock(routing: Routing):
    """All pods twice as slow need what an engine of a law twice as long needs."""
    twice = {name: 2.0 * getattr(H100, name) for name in H100.__dataclass_fields__}
    slower = case(
        TTFT, TPOT, model=latency_model(WORKLOAD, replace(H100, **twice), H100_LIMITS),
        routing=routing,
    )  # fmt: skip
    slow = case(TTFT, TPOT, routing=routing, slowness=Slowness(share_ratio=1.0, ratio=2.0))
    assert abs(sized(slow, 60.0).replicas - sized(slower, 60.0).replicas) <= 1


def test_more_slow_pods_need_more_replicas():
    """From none to all of them, and the slower the more."""
    counts = [
        sized(case(TTFT, TPOT, slowness=Slowness(share_ratio=share, ratio=2.0)), RATE).replicas
        for share in (0.1, 0.25, 0.5, 1.0)
    ]
    assert counts == sorted(counts)
    assert sized(case(TTFT, TPOT), RATE).replicas < counts[1] < counts[3]


def test_fewer_replicas_are_judged_with_the_share_that_slow_pods_have_of_them():
    """The count that is ordered is not ordered back: at it, with its share, no more are needed."""
    reversed_before = 0
    for serving in range(4, 24):
        for rate in (30.0, 60.0, 90.0, 120.0, 150.0):
            slow = 2.0
            now = case(TTFT, TPOT, slowness=Slowness(share_ratio=slow / serving, ratio=2.0))
            for found, judged in (
                (sized(now, rate).replicas, False),
                (size_of_serving(now, Load(rate_per_second=rate), serving)[1].replicas, True),
            ):
                if found >= serving:
                    continue
                share = min(slow / found, 1.0)
                then = replace(now, slowness=Slowness(share_ratio=share, ratio=2.0))
                back = sized(then, rate).replicas > found
                reversed_before += back and not judged
                assert not (back and judged)
    assert reversed_before > 0


def test_least_loaded_routing_spares_slow_pods():
    """Of four pods one at half speed gets a seventh of the requests; at random a quarter."""
    quarter = Slowness(share_ratio=0.25, ratio=2.0)
    assert quarter.traffic_ratio(Routing.POOLED) == pytest.approx(1.0 / 7.0)
    assert quarter.traffic_ratio(Routing.RANDOM) == pytest.approx(0.25)
    assert quarter.load_factor(Routing.POOLED) < quarter.load_factor(Routing.RANDOM) == 2.0


def test_the_percentile_is_that_of_the_requests_that_slow_pods_get():
    """One in a hundred of all is one in 14 of a seventh; a small share may miss by half."""
    quarter = Slowness(share_ratio=0.25, ratio=2.0)
    assert quarter.percentile(99.0, Routing.POOLED) == pytest.approx(93.0)
    rare = Slowness(share_ratio=0.01, ratio=4.0)
    assert rare.percentile(95.0, Routing.POOLED) == LEAST_SLOW_PERCENTILE


def test_a_slow_pods_window_is_an_equation_of_the_usual_law():
    """Steps that take twice as long as the law's account for its time with twice the law."""
    row = Row(x=(1.0, 20.0, 300.0), error_ratio=0.01, sequences=20.0, prefill_per_step_tokens=300.0)
    assert row.scaled(1.0) is row
    assert row.scaled(2.0).x == (2.0, 40.0, 600.0)
