"""Guards: each promise of what may not happen to a replica count, whatever the models say."""

from dataclasses import replace

import pytest
from tests.unit.policy_world import settled_context

from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.hpa_behavior import Behavior, BehaviorState
from servingslo.policy.inputs import (
    FallbackBehavior,
    FallbackTargets,
    Limits,
    Mode,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.planner import Seen, draft_count
from servingslo.policy.replicas.ownership import acting_limit, metrics_problem, ownership_problem
from servingslo.policy.replicas.promise import PromiseState
from servingslo.policy.replicas.proposal import Bounds, Proposal, bounds_of
from servingslo.policy.rules import guards
from servingslo.reasons import Reason

BOUNDS = Bounds(minimum=1, maximum=8, maximum_reason=Reason.MAX_REPLICAS_REACHED)
TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama")
OBJECTIVES = (Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.5),)


def observation(**changes):
    """An ordinary observation with some fields changed."""
    values = {"time_seconds": 0.0, "namespace": "inference", "name": "llama", "desired_replicas": 3}
    return Observation(**(values | changes))


def tick(**changes):
    """A tick at which nothing forbids anything, at three of one to eight replicas."""
    return replace(settled_context(), **({"current": 3, "bounds": BOUNDS} | changes))


def wants(replicas, **changes):
    """A proposal of this many, all of which are safe."""
    plain = Proposal.of(replicas)
    return replace(plain, requirement=replace(plain.requirement, **changes))


PLAIN_FALLBACK = FallbackTargets()


def blind(fallback=PLAIN_FALLBACK, without_metrics_seconds=600.0, **changes):
    """What is ordered during an outage, with some circumstances changed."""
    context = tick(**changes)
    fresh = without_metrics_seconds and context.now_seconds - without_metrics_seconds
    problem = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="timeout")
    context = replace(
        context,
        targets=replace(context.targets, fallback=fallback),
        state=replace(context.state, fresh_seconds=fresh, started_seconds=fresh),
        signals=replace(context.signals, no_metrics=problem),
    )
    return draft_count(Seen(context=context, state=context.state, edit=None, asleep=False))


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param(Reason.TARGET_NOT_FOUND, id="missing"),
        pytest.param(Reason.TARGET_NOT_SCALABLE, id="no-scale-subresource"),
        pytest.param(Reason.PERMISSION_DENIED, id="forbidden"),
        pytest.param(Reason.SCALER_CONFLICT, id="hpa"),
        pytest.param(Reason.TARGET_CONFLICT, id="second-servingslo"),
    ],
)
def test_hands_stay_off_when_the_count_is_not_ours(reason):
    """Every problem of ownership is found wherever it stands among the problems."""
    problems = (
        SignalProblem(reason=Reason.METRICS_STALE),
        SignalProblem(reason=reason, detail="who"),
    )
    assert ownership_problem(observation(problems=problems)) == problems[1]


def test_a_target_scaled_to_zero_by_hand_is_not_ours():
    """Nobody but a user sets 0, since the least allowed minimum is 1."""
    problem = ownership_problem(observation(desired_replicas=0))
    assert problem is not None
    assert problem.reason is Reason.SCALED_TO_ZERO_BY_USER


def test_an_ordinary_observation_is_ours():
    """No problem, no veto."""
    assert ownership_problem(observation()) is None
    assert metrics_problem(observation()) is None


def test_blindness_holds_the_count_and_says_why():
    """An outage of metrics changes nothing by default."""
    held = blind()
    assert held.replicas == 3
    assert held.limited_by is Reason.PROMETHEUS_UNAVAILABLE
    assert held.steps[0].reason is Reason.PROMETHEUS_UNAVAILABLE
    assert held.steps[0].inputs["detail"] == "timeout"


@pytest.mark.parametrize(
    ("current", "floor", "away_seconds", "expected"),
    [
        pytest.param(3, 5, 121.0, 5, id="raises-to-the-floor"),
        pytest.param(3, 5, 119.0, 3, id="waits-for-stale-after"),
        pytest.param(6, 5, 600.0, 6, id="never-fewer-than-now"),
        pytest.param(3, 20, 600.0, 8, id="within-the-maximum"),
        pytest.param(3, 5, None, 5, id="never-had-metrics"),
    ],
)
def test_the_floor_applies_when_metrics_stay_away(current, floor, away_seconds, expected):
    """Fallback Floor: at least that many after a while, never fewer than now."""
    fallback = FallbackTargets(behavior=FallbackBehavior.FLOOR, replicas=floor)
    held = blind(current=current, fallback=fallback, without_metrics_seconds=away_seconds)
    assert held.replicas == expected


def test_the_administrators_maximum_wins_and_is_named():
    """The tighter of both maxima holds, and says whose it is."""
    targets = Targets(
        target=TARGET, objectives=OBJECTIVES, replicas=ReplicaTargets(minimum=6, maximum=20)
    )
    assert bounds_of(targets, Limits(max_replicas=4)) == Bounds(
        minimum=4, maximum=4, maximum_reason=Reason.ADMINISTRATOR_LIMIT
    )
    assert bounds_of(targets, Limits()) == Bounds(
        minimum=6, maximum=20, maximum_reason=Reason.MAX_REPLICAS_REACHED
    )


def unseen_and_rolled_out():
    """A tick of a new memory in a rollout: two reasons against a step down."""
    context = tick()
    return replace(
        context,
        observation=replace(context.observation, rollout_in_progress=True),
        state=replace(context.state, watched_since_seconds=None),
    )


def test_every_reason_against_a_step_down_is_told():
    """Several blocks give several steps, and the count stays."""
    blocked = guards.block_step_down(unseen_and_rolled_out(), wants(2))
    assert blocked.replicas == 3
    assert {step.reason for step in blocked.steps} == {
        Reason.WARMING_UP,
        Reason.ROLLOUT_IN_PROGRESS,
    }


def test_a_step_up_passes_everything_that_forbids_a_step_down():
    """Going up is never blocked by what speaks against going down."""
    proposal = wants(5, safe_replicas=3)
    assert guards.block_step_down(unseen_and_rolled_out(), proposal) == proposal
    assert guards.check_step_down(tick(), proposal) == proposal


@pytest.mark.parametrize(
    ("wanted", "safe", "expected"),
    [
        pytest.param(2, 5, 5, id="unsafe"),
        pytest.param(2, 9, 5, id="never-up-by-this-check"),
        pytest.param(2, 3, 3, id="as-far-as-safe"),
        pytest.param(2, 1, 2, id="safe"),
    ],
)
def test_a_step_down_goes_only_as_far_as_it_is_safe(wanted, safe, expected):
    """The N−1 check, for steps of any size."""
    checked = guards.check_step_down(tick(current=5), wants(wanted, safe_replicas=safe))
    assert checked.replicas == expected
    assert (checked.limited_by is Reason.STEP_DOWN_UNSAFE) == (expected != wanted)


def test_a_step_down_waits_for_the_stabilization_window():
    """A recommendation one window old decides, as in the HorizontalPodAutoscaler."""

    def at(seconds, memory):
        context = tick(current=5, now_seconds=seconds)
        state = replace(context.state, behavior=memory, promise=PromiseState(seconds=3600.0))
        targets = replace(context.targets, behavior=Behavior())
        return guards.apply_behavior(replace(context, state=state, targets=targets), wants(3))

    early = at(10.0, BehaviorState(recommendations=((0.0, 5),)))
    late = at(90.0, early.behavior)
    assert (early.replicas, early.limited_by) == (5, Reason.STABILIZED)
    assert (late.replicas, late.limited_by) == (3, None)


@pytest.mark.parametrize(
    ("mode", "limits", "expected"),
    [
        pytest.param(Mode.AUTO, Limits(), None, id="auto"),
        pytest.param(Mode.RECOMMEND, Limits(), Reason.RECOMMEND_ONLY, id="recommend"),
        pytest.param(Mode.PAUSED, Limits(), Reason.PAUSED, id="paused"),
        pytest.param(Mode.AUTO, Limits(recommend_only=True), Reason.KILL_SWITCH, id="kill-switch"),
    ],
)
def test_the_mode_and_the_kill_switch_limit_acting(mode, limits, expected):
    """Only mode Auto without the kill switch writes."""
    targets = Targets(target=TARGET, objectives=OBJECTIVES, mode=mode)
    assert acting_limit(targets, limits) is expected
