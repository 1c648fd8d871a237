"""A change of a target: log line, event and counter say the same, whatever became of it."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.golden.decisions import BLIND, SCALE_UP

from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.explain.changes import (
    Change,
    ChangeOutcome,
    Setting,
    change_event,
    change_line,
    not_written,
    replica_count_change,
)
from servingslo.policy.inputs import ScaleTarget
from servingslo.reasons import Reason

TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama")
SCALED = replica_count_change(SCALE_UP, TARGET)
LIMITS = Change(
    namespace="inference",
    name="llama-chat",
    target="Deployment/llama",
    knob="batch-limits",
    settings=(
        Setting(name="max_num_seqs", before=64, after=96),
        Setting(name="max_num_batched_tokens", before=2048, after=2048),
    ),
    reason=Reason.BATCHING_CHANGED,
    replicas_saved=1,
    cost_saved_per_hour=2.5,
    currency="USD",
)
BACK = Change(
    namespace="inference",
    name="llama-chat",
    target="Deployment/llama",
    knob="batch-limits",
    settings=(
        Setting(name="max_num_seqs", before=96, after=64),
        Setting(name="max_num_batched_tokens", before=2048, after=1024),
    ),
    reason=Reason.BATCHING_ROLLED_BACK,
    outcome=ChangeOutcome.ROLLED_BACK,
)
REFUSED = not_written(SCALED, Reason.WRITE_CONFLICT, "replicas are 4", answered=True)
UNANSWERED = not_written(LIMITS, Reason.WRITE_FAILED, "no answer", answered=False)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(
            SCALED,
            "changed namespace=inference name=llama-chat target=Deployment/llama knob=replicas "
            'replicas=3->5 outcome=written costs_per_hour="5 USD" '
            "reason=KVCacheBound",
            id="replicas",
        ),
        pytest.param(
            LIMITS,
            "changed namespace=inference name=llama-chat target=Deployment/llama knob=batch-limits "
            "max_num_seqs=64->96 max_num_batched_tokens=2048 outcome=written saves_replicas=1 "
            'saves_per_hour="2.5 USD" reason=BatchingChanged',
            id="batch-limits",
        ),
        pytest.param(
            BACK,
            "changed namespace=inference name=llama-chat target=Deployment/llama knob=batch-limits "
            "max_num_seqs=96->64 max_num_batched_tokens=2048->1024 outcome=rolled-back "
            "reason=BatchingRolledBack",
            id="taken-back",
        ),
        pytest.param(
            replace(BACK, flags_removed=("max_num_seqs", "max_num_batched_tokens")),
            "changed namespace=inference name=llama-chat target=Deployment/llama knob=batch-limits "
            "max_num_seqs=96->64 max_num_batched_tokens=2048->1024 "
            "flags_removed=max_num_seqs,max_num_batched_tokens outcome=rolled-back "
            "reason=BatchingRolledBack",
            id="flags-removed",
        ),
        pytest.param(
            REFUSED,
            "changed namespace=inference name=llama-chat target=Deployment/llama knob=replicas "
            'replicas=3->5 outcome=refused costs_per_hour="5 USD" '
            'reason=KVCacheBound refusal=WriteConflict detail="replicas are 4"',
            id="refused",
        ),
    ],
)
def test_a_line_says_what_changed_why_what_for_and_how_it_ended(change, line):
    """Before, after, reason, saving and outcome of each kind of change."""
    assert change_line(change) == line


@pytest.mark.parametrize(
    ("change", "type_", "reason", "message"),
    [
        pytest.param(
            SCALED, "Normal", "Scaled", "replicas 3->5: KVCacheBound; costs 5 USD/h", id="replicas"
        ),
        pytest.param(
            LIMITS,
            "Normal",
            "BatchingChanged",
            "max_num_seqs 64->96, max_num_batched_tokens 2048: BatchingChanged; "
            "saves 1 replica, 2.5 USD/h",
            id="batch-limits",
        ),
        pytest.param(
            BACK,
            "Normal",
            "BatchingRolledBack",
            "max_num_seqs 96->64, max_num_batched_tokens 2048->1024: BatchingRolledBack",
            id="taken-back",
        ),
        pytest.param(
            REFUSED,
            "Warning",
            "WriteConflict",
            "replicas 3->5 not written: replicas are 4",
            id="refused",
        ),
        pytest.param(
            UNANSWERED,
            "Warning",
            "WriteFailed",
            "max_num_seqs 64->96, max_num_batched_tokens 2048 perhaps not written: no answer",
            id="unanswered",
        ),
    ],
)
def test_an_event_says_the_same(change, type_, reason, message):
    """Each change is an event that is counted every time."""
    event = change_event(change)
    assert (event.type, event.reason, event.message) == (type_, reason, message)
    assert event.every_time


def test_a_decision_that_orders_nothing_is_no_change():
    """What is held or only recommended writes nothing, so it is no change."""
    assert replica_count_change(BLIND, TARGET) is None
    assert replica_count_change(replace(SCALE_UP, apply_replicas=False), TARGET) is None


def test_changes_are_counted_by_knob_outcome_and_reason():
    """The counter has one sample for each kind, and none of a resource that is gone."""
    metrics = OperatorMetrics()
    for change in (SCALED, SCALED, LIMITS, BACK, REFUSED, UNANSWERED):
        metrics.count_change(change)
    assert _counts(metrics) == {
        ("replicas", "written", "KVCacheBound"): 2,
        ("batch-limits", "written", "BatchingChanged"): 1,
        ("batch-limits", "rolled-back", "BatchingRolledBack"): 1,
        ("replicas", "refused", "WriteConflict"): 1,
        ("batch-limits", "unanswered", "WriteFailed"): 1,
    }
    metrics.forget("inference", "llama-chat")
    assert _counts(metrics) == {}


def _counts(metrics):
    """Value of each sample of the counter, by its own labels."""
    return {
        (sample.labels["knob"], sample.labels["outcome"], sample.labels["reason"]): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        if family.name == "servingslo_changes"
        for sample in family.samples
        if sample.name == "servingslo_changes_total"
    }
