"""Timelines of trouble: slow pods, a pod that lies, a retry storm, another engine, a step down."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import TICK_SECONDS, World, reasons, run, stepped

from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    Limits,
    ReplicaTargets,
)
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Action, Reason
from servingslo_lab.sim.replicas.engine import Outcome

pytestmark = pytest.mark.slow("servingslo.policy", "servingslo.estimation", "servingslo.models")


def test_a_step_down_of_demand_is_followed_once_and_keeps_the_objectives():
    """Ten minutes at 18/s, then 6/s: fewer within three minutes, in few steps, and nobody waits."""
    story = run(World(rate=stepped((0, 18.0), (600, 6.0)), replicas=6)).until(1080)
    assert story.at(600.0).replicas_after >= 5
    assert story.at(780.0).replicas_after <= 4
    downs = [d for d in story.between(600.0, 1080.0) if d.action is Action.SCALE_DOWN]
    ups = [d for d in story.between(720.0, 1080.0) if d.action is Action.SCALE_UP]
    assert len(downs) <= 4
    assert len(ups) <= 1
    assert story.share_within(1.0, 0.05, start=600.0) > 0.97


def test_a_fleet_that_wakes_is_planned_at_the_new_rate_within_two_ticks():
    """Ten minutes without a request, then 13/s: nearly nothing is no measure of what comes."""
    story = run(World(rate=stepped((0, 0.0), (600, 13.0)), replicas=1)).until(660)
    assert story.at(600.0).demand.forecast_rate_per_second < 0.5
    assert all(
        0.8 * 13.0 < d.demand.forecast_rate_per_second < 2.0 * 13.0
        for d in story.between(630.0, 660.0)
    )


@pytest.mark.parametrize(
    "max_queued",
    [
        pytest.param(None, id="all-wait", marks=pytest.mark.acceptance),
        pytest.param(40, id="refused"),
    ],
)
def test_what_a_crowd_ordered_is_given_back_once_and_not_ordered_anew(max_queued):
    """6/s, then 32/s: what old pods still owe or refuse counts while new ones come."""
    targets = replace(TARGETS, replicas=ReplicaTargets(maximum=30))
    rate = stepped((0, 6.0), (600, 32.0))
    world = World(rate=rate, replicas=3, cold_start=120.0, max_queued=max_queued)
    story = run(world, targets).until(1035)
    first_down = next(
        d for d in story.between(615.0, 1035.0) if d.action is Action.SCALE_DOWN
    ).time_seconds
    assert first_down > 720.0
    # What the surge surely reached is kept: 15 in place of 12, more where refusals blur the rate.
    assert min(story.at(first_down + s).replicas_after for s in (0.0, 15.0)) <= 20
    # What the old pods still owe slows tokens: a few replicas for that (12 to 19 between 30 and
    # 33/s), and no second crowd of 30.
    assert max(d.replicas_after for d in story.between(first_down + 15.0, 1035.0)) <= 20


def _ceilings(story, start, end):
    """What the sizing step says of the utilization ceiling, tick by tick."""
    return [
        step.inputs["utilization_target_ratio"]
        for decision in story.between(start, end)
        for step in decision.steps
        if "utilization_target_ratio" in step.inputs
    ]


@pytest.mark.parametrize(
    ("enforced", "ceiling"), [pytest.param(False, 0.85, marks=pytest.mark.acceptance), (True, 0.9)]
)
def test_the_utilization_ceiling_is_one_whatever_demand_lately_did(enforced, ceiling):
    """Room for what no forecast says; a little less where engines refuse what they cannot serve."""
    targets = replace(TARGETS, admission_enforced=enforced)
    world = World(rate=stepped((0, 9.0), (2100, 14.0)), replicas=4)
    story = run(world, targets).until(2205)
    assert set(_ceilings(story, 300.0, 2205.0)) == {ceiling}


def test_the_ceiling_is_not_higher_where_no_inter_token_objective_bounds_the_batch():
    """Then a shortage is met by longer batches, in which all requests are late."""
    only = tuple(o for o in TARGETS.objectives if o.metric is not LatencyMetric.TPOT)
    targets = replace(TARGETS, objectives=only, admission_enforced=True)
    story = run(World(rate=stepped((0, 9.0)), replicas=4), targets).until(600)
    assert set(_ceilings(story, 300.0, 600.0)) == {0.85}


@pytest.mark.acceptance
@pytest.mark.parametrize("enforced", [False, True])
def test_a_stated_utilization_target_stays_the_ceiling(enforced):
    """What the user states is not derived, however calm demand is."""
    targets = replace(TARGETS, utilization_target_ratio=0.8, admission_enforced=enforced)
    story = run(World(rate=stepped((0, 9.0)), replicas=4), targets).until(1950)
    assert set(_ceilings(story, 300.0, 1950.0)) == {0.8}


def test_slow_pods_are_replaced_by_more_of_them():
    """Two of four cards throttle to a third: what the fleet really carries is learnt."""
    world = World(rate=stepped((0, 11.0)), replicas=4, seed=2)
    story = run(world).until(600)
    before = story.at(600.0).replicas_after
    for pod in world.pods[:2]:
        world.slow_down(pod.name, 3.0)
    story.until(1200)
    assert max(d.replicas_after for d in story.between(615.0, 1200.0)) > before
    assert all(d.replicas_after >= before for d in story.between(615.0, 900.0))
    named = [s for s in story.at(1200.0).steps if s.reason is Reason.SLOW_PODS]
    assert [step.after for step in named] == [2]
    assert all(pod.name in named[0].inputs["pods"] for pod in world.pods[:2])
    assert not any(Reason.SLOW_PODS in reasons(d) for d in story.between(0.0, 600.0))
    late = [r for r in world.records if r.arrival_seconds >= 1000.0]
    assert sum(r.ttft_seconds is not None and r.ttft_seconds <= 1.0 for r in late) > 0.9 * len(late)


def test_a_retry_storm_is_not_taken_for_demand_for_good():
    """Refused requests come again; when capacity is there the echo ends and the count returns."""
    world = World(
        rate=stepped((0, 6.0), (300, 18.0), (780, 6.0)), replicas=3, max_queued=24, retries=4
    )
    story = run(world).until(1650)
    storm = story.between(330.0, 450.0)
    assert max(d.demand.arrival_rate_per_second for d in storm) > 20.0
    assert max(d.replicas_after for d in storm) >= 6
    settled = story.between(630.0, 780.0)
    assert max(d.demand.arrival_rate_per_second for d in settled) < 23.0
    assert story.at(780.0).replicas_after <= 10
    assert story.at(1650.0).replicas_after <= 4


def test_pods_that_go_finish_what_they_have_and_are_no_capacity():
    """6/s for ten minutes, then 1.5/s: nothing is lost, and those that go change no count."""
    targets = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=12))
    rate = stepped((0, 6.0), (600, 1.5))
    world = World(rate=rate, replicas=8, output_median=900.0, going_seen=True)
    story = run(world, targets).until(900)
    state, going, most = PlannerState(), 0, 0.0
    for observation, decision in zip(story.observations, story.decisions, strict=True):
        left = [pod for pod in observation.pods if pod.deleting]
        unseen = replace(observation, pods=tuple(p for p in observation.pods if p not in left))
        alone, state = plan(unseen, targets, Limits(), state, observation.time_seconds)
        if not left:
            continue
        finishing = sum(engine.running for pod in left for engine in pod.engines)
        going, most = going + 1, max(most, finishing)
        assert decision.replicas.ready == alone.replicas.ready == decision.replicas_before
        assert decision.replicas.pending == 0
        assert abs(decision.recommended_replicas - alone.recommended_replicas) <= 1
        assert decision.demand.running_requests == alone.demand.running_requests + finishing
        assert decision.demand.arrival_rate_per_second == pytest.approx(
            alone.demand.arrival_rate_per_second, abs=1.0
        )
    assert going >= 3
    assert most > 2.0
    world.rate = stepped((0, 0.0))
    story.until(1200)
    assert {record.outcome for record in world.records} == {Outcome.FINISHED}


def _most_in_a_storm(retries):
    """The largest count of a fleet that may grow to 60 when 6/s become 18/s, and its story.

    The rise comes once the law is not young any more.
    """
    targets = replace(TARGETS, replicas=ReplicaTargets(maximum=60))
    rate = stepped((0, 6.0), (420, 18.0))
    story = run(World(rate=rate, replicas=3, max_queued=24, retries=retries), targets).until(780)
    return max(d.replicas_after for d in story.decisions), story


@pytest.mark.acceptance
def test_a_retry_storm_orders_about_what_its_first_tries_need():
    """Four tries more for each refusal offer 60/s in place of 18/s; fewer are ordered."""
    plain, _ = _most_in_a_storm(0)
    most, story = _most_in_a_storm(4)
    assert most < 60.0 / 18.0 * plain
    told = [s for d in story.decisions for s in d.steps if s.reason is Reason.RETRIES_EXCLUDED]
    assert max(step.before for step in told) > 50.0
    assert not told[0].inputs["measured"]
    assert told[-1].inputs["measured"]
    assert story.at(780.0).replicas_after <= 10


def test_a_count_that_does_not_stand_is_told_beside_the_one_that_does():
    """New pods take most of what arrives, and are scraped for the first time a tick later."""
    world = World(rate=stepped((0, 6.0), (600, 14.0)), replicas=3, cold_start=53.0)
    story = run(world)
    told = []
    while world.now < 750.0:
        coming = (p for p in world.pods if world.now < p.ready_at <= world.now + TICK_SECONDS)
        world.hidden_pods = {p.name for p in coming}
        told += [s for s in story.tick().steps if s.reason is Reason.PODS_UNSCRAPED]
    assert told
    assert all(step.before < step.after for step in told)
