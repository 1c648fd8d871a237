"""A change that the operator made or tried: log line, event and metric derive from it alone.

Each write to a target is one change, whatever its outcome. A recommendation is no change.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.explain.conditions.derived import limit_detail
from servingslo.explain.events import Event, EventType
from servingslo.explain.format import UNKNOWN, changed, counted, joined, key_value_line, number
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import ScaleTarget
from servingslo.reasons import Reason

EVENT_NAME = "changed"


class Knob(StrEnum):
    """What the operator's own actuators may write."""

    REPLICAS = "replicas"
    GATEWAY_LIMITS = "gateway-limits"


class ChangeOutcome(StrEnum):
    """How a change ended.

    UNANSWERED: the API server gave no usable answer, so the change may or may not have been made.
    """

    WRITTEN = "written"
    ROLLED_BACK = "rolled-back"
    REFUSED = "refused"
    UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value that a change sets; None if it is not known or not set."""

    name: str
    before: int | None
    after: int | None

    def __str__(self) -> str:
        """'8->64', or '8' if the value stays."""
        return changed(self.before, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one knob of a target: old and new values, reason, purpose and outcome.

    knob: of the actuator that makes it. reason: why it is made. replicas_saved: replicas that the
    change saves, negative if it orders more; None if unknown. cost_saved_per_hour: the same in
    `currency`, if a price is stated. refusal: why it was not written, None if it was. detail: the
    refusal in words, or the cause of the change. pool: of the target, '' of a single one or if the
    change is for all pools. flags_removed: settings whose flag is removed, so
    that the engine's own default applies again.
    """

    namespace: str
    name: str
    target: str
    knob: str
    settings: tuple[Setting, ...]
    reason: Reason
    outcome: ChangeOutcome = ChangeOutcome.WRITTEN
    replicas_saved: int | None = None
    cost_saved_per_hour: float | None = None
    currency: str = ""
    refusal: Reason | None = None
    detail: str = ""
    flags_removed: tuple[str, ...] = ()
    pool: str = ""


def replica_count_change(decision: Decision, target: ScaleTarget) -> Change | None:
    """The change of the replica count that a decision orders; None if it orders none."""
    before, after = decision.replicas_before, decision.replicas_after
    if not decision.apply_replicas or before is None or after is None or before == after:
        return None
    # What a budget takes is not saved: others get it.
    moved = decision.reason is Reason.BUDGET_MOVED
    cost = None if moved else decision.cost
    each = None if cost is None or not after else cost.per_hour / after
    return Change(
        namespace=decision.namespace,
        name=decision.name,
        target=f"{target.kind}/{target.name}",
        knob=Knob.REPLICAS,
        settings=(Setting(name="replicas", before=before, after=after),),
        reason=decision.reason,
        replicas_saved=None if moved else before - after,
        cost_saved_per_hour=None if each is None else each * (before - after),
        currency="" if cost is None else cost.currency,
        detail=limit_detail(decision) if moved else "",
        pool=decision.pool,
    )


def gateway_limit_change(decision: Decision) -> Change | None:
    """The change of the gateway's bound that a decision orders; None if it orders none."""
    limit = decision.gateway_limit
    if limit is None or limit.change_reason is None:
        return None
    return limit_change(
        decision.namespace,
        decision.name,
        f"{limit.kind}/{limit.object_name}",
        (limit.before, limit.after),
        limit.change_reason,
    )


def limit_change(
    namespace: str,
    name: str,
    target: str,
    values: tuple[int | None, int | None],
    reason: Reason,
) -> Change:
    """A change of the bound of each proxy, from one value to another."""
    return Change(
        namespace=namespace,
        name=name,
        target=target,
        knob=Knob.GATEWAY_LIMITS,
        settings=(Setting(name="max_parallel_requests", before=values[0], after=values[1]),),
        reason=reason,
    )


def not_written(change: Change, refusal: Reason, detail: str, *, answered: bool) -> Change:
    """The change with its outcome after a failed write. answered: the API server refused it."""
    outcome = ChangeOutcome.REFUSED if answered else ChangeOutcome.UNANSWERED
    return replace(change, outcome=outcome, refusal=refusal, detail=detail)


def change_line(change: Change) -> str:
    """The change as key=value pairs in a fixed order; unknown values are left out."""
    return key_value_line(EVENT_NAME, _pairs(change))


def change_event(change: Change) -> Event:
    """The change as an event, reported each time the change is made."""
    settings = ", ".join(
        f"{setting.name} {setting}{' (flag removed)' * (setting.name in change.flags_removed)}"
        for setting in change.settings
    )
    if change.refusal is None:
        why = joined((settings, change.reason.value, change.detail), ": ")
        message = joined((why, _savings(change)), "; ")
    else:
        perhaps = "" if change.outcome is ChangeOutcome.REFUSED else "perhaps "
        message = f"{settings} {perhaps}not written: {change.detail}"
    reason = change.refusal or (Reason.SCALED if change.knob == Knob.REPLICAS else change.reason)
    of = f"{change.pool}/" if change.pool else ""
    return Event(
        type=EventType.NORMAL if change.refusal is None else EventType.WARNING,
        reason=reason,
        message=f"{change.pool}: {message}" if change.pool else message,
        key=f"{of}{change.knob}/{change.outcome}/{reason}/{settings}",
        every_time=True,
    )


def _pairs(change: Change) -> Iterator[tuple[str, object]]:
    fewer, saved = change.replicas_saved, change.cost_saved_per_hour
    yield "namespace", change.namespace
    yield "name", change.name
    yield "pool", change.pool
    yield "target", change.target
    yield "knob", change.knob
    yield from ((setting.name, setting) for setting in change.settings)
    yield "flags_removed", ",".join(change.flags_removed)
    yield "outcome", change.outcome
    yield "saves_replicas", None if fewer is None or fewer < 0 else fewer
    if saved is not None:
        key = "saves_per_hour" if saved >= 0 else "costs_per_hour"
        yield key, f"{number(abs(saved))} {change.currency}"
    yield "reason", change.reason
    yield "refusal", change.refusal
    yield "detail", change.detail or (None if change.refusal is None else UNKNOWN)


def _savings(change: Change) -> str:
    """'saves 2 replicas, 5 USD/h'; does not repeat what a change of the count already says."""
    saved, money = change.replicas_saved, change.cost_saved_per_hour
    told = joined(
        (
            counted(saved, "replica") if saved and change.knob != Knob.REPLICAS else "",
            f"{number(abs(money))} {change.currency}/h" if money else "",
        )
    )
    verb = "costs" if money is not None and money < 0 else "saves"
    return f"{verb} {told}" if told else ""
