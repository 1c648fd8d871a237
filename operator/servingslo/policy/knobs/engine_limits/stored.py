"""The part of the memory of batch limits that survives a restart, as JSON values."""

from collections.abc import Mapping

from servingslo.estimation.stored_fields import items_of, text_of
from servingslo.policy.inputs import LIMIT_FIELDS
from servingslo.policy.knobs.engine_limits.limit_reverts import LimitReverts
from servingslo.policy.knobs.engine_limits.memory import (
    REFUSED_SECONDS,
    BatchChange,
    BatchingMemory,
    BatchLimits,
    BatchWrite,
)
from servingslo.policy.stored_numbers import count_of, number_of


def dump_batching(state: BatchingMemory) -> dict[str, object]:
    """An open change, refused limits, our limits in the template, and who puts them back."""
    change = state.verifying
    return {
        "lastChange": state.last_change_seconds,
        "refused": None if state.refused is None else _dump_limits(state.refused),
        "refusedUntil": state.refused_until_seconds,
        "written": _dump_written(state.written),
        "reverts": _dump_limit_reverts(state.reverts),
        "verifying": None
        if change is None
        else {
            "at": change.at_seconds,
            "before": _dump_limits(change.before),
            "after": _dump_limits(change.after),
            "observed": {key: round(value, 4) for key, value in change.observed_before.items()},
            "rollback": change.rollback,
            "saved": change.replicas_saved,
            "added": list(change.flags_added),
            "judgedUpTo": change.judged_up_to_per_second,
            "beyond": change.beyond_seconds,
        },
    }


def load_batching(stored: object, now_seconds: float) -> BatchingMemory:
    """The reverse: absent or malformed values are left unknown, and no time is in the future."""
    if not isinstance(stored, Mapping):
        return BatchingMemory()
    last = number_of(stored.get("lastChange"))
    refused = _load_limits(stored.get("refused"))
    until = number_of(stored.get("refusedUntil"))
    return BatchingMemory(
        last_change_seconds=None if last is None else min(last, now_seconds),
        refused=refused if until is not None else None,
        refused_until_seconds=min(until, now_seconds + REFUSED_SECONDS)
        if until is not None and refused is not None
        else None,
        verifying=_load_change(stored.get("verifying"), now_seconds),
        written=_load_written(stored.get("written"), now_seconds),
        reverts=_load_limit_reverts(stored.get("reverts"), now_seconds),
    )


def _dump_written(written: BatchWrite | None) -> dict[str, object] | None:
    if written is None:
        return None
    return {
        "at": written.at_seconds,
        "before": _dump_limits(written.before),
        "after": _dump_limits(written.after),
        "queue": list(written.queue),
    }


def _load_written(stored: object, now_seconds: float) -> BatchWrite | None:
    if not isinstance(stored, Mapping):
        return None
    at = number_of(stored.get("at"))
    before, after = _load_limits(stored.get("before")), _load_limits(stored.get("after"))
    if at is None or before is None or after is None:
        return None
    queue = tuple(count_of(value) or None for value in items_of(stored.get("queue")))
    return BatchWrite(
        at_seconds=min(at, now_seconds),
        before=before,
        after=after,
        queue=queue if len(queue) == len(LIMIT_FIELDS) else (),
    )


def _dump_limit_reverts(reverts: LimitReverts | None) -> dict[str, object] | None:
    if reverts is None:
        return None
    return {
        "limits": list(reverts.limits),
        "count": reverts.count,
        "at": round(reverts.at_seconds, 1),
        "by": reverts.by,
    }


def _load_limit_reverts(stored: object, now_seconds: float) -> LimitReverts | None:
    if not isinstance(stored, Mapping):
        return None
    limits, count = _load_limits(stored.get("limits")), count_of(stored.get("count"))
    at = number_of(stored.get("at"))
    if limits is None or not count or at is None:
        return None
    return LimitReverts(
        limits=(limits.max_num_seqs, limits.max_num_batched_tokens),
        count=count,
        at_seconds=min(at, now_seconds),
        by=text_of(stored.get("by")),
    )


def _load_change(stored: object, now_seconds: float) -> BatchChange | None:
    if not isinstance(stored, Mapping):
        return None
    at = number_of(stored.get("at"))
    before, after = _load_limits(stored.get("before")), _load_limits(stored.get("after"))
    if at is None or before is None or after is None:
        return None
    observed, beyond = stored.get("observed"), number_of(stored.get("beyond"))
    values = observed.items() if isinstance(observed, Mapping) else ()
    return BatchChange(
        at_seconds=min(at, now_seconds),
        before=before,
        after=after,
        observed_before={
            str(key): number for key, value in values if (number := number_of(value)) is not None
        },
        rollback=stored.get("rollback") is True,
        replicas_saved=count_of(stored.get("saved")) or 0,
        flags_added=tuple(name for name in LIMIT_FIELDS if name in items_of(stored.get("added"))),
        judged_up_to_per_second=number_of(stored.get("judgedUpTo")),
        beyond_seconds=None if beyond is None else min(beyond, now_seconds),
    )


def _dump_limits(limits: BatchLimits) -> list[int]:
    return [limits.max_num_seqs, limits.max_num_batched_tokens]


def _load_limits(stored: object) -> BatchLimits | None:
    if not isinstance(stored, list) or len(stored) != 2:
        return None
    sequences, budget = count_of(stored[0]), count_of(stored[1])
    if not sequences or not budget:
        return None
    return BatchLimits(max_num_seqs=sequences, max_num_batched_tokens=budget)
