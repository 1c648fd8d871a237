"""A change of batch limits as it is ordered: its settings, outcome and savings."""

from dataclasses import replace

from tests.golden.decisions import SCALE_UP

from servingslo.explain.changes import change_line
from servingslo.features.batch_limits.actuator import batch_limits_change
from servingslo.features.batch_limits.decision import CanaryAct, TemplateDecision
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import ScaleTarget
from servingslo.reasons import Reason

TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama")
CHANGED = TemplateDecision(
    reason=Reason.BATCHING_CHANGED,
    apply=True,
    current_max_num_seqs=64,
    recommended_max_num_seqs=96,
    current_max_num_batched_tokens=2048,
    recommended_max_num_batched_tokens=2048,
    replicas_saved=1,
)


def _with(batching: TemplateDecision) -> Decision:
    return replace_knob(SCALE_UP, "batch-limits", batching)


def test_new_limits_say_what_they_save() -> None:
    """Replicas and money."""
    change = batch_limits_change(_with(CHANGED), TARGET)
    assert change is not None
    assert change_line(change) == (
        "changed namespace=inference name=llama-chat target=Deployment/llama knob=batch-limits "
        "max_num_seqs=64->96 max_num_batched_tokens=2048 outcome=written saves_replicas=1 "
        'saves_per_hour="2.5 USD" reason=BatchingChanged'
    )


def test_limits_that_are_taken_back_are_rolled_back() -> None:
    """They save nothing."""
    back = replace(CHANGED, reason=Reason.BATCHING_ROLLED_BACK, canary=CanaryAct.TAKE_BACK)
    change = batch_limits_change(_with(replace(back, replicas_saved=None)), TARGET)
    assert change is not None
    assert change_line(change) == (
        "changed namespace=inference name=llama-chat target=Deployment/llama knob=batch-limits "
        "max_num_seqs=64->96 max_num_batched_tokens=2048 outcome=rolled-back "
        "reason=BatchingRolledBack"
    )


def test_limits_that_are_only_recommended_are_no_change() -> None:
    """Nothing is written."""
    assert batch_limits_change(_with(replace(CHANGED, apply=False)), TARGET) is None
