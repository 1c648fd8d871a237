"""Engines that bound what they accept: written with batch limits, alone where it is far off."""

from dataclasses import replace

import pytest
from tests.features.batch_limits.canary_story import ALLOWED, FEW, TARGETS, story

from servingslo.features.batch_limits.decision import CanaryAct
from servingslo.features.batch_limits.engine_bound import FAR_OFF_RATIO, EngineQueue
from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    BatchingTargets,
    LimitKind,
    LimitObject,
)
from servingslo.reasons import Reason

BOUNDED = replace(
    TARGETS,
    admission_mode=AdmissionMode.AUTO,
    admission_via=LimitObject(kind=LimitKind.ENGINE_ARGUMENTS),
)
SERVES = 12
FITTING = replace(BOUNDED, batching=BatchingTargets(mode=BatchingMode.AUTO, max_sequences=SERVES))


def test_the_bound_goes_along_with_the_limits() -> None:
    """One canary has both, and none is begun for the bound alone afterwards."""
    told = story(BOUNDED, queue=None)
    start = told.until_act(CanaryAct.START)
    assert start.recommended_max_num_seqs > FEW
    before, after = start.queue
    assert before is None
    assert after >= start.better.in_flight_limit
    told.until_act(CanaryAct.COMPLETE)
    assert told.decisions[-1].gateway_limit is not None
    told.until(told.world.now + 1800.0)
    begun = [act for act in told.acts if act.canary is CanaryAct.START]
    assert all(one.current_max_num_seqs != one.recommended_max_num_seqs for one in begun)


def test_limits_that_fit_get_a_bound_alone_and_once() -> None:
    """The same limits in one pod, told from its siblings by age; then all have the bound."""
    told = story(FITTING, queue=None, limits=SERVES)
    start = told.until_act(CanaryAct.START)
    assert start.current_max_num_seqs == start.recommended_max_num_seqs
    assert told.until_act(CanaryAct.COMPLETE).queue == start.queue
    told.until(told.world.now + 1800.0)
    assert [act.canary for act in told.acts].count(CanaryAct.START) == 1


def test_a_bound_that_was_taken_back_is_not_tried_again() -> None:
    """The pod with it never comes: what stood before, and no second canary."""
    told = story(FITTING, queue=None, limits=SERVES, comes=False)
    start = told.until_act(CanaryAct.START)
    back = told.until_act(CanaryAct.TAKE_BACK)
    assert back.queue == start.queue[::-1]
    told.until(told.world.now + 1800.0)
    assert [act.canary for act in told.acts].count(CanaryAct.START) == 1


@pytest.mark.parametrize(
    ("before", "due"),
    [(None, True), (30, False), (21, False), (19, True), (44, False), (46, True)],
)
def test_it_is_due_where_it_is_far_off(before: int | None, due: bool) -> None:
    """By half as much again, either way: pods are not restarted for less."""
    assert FAR_OFF_RATIO == 1.5
    assert EngineQueue(before=before, today=30, better=30).is_due == due


@pytest.mark.parametrize(
    ("batching", "limits", "queue", "reason"),
    [
        pytest.param(BatchingTargets(), ALLOWED, None, Reason.LIMIT_NOT_ENFORCEABLE, id="no-auto"),
        pytest.param(
            BatchingTargets(mode=BatchingMode.AUTO), replace(ALLOWED, batching_apply_enabled=False),
            None, Reason.NOT_PERMITTED, id="not-allowed",
        ),
    ],
)  # fmt: skip
def test_where_it_cannot_be_it_says_why(batching, limits, queue, reason) -> None:
    """And nothing is written."""
    told = story(replace(BOUNDED, batching=batching), queue=queue)
    told.limits = limits
    told.until(600.0)
    assert told.decisions[-1].gateway_limit.reason is reason
    assert not told.acts
