"""What is said of counts beside the one decided, and of pods that are left out of capacity."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import STATED_WINDOW, World, run, steady, stepped

from servingslo.cli.decision_document import decision_of
from servingslo.explain.conditions.derived import conditions
from servingslo.explain.document import as_dict
from servingslo.explain.events import events
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    Actuation,
    CostTargets,
    Limits,
    Mode,
    ReplicaTargets,
    SignalProblem,
)
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.report import with_latencies
from servingslo.reasons import Reason

LOOSE = (
    Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=20.0),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=1.0),
)
IMPOSSIBLE = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.02)
SPARE = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=12, tolerated_failures=1))
WARM_SECONDS = 300.0


def verdicts(decision):
    """What is said of each count."""
    return {count.replicas: count.meets_objectives for count in decision.predicted_counts}


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
            replace(TARGETS, objectives=LOOSE, behavior=STATED_WINDOW),
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
    unsure = [d for d in story.decisions if d.predicted_counts and not d.model.trusted]
    assert unsure
    for decision in unsure:
        decides = [need.replicas for need in decision.needs]
        said = verdicts(decision)
        assert said == {count: None if count >= max(decides) else False for count in said}


def test_without_trust_no_need_is_above_that_which_binds():
    """Measured saturation that asks for nothing is not reported next to the law's needs."""
    story = run(World(rate=steady(3.0), replicas=4)).until(240)
    unsure = [d for d in story.decisions if d.predicted_counts and not d.model.trusted]
    assert unsure
    for decision in unsure:
        asked = {need.constraint: need.replicas for need in decision.needs}
        assert asked[decision.binding] == max(asked.values()), log_line(decision)


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
    assert "unreliable_pods" not in log_line(before)
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
    assert f'unreliable_pods="{named}"' in log_line(decision)
    assert f"Left out: {named}" in text(decision)
    told = [e for e in events(decision, before) if e.reason is Reason.UNRELIABLE_PODS]
    assert named in told[0].message
    ready = conditions(decision, generation=1, now_seconds=decision.time_seconds)[0]
    assert named in ready.message


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


def latencies(decision):
    """Seconds by count, and there by metric."""
    return {
        count.replicas: {latency.metric: latency.seconds for latency in count.latencies}
        for count in decision.predicted_counts
    }


def test_who_explains_a_decision_is_told_what_one_fewer_and_one_more_would_give():
    """Each latency falls with the count; ticks do not evaluate what decides nothing."""
    story = run(World(rate=steady(20.0), replicas=7)).until(600)
    decision = story.at(600.0)
    assert all(not count.latencies for count in decision.predicted_counts)
    told = with_latencies(decision, story.state.sized)
    fewer, same, more = latencies(told).values()
    assert set(same) == {"ttft", "tpot", "queueTime"}
    for metric in same:
        assert fewer[metric] >= same[metric] >= more[metric]
    assert fewer["tpot"] > 1.05 * same["tpot"] > 1.05 * more["tpot"]
    predicted = {o.metric: o.predicted_seconds for o in decision.objectives}
    assert {name: same[name] for name in predicted} == pytest.approx(predicted, rel=0.03)
    stored = decision_of(as_dict(told), "inference", "llama")
    assert latencies(stored)[told.predicted_counts[0].replicas] == pytest.approx(fewer, rel=0.01)
    line = next(
        line
        for line in text(stored).splitlines()
        if line.startswith(f"  {told.predicted_counts[0].replicas}: ")
    )
    assert all(f"{name} p95 " in line for name in ("ttft", "tpot", "queueTime"))


def without_limits(observation):
    """The same pods, whose engines do not say how large their KV cache is."""
    pods = [
        replace(
            pod, engines=tuple(replace(engine, kv_capacity_tokens=None) for engine in pod.engines)
        )
        for pod in observation.pods
    ]
    return replace(observation, pods=tuple(pods))


def blind(observation):
    """The same while Prometheus is away."""
    problem = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE)
    return replace(observation, problems=(problem,))


@pytest.mark.parametrize(
    ("seen", "until", "reason"),
    [
        pytest.param(lambda observation: observation, 15.0, Reason.WARMING_UP, id="first-tick"),
        pytest.param(without_limits, 90.0, Reason.LIMITS_UNKNOWN, id="saturation"),
        pytest.param(blind, 90.0, Reason.PROMETHEUS_UNAVAILABLE, id="blind"),
    ],
)
def test_pods_left_out_are_named_also_where_no_model_decides(seen, until, reason):
    """With why, in the step and in the text; nothing is ordered on top of them."""
    world = World(rate=steady(9.0), replicas=4, xid_errors={"llama-2": 79})
    state, at = PlannerState(), 0.0
    while at < until:
        at += 15.0
        observation = world.observe(at)
        if at == until or seen is without_limits:
            observation = seen(observation)
        decision, state = plan(observation, TARGETS, Limits(), state, at)
    assert reason in {step.reason for step in decision.steps}
    step = step_of(decision, Reason.UNRELIABLE_PODS)
    assert step.inputs["detail"] == "llama-2 (xid error 79)"
    assert decision.recommended_replicas == 4
    assert "Left out: llama-2 (xid error 79); no capacity until they serve again" in text(decision)


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(
            lambda world, pods: world.xid_errors.update(dict.fromkeys(pods, 79)), id="xid"
        ),
        pytest.param(lambda world, pods: world.stuck_pods.update(pods), id="stuck"),
    ],
)
@pytest.mark.parametrize(
    ("count", "lying"),
    [
        (2, 1),
        pytest.param(4, 2, marks=pytest.mark.acceptance),
        (4, 3),
        pytest.param(4, 4, marks=pytest.mark.acceptance),
        (1, 1),
    ],
)
def test_pods_that_lie_are_left_out_up_to_half_and_more_of_them_take_none_away(lie, count, lying):
    """Others are ordered on top of half; of more each is named, and the count does not fall."""
    world = World(rate=steady(2.5 * count), replicas=count)
    story = run(world, replace(TARGETS, replicas=ReplicaTargets(minimum=count, maximum=16)))
    story.until(600)
    story.targets = TARGETS
    names = [f"llama-{number}" for number in range(1, 1 + lying)]
    lie(world, names)
    least = 2 * lying <= count
    story.until(600.0 if least else 900.0)
    before = story.at(600.0)
    while story.decisions[-1].replicas.excluded == 0 and least and world.now < 700.0:
        story.tick()
    decision = story.decisions[-1]
    step = step_of(decision, Reason.UNRELIABLE_PODS)
    assert all(f"{name} (" in step.inputs["detail"] for name in names[:3])
    if least:
        assert decision.replicas.excluded == lying
        assert step.after == step.before + lying
        return
    assert decision.replicas.excluded == 0
    assert all(d.replicas_after >= count for d in story.between(600.0, 900.0))
    assert step.inputs["suspect_pods"] == lying
    assert f"In doubt: {step.inputs['detail']}; more than half" in text(decision)
    assert f'suspect_pods="{step.inputs["detail"]}"' in log_line(decision)
    ready = conditions(decision, generation=1, now_seconds=decision.time_seconds)[0]
    assert f"in doubt: {names[0]}" in ready.message
    told = [e for e in events(decision, before) if e.reason is Reason.UNRELIABLE_PODS]
    assert [names[0] in event.message for event in told] == [True]


@pytest.mark.parametrize(("count", "excluded"), [(2, 0), (3, 1)])
def test_half_of_the_pods_without_requests_are_no_reason_for_more(count, excluded):
    """They are routed so, and would be with one more; of three pods the one is left out."""
    world = World(rate=stepped((0, 0.0), (60, 3.0)), replicas=count)
    story = run(world, replace(TARGETS, replicas=ReplicaTargets(minimum=count, maximum=12)))
    story.tick()
    world.stuck_pods = {"llama-2"}
    decision = story.until(240).at(240.0)
    assert decision.replicas.excluded == excluded
    named = "receiving nothing" in log_line(decision)
    assert named == bool(excluded)


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        pytest.param({}, 4, id="carried-out"),
        pytest.param({"mode": Mode.RECOMMEND}, 4, id="advised"),
        pytest.param({"actuation": Actuation.METRIC}, 4, id="handed-over"),
    ],
)
def test_the_cost_is_that_of_the_desired_count(changed, count):
    """Who tries the operator sees what its advice would cost, whoever carries it out."""
    priced = replace(
        TARGETS, cost=CostTargets(gpu_hourly=2.0), replicas=ReplicaTargets(minimum=count), **changed
    )
    decision = run(World(rate=steady(1.0), replicas=2), priced).tick()
    assert decision.recommended_replicas == count
    assert decision.cost.per_hour == 2.0 * count
