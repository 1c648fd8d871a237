"""The simple planner: its forecast, its margin and its count by hand."""

import math

import pytest
from tests.unit.rule_world import SETTING, World, histogram, world

from servingslo.models.fleet.latency import latency_model
from servingslo.models.objectives import Routing
from servingslo.models.workload import LengthDistribution, Workload
from servingslo_lab.sim.baselines.simple import Holt

# Of every request; few running ones need room, so that TPOT decides.
PROMPT, OUTPUT = 100.0, 100.0


def served(
    rule: World, seconds: float, rate: float, replicas: int, total: float
) -> tuple[int, float]:
    """So long at this rate of requests on so many replicas; the last count, and requests so far."""
    wanted = replicas
    for _ in range(round(seconds / rule.tick_seconds)):
        total += rate * rule.tick_seconds
        shown = {
            "prompt_tokens": histogram((PROMPT, PROMPT + 1), (0, total, 0), total * PROMPT),
            "output_tokens": histogram((OUTPUT, OUTPUT + 1), (0, total, 0), total * OUTPUT),
            "ttft_seconds": histogram((1e5,), (total, 0.0)),
            "waiting": 0.0,
        }
        wanted = rule.look(replicas, engines=[shown, *[{"waiting": 0.0}] * (replicas - 1)])
    return wanted, total


def test_a_steady_climb_is_carried_over_the_lead():
    """A tenth more each second: 120 s later twelve more; a fall is not carried below the level."""
    holt = Holt(0.4, 0.15)
    for tick in range(200):
        holt.observe(15.0 * tick, 10.0 + 1.5 * tick)
    now = 10.0 + 1.5 * 199
    assert holt.forecast(120.0) == pytest.approx(now + 12.0, rel=0.01)
    for tick in range(200, 260):
        holt.observe(15.0 * tick, now - 1.5 * (tick - 199))
    assert holt.forecast(120.0) == pytest.approx(now - 1.5 * 60, rel=0.03)


def test_the_margin_is_a_quantile_of_its_own_errors():
    """Of forty rates 1 to 40 % above the forecast, the 38th; of few errors none."""
    holt = Holt(1e-9, 1e-9)  # the level stays at the first rate
    rates = [10.0, *(10.0 * (1.0 + 0.01 * place) for place in range(1, 41))]
    for tick, rate in enumerate(rates):
        holt.observe(15.0 * tick, rate)
        holt.forecast(15.0)
        if tick == 15:
            assert holt.margin(0.95) == 1.0
    assert holt.margin(0.95) == pytest.approx(1.38)
    assert holt.margin(0.5) == pytest.approx(1.20)


def test_the_count_is_the_least_that_keeps_the_percentile():
    """At a steady rate: one fewer would miss TPOT p99 by the same law."""
    rate = 40.0
    wanted, _ = served(world("simple"), 900.0, rate, 10, 0.0)
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.constant(PROMPT),
        output=LengthDistribution.constant(OUTPUT),
    )
    model = latency_model(workload, SETTING.law, SETTING.limits)
    kept, missed = (
        model.predict(rate, count, Routing.POOLED).tpot_seconds(99.0) <= SETTING.tpot_seconds
        for count in (wanted, wanted - 1)
    )
    assert (kept, missed) == (True, False)


def test_it_falls_after_three_minutes():
    """The largest count of 180 s holds; before lengths are known, the count that is there."""
    rule = world("simple")
    before, total = served(rule, 240.0, 40.0, 10, 0.0)
    assert before == 10
    high, total = served(rule, 660.0, 40.0, 10, total)
    still, total = served(rule, 180.0, 4.0, 10, total)
    low, _ = served(rule, 600.0, 4.0, 10, total)
    assert still == high > low >= math.ceil(high / 10)
