"""The status of a ServingSLO from a decision, and when it is worth a write.

Numbers are rounded. Values that change by themselves every tick (rates, queues, predictions) are
written only together with an important change, or after they drifted for a while. A stable world
writes nothing.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from servingslo.api.status_base import STATUS, StatusModel
from servingslo.api.v1alpha1 import ServingSLOStatus
from servingslo.api.v1alpha1.status import MAX_LINE_LENGTH, BatchingStatus, BatchLimits
from servingslo.explain.conditions.condition import Condition, ConditionStatus, ConditionType
from servingslo.packing import packed
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.decisions import BatchingDecision
from servingslo.policy.rules.batch_search import LimitsPlan
from servingslo.reasons import Reason
from servingslo.units import seconds_from_timestamp, timestamp_from_seconds

_OF_FEATURES = tuple(one.field for one in STATUS.parts())
# Fields that change with the noise of measurements.
_NOISY = frozenset(
    {
        "observed",
        "predicted",
        "model",
        "gpus",
        "admission",
        "cost",
        "reserve",
        "summary",
        *_OF_FEATURES,
    }
)
# A measurement has drifted if it differs from the status by more than this, relatively.
_DRIFT_RATIO = 0.2
# Differences of requests and ratios below this do not matter.
_DRIFT_FLOOR = 0.05
_DRIFT_SECONDS = 60.0
# The same within each pool; its reason and its counts are no noise.
_NOISY_OF_POOL = frozenset({"observed", "utilization", "coldStartSeconds", "model", "gpus", "cost"})
_OF_PLAN = ("replicas", "in_flight_limit")
_LONGEST_MESSAGE = 1024
_DECISION_LINES = 3
# What a decision tells; the last two with several pools alone.
_DECIDED_FIELDS = (
    "observedGeneration", *ServingSLOStatus.told_names(), "batching", "pools", "poolsSummary",
)  # fmt: skip
NOTHING_DECIDED = dict.fromkeys(_DECIDED_FIELDS)
"""The same fields of a resource that is not decided on: all are removed."""

Json = Mapping[str, Any]


def status_fields(
    decision: Decision, *, generation: int, last_batch_change_seconds: float | None
) -> dict[str, Any]:
    """The fields of a status that follow from a decision alone, as JSON; unknown ones are None."""
    status = ServingSLOStatus.of(
        decision,
        observed_generation=generation,
        batching=batching_status(decision.batching, last_batch_change_seconds),
    )
    fields = part_fields(status)
    # A field that is unknown now is removed, not left as it was.
    return {name: fields.get(name) or None for name in _DECIDED_FIELDS}


def part_fields(part: StatusModel) -> dict[str, Any]:
    """A part of a status as JSON, without what is unknown."""
    return part.model_dump(by_alias=True, mode="json", exclude_none=True)


def conditions_field(conditions: Sequence[Condition]) -> list[Json]:
    """The conditions in the form of a status."""
    return [
        {
            "type": condition.type.value,
            "status": condition.status.value,
            "reason": condition.reason.value,
            "message": condition.message[:_LONGEST_MESSAGE],
            "lastTransitionTime": timestamp_from_seconds(condition.last_transition_seconds),
        }
        for condition in conditions
    ]


def conditions_of(status: Json, *, now_seconds: float) -> tuple[Condition, ...]:
    """The conditions in a status; those of unknown type or reason are left out."""
    spoken_of = {"observedGeneration": status.get("observedGeneration")}
    return tuple(
        condition
        for entry in status.get("conditions") or ()
        if (condition := _read_condition({**spoken_of, **entry}, now_seconds)) is not None
    )


def decision_record(document: Json, time: str) -> dict[str, Any]:
    """`status.lastDecision`: when a decision was made, and its document, packed.

    time: when it was decided; the document may be of a later tick with the same decision.
    """
    return {"time": time, "document": packed(document)}


def decision_lines(newest: str, before: Sequence[str]) -> list[str]:
    """The last decisions, newest first, at most three."""
    return [newest[:MAX_LINE_LENGTH], *before][:_DECISION_LINES]


def changed_fields(
    before: Json, after: Json, *, seconds_since_write: float | None
) -> dict[str, Any]:
    """The top-level fields to write; empty if nothing changed beyond noise.

    seconds_since_write: since this process wrote the status last; None if it never did.
    """
    differing = {key: after[key] for key in after if after[key] != before.get(key)}
    noisy = (key for key in differing if key in _NOISY or key == "pools")
    drifted = any(_drifted(before.get(key), after[key]) for key in noisy)
    rested = seconds_since_write is None or seconds_since_write >= _DRIFT_SECONDS
    return differing if is_material(before, differing) or (drifted and rested) else {}


def is_material(before: Json, changed: Json) -> bool:
    """Whether more than measurements changed, so that a person may wait for it."""
    lasting = (key for key in changed if key not in _NOISY)
    return any(_stable(key, changed[key]) != _stable(key, before.get(key)) for key in lasting)


def _limits(values: Mapping[str, int | None], plan: LimitsPlan | None) -> BatchLimits | None:
    if not any(values.values()):
        return None
    of_plan = {} if plan is None else {name: getattr(plan, name) for name in _OF_PLAN}
    return BatchLimits(**values, **of_plan)


def batching_status(batching: BatchingDecision, changed_seconds: float | None) -> BatchingStatus:
    """The limits in force, and the recommended ones with their plan if they differ."""
    now = {name: value for name, value, _ in batching.limits}
    wanted = {name: value for name, _, value in batching.limits}
    plan = batching.better or batching.today
    return BatchingStatus(
        current=_limits(now, None),
        recommended=None if wanted == now else _limits(wanted, plan),
        last_change=None if changed_seconds is None else timestamp_from_seconds(changed_seconds),
    )


def _read_condition(entry: Json, now_seconds: float) -> Condition | None:
    since = seconds_from_timestamp(entry.get("lastTransitionTime"))
    try:
        return Condition(
            type=ConditionType(entry.get("type", "")),
            status=ConditionStatus(entry.get("status", "")),
            reason=Reason(entry.get("reason", "")),
            message=str(entry.get("message", "")),
            observed_generation=int(entry.get("observedGeneration") or 0),
            last_transition_seconds=now_seconds if since is None else since,
        )
    except ValueError:
        return None


def _stable(key: str, value: Any) -> Any:
    """The parts of a field that count as a change: messages and counts of plans jitter."""
    if not value:
        return value
    if key == "batching":
        return {name: _without_plan(entry) for name, entry in value.items()}
    if key == "pools":
        pools = (_without(pool, _NOISY_OF_POOL) for pool in value)
        return [{name: _stable(name, entry) for name, entry in pool.items()} for pool in pools]
    if key == "lastDecision":
        return _without(value, {"document"})
    if key != "conditions":
        return value
    return [entry if _names_pods(entry) else _without(entry, {"message"}) for entry in value]


def _without(entry: Json, names: Collection[str]) -> Json:
    return {name: value for name, value in entry.items() if name not in names}


def _names_pods(entry: Json) -> bool:
    """Whether the message of a condition names pods that a person has to check."""
    failing = entry.get("reason") == Reason.PODS_FAILING
    return entry.get("type") == ConditionType.READY and (failing or entry.get("status") == "True")


def _without_plan(entry: Any) -> Any:
    return _without(entry, {"replicas", "inFlightLimit"}) if isinstance(entry, Mapping) else entry


def _drifted(before: Any, after: Any) -> bool:
    """Whether a number changed beyond noise, or a value appeared or disappeared."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return any(_drifted(before.get(key), after.get(key)) for key in {*before, *after})
    if isinstance(before, list) and isinstance(after, list):
        return len(before) != len(after) or any(map(_drifted, before, after))
    if isinstance(before, str) and isinstance(after, str):
        return False  # times
    if _is_number(before) and _is_number(after):
        return not math.isclose(before, after, rel_tol=_DRIFT_RATIO, abs_tol=_DRIFT_FLOOR)
    return bool(before != after)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
