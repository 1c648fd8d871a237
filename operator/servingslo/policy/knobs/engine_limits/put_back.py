"""React to a client that puts batch limits back: report it, and pause longer each time.

If a GitOps tool's manifest states the container's arguments, it treats each of our changes as
drift. Each write and each revert restarts all pods, so a pause follows the first revert already.
"""

from dataclasses import replace

from servingslo.policy.inputs import LIMIT_FIELDS, BatchingMode, InForce
from servingslo.policy.knobs.engine_limits.canary import (
    QUEUE,
    TEMPLATE,
    standing_canary,
    standing_limits,
)
from servingslo.policy.knobs.engine_limits.memory import (
    BatchChange,
    BatchingMemory,
    count_limits_revert,
    expire_limits_reverts,
)
from servingslo.policy.knobs.engine_limits.outcome import Tuned
from servingslo.policy.knobs.protocol import Turn
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.reasons import Reason


def is_asked(context: TickContext) -> bool:
    """Whether resource and administrator let limits in pod templates be changed."""
    limits, targets = context.limits, context.targets
    asked = limits.pod_templates_patched and targets.batching.mode is BatchingMode.AUTO
    return asked and acting_limit(targets, limits) is None


def note_reverts(context: TickContext, memory: BatchingMemory) -> BatchingMemory:
    """The memory after a check of the pod template: are our limits still there?

    Limits that are neither ours nor the former ones are a decision of another client, and no
    revert.
    """
    written, found = memory.written, standing_limits(context)
    if written is None or found is None or not _is_known(found):
        return memory
    now = context.now_seconds
    if _stands(written, found):
        left = expire_limits_reverts(
            memory.reverts, since_seconds=written.at_seconds, now_seconds=now
        )
        return replace(memory, reverts=left)
    if not _is_put_back(written, found):
        return replace(memory, written=None)
    reverts = count_limits_revert(
        memory.reverts,
        limits=written.before,
        by=found.set_by,
        now_seconds=now,
    )
    # Limits that are no longer in force are not judged either.
    return replace(memory, written=None, verifying=None, reverts=reverts)


def is_left_to_reverter(context: TickContext, memory: BatchingMemory) -> bool:
    """Whether no limits are written now because another client puts them back."""
    return memory.reverts is not None and memory.reverts.pauses(context.now_seconds)


def report_reverts(turn: Turn, tuned: Tuned) -> Tuned:
    """The decision with the client that puts limits back, for as long as the pause lasts."""
    reverts, context = tuned.memory.reverts, turn.context
    under_way = standing_canary(standing_limits(context)) is not None
    if reverts is None or not turn.acting or under_way or tuned.decision.apply:
        return tuned
    if not reverts.pauses(context.now_seconds):
        return tuned
    reason, detail = Reason.BATCHING_REVERTED, reverts.detail
    return tuned._replace(decision=replace(tuned.decision, reason=reason, detail=detail))


def _is_known(found: InForce) -> bool:
    return all(f"{TEMPLATE}{name}" in found.values for name in LIMIT_FIELDS)


def _stands(written: BatchChange, found: InForce) -> bool:
    if any(
        found.values[f"{TEMPLATE}{name}"] != value
        for name, value in zip(LIMIT_FIELDS, written.after, strict=True)
    ):
        return False
    return not written.queue or found.values.get(QUEUE) == written.queue[1]


def _is_put_back(written: BatchChange, found: InForce) -> bool:
    """Whether the template has the former values, or none if our change added the flag."""
    return all(
        found.values[f"{TEMPLATE}{name}"] in (value, None)
        for name, value in zip(LIMIT_FIELDS, written.before, strict=True)
    )
