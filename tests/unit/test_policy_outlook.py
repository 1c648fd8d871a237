"""What is said of counts beside the one decided, and of pods that are left out of capacity."""

from dataclasses import replace

import pytest
from policy_world import TARGETS, World, run, steady, stepped

from servingslo import explain
from servingslo.models.latency import LatencyMetric, Objective
from servingslo.policy.inputs import ReplicaTargets
from servingslo.reasons import Constraint, Reason

LOOSE = (
    Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=20.0),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=1.0),
)
IMPOSSIBLE = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.02)
SPARE = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=12, tolerated_failures=1))
WARM_SECONDS = 300.0


def verdicts(decision):
    """What is said of each count."""
    return {outlook.replicas: outlook.meets_objectives for outlook in decision.outlook}


def step_of(decision, reason):
    """The step with this reason; None without one."""
    return next((step for step in decision.steps if step.reason is reason), None)


@pytest.mark.parametrize(
    ("rate", "replicas", "targets", "constraint"),
    [
        pytest.param(
            steady(14.0), 5, replace(TARGETS, objectives=LOOSE), "utilization", id="utilization"
        ),
        pytest.param(
            stepped((0, 6.0), (WARM_SECONDS, 16.0)),
            3,
            replace(TARGETS, objectives=LOOSE),
            "backlog",
            id="backlog",
        ),
        pytest.param(
            steady(9.0), 4, replace(TARGETS, kv_cache_target_ratio=0.2), "kv-cache", id="kv-cache"
        ),
        pytest.param(steady(9.0), 4, TARGETS, None, id="latency"),
    ],
)
def test_a_count_is_said_to_do_only_where_it_meets_every_need(rate, replicas, targets, constraint):
    """Also where another constraint than an objective binds, which then does bind somewhere."""
    story = run(World(rate=rate, replicas=replicas), targets).until(600)
    binding = set()
    for decision in (d for d in story.decisions if d.model.trusted):
        most = max(need.replicas for need in decision.needs)
        said = verdicts(decision)
        assert said == {count: count >= most for count in said}
        binding |= {decision.binding.value} if most - 1 in said else set()
    assert constraint is None or constraint in binding


def test_a_count_without_the_replicas_to_spare_falls_short():
    """With one failure to tolerate, one fewer than what is held leaves none to spare."""
    end = run(World(rate=steady(9.0), replicas=4), SPARE).until(900).at(900.0)
    spared = step_of(end, Reason.TOLERATED_FAILURES)
    said = verdicts(end)
    assert said == {count: count >= spared.after for count in said}
    assert spared.after - 1 in said


def test_no_count_is_said_to_meet_an_objective_that_is_infeasible():
    """Not even one more."""
    targets = replace(TARGETS, objectives=(IMPOSSIBLE, TARGETS.objectives[1]))
    end = run(World(rate=steady(6.0), replicas=3), targets).until(600).at(600.0)
    assert Reason.INFEASIBLE_OBJECTIVE in {step.reason for step in end.steps}
    assert set(verdicts(end).values()) == {False}


def test_without_trust_a_count_is_never_said_to_do():
    """It falls short of what the law asks for all the same, or is not judged."""
    story = run(World(rate=stepped((0, 6.0), (30, 30.0)), replicas=2)).until(120)
    unsure = [d for d in story.decisions if d.outlook and not d.model.trusted]
    assert unsure
    for decision in unsure:
        decides = [
            need.replicas
            for need in decision.needs
            if need.constraint is not Constraint.SATURATION or decision.binding is need.constraint
        ]
        said = verdicts(decision)
        assert said == {count: None if count >= max(decides) else False for count in said}


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        pytest.param(lambda world: world.xid_errors.update({"llama-2": 79}), "xid error 79"),
        pytest.param(lambda world: world.stuck_pods.add("llama-2"), "zero throughput"),
    ],
    ids=["xid", "stuck"],
)
def test_a_pod_that_lies_is_left_out_and_named_and_another_is_asked_for(lie, why):
    """In the step, the log line, the event, the condition and the text."""
    world = World(rate=steady(9.0), replicas=4)
    story = run(world).until(600)
    before = story.at(600.0)
    assert step_of(before, Reason.UNRELIABLE_PODS) is None
    assert "left_out" not in explain.log_line(before)
    lie(world)
    story.until(660)
    decision = next(d for d in story.between(600.0, 660.0) if d.replicas.excluded)
    step = step_of(decision, Reason.UNRELIABLE_PODS)
    named = f"llama-2 ({why})"
    assert step.inputs["detail"] == named
    assert step.after == step.before + 1
    assert decision.recommended_replicas >= step.after
    assert step.before >= max(need.replicas for need in decision.needs)
    assert verdicts(decision)[decision.recommended_replicas]
    assert f'left_out="{named}"' in explain.log_line(decision)
    assert f"Left out: {named}" in explain.text(decision)
    told = [e for e in explain.events(decision, before) if e.reason is Reason.UNRELIABLE_PODS]
    assert named in told[0].message
    ready = explain.conditions(decision, generation=1, now_seconds=decision.time_seconds)[0]
    assert named in ready.message


def test_of_many_pods_that_lie_the_first_few_are_named():
    """The others are counted."""
    world = World(rate=steady(30.0), replicas=12)
    story = run(world, replace(TARGETS, replicas=ReplicaTargets(minimum=12, maximum=24)))
    story.until(60)
    lying = [f"llama-{number}" for number in range(1, 6)]
    world.xid_errors = dict.fromkeys(lying, 79)
    story.until(75)
    detail = step_of(story.at(75.0), Reason.UNRELIABLE_PODS).inputs["detail"]
    named = ", ".join(f"{name} (xid error 79)" for name in lying[:3])
    assert detail == f"{named} and 2 more"


def test_the_error_told_is_that_of_the_percentiles_that_were_compared():
    """The furthest of the objectives; unknown before one was compared, whatever the law's fit."""
    story = run(World(rate=steady(9.0), replicas=4), TARGETS).until(900)
    trusted = [decision for decision in story.decisions if decision.model.trusted]
    for decision in trusted:
        ratios = [objective.calibration_ratio for objective in decision.objectives]
        errors = [abs(ratio - 1.0) for ratio in ratios if ratio is not None]
        assert decision.model.relative_error == max(errors, default=None)
        assert decision.model.fit_error is not None
    assert trusted[0].model.relative_error is None
    assert trusted[-1].model.relative_error is not None
    assert any(decision.model.relative_error for decision in trusted)
