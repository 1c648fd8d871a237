"""The part of the planner's memory that survives a restart, or a clock that was set back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from servingslo.estimation import stored_estimator as estimator_memory
from servingslo.estimation.stored_fields import count_of, items_of, number_of, text_of
from servingslo.policy import insights
from servingslo.policy.hpa_behavior import BehaviorState
from servingslo.policy.knobs.catalogue import KNOBS
from servingslo.policy.knobs.protocol import Knob
from servingslo.policy.replicas.promise import PromiseState, dump_promise, load_promise
from servingslo.policy.replicas.reverts import Reverts
from servingslo.policy.replicas.state import PlannerState

# Version of the state stored in a status; other versions are not read.
LEARNED_VERSION = 1
# A status object is read by people and stored in etcd, so learnt state must stay a small part of
# it.
LEARNED_LIMIT_BYTES = 4096
# A rate policy looks back 30 minutes at most (the API refuses longer periods), with at most one
# event a tick. After a restart the newest are enough, because older ones leave their period
# soonest.
LEARNED_EVENT_LIMIT = 12
_EVERYTHING = "all of it"
_ENVELOPE = frozenset({"version", "atSeconds", "estimator", "target"})


def learned(
    state: PlannerState, now_seconds: float, knobs: Sequence[Knob] = KNOBS
) -> dict[str, object]:
    """The state that must survive a restart, as JSON values of at most 4 KiB.

    The law, lengths, cold start, calibration and forecast (the largest part), the memory of
    `behavior`, the stored state of knobs (an open change of batch limits), and the client that puts
    the count back. If that is too large, the estimator's part is left out: it can be learnt again,
    a rate policy cannot.
    """
    stored: dict[str, object] = {
        "version": LEARNED_VERSION,
        "atSeconds": round(now_seconds, 1),
        "behavior": _dump_behavior(state.behavior),
        **{one.stored_as: one.dump(state.knobs.get(one.name)) for one in knobs if one.stored_as},
        "reverts": _dump_reverts(state.reverts),
        "promise": dump_promise(state.promise),
        **insights.dump(state.features),
        "estimator": estimator_memory.learned(state.estimator),
    }
    if len(json.dumps(stored, separators=(",", ":"))) > LEARNED_LIMIT_BYTES:
        stored["estimator"] = None
    return stored


def restore(stored: object, now_seconds: float, knobs: Sequence[Knob] = KNOBS) -> PlannerState:
    """The memory from stored state; absent or malformed parts are left unknown.

    A status may have been edited by hand, written by another version, or be from a clock ahead of
    ours. Nothing in it may stop a plan or affect more than its own part.
    """
    if not isinstance(stored, Mapping) or stored.get("version") != LEARNED_VERSION:
        return PlannerState()
    memories = {
        one.name: one.load(stored.get(one.stored_as), now_seconds) for one in knobs if one.stored_as
    }
    return PlannerState(
        estimator=estimator_memory.restore(stored.get("estimator")),
        behavior=_load_behavior(stored.get("behavior"), now_seconds),
        knobs={name: memory for name, memory in memories.items() if memory is not None},
        reverts=_load_reverts(stored.get("reverts"), now_seconds),
        promise=load_promise(stored.get("promise")) or PromiseState(),
        features=insights.load(stored, now_seconds),
    )


def lost_parts(stored: object, now_seconds: float) -> tuple[str, ...]:
    """Parts of the stored state that `restore` rejects; nothing if none was stored."""
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
    """The parts by name, those of the estimator next to the others, without nulls.

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
    replicas, count = count_of(stored.get("replicas")), count_of(stored.get("count"))
    at = number_of(stored.get("at"))
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
        at, count = number_of(entry[0]), count_of(entry[1])
        if at is not None and count is not None and at <= now_seconds:
            pairs.append((at, count))
    return tuple(sorted(pairs, key=lambda pair: pair[0]))
