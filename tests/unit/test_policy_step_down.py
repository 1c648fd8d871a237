"""What runs against what should run: longer requests are told by those in flight first."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from policy_world import TARGETS, World, run, stepped
from tests.validation.grid import L4

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.frontier import Fleet, Frontier
from servingslo.models.fleet.latency import LatencyModel, Routing
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.inputs import ForecastMode, ForecastTargets
from servingslo.policy.rules.step_down import LARGEST_RATIO, implied_arrival_rate_per_second

RATE = 9.0
PODS = 3
MODEL = LatencyModel(
    Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples([200.0, 500.0, 1100.0]),
        output=LengthDistribution.from_samples([40.0, 120.0, 290.0]),
        context_tokens_per_sequence=700.0,
    ),
    ServiceLaw(
        step_fixed_seconds=L4.a,
        step_per_sequence_seconds=L4.b,
        prefill_per_token_seconds=L4.c,
        context_per_token_seconds=L4.d,
    ),
    EngineLimits(
        max_num_seqs=L4.max_num_seqs,
        max_num_batched_tokens=L4.max_num_batched_tokens,
        kv_capacity_tokens=L4.kv_capacity_tokens,
    ),
)
CASE = SimpleNamespace(
    frontier=Frontier(MODEL),
    fleet=lambda replicas: Fleet(replicas, Routing.POOLED),
    saturation_per_second=MODEL.saturation_rate_per_second,
    load_factor=1.0,
)
# All requests order replicas.
ONE_CLASS = SimpleNamespace(keeping_ratio=1.0, sheddable_per_second=0.0)
EXPECTED = MODEL.predict(RATE, PODS, Routing.POOLED).running_mean


def _explained(running, waiting=0.0, *, rate=RATE):
    pods = [
        SimpleNamespace(engines=(SimpleNamespace(running=running, waiting=waiting),)),
        *(
            SimpleNamespace(engines=(SimpleNamespace(running=running, waiting=0.0),))
            for _ in range(PODS - 1)
        ),
    ]
    context = SimpleNamespace(serving=pods, estimate=ONE_CLASS)
    return implied_arrival_rate_per_second(context, CASE, SimpleNamespace(rate_per_second=rate))


def test_as_many_as_should_run_explain_nothing_more():
    """The noise of a window is no evidence, nor is a fleet that is emptier than expected."""
    assert _explained(EXPECTED) == _explained(1.2 * EXPECTED) == _explained(0.0) == 0.0


@pytest.mark.parametrize("utilization", [1e-3, 0.3, 0.6, 0.9, 0.98])
def test_the_floor_is_below_what_runs(utilization):
    """What is told without an evaluation is less than the mean that it stands for."""
    rate = utilization * MODEL.saturation_rate_per_second * PODS
    prediction = MODEL.predict(rate, PODS, Routing.POOLED)
    assert 0.0 < prediction.running_floor < prediction.running_mean


def test_more_in_flight_speak_of_more_work():
    """The rate that is explained rises with what runs, up to a bound."""
    found = [_explained(factor * EXPECTED) for factor in (2.5, 3.0, 3.5)]
    assert RATE < found[0] < found[1] < found[2]
    assert _explained(100.0 * EXPECTED) == pytest.approx(LARGEST_RATIO * RATE)


def test_engines_with_a_queue_speak_of_the_past():
    """One engine works off a backlog; the others say how long requests are now."""
    pods = [
        SimpleNamespace(engines=(SimpleNamespace(running=20.0 * EXPECTED, waiting=50.0),)),
        SimpleNamespace(engines=(SimpleNamespace(running=EXPECTED, waiting=0.0),)),
        SimpleNamespace(engines=(SimpleNamespace(running=None, waiting=None),)),
    ]
    context = SimpleNamespace(serving=pods, estimate=ONE_CLASS)
    assert (
        implied_arrival_rate_per_second(context, CASE, SimpleNamespace(rate_per_second=RATE)) == 0.0
    )


def test_nothing_is_explained_without_arrivals():
    """What should run is not known then."""
    assert _explained(4.0 * EXPECTED, rate=0.0) == 0.0


def _least_after_the_change():
    """The count before the rate halves while answers become four times as long; the least after."""
    world = World(rate=stepped((0, 20.0), (900, 10.0)), replicas=8)
    # The reserve alone would keep them, too.
    present = replace(TARGETS, forecast=ForecastTargets(mode=ForecastMode.OFF))
    story = run(world, present).until(900)
    world.output_median *= 4.0
    story.until(1020)
    return story.at(900.0).replicas_after, min(
        d.replicas_after for d in story.between(915.0, 1020.0)
    )


def test_fewer_but_longer_requests_take_no_replica_away(monkeypatch):
    """Half the rate at four times the length is more work; those that ended do not tell it yet."""
    before, least = _least_after_the_change()
    monkeypatch.setattr(
        "servingslo.policy.rules.step_down.implied_arrival_rate_per_second", lambda *_: 0.0
    )
    _, blind = _least_after_the_change()
    assert blind < least == before
