"""What the planner remembers: orders, hand edits, and what survives a restart."""

import json
from dataclasses import replace

import pytest

from servingslo.policy.hpa_behavior import Behavior, BehaviorState
from servingslo.policy.inputs import Observation
from servingslo.policy.replicas.reverts import Reverts
from servingslo.policy.replicas.state import (
    READ_BACK_SECONDS,
    HandEdit,
    PendingWrite,
    PlannerState,
    observe_count,
    record_scale,
    record_write_failed,
)
from servingslo.policy.stored_state import learned, lost_parts, restore


def seen(state, desired, at):
    """The memory and the hand edit after reading a count."""
    observation = Observation(
        time_seconds=at, namespace="inference", name="llama", desired_replicas=desired
    )
    return observe_count(state, observation, behavior=Behavior(), now_seconds=at)


def test_a_count_that_nobody_ordered_is_a_hand_edit():
    """It is told with both counts, and only once."""
    state, _ = seen(PlannerState(), 3, 0.0)
    state, edit = seen(state, 6, 15.0)
    assert edit == HandEdit(before=3, after=6)
    assert state.behavior.recommendations == ((15.0, 6),)
    _, again = seen(state, 6, 30.0)
    assert again is None


@pytest.mark.parametrize(
    "told", [pytest.param(True, id="told"), pytest.param(False, id="inferred")]
)
def test_our_own_order_is_no_hand_edit(told):
    """Whether the writer reported the write or it is only read back, the memory is the same."""
    state, _ = seen(PlannerState(), 3, 0.0)
    state = PlannerState(
        behavior=state.behavior,
        started_seconds=state.started_seconds,
        seen_desired=3,
        pending_write=PendingWrite(before=3, after=5, at_seconds=15.0),
    )
    if told:
        state = record_scale(state, before=3, after=5, now_seconds=15.0)
    state, edit = seen(state, 5, 30.0)
    assert edit is None
    assert state.pending_write is None
    assert state.behavior.scale_up_events == ((15.0, 2),)


def test_a_read_that_lags_behind_our_write_is_no_hand_edit():
    """For a while after an order the old count may still be read, unless its write is known."""
    state, _ = seen(PlannerState(), 3, 0.0)
    state = replace(state, pending_write=PendingWrite(before=3, after=5, at_seconds=15.0))
    state, edit = seen(state, 3, 30.0)
    assert edit is None
    state, edit = seen(state, 5, 45.0)
    assert edit is None


def test_a_count_put_back_long_after_our_write_is_a_hand_edit():
    """Lag has a bound."""
    state, _ = seen(PlannerState(), 3, 0.0)
    state = record_scale(state, before=3, after=5, now_seconds=15.0)
    _, edit = seen(state, 3, 15.0 + READ_BACK_SECONDS)
    assert edit == HandEdit(before=5, after=3)


def test_a_refused_write_leaves_no_order():
    """Nothing was scaled, so no scale event is remembered."""
    state = PlannerState(
        seen_desired=3, pending_write=PendingWrite(before=3, after=5, at_seconds=0.0)
    )
    state, edit = seen(record_write_failed(state), 3, 15.0)
    assert edit is None
    assert state.behavior.scale_up_events == ()


def test_rate_limits_survive_a_restart():
    """What cannot be learnt again comes back as it was."""
    state = PlannerState(
        behavior=BehaviorState(
            recommendations=((90.0, 4),),
            scale_up_events=((30.0, 2),),
            scale_down_events=((60.0, 1),),
        ),
    )
    stored = json.loads(json.dumps(learned(state, 100.0)))
    assert restore(stored, 110.0).behavior == state.behavior


def test_what_is_dropped_of_the_stored_memory_is_named():
    """Each part that was there and is not believed; nothing of one that is whole or was empty."""
    state = PlannerState(
        behavior=BehaviorState(scale_up_events=((30.0, 2),)),
        reverts=Reverts(replicas=1, count=3, at_seconds=9.0),
    )
    whole = json.loads(json.dumps(learned(state, 100.0)))
    assert lost_parts(whole, 100.0) == ()
    assert lost_parts(learned(PlannerState(), 100.0), 100.0) == ()
    assert lost_parts(None, 100.0) == ()
    bad = {**whole, "reverts": {"replicas": "x"}}
    bad["estimator"] = {**whole["estimator"], "laws": [{"law": [1e-30, 1e-30, 0]}], "coldStart": 7}
    assert lost_parts(bad, 100.0) == ("reverts", "laws", "coldStart")
    # Of another version: what is not known here is told unless it holds nothing.
    assert lost_parts({**whole, "margin": 0.2}, 100.0) == ("margin",)
    assert lost_parts({**whole, "margin": 0.0}, 100.0) == ()
    assert lost_parts({**whole, "version": 999}, 100.0) == ("all of it",)
    assert lost_parts("edited", 100.0) == ("all of it",)


def test_what_lies_in_the_future_is_not_believed():
    """A clock that went back, or an edited status, cannot freeze scaling."""
    stored = learned(PlannerState(behavior=BehaviorState(scale_up_events=((1000.0, 2),))), 1000.0)
    assert restore(json.loads(json.dumps(stored)), 100.0).behavior.scale_up_events == ()
