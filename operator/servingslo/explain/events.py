"""Kubernetes events: reported once, when something changes that may need a person to act."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.estimation.law.trust import OF_SPEC, LawSource
from servingslo.explain.conditions.cause import NOT_READY_REASONS, blindness
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType, Verdict
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.conditions.knobs import differs
from servingslo.explain.format import rounded
from servingslo.explain.limit_sentences import ROUTINE_LIMITS
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.replicas.ownership import CONFLICTS
from servingslo.reasons import Reason


class EventType(StrEnum):
    """As core/v1."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. key: events of one resource with one key are the same event, counted.

    every_time: counted each time; others are counted again only after a while.
    """

    type: EventType
    reason: Reason
    message: str
    key: str
    every_time: bool = False


# Conditions whose False is worth a warning, and whose return to True is good news.
_WATCHED = (
    ConditionType.READY,
    ConditionType.METRICS_FRESH,
    ConditionType.MODEL_TRUSTED,
    ConditionType.SLO_MET,
    ConditionType.ADMISSION_BOUND,
    ConditionType.FALLBACK_USABLE,
    ConditionType.NODE_BUFFER_USABLE,
)
_EXPECTED = frozenset({Reason.PENDING_PODS, Reason.WARMING_UP, Reason.ADMISSION_RECOMMENDED})
_TOLD_STEPS = frozenset(
    {
        Reason.REPLICAS_CHANGED_BY_USER,
        Reason.UNSCHEDULABLE_PODS,
        Reason.QUEUED,
        Reason.QUOTA_REACHED,
        Reason.PODS_REFUSED,
        Reason.UNRELIABLE_PODS,
        Reason.SLOW_PODS,
        Reason.PODS_FAILING,
        Reason.PRIORITY_BOUNDED,
        Reason.OTHER_POOL_SHORT,
        Reason.DISPATCHER_SILENT,
    }
)
# Input of a step that holds names of pods: each pod that is new there is news of its own.
_POD_INPUTS = {
    Reason.UNRELIABLE_PODS: "detail",
    Reason.SLOW_PODS: "pods",
    Reason.PODS_FAILING: "detail",
}
_GOOD_STEPS = frozenset({Reason.REPLICAS_CHANGED_BY_USER})
# A failed write is reported as a change: see changes.change_event.
_TOLD_AS_CHANGES = frozenset({Reason.WRITE_CONFLICT, Reason.WRITE_FAILED})
_Told = Mapping[ConditionType, Verdict]


def events(
    decision: Decision,
    previous: Decision | None,
    told: _Told | None = None,
    told_before: _Told | None = None,
) -> tuple[Event, ...]:
    """Changes since the previous decision that are worth an event.

    previous: None at the first decision; then only problems are reported. A decision does not know
    whether its write succeeded or failed: see changes.change_event. told, told_before: the verdicts
    on both, if they are known.
    """
    now = verdicts(decision) if told is None else told
    before = {} if previous is None else told_before or verdicts(previous)
    found = tuple(_events(decision, previous, now, before))
    if not decision.pool:
        return found
    of = decision.pool
    return tuple(replace(e, message=f"{of}: {e.message}", key=f"{of}/{e.key}") for e in found)


def _events(
    decision: Decision, previous: Decision | None, now: _Told, before: _Told
) -> Iterator[Event]:
    watched = _worth_telling(decision, previous, now[ConditionType.READY])
    for type_ in watched:
        if type_ in now:
            yield from _condition_event(type_, now[type_], before.get(type_))
    told = _TOLD_AS_CHANGES.union(now[type_].reason for type_ in _WATCHED if type_ in now)
    limited, before_limit = now.get(ConditionType.SCALING_LIMITED), previous and previous.limited_by
    if limited is not None and limited.reason not in {*ROUTINE_LIMITS, *told, before_limit}:
        yield _event(EventType.WARNING, limited, ConditionType.SCALING_LIMITED)
    yield from _step_events(decision, previous, now)
    if watched != (ConditionType.READY,):
        yield from _law_event(decision, previous, now)
        yield from _batching_event(decision, now, before)


def _worth_telling(
    decision: Decision, previous: Decision | None, ready: Verdict
) -> tuple[ConditionType, ...]:
    """The conditions whose changes are reported.

    Without metrics, Ready and MetricsFresh say the same, unless pods fail. If a target cannot be
    used at all, only that is reported: its missing metrics and law do not matter then.
    """
    if decision.reason in NOT_READY_REASONS - CONFLICTS:
        return (ConditionType.READY,)
    if blindness(decision) or (previous is not None and blindness(previous)):
        owned = ready.reason in NOT_READY_REASONS | {Reason.PODS_FAILING}
        return _WATCHED if owned else tuple(t for t in _WATCHED if t is not ConditionType.READY)
    return _WATCHED


def _condition_event(type_: ConditionType, now: Verdict, before: Verdict | None) -> Iterator[Event]:
    if before is not None and (before.status, before.reason) == (now.status, now.reason):
        return
    if now.status is ConditionStatus.FALSE and now.reason not in _EXPECTED | _TOLD_AS_CHANGES:
        yield _event(EventType.WARNING, now, type_)
    # A stated law comes into use as soon as there are metrics, without a time of learning.
    recovered = before is not None and (
        before.status is ConditionStatus.FALSE
        or before.reason is Reason.MODEL_LEARNING
        or now.reason in {Reason.LAW_FROM_SPEC, Reason.LAW_ASSUMED}
    )
    if now.status is ConditionStatus.TRUE and recovered:
        yield _event(EventType.NORMAL, now, type_)


def _law_event(decision: Decision, previous: Decision | None, told: _Told) -> Iterator[Event]:
    """Report that the stated law came into use, or that a law fitted here replaced it.

    If no law is or was trusted, the condition has changed and reports it.
    """
    if previous is None or not (previous.model.trusted and decision.model.trusted):
        return
    about, model = ConditionType.MODEL_TRUSTED, decision.model
    before, now = (one.model.source in OF_SPEC for one in (previous, decision))
    if now == before:
        return
    message = told[about].message
    if before:
        assumed = previous.model.source == LawSource.ASSUMED
        named = "the assumed one" if assumed else "spec.serviceLaw"
        message = f"service law from {model.source}, in place of {named}"
    yield _event(EventType.NORMAL, Verdict(told[about].status, model.reason, message), about)


def _step_events(decision: Decision, previous: Decision | None, now: _Told) -> Iterator[Event]:
    before = {_essence(step): step for step in previous.steps} if previous else {}
    for step in decision.steps:
        if step.reason not in _TOLD_STEPS or not _is_news(step, before.get(_essence(step))):
            continue
        if step.reason is decision.limited_by and step.reason not in _GOOD_STEPS:
            continue
        if step.reason is now[ConditionType.READY].reason:
            continue
        known = ((name, value) for name, value in step.inputs.items() if value is not None)
        numbers = ", ".join(f"{name} {rounded(value)}" for name, value in known)
        stays = step.before is None or step.before == step.after
        change = f"{step.after}" if stays else f"{step.before} → {step.after}"
        message = f"{step.knob} {change}" + (f" ({numbers})" if numbers else "")
        type_ = EventType.NORMAL if step.reason in _GOOD_STEPS else EventType.WARNING
        about = "/".join((step.stage, step.reason, *sorted(_pods(step))))
        yield Event(type=type_, reason=step.reason, message=message, key=about)


def _essence(step: DecisionStep) -> tuple[object, ...]:
    """The fields that make two steps the same news; their inputs differ on every tick."""
    if step.reason in _GOOD_STEPS:
        return (step.reason, step.before, step.after)
    return (step.reason,)


def _is_news(step: DecisionStep, before: DecisionStep | None) -> bool:
    """Whether the step before did not report this: it had fewer pods, or other pods."""
    if before is None:
        return True
    return _pod_count(step) > _pod_count(before) or not _pods(step) <= _pods(before)


def _pods(step: DecisionStep) -> frozenset[str]:
    """Names of the pods in a step, as far as it names them; empty for other steps.

    A name comes before its details: 'llama-7 (zero throughput), llama-9 x1.4'.
    """
    told = step.inputs.get(_POD_INPUTS.get(step.reason, ""))
    return frozenset(pod.split(" ", 1)[0] for pod in str(told).split(", ")) if told else frozenset()


def _pod_count(step: DecisionStep) -> int:
    """How many pods a step is about, named or not; 0 for other steps."""
    inputs = step.inputs
    told = inputs.get("excluded_pods", inputs.get("suspect_pods", step.after))
    count = told if _pods(step) else 0
    return count if isinstance(count, int) else 0


def _batching_event(decision: Decision, now: _Told, before: _Told) -> Iterator[Event]:
    """The limits that would be better; a write of limits is reported as a change."""
    type_ = ConditionType.BATCHING_IN_SYNC
    verdict, running = now.get(type_), Reason.BATCHING_CANARY_RUNNING
    if verdict is None or decision.batching.apply or verdict.reason in _TOLD_AS_CHANGES:
        return
    fights = verdict.reason is Reason.BATCHING_REVERTED
    goes_on = type_ in before and before[type_].reason is verdict.reason
    if goes_on and (fights or verdict.reason is running):
        return  # the condition shows the progress, or which limits would be better meanwhile
    if differs(verdict) and verdict != before.get(type_):
        kind = EventType.WARNING if fights else EventType.NORMAL
        yield _event(kind, verdict, type_)


def _event(type_: EventType, news: Verdict, about: ConditionType) -> Event:
    key = f"{about}/{news.reason}"
    return Event(type=type_, reason=news.reason, message=news.message, key=key)
