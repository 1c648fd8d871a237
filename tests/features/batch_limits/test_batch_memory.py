"""What is remembered of batch limits over a restart and a clock that goes back; strange records."""

import json

import pytest
from tests.features.batch_limits.canary_story import memory_of
from tests.unit.test_parsing import DEEP, Cluster

from servingslo.features.batch_limits.memory import BatchChange, BatchingMemory
from servingslo.features.batch_limits.pod_template import BatchCanaries
from servingslo.features.batch_limits.records import CANARY_ANNOTATION
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.rules.batch_search import BatchLimits
from servingslo.policy.stored_state import learned, restore

EPOCH_SECONDS = 1_000_000.0


def test_an_open_change_survives_a_restart():
    """What cannot be learnt again comes back as it was."""
    change = BatchChange(
        at_seconds=50.0,
        before=BatchLimits(max_num_seqs=256, max_num_batched_tokens=8192),
        after=BatchLimits(max_num_seqs=160, max_num_batched_tokens=2048),
        queue=(None, 40),
    )
    memory = BatchingMemory(last_change_seconds=50.0, written=change)
    state = PlannerState(knobs={"batch-limits": memory})
    stored = json.loads(json.dumps(learned(state, 100.0)))
    assert memory_of(restore(stored, 110.0)) == memory


def test_a_change_of_batch_limits_is_of_the_past() -> None:
    """What lies ahead, by the clock that it was written by, was ordered now."""
    limits = BatchLimits(max_num_seqs=8, max_num_batched_tokens=512)
    ahead = EPOCH_SECONDS + 7200.0
    change = BatchChange(at_seconds=ahead, before=limits, after=limits)
    memory = BatchingMemory(last_change_seconds=ahead, written=change)
    stored = learned(PlannerState(knobs={"batch-limits": memory}), ahead)
    batching = memory_of(restore(stored, EPOCH_SECONDS))
    assert batching.last_change_seconds == EPOCH_SECONDS
    assert batching.written is not None
    assert batching.written.at_seconds == EPOCH_SECONDS


RECORD = {
    "refused": [8, 2048], "refused_queue": None, "template": "t", "wanted": "w",
}  # fmt: skip


def _recorded(item):
    """What the annotation of a Deployment says."""
    return BatchCanaries(None)._fields["Deployment"].seen(item)


@pytest.mark.parametrize(
    "change",
    [
        {"refused": [10**300, 2048]}, {"refused": [-1, 2048]}, {"refused": [8]},
        {"refused": [True, 2048]}, {"refused": "82"}, {"refused_queue": 1.5}, {"wanted": None},
        {"more": 1},
    ],
)  # fmt: skip
def test_a_record_that_the_operator_did_not_write_is_none(change):
    """Numbers that no float holds would end the plan of that workload at each tick."""
    good, bad = (
        Cluster({CANARY_ANNOTATION: json.dumps(record)}).item
        for record in (RECORD, {**RECORD, **change})
    )
    assert _recorded(good).refused is not None
    assert _recorded(bad).owner is None


async def test_a_record_that_nests_deeply_is_none_of_ours():
    """Anybody may write one into an object of his own; others' trials are still ended."""
    cluster = Cluster({CANARY_ANNOTATION: DEEP})
    assert _recorded(cluster.item).owner is None
    assert await BatchCanaries(cluster).standing() == ()
