"""Batch limits that somebody puts back: named, and left to them for longer each time.

A GitOps tool whose manifest states the container's arguments takes every change of ours for drift.
Each write and each way back restarts all pods, so already the first is answered by a pause.
"""

from dataclasses import replace

from servingslo.policy.context import TickContext
from servingslo.policy.inputs import LIMIT_FIELDS, InForce
from servingslo.policy.knobs.engine_limits.canary import QUEUE, TEMPLATE, standing_canary
from servingslo.policy.knobs.engine_limits.limit_reverts import limits_reverted, limits_standing
from servingslo.policy.knobs.engine_limits.memory import BatchingMemory, BatchWrite
from servingslo.policy.knobs.engine_limits.outcome import Tuned
from servingslo.policy.knobs.engine_limits.watch import standing_limits
from servingslo.reasons import Reason


def with_reverts(context: TickContext, memory: BatchingMemory) -> BatchingMemory:
    """The memory after a look at the pod template: whether limits of ours stand there still.

    Limits that are neither ours nor those from before are somebody's decision, and no revert.
    """
    written, found = memory.written, standing_limits(context)
    if written is None or found is None or not _is_known(found):
        return memory
    now = context.now_seconds
    if _stands(written, found):
        left = limits_standing(memory.reverts, since_seconds=written.at_seconds, now_seconds=now)
        return replace(memory, reverts=left)
    if not _is_put_back(written, found):
        return replace(memory, written=None)
    reverts = limits_reverted(
        memory.reverts,
        limits=(written.before.max_num_seqs, written.before.max_num_batched_tokens),
        by=found.set_by,
        now_seconds=now,
    )
    # What is not in force any more is not judged either.
    return replace(memory, written=None, verifying=None, reverts=reverts)


def left_to_reverter(context: TickContext, memory: BatchingMemory) -> bool:
    """Whether no limits are written now because somebody puts them back."""
    return memory.reverts is not None and memory.reverts.pauses(context.now_seconds)


def told_of_reverts(context: TickContext, tuned: Tuned, *, acting: bool) -> Tuned:
    """The decision with who puts limits back, for as long as they are left to them."""
    reverts, decision = tuned.memory.reverts, tuned.decision
    under_way = standing_canary(standing_limits(context)) is not None
    if reverts is None or not acting or under_way or decision.apply:
        return tuned
    if not reverts.pauses(context.now_seconds):
        return tuned
    told = replace(decision, reason=Reason.BATCHING_REVERTED, detail=reverts.detail)
    return replace(tuned, decision=told)


def _is_known(found: InForce) -> bool:
    return all(f"{TEMPLATE}{name}" in found.values for name in LIMIT_FIELDS)


def _stands(written: BatchWrite, found: InForce) -> bool:
    after = (written.after.max_num_seqs, written.after.max_num_batched_tokens)
    if any(
        found.values[f"{TEMPLATE}{name}"] != value
        for name, value in zip(LIMIT_FIELDS, after, strict=True)
    ):
        return False
    return not written.queue or found.values.get(QUEUE) == written.queue[1]


def _is_put_back(written: BatchWrite, found: InForce) -> bool:
    """Whether the template gives what stood before, or nothing where a flag was added."""
    before = (written.before.max_num_seqs, written.before.max_num_batched_tokens)
    return all(
        found.values[f"{TEMPLATE}{name}"] in (value, None)
        for name, value in zip(LIMIT_FIELDS, before, strict=True)
    )
