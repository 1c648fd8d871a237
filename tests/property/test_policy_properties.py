"""Invariants of the planner.

1. Nothing is ordered outside the bounds, except on the way back into them.
2. Without sight no replica is taken away, whatever is observed.
3. The same observations give the same decisions.
4. No decision carries NaN or infinity, whatever is observed.
5. Every hold has a reason that is not a step's success, and every change a constraint or guard.
6. What was stored is restored, and garbage restores to something that can plan.
"""

import json
import math
from dataclasses import fields, is_dataclass, replace
from enum import Enum

from hypothesis import given
from hypothesis import strategies as st
from policy_stories import OBJECTIVES, QUICK, TARGET, all_targets, stories

from servingslo.policy.inputs import Limits, Mode, Observation, SignalProblem, Targets
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Action, Reason


def told(story, targets, limits=None):
    """The decisions of a story, and the memory at its end."""
    state, decisions = PlannerState(), []
    for observation in story:
        decision, state = plan(
            observation, targets, limits or Limits(), state, observation.time_seconds
        )
        decisions.append(decision)
    return decisions, state


def numbers(value):
    """Every float inside a decision."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Enum | str):
        return
    elif is_dataclass(value):
        for field in fields(value):
            yield from numbers(getattr(value, field.name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from numbers(inner)


@QUICK
@given(stories(), all_targets())
def test_whatever_is_observed_a_decision_is_sane(story, targets):
    """Invariants 1, 2, 4 and 5, over anything that a reader may hand over."""
    decisions, _ = told(story, targets)
    for observation, decision in zip(story, decisions, strict=True):
        assert all(math.isfinite(number) for number in numbers(decision))
        before, after = decision.replicas_before, decision.replicas_after
        assert before == observation.desired_replicas
        if before is None or after is None:
            assert decision.action is Action.HOLD
            assert not decision.apply_replicas
            continue
        assert decision.apply_replicas == (after != before)
        assert (decision.action is Action.HOLD) == (after == before)
        if decision.metrics is not Reason.METRICS_FRESH and after < before:
            assert after == targets.replicas.maximum
            assert decision.limited_by is not Reason.PROMETHEUS_UNAVAILABLE
        if decision.apply_replicas:
            assert targets.mode is Mode.AUTO
            assert targets.replicas.minimum <= after <= targets.replicas.maximum
        assert decision.steps
        assert decision.reason is not Reason.METRICS_FRESH


@QUICK
@given(stories(), all_targets())
def test_the_same_observations_give_the_same_decisions(story, targets):
    """Invariant 3: replay is exact."""
    assert told(story, targets) == told(story, targets)


@QUICK
@given(stories(), all_targets(), st.one_of(st.none(), st.integers(1, 6)), st.integers(1, 3))
def test_the_administrators_bounds_hold(story, targets, largest, step):
    """Invariant 1 for the administrator: neither the count nor the step exceeds what is set."""
    limits = Limits(max_replicas=largest, max_step=step)
    decisions, _ = told(story, targets, limits)
    for decision in decisions:
        if decision.apply_replicas:
            change = decision.replicas_after - decision.replicas_before
            assert abs(change) <= step
            if largest is not None and change > 0:
                assert decision.replicas_after <= largest


@QUICK
@given(stories(), all_targets())
def test_blind_planners_take_nothing_away(story, targets):
    """Invariant 2: with Prometheus away every decision keeps or raises the count."""
    problem = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE)
    dark = tuple(replace(observation, problems=(problem,)) for observation in story)
    for decision in told(dark, targets)[0]:
        if decision.replicas_before is not None:
            assert decision.replicas_after >= decision.replicas_before


@QUICK
@given(stories(), all_targets())
def test_what_was_learnt_is_small_and_comes_back(story, targets):
    """Invariant 6: at most 4 KiB of plain JSON, and storing what was restored changes nothing."""
    _, state = told(story, targets)
    stored = json.loads(json.dumps(learned(state, 1000.0), allow_nan=False))
    assert len(json.dumps(stored, separators=(",", ":"))) <= 4096
    again = json.loads(json.dumps(learned(restore(stored, 1000.0), 1000.0)))
    assert again["behavior"] == stored["behavior"]
    assert again["batching"] == stored["batching"]


garbage = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["version", "behavior", "up", "down", "recommendations", "batching",
                             "written", "before", "after", "at", "estimator", "laws"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


@QUICK
@given(garbage, st.dictionaries(st.sampled_from(["behavior", "batching", "estimator"]), garbage))
def test_garbage_in_the_status_stops_no_plan(whole, parts):
    """Invariant 6: whatever somebody wrote into the status, the next plan works."""
    targets = Targets(target=TARGET, objectives=OBJECTIVES)
    observation = Observation(
        time_seconds=100.0, namespace="inference", name="llama", desired_replicas=2
    )
    for stored in (whole, {"version": 1} | parts):
        decision, _ = plan(observation, targets, Limits(), restore(stored, 100.0), 100.0)
        assert decision.replicas_after == 2
