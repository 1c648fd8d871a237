"""Scenarios that read as a timeline: simulated engines, the planner, and what it decided when."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import World, reasons, run, steady, stepped

from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import conditions, verdicts
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    FallbackBehavior,
    FallbackTargets,
    ReplicaTargets,
    SignalProblem,
)
from servingslo.policy.replicas.demand import SCRAPE_SECONDS
from servingslo.reasons import Action, Reason


def test_surge_orders_what_is_needed_at_once_and_gives_it_back():
    """A surge is answered within two ticks, by several replicas, and undone after it."""
    world = World(rate=stepped((0, 6.0), (600, 20.0), (1200, 6.0)), replicas=3)
    story = run(world).until(2100)

    calm = story.at(600.0)
    assert calm.model.trusted
    assert calm.action is Action.HOLD

    ups = [d for d in story.between(600.0, 645.0) if d.action is Action.SCALE_UP]
    assert ups[0].time_seconds <= 630.0
    assert max(d.replicas_after for d in ups) >= 7
    assert all(d.binding is not None and d.needs for d in ups)

    busy = story.at(1200.0)
    assert 6 <= busy.replicas_after <= 10
    assert story.share_within(1.0, 0.05, start=800.0) > 0.95

    after = story.at(2100.0)
    assert after.replicas_after <= 4
    downs = [d for d in story.between(1200.0, 2100.0) if d.action is Action.SCALE_DOWN]
    assert all(d.replicas_after >= 2 for d in downs)


def test_a_steady_load_does_not_flap():
    """After the warm-up a steady load changes the count hardly ever."""
    story = run(World(rate=steady(9.0), replicas=4, seed=5)).until(1800)
    changes = [d for d in story.between(600.0, 1800.0) if d.apply_replicas]
    assert len(changes) <= 3
    assert story.share_within(1.0, 0.05, start=300.0) > 0.95


def test_one_replica_that_is_needed_is_not_given_away():
    """2 ↔ 1 flapping: a load that one replica cannot carry keeps two for good."""
    story = run(World(rate=steady(3.2), replicas=2, seed=3)).until(1500)
    counts = {d.replicas_after for d in story.between(300.0, 1500.0)}
    assert counts == {2}
    assert any(
        d.limited_by is Reason.STEP_DOWN_UNSAFE or d.reason is Reason.DEMAND_MET
        for d in story.decisions
    )


def test_nothing_shrinks_while_only_short_requests_have_been_seen():
    """The first two minutes never scale down, however little seems to be needed."""
    story = run(World(rate=steady(2.0), replicas=6)).until(120)
    assert all(d.replicas_after >= 6 for d in story.decisions)
    assert Reason.WARMING_UP in reasons(story.decisions[-1])


def test_the_first_window_adds_nothing_to_a_fleet_that_does_well():
    """A law from one window and a rate from a part of one are no reason to order."""
    first = run(World(rate=steady(14.5), replicas=4)).until(30).at(30.0)
    assert max(need.replicas for need in first.needs) > 4
    assert (first.action, first.limited_by) == (Action.HOLD, None)
    story = run(World(rate=steady(13.0), replicas=4)).until(75)
    assert {d.replicas_after for d in story.decisions} == {4}


def test_an_outage_of_metrics_holds_and_recovers():
    """Blind is held, by default for as long as it lasts; sight brings decisions back."""
    world = World(rate=steady(9.0), replicas=5)
    story = run(world).until(600)
    world.frozen_at = 600.0
    story.until(1200)
    blind = story.between(765.0, 1200.0)
    assert {d.replicas_after for d in blind} == {story.at(600.0).replicas_after}
    assert {d.reason for d in blind} == {Reason.METRICS_STALE}
    assert all(d.metrics is Reason.METRICS_STALE for d in blind)
    world.frozen_at = None
    story.until(1320)
    assert story.at(1320.0).metrics is Reason.METRICS_FRESH


def test_metrics_that_age_allow_no_step_down():
    """Between fresh and stale only a step up may happen."""
    world = World(rate=steady(2.0), replicas=5)
    story = run(world).until(75)
    world.frozen_at = 75.0
    story.until(180)
    assert all(d.replicas_after >= 5 for d in story.decisions)
    assert Reason.METRICS_STALE in reasons(story.at(165.0))


def test_an_age_limit_that_no_scrape_can_keep_is_named():
    """A second between scrapes of fifteen: the field and the least value, not "stale" for ever."""
    targets = replace(TARGETS, fallback=FallbackTargets(stale_after_seconds=1.0))
    world = World(rate=steady(2.0), replicas=2)
    story = run(world, targets).until(300)
    world.frozen_at = 295.0
    ready = verdicts(story.until(315).at(315.0))[ConditionType.READY]
    assert ready.reason is Reason.METRICS_STALE
    assert "fallback.staleAfter is 1s, and two scrapes take 30s: set that or more" in ready.message


def test_prometheus_down_raises_to_the_floor_only_after_a_while():
    """Fallback Floor applies once metrics have stayed away for staleAfter."""
    targets = replace(
        TARGETS,
        fallback=FallbackTargets(
            behavior=FallbackBehavior.FLOOR, replicas=8, stale_after_seconds=120.0
        ),
    )
    world = World(rate=steady(6.0), replicas=3)
    story = run(world, targets).until(300)
    before = story.at(300.0).replicas_after
    world.problems = (SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="refused"),)
    story.until(450)
    early = story.between(315.0, 405.0)
    assert {d.replicas_after for d in early} == {before}
    assert story.at(450.0).replicas_before == 8
    raised = [d for d in story.between(315.0, 450.0) if d.action is Action.SCALE_UP]
    assert [d.reason for d in raised] == [Reason.FALLBACK_FLOOR]


def test_a_pod_without_metrics_blocks_a_step_down_and_not_a_step_up():
    """What is not seen is neither spare nor lost."""
    world = World(rate=stepped((0, 2.0), (450, 24.0)), replicas=5)
    world.hidden_pods = {"llama-2"}
    story = run(world).until(450)
    assert {d.replicas_after for d in story.decisions} == {5}
    assert story.at(450.0).metrics is Reason.METRICS_PARTIAL
    story.until(510)
    assert story.at(510.0).replicas_after > 5


def test_gauges_that_are_not_numbers_hold():
    """NaN from every pod is a hold with its own reason, and no NaN is told on."""
    world = World(rate=steady(6.0), replicas=3)
    story = run(world).until(300)
    world.silent_gauges = True
    story.until(420)
    assert story.at(420.0).reason is Reason.METRICS_NOT_A_NUMBER
    assert story.at(420.0).replicas_after == story.at(420.0).replicas_before


def test_silence_brings_an_idle_fleet_to_its_minimum():
    """Zero traffic ends at the minimum, with the reason Idle, and stays there."""
    world = World(rate=stepped((0, 6.0), (600, 0.0)), replicas=4)
    story = run(world).until(1200)
    end = story.at(1200.0)
    assert end.replicas_after == 1
    assert end.reason is Reason.IDLE
    assert end.demand.arrival_rate_per_second == 0.0


@pytest.mark.parametrize(("minimum", "failures", "count"), [(2, 1, 2), (3, 1, 3), (1, 2, 3)])
def test_an_idle_fleet_without_a_law_orders_no_spare_beyond_its_minimum(minimum, failures, count):
    """The spare replicas are within it, as with a law: one that is needed, and they."""
    bounds = ReplicaTargets(minimum=minimum, maximum=12, tolerated_failures=failures)
    world = World(rate=steady(0.0), replicas=minimum)
    story = run(world, replace(TARGETS, replicas=bounds)).until(60)
    assert story.at(60.0).replicas_after == count


def _sizing(decision):
    return next(step for step in decision.steps if step.stage == "sizing").inputs


def test_a_shortage_of_gpus_is_told_and_freezes_nothing():
    """Pods that cannot be placed limit scaling by name; the plan goes on, down included."""
    world = World(rate=stepped((0, 6.0), (600, 20.0), (1200, 4.0)), replicas=3, room=5)
    story = run(world).until(2100)
    short = story.at(900.0)
    assert short.replicas.ready == 5
    assert short.replicas.pending > 0
    assert Reason.UNSCHEDULABLE_PODS in reasons(short)
    assert short.replicas_after > 5
    assert any(d.limited_by is Reason.UNSCHEDULABLE_PODS for d in story.between(660.0, 1200.0))
    assert story.at(2100.0).replicas_after <= 4


@pytest.mark.parametrize("refused", [False, True], ids=["no place", "refused"])
def test_pods_that_are_refused_or_have_no_place_are_no_capacity(refused):
    """30/s on five pods: the plan is for what comes beyond what they serve, whatever is ordered.

    What waits in them stays there: each of them is one more to be ordered.
    """
    world = World(rate=stepped((0, 6.0), (600, 30.0)), replicas=3, room=5)
    if refused:
        world.problems = (SignalProblem(reason=Reason.QUOTA_REACHED, detail="quota"),)
    story = run(world).until(900)
    short = story.at(900.0)
    assert short.replicas.ready == 5
    assert short.replicas.pending > 2
    capacity = 5 * story.state.prepared.model.saturation_rate_per_second
    rate = short.demand.arrival_rate_per_second
    growing = (rate - capacity) * short.demand.lead_seconds
    assert growing > 0.0
    planned = _sizing(short)["backlog_requests"]
    assert planned == pytest.approx(growing, rel=0.2)
    behind = next(s for s in short.steps if "behind_pods" in s.inputs)
    assert behind.inputs["behind_pods"] == 5
    assert behind.after == behind.before + 5


def test_pods_on_their_way_are_not_ordered_twice():
    """Slow cold starts do not multiply an order while the demand stays."""
    world = World(rate=stepped((0, 6.0), (600, 16.0)), replicas=3, cold_start=300.0)
    targets = replace(TARGETS, cold_start_seconds=60.0)
    story = run(world, targets).until(870)
    assert story.at(870.0).replicas.pending > 0
    settled = [d.replicas_after for d in story.between(720.0, 870.0)]
    # What still grows is the backlog: the pods take five times as long as was stated.
    assert max(settled) - min(settled) <= 4


@pytest.mark.parametrize(
    ("stated", "seconds", "source"),
    [
        pytest.param(30.0, 30.0, "stated", id="stated"),
        pytest.param(None, 90.0, "measured", id="no"),
    ],
)
def test_a_stated_cold_start_stands_whatever_own_pods_took(stated, seconds, source):
    """It is stated in place of `Measured`, not until it is; what pods took is told beside it."""
    world = World(rate=stepped((0, 6.0), (300, 16.0)), replicas=3, cold_start=90.0)
    end = run(world, replace(TARGETS, cold_start_seconds=stated)).until(600).at(600.0)
    assert end.cold_start.sample_count >= 3
    assert (end.cold_start.seconds, end.cold_start.source) == (pytest.approx(seconds), source)
    assert end.demand.lead_seconds == pytest.approx(seconds + 15.0 + SCRAPE_SECONDS)
    assert end.cold_start.loading_seconds + end.cold_start.scheduling_seconds == pytest.approx(90.0)


def test_a_hand_edit_becomes_the_new_current():
    """A count set by hand is told once, stands for a window, and is planned from."""
    world = World(rate=steady(6.0), replicas=3)
    story = run(world).until(600)
    world.scale(6)
    edited = story.tick()
    assert edited.replicas_before == 6
    assert Reason.REPLICAS_CHANGED_BY_USER in reasons(edited)
    assert edited.replicas_after == 6
    following = story.tick()
    assert Reason.REPLICAS_CHANGED_BY_USER not in reasons(following)
    story.until(1200)
    assert story.at(1200.0).replicas_after <= 4


def test_a_rollout_allows_no_step_down():
    """While pods are being replaced, fewer of them would be a gamble."""
    world = World(rate=steady(2.0), replicas=4, rollout=True)
    story = run(world).until(450)
    assert {d.replicas_after for d in story.decisions} == {4}
    assert Reason.ROLLOUT_IN_PROGRESS in reasons(story.at(450.0))


def test_an_impossible_objective_does_not_scale_to_the_maximum():
    """A threshold below the service time of a single request says so, with the least feasible."""
    impossible = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.02)
    targets = replace(TARGETS, objectives=(impossible, TARGETS.objectives[1]))
    story = run(World(rate=steady(6.0), replicas=3), targets).until(600)
    end = story.at(600.0)
    assert end.model.trusted
    assert end.replicas_after <= 4
    assert Reason.INFEASIBLE_OBJECTIVE in reasons(end)
    need = next(need for need in end.needs if need.least_feasible is not None)
    assert need.replicas is None
    assert 0.02 < need.least_feasible < 2.0
    found = {c.type: c for c in conditions(end, generation=1, now_seconds=600.0)}
    assert found["SLOMet"].reason is Reason.INFEASIBLE_OBJECTIVE
    assert f"value is {need.least_feasible:.2g}s" in found["SLOMet"].message
