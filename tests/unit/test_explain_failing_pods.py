"""Pods that should serve and fail are named, with why, everywhere that a decision is shown."""

from dataclasses import replace

import pytest
from policy_world import TARGETS
from tests.golden.decisions import SCALE_UP

from servingslo.estimation.sample import PodSample
from servingslo.explain.conditions.derived import conditions
from servingslo.explain.events import events
from servingslo.explain.log_line import log_line, material_change
from servingslo.explain.text import text
from servingslo.policy.inputs import Limits, Observation
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason

WHY = "CrashLoopBackOff after exit code 1"


def _decision(pods, **targets):
    observation = Observation(
        time_seconds=600.0,
        namespace="inference",
        name="llama",
        desired_replicas=len(pods),
        current_replicas=len(pods),
        runtime="vllm",
        pods=pods,
    )
    return plan(
        observation, replace(TARGETS, **targets), Limits(), PlannerState(), observation.time_seconds
    )[0]


def _pods(ready, failing, **fields):
    serving = [PodSample(name=f"good-{n}", ready=True, ready_after_seconds=30.0) for n in ready]
    bad = [PodSample(name=f"bad-{n}", ready=False, **fields) for n in failing]
    return (*serving, *bad)


def _ready(decision):
    found = {c.type: c for c in conditions(decision, generation=1, now_seconds=0.0)}
    return found["Ready"]


@pytest.mark.parametrize(("ready", "failing"), [(0, 3), (2, 3), (2, 2)])
def test_a_workload_whose_pods_mostly_fail_is_not_ready(ready, failing):
    """From half of the pods on Ready is False and names the first of them, as the log does."""
    decision = _decision(_pods(range(ready), range(failing), failing_reason=WHY))
    condition = _ready(decision)
    assert (condition.status, condition.reason) == ("False", Reason.PODS_FAILING)
    assert condition.message.startswith(f"{failing} of {ready + failing} pods fail: bad-0 ({WHY})")
    assert f"bad-0 ({WHY})" in log_line(decision)
    assert f"Failing: bad-0 ({WHY})" in text(decision)
    told = [event for event in events(decision, None) if event.reason is Reason.PODS_FAILING]
    assert [event.message for event in told] == [condition.message]


def test_one_bad_pod_of_many_is_named_and_told_once():
    """Ready is not False for it; the log has one more line, and one event names it."""
    pods = _pods(range(4), range(1), failing_reason=WHY)
    step = [step for step in _decision(pods).steps if step.reason is Reason.PODS_FAILING]
    before = SCALE_UP
    decision = replace(before, steps=(*before.steps, *step))
    condition = _ready(decision)
    assert (condition.status, condition.reason) == ("True", Reason.READY)
    assert condition.message.endswith(f"failing: bad-0 ({WHY})")
    assert material_change(before, decision)
    assert not material_change(decision, decision)
    told = [event for event in events(decision, before) if event.reason is Reason.PODS_FAILING]
    assert len(told) == 1
    assert WHY in told[0].message
    assert not [e for e in events(decision, decision) if e.reason is Reason.PODS_FAILING]


@pytest.mark.parametrize(
    ("fields", "stated", "said"),
    [
        pytest.param(
            {"ready_after_seconds": 30.0, "unready_for_seconds": 299.0},
            None,
            "",
            id="unready-for-a-moment",
        ),
        pytest.param(
            {"ready_after_seconds": 30.0, "unready_for_seconds": 301.0},
            None,
            "unready since 1970-01-01T00:04Z",
            id="served-before",
        ),
        pytest.param(
            {"ready_after_seconds": 30.0, "unready_for_seconds": 900.0},
            900.0,
            "",
            id="restarts-as-slowly-as-it-starts",
        ),
        pytest.param({"unready_for_seconds": 599.0}, 60.0, "", id="still-starts"),
        pytest.param(
            {"unready_for_seconds": 601.0}, 60.0, "not ready since 1969-12-31T23:59Z", id="late"
        ),
        pytest.param({"unready_for_seconds": 1700.0}, 900.0, "", id="starts-slowly"),
        pytest.param({"failing_reason": WHY, "queued_reason": "a gate"}, None, "", id="gated"),
        pytest.param(
            {"failing_reason": WHY, "unschedulable_reason": "full"}, None, "", id="no-place"
        ),
        pytest.param({"failing_reason": WHY, "deleting": True}, None, "", id="goes"),
    ],
)
def test_a_pod_fails_once_it_is_beyond_a_start(fields, stated, said):
    """Unready for longer than a start takes; a pod that waits for a place does not fail."""
    decision = _decision(_pods(range(3), range(1), **fields), cold_start_seconds=stated)
    details = [s.inputs["detail"] for s in decision.steps if s.reason is Reason.PODS_FAILING]
    assert details == ([f"bad-0 ({said})"] if said else [])


def test_no_first_start_is_late_while_the_cold_start_is_assumed():
    """Nothing of the workload was measured: an engine may load its weights for hours."""
    slow = [PodSample(name="first", ready=False, unready_for_seconds=7200.0)]
    decision = _decision(tuple(slow))
    assert not [step for step in decision.steps if step.reason is Reason.PODS_FAILING]


def test_the_plan_does_not_depend_on_what_fails():
    """The same pods without their reasons give the same count."""
    with_why = _decision(_pods(range(3), range(2), failing_reason=WHY))
    without = _decision(_pods(range(3), range(2)))
    assert with_why.replicas_after == without.replicas_after
    assert with_why.reason is without.reason


def test_more_than_three_are_counted():
    """A line of the log names three."""
    decision = _decision(_pods(range(1), range(5), failing_reason=WHY))
    assert _ready(decision).message.endswith("and 2 more")
