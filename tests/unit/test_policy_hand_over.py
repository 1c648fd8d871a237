"""Counts that others carry out: who is given which number, and when there is none."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import World, run, steady

from servingslo.adapters.gauges import DESIRED, metric_samples
from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.log_line import log_line
from servingslo.policy.hpa_behavior import Behavior, ScalingPolicy, ScalingRules
from servingslo.policy.inputs import (
    Actuation,
    Limits,
    Mode,
    ReplicaTargets,
    SignalProblem,
)
from servingslo.reasons import Reason

METRIC = replace(
    TARGETS, actuation=Actuation.METRIC, replicas=ReplicaTargets(minimum=1, maximum=60)
)
KEDA = SignalProblem(
    reason=Reason.SCALER_CONFLICT, detail="ScaledObject/llama scales Deployment/llama as well"
)


def _given(decision):
    return {s.value for s in metric_samples(decision) if s.name == DESIRED}


def _busy(**changes):
    return World(rate=steady(16.0), replicas=3, **changes)


def test_another_scaler_that_is_fed_by_the_metric_is_no_conflict():
    """The count is exported and never ordered, and whoever scales is named."""
    story = run(_busy(problems=(KEDA,)), METRIC).until(300)
    end = story.at(300.0)
    assert not any(d.apply_replicas for d in story.decisions)
    assert end.replicas_after == 3
    assert _given(end) == {end.recommended_replicas}
    assert end.recommended_replicas > 3
    ready = verdicts(end)[ConditionType.READY]
    assert ready.status.value == "True"
    assert "ScaledObject/llama" in ready.message
    assert end.limited_by is None
    assert " actuation=Metric " in log_line(end)


def test_a_metric_that_nobody_scales_by_is_told():
    """Without an autoscaler on the target the count that is wanted stays a recommendation."""
    end = run(_busy(), METRIC).until(300).at(300.0)
    limited = verdicts(end)[ConditionType.SCALING_LIMITED]
    assert limited.reason is Reason.NOBODY_SCALES
    assert "no HorizontalPodAutoscaler" in limited.message
    assert "no autoscaler gets" in verdicts(end)[ConditionType.READY].message
    assert _given(end) == {end.recommended_replicas}


def test_a_scaler_that_is_not_served_is_told_before_anything_is_wanted():
    """KEDA alone would tell its user that it gets no answer."""
    targets = replace(METRIC, actuation=Actuation.KEDA)
    story = run(_busy(problems=(KEDA,)), targets, Limits(scaler_served=False)).until(300)
    for decision in story.decisions[2:]:
        limited = verdicts(decision)[ConditionType.SCALING_LIMITED]
        assert limited.reason is Reason.SCALER_NOT_SERVED
        assert "serves KEDA no scaler" in limited.message
        assert decision.handed_over.replicas is None
        assert "no autoscaler gets" in verdicts(decision)[ConditionType.READY].message
    assert run(_busy(problems=(KEDA,)), targets).until(300).at(300.0).limited_by is None


def test_with_keda_a_scaler_that_never_asks_is_a_conflict():
    """It sets a count of its own; with Metric it may well follow the gauge."""
    apart = replace(KEDA, unasking=True)
    end = run(_busy(problems=(apart,)), replace(METRIC, actuation=Actuation.KEDA)).until(300)
    ready = verdicts(end.at(300.0))[ConditionType.READY]
    assert (ready.status.value, ready.reason) == ("False", Reason.SCALER_CONFLICT)
    assert "ScaledObject/llama" in ready.message
    assert "external-push" in ready.message
    by_gauge = run(_busy(problems=(apart,)), METRIC).until(300).at(300.0)
    assert by_gauge.limited_by is None


@pytest.mark.parametrize(
    ("targets", "limits"),
    [
        pytest.param(replace(METRIC, mode=Mode.RECOMMEND), Limits(), id="recommend"),
        pytest.param(METRIC, Limits(recommend_only=True), id="kill-switch"),
        pytest.param(replace(METRIC, mode=Mode.PAUSED), Limits(), id="paused"),
        pytest.param(replace(TARGETS, mode=Mode.RECOMMEND), Limits(), id="recommend-scale"),
    ],
)
def test_nothing_is_given_where_acting_is_off(targets, limits):
    """A gauge that an autoscaler follows is acting."""
    end = run(_busy(), targets, limits).until(300).at(300.0)
    assert end.handed_over is None
    assert _given(end) == set()


@pytest.mark.parametrize(
    "reason",
    [Reason.TARGET_CONFLICT, Reason.TARGET_NOT_FOUND, Reason.PERMISSION_DENIED],
)
def test_nothing_is_given_of_a_target_that_is_not_ours(reason):
    """An autoscaler that follows the gauge would act on what another ServingSLO owns."""
    problem = SignalProblem(reason=reason, detail="not ours")
    end = run(_busy(problems=(KEDA, problem)), METRIC).until(60).at(60.0)
    assert end.limited_by is reason
    assert _given(end) == set()


def test_the_gauge_is_the_count_that_the_operator_sets_itself():
    """One gauge of what is to be set, whoever sets it; a second scaler on the target ends it."""
    story = run(_busy(), TARGETS).until(300)
    assert all(_given(d) == {d.replicas_after} for d in story.decisions)
    assert _given(run(_busy(problems=(KEDA,)), TARGETS).until(60).at(60.0)) == set()


def test_a_count_set_by_others_is_no_edit_by_hand_and_counts_in_the_policies():
    """With one pod in ten minutes allowed, the step that KEDA made uses the policy up."""
    slow = ScalingRules(policies=(ScalingPolicy(type="Pods", value=1, period_seconds=600),))
    behavior = Behavior(scale_up=slow, scale_down=Behavior().scale_down)
    world = _busy(problems=(KEDA,))
    story = run(world, replace(METRIC, behavior=behavior)).until(300)
    assert {d.recommended_replicas for d in story.decisions[-5:]} == {4}
    world.scale(4)
    later = story.until(420).at(420.0)
    assert later.replicas_before == 4
    assert _given(later) == {4.0}
    steps = {step.reason for d in story.decisions for step in d.steps}
    assert Reason.REPLICAS_CHANGED_BY_USER not in steps
