"""What of the planner's memory survives a restart, or a clock that was set back."""

import json
from collections.abc import Mapping
from typing import Any

from servingslo.estimation import stored_estimator as estimator_memory
from servingslo.estimation.stored_fields import is_number, items_of, text_of
from servingslo.policy.behavior import BehaviorState
from servingslo.policy.promise import HIGHEST_SCORE, LOWEST_SCORE, PromiseState
from servingslo.policy.reverts import LimitReverts, Reverts
from servingslo.policy.state import (
    LIMIT_FIELDS,
    REFUSED_SECONDS,
    BatchChange,
    BatchingMemory,
    BatchLimits,
    BatchWrite,
    PlannerState,
)

# Of what is stored in a status; another one is not read.
LEARNED_VERSION = 1
# A status object is read by people and stored in etcd; what is learnt must stay a small part of it.
LEARNED_LIMIT_BYTES = 4096
# A rate policy looks back 30 minutes at most (the API refuses longer periods), one event a tick
# at most; after a restart the newest are enough, because older ones leave their period soonest.
LEARNED_EVENT_LIMIT = 12
# Beyond this no time, count or latency of ours can be; it also keeps infinity out.
LARGEST_NUMBER = 1e15
_EVERYTHING = "all of it"
_ENVELOPE = frozenset({"version", "atSeconds", "estimator"})


def learned(state: PlannerState, now_seconds: float) -> dict[str, object]:
    """What must survive a restart, as JSON values of at most 4 KiB.

    The law, lengths, cold start, calibration and forecast (the largest part), the memory of
    `behavior`, an open change of batch limits, and who puts the count back. Where that is too much,
    the estimator's share gives way: it can be learnt again, a rate policy cannot.
    """
    stored: dict[str, object] = {
        "version": LEARNED_VERSION,
        "atSeconds": round(now_seconds, 1),
        "behavior": _dump_behavior(state.behavior),
        "batching": _dump_batching(state.batching),
        "reverts": _dump_reverts(state.reverts),
        "promise": _dump_promise(state.promise),
        "estimator": estimator_memory.learned(state.estimator),
    }
    if len(json.dumps(stored, separators=(",", ":"))) > LEARNED_LIMIT_BYTES:
        stored["estimator"] = None
    return stored


def restore(stored: object, now_seconds: float) -> PlannerState:
    """The memory with what was stored; parts that are absent or malformed are left unknown.

    A status may have been edited by hand, written by another version, or be from a clock ahead of
    ours: nothing in it may stop a plan or reach beyond its own part.
    """
    if not isinstance(stored, Mapping) or stored.get("version") != LEARNED_VERSION:
        return PlannerState()
    return PlannerState(
        estimator=estimator_memory.restore(stored.get("estimator")),
        behavior=_load_behavior(stored.get("behavior"), now_seconds),
        batching=_load_batching(stored.get("batching"), now_seconds),
        reverts=_load_reverts(stored.get("reverts"), now_seconds),
        promise=_load_promise(stored.get("promise")),
    )


def lost_parts(stored: object, now_seconds: float) -> tuple[str, ...]:
    """Parts of what was stored that `restore` does not believe; nothing where there was nothing."""
    if stored is None:
        return ()
    if not isinstance(stored, Mapping) or stored.get("version") != LEARNED_VERSION:
        return (_EVERYTHING,)
    blank = _parts(learned(PlannerState(), now_seconds))
    kept = _parts(learned(restore(stored, now_seconds), now_seconds))
    return tuple(
        name
        for name, value in _parts(stored).items()
        if value not in (None, {}, 0, blank.get(name))
        and (kept.get(name) == blank.get(name) or len(items_of(kept[name])) < len(items_of(value)))
    )


def _parts(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The parts by name, those of the estimator beside the others, without what is null.

    A status that went through a merge patch has no nulls.
    """
    inner = stored.get("estimator")
    own = {name: value for name, value in stored.items() if name not in _ENVELOPE}
    every = {**own, **(inner if isinstance(inner, Mapping) else {})}
    return {name: _without_nulls(value) for name, value in every.items()}


def _without_nulls(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: inner for name, inner in value.items() if inner is not None}


def _dump_promise(state: PromiseState) -> dict[str, float]:
    return {
        "score": round(state.score, 4),
        "requests": round(state.requests, 1),
        "missed": round(state.missed, 2),
        "rate": round(state.rate_per_second, 4),
        "seconds": round(state.seconds),
    }


def _load_promise(stored: object) -> PromiseState:
    """The safe quantile where what was stored is malformed."""
    if not isinstance(stored, Mapping):
        return PromiseState()
    score = stored.get("score")
    numbers = [_number(stored.get(name)) for name in ("requests", "missed", "rate", "seconds")]
    if not is_number(score) or any(number is None for number in numbers):
        return PromiseState()
    requests, missed, rate, seconds = (number or 0.0 for number in numbers)
    return PromiseState(
        score=min(max(score, LOWEST_SCORE), HIGHEST_SCORE),
        requests=requests,
        missed=min(missed, requests),
        rate_per_second=rate,
        seconds=seconds,
    )


def _dump_reverts(reverts: Reverts | None) -> dict[str, object] | None:
    if reverts is None:
        return None
    return {
        "replicas": reverts.replicas,
        "count": reverts.count,
        "at": round(reverts.at_seconds, 1),
        "by": reverts.by,
        "prompt": reverts.prompt,
    }


def _load_reverts(stored: object, now_seconds: float) -> Reverts | None:
    if not isinstance(stored, Mapping):
        return None
    replicas, count = _count(stored.get("replicas")), _count(stored.get("count"))
    at = _number(stored.get("at"))
    if replicas is None or not count or at is None:
        return None
    return Reverts(
        replicas=replicas,
        count=count,
        at_seconds=min(at, now_seconds),
        by=text_of(stored.get("by")),
        prompt=stored.get("prompt") is not False,
    )


def _dump_behavior(state: BehaviorState) -> dict[str, list[list[float]]]:
    return {
        name: [[round(at, 1), count] for at, count in sorted(entries)[-LEARNED_EVENT_LIMIT:]]
        for name, entries in (
            ("recommendations", state.recommendations),
            ("up", state.scale_up_events),
            ("down", state.scale_down_events),
        )
    }


def _load_behavior(stored: object, now_seconds: float) -> BehaviorState:
    if not isinstance(stored, Mapping):
        return BehaviorState()
    return BehaviorState(
        recommendations=_load_entries(stored.get("recommendations"), now_seconds),
        scale_up_events=_load_entries(stored.get("up"), now_seconds),
        scale_down_events=_load_entries(stored.get("down"), now_seconds),
    )


def _load_entries(stored: object, now_seconds: float) -> tuple[tuple[float, int], ...]:
    """Well-formed (time, count) pairs of the past, oldest first."""
    if not isinstance(stored, list):
        return ()
    pairs = []
    for entry in stored[-LEARNED_EVENT_LIMIT:]:
        if not isinstance(entry, list) or len(entry) != 2:
            continue
        at, count = _number(entry[0]), _count(entry[1])
        if at is not None and count is not None and at <= now_seconds:
            pairs.append((at, count))
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def _dump_batching(state: BatchingMemory) -> dict[str, object]:
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


def _load_batching(stored: object, now_seconds: float) -> BatchingMemory:
    if not isinstance(stored, Mapping):
        return BatchingMemory()
    last = _number(stored.get("lastChange"))
    refused = _load_limits(stored.get("refused"))
    until = _number(stored.get("refusedUntil"))
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
    at = _number(stored.get("at"))
    before, after = _load_limits(stored.get("before")), _load_limits(stored.get("after"))
    if at is None or before is None or after is None:
        return None
    queue = tuple(_count(value) or None for value in items_of(stored.get("queue")))
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
    limits, count = _load_limits(stored.get("limits")), _count(stored.get("count"))
    at = _number(stored.get("at"))
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
    at = _number(stored.get("at"))
    before, after = _load_limits(stored.get("before")), _load_limits(stored.get("after"))
    if at is None or before is None or after is None:
        return None
    observed, beyond = stored.get("observed"), _number(stored.get("beyond"))
    values = observed.items() if isinstance(observed, Mapping) else ()
    return BatchChange(
        at_seconds=min(at, now_seconds),
        before=before,
        after=after,
        observed_before={
            str(key): number for key, value in values if (number := _number(value)) is not None
        },
        rollback=stored.get("rollback") is True,
        replicas_saved=_count(stored.get("saved")) or 0,
        flags_added=tuple(name for name in LIMIT_FIELDS if name in items_of(stored.get("added"))),
        judged_up_to_per_second=_number(stored.get("judgedUpTo")),
        beyond_seconds=None if beyond is None else min(beyond, now_seconds),
    )


def _dump_limits(limits: BatchLimits) -> list[int]:
    return [limits.max_num_seqs, limits.max_num_batched_tokens]


def _load_limits(stored: object) -> BatchLimits | None:
    if not isinstance(stored, list) or len(stored) != 2:
        return None
    sequences, budget = _count(stored[0]), _count(stored[1])
    if not sequences or not budget:
        return None
    return BatchLimits(max_num_seqs=sequences, max_num_batched_tokens=budget)


def _number(value: object) -> float | None:
    """A finite number of 0 or more; None for anything else, booleans among it."""
    return float(value) if is_number(value) and 0 <= value < LARGEST_NUMBER else None


def _count(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None
