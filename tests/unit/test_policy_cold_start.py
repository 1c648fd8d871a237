"""The first orders of a workload that nothing is known of."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from policy_world import REPLICAS_ONLY, World, reasons, run, steady, stepped

from servingslo.estimation.pods.health import SaturationSignal
from servingslo.estimation.requests.histograms import of_quantiles
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.hpa_behavior import Behavior, ScalingRules
from servingslo.policy.inputs import ReplicaTargets
from servingslo.policy.replicas.saturation import saturation_need
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Action, Constraint, Reason

# Requests begin a while after the first sight of idle pods, as after a deployment.
BEGINS_SECONDS = 60.0
TARGETS = replace(
    REPLICAS_ONLY,
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=2.0),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.1),
    ),
    replicas=ReplicaTargets(minimum=2, maximum=12),
)
LATENCIES = ("ttft", "inter_token", "time_per_output_token", "latency", "queue")
NO_LATENCIES = {f"{name}_seconds": None for name in LATENCIES}
POD = PodSample(name="a", ready=True, ready_for_seconds=3600.0, engines=(EngineSample(engine="0"),))


def _story(rate, seed=1):
    world = World(
        rate=stepped((0.0, 0.0), (BEGINS_SECONDS, rate)),
        replicas=2,
        cold_start=30.0,
        seed=seed,
        prompt_median=1000.0,
        output_median=200.0,
    )
    return run(world, TARGETS)


@pytest.mark.parametrize("seed", range(3))
def test_traffic_far_beyond_the_fleet_is_ordered_for_at_the_first_tick(seed):
    """No law is known and no request waits yet, but many more arrive than end."""
    story = _story(6.0, seed).until(BEGINS_SECONDS + 15.0)
    first = story.decisions[-1]
    assert not first.model.trusted
    assert first.binding is Constraint.SATURATION
    assert 2 < first.replicas_after <= 4


@pytest.mark.parametrize("seed", range(3))
def test_traffic_that_fits_orders_nothing_when_it_begins(seed):
    """It grows as surely, to a part of the room."""
    story = _story(2.0, seed).until(BEGINS_SECONDS + 90.0)
    assert {d.replicas_after for d in story.decisions} == {2}


@pytest.mark.parametrize(
    ("window_seconds", "released_within"),
    [
        pytest.param(None, (240.0, 420.0), id="by default after five minutes of answers"),
        pytest.param(15, (100.0, 240.0), id="as stated"),
    ],
)
def test_replicas_beyond_the_need_of_a_young_workload_are_kept(window_seconds, released_within):
    """How its demand varies is not known, so that its first minutes are no reason to release."""
    targets = TARGETS
    if window_seconds is not None:
        rules = ScalingRules(stabilization_window_seconds=window_seconds)
        targets = replace(TARGETS, behavior=Behavior(scale_down=rules))
    world = World(rate=stepped((0.0, 4.0)), replicas=8, cold_start=30.0)
    story = run(world, targets).until(480.0)
    first = next(d.time_seconds for d in story.decisions if d.action is Action.SCALE_DOWN)
    assert released_within[0] <= first <= released_within[1]


def _restarted(story):
    """The story under an operator that knows what the status tells of it."""
    now = story.world.now
    return replace(story, state=restore(learned(story.state, now), now))


def _without_latencies(story, seconds):
    """Ticks at which no histogram is read: with many engines it is their turn later."""
    see = story.world.observe

    def blind(at):
        found = see(at)
        pods = (
            replace(pod, engines=tuple(replace(e, **NO_LATENCIES) for e in pod.engines))
            for pod in found.pods
        )
        return replace(found, pods=tuple(pods))

    story.world.observe = blind
    story = story.until(story.world.now + seconds)
    story.world.observe = see
    return story


def test_a_restart_does_not_order_what_a_young_law_was_not_believed():
    """Four replicas were seen to serve; the law alone would have five until that is seen anew."""
    sizes = {"prompt_median": 1000.0, "output_median": 200.0}
    world = World(rate=steady(7.5), replicas=4, cold_start=30.0, seed=1, **sizes)
    story = run(world, TARGETS).until(150.0)
    before = story.decisions[-1]
    assert before.model.trusted
    assert (before.replicas_after, _utilization_need(before)) == (4, 5)
    story = _without_latencies(_restarted(story), 45.0)
    assert {d.replicas_after for d in story.decisions[-3:]} == {4}
    assert _utilization_need(story.decisions[-1]) == 5
    assert Reason.WARMING_UP in reasons(story.decisions[-1])


def _utilization_need(decision):
    return next(n.replicas for n in decision.needs if n.constraint is Constraint.UTILIZATION)


def _estimate(**changes):
    known = {
        "saturation_signal": SaturationSignal(),
        "kv_usage_ratio": 0.5,
        "observed": {},
        "running_requests": 50.0,
        "waiting_requests": 0.0,
        "max_num_seqs": 64,
        "ordering_ratio": 1.0,
        "keeping_ratio": 1.0,
    }
    return SimpleNamespace(**{**known, **changes})


def _observed(seconds):
    return {LatencyMetric.TTFT: of_quantiles({0.95: seconds}, 100.0, 100.0 * seconds)}


def test_late_answers_hide_no_full_engines():
    """A percentile further beyond its limit than the KV cache is no reason to ignore the cache."""
    both = saturation_need(
        _estimate(kv_usage_ratio=0.99, observed=_observed(9.0)), TARGETS, (POD, POD)
    )
    late = saturation_need(_estimate(observed=_observed(9.0)), TARGETS, (POD, POD))
    assert (both.signal, late.signal) == ("objective", "objective")
    assert (both.full, late.full) == (True, False)


def test_a_ratio_orders_no_replica_for_its_rounding():
    """50 replicas at 1.1 need 55; as floats they make 55.00000000000001."""
    need = saturation_need(_estimate(observed=_observed(2.1)), TARGETS, (POD,) * 50)
    assert (need.ratio, need.replicas) == (1.1, 55)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 59.0])
def test_a_pod_that_is_just_ready_has_not_taken_its_share(seconds):
    """Also one of zero seconds: it became ready after the reading of its metrics."""
    pods = (POD, POD, replace(POD, ready_for_seconds=seconds))
    need = saturation_need(_estimate(observed=_observed(9.0)), TARGETS, pods)
    assert (need.replicas, need.ratio, need.signal) == (3, 0.0, "settling")
