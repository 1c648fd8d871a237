"""Reports each decision: log line, events, status, metrics. All derive from the decision."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.controller import status as status_of
from servingslo.controller.adapters import Adapters
from servingslo.controller.outage import Outages, Part
from servingslo.controller.reading_news import ReadingNews
from servingslo.controller.registry import Resource
from servingslo.controller.status_writer import StatusWriter
from servingslo.controller.stored_state import learned_field
from servingslo.errors import ClusterError, NotFoundError, NotLeaderError
from servingslo.explain.changes import Change, change_event, change_line
from servingslo.explain.condition import Condition, ConditionStatus, ConditionType
from servingslo.explain.conditions import conditions, not_ready
from servingslo.explain.document import as_dict, summary_line
from servingslo.explain.events import Event, EventType, events
from servingslo.explain.format import timestamp
from servingslo.explain.headline import answer_line, headline
from servingslo.explain.log_line import fails, held_by, log_line, material_change, why_line
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.engine_limits.limit_reverts import LimitReverts
from servingslo.policy.knobs.engine_limits.memory import BatchWrite, memory_of
from servingslo.policy.replicas.reverts import Reverts
from servingslo.policy.report import with_latencies
from servingslo.policy.state import PlannerState
from servingslo.reasons import Action, Reason

_LOG = logging.getLogger(__name__)
_LEARNED_SECONDS = 300.0
# Longer than any stabilization or cold start that needs no explanation.
_LASTING_HOLD_SECONDS = 300.0
_PutBack = tuple[Reverts | None, LimitReverts | None, BatchWrite | None]


@dataclass(slots=True)
class _Reported:
    """The last report of one resource.

    line: of the last decision in the status. learned_trusted: the stored learnt state included a
    trusted law. learned_reverts: the reverts, as stored with it. held_by: what holds the count,
    since held_seconds; why_reported: the log has a line about it.
    """

    conditions: tuple[Condition, ...]
    last: Decision | None = None
    logged: Decision | None = None
    line: str | None = None
    learned_trusted: bool = False
    learned_reverts: _PutBack = (None, None, None)
    held_by: Reason | None = None
    held_seconds: float = 0.0
    why_reported: bool = False


@dataclass(slots=True)
class Reporter:
    """Remembers what was reported, so that nothing is reported twice."""

    adapters: Adapters
    outages: Outages = field(default_factory=Outages)
    reading: ReadingNews = field(default_factory=ReadingNews)
    _reported: dict[str, _Reported] = field(default_factory=dict)
    _refused: dict[tuple[str, str, str], Reason] = field(default_factory=dict)
    _statuses: StatusWriter = field(init=False)

    def __post_init__(self) -> None:
        self._statuses = StatusWriter(self.adapters, self.outages)

    async def write_behind(self, tick_seconds: float) -> None:
        """Write statuses in the background until cancelled, so that no tick waits for them."""
        await self._statuses.run(tick_seconds)

    async def report(self, resource: Resource, decision: Decision, state: PlannerState) -> None:
        """Log, export, post and write what is new in a decision, as it was carried out."""
        reported = self._remember(resource)
        generation, now_seconds = resource.record.generation, self._now_seconds()
        uid = resource.record.ref.uid
        self.adapters.exporter.observe_decision(decision)
        material = material_change(reported.logged, decision)
        new_decision = material and _differs(reported.logged, decision)
        if material:
            _LOG.log(logging.WARNING if fails(decision) else logging.INFO, "%s", log_line(decision))
            reported.logged = decision
        _explain_hold(reported, decision)
        for event in events(decision, reported.last):
            if self.reading.is_news(resource.record.ref.namespace, event.reason):
                await self.post(resource, event)
        reported.last = decision
        reported.conditions = conditions(
            decision, reported.conditions, generation=generation, now_seconds=now_seconds
        )
        fields = status_of.status_fields(
            decision,
            generation=generation,
            last_batch_change_seconds=memory_of(state.knobs).last_change_seconds,
        )
        decided: Mapping[str, Any] = self._statuses.says(uid, "lastDecision") or {}
        since = timestamp(decision.time_seconds)
        if new_decision:
            previous = reported.line
            reported.line = summary_line(decision)
            fields["decisions"] = status_of.decision_lines(
                previous, self._statuses.says(uid, "decisions") or ()
            )
        else:
            since = decided.get("time") or since
        learned_due = _learned_is_due(
            reported, decision, state, now_seconds, self._statuses.learned_seconds(uid)
        )
        if learned_due:
            fields["learned"] = learned_field(state, now_seconds)
            reported.learned_trusted = decision.model.trusted
            reported.learned_reverts = _put_back(state)
        if material or learned_due:
            document = as_dict(with_latencies(decision, state.sized))
            fields["lastDecision"] = status_of.decision_record(document, since)
        fields["summary"] = answer_line(decision)
        await self._write(resource, reported, fields)

    async def refuse(self, resource: Resource) -> None:
        """Report that the spec is invalid and which values are allowed."""
        if resource.invalid is None:
            return
        reported = self._remember(resource)
        message = str(resource.invalid)
        generation = resource.record.generation
        observed = self._statuses.says(resource.record.ref.uid, "observedGeneration")
        news = (observed, reported.last) != (generation, None)
        reported.conditions = not_ready(
            Reason.INVALID_SPEC,
            message,
            reported.conditions,
            generation=generation,
            now_seconds=self._now_seconds(),
        )
        if news:
            key = f"{Reason.INVALID_SPEC}/{generation}"
            await self.post(resource, _warning(Reason.INVALID_SPEC, message, key))
            _LOG.warning(
                "refused namespace=%s name=%s reason=%s detail=%r",
                resource.record.ref.namespace,
                resource.record.ref.name,
                Reason.INVALID_SPEC,
                message,
            )
        reported.last = None
        await self._write_conditions(resource, reported, Reason.INVALID_SPEC)

    async def pause(self, resource: Resource) -> None:
        """Report that nothing is decided while the resource is paused."""
        reported = self._remember(resource)
        generation, now_seconds = resource.record.generation, self._now_seconds()
        since = {entry.type: entry for entry in reported.conditions}
        reported.conditions = tuple(
            Condition(
                type=type_,
                status=ConditionStatus.TRUE,
                reason=Reason.PAUSED,
                message="spec.mode is Paused: nothing is decided",
                observed_generation=generation,
                last_transition_seconds=since[type_].last_transition_seconds
                if type_ in since and since[type_].status is ConditionStatus.TRUE
                else now_seconds,
            )
            for type_ in (ConditionType.READY, ConditionType.SCALING_LIMITED)
        )
        reported.last = reported.logged = None
        await self._write_conditions(resource, reported, None)

    async def fail(self, resource: Resource, error: Exception) -> None:
        """Report that this resource was not reconciled, because of a fault of the operator."""
        reported = self._remember(resource)
        message = f"{type(error).__name__}: {error}"
        reported.conditions = not_ready(
            Reason.INTERNAL_ERROR,
            message,
            reported.conditions,
            generation=resource.record.generation,
            now_seconds=self._now_seconds(),
        )
        await self.post(
            resource, _warning(Reason.INTERNAL_ERROR, message, Reason.INTERNAL_ERROR.value)
        )
        reported.last = None
        await self._write_conditions(resource, reported, Reason.INTERNAL_ERROR)

    async def report_change(self, resource: Resource, change: Change) -> None:
        """Log, count and post a change that was made or tried."""
        self.log_change(change)
        await self.post(resource, change_event(change))

    def log_change(self, change: Change) -> None:
        """Log and count a change; used without an event if no time is left for one."""
        self.log_line(change)
        self.adapters.exporter.count_change(change)

    def log_line(self, change: Change) -> None:
        """Log a change, of a resource that is gone: nothing more is counted of it.

        A refused write is a warning, its repetitions at later ticks are not.
        """
        key = (change.namespace, change.name, change.knob)
        before = self._refused.pop(key, None)
        if change.refusal is not None:
            self._refused[key] = change.refusal
        level = logging.INFO if change.refusal in {None, before} else logging.WARNING
        _LOG.log(level, "%s", change_line(change))

    async def report_lost(self, resource: Resource, parts: Sequence[str]) -> None:
        """Report which parts of the memory in a status are not valid, and are learnt again."""
        named = ", ".join(parts)
        message = f"status.learned does not hold what can be: {named}; it is learnt anew"
        key = f"{Reason.LEARNED_DROPPED}/{named}"
        await self.post(resource, _warning(Reason.LEARNED_DROPPED, message, key))
        ref = resource.record.ref
        _LOG.warning(
            "dropped namespace=%s name=%s reason=%s parts=%r",
            ref.namespace,
            ref.name,
            Reason.LEARNED_DROPPED,
            named,
        )

    async def post(self, resource: Resource, event: Event) -> None:
        """Post an event; if it cannot be posted, log that once."""
        ref = resource.record.ref
        try:
            await self.adapters.events.post(ref, event, self._now_seconds())
        except (NotFoundError, NotLeaderError):
            return  # the namespace is being deleted, or another leader reports it now
        except ClusterError as error:
            self.adapters.exporter.count_failure("events")
            self.outages.met(_part("event", resource), error, self._now_seconds())

    def forget(self, resource: Resource) -> None:
        """Drop what is remembered of a deleted resource."""
        ref = resource.record.ref
        self._reported.pop(ref.uid, None)
        for key in [key for key in self._refused if key[:2] == (ref.namespace, ref.name)]:
            del self._refused[key]
        self._statuses.forget(ref.uid)
        self.adapters.events.forget(ref)
        self.adapters.exporter.forget(ref.namespace, ref.name)

    def _remember(self, resource: Resource) -> _Reported:
        record = resource.record
        if record.ref.uid not in self._reported:
            now_seconds = self._now_seconds()
            last: Mapping[str, Any] = record.status.get("lastDecision") or {}
            self._statuses.begin(record.ref, record.status, now_seconds)
            self._reported[record.ref.uid] = _Reported(
                conditions=status_of.conditions_of(record.status, now_seconds=now_seconds),
                line=_line_of_document(last),
                learned_trusted=bool(record.status.get("learned")),
            )
        return self._reported[record.ref.uid]

    async def _write_conditions(
        self, resource: Resource, reported: _Reported, not_ready_for: Reason | None
    ) -> None:
        """Write conditions alone, for a resource without a decision."""
        ref = resource.record.ref
        self.adapters.exporter.observe_undecided(ref.namespace, ref.name, not_ready_for)
        fields = {"observedGeneration": resource.record.generation, "summary": None}
        await self._write(resource, reported, fields)

    async def _write(
        self, resource: Resource, reported: _Reported, fields: Mapping[str, Any]
    ) -> None:
        wanted = {
            **fields,
            "reason": headline(reported.conditions, reported.last),
            "conditions": status_of.conditions_field(reported.conditions),
        }
        await self._statuses.want(resource.record.ref.uid, wanted)

    def _now_seconds(self) -> float:
        return self.adapters.clock.now_seconds()


def _explain_hold(reported: _Reported, decision: Decision) -> None:
    """Log one line for a hold that lasts; another hold has its own line."""
    holds = held_by(decision)
    if holds is not reported.held_by:
        reported.held_by, reported.held_seconds, reported.why_reported = (
            holds,
            decision.time_seconds,
            False,
        )
    lasts_seconds = decision.time_seconds - reported.held_seconds
    if holds is not None and not reported.why_reported and lasts_seconds >= _LASTING_HOLD_SECONDS:
        _LOG.info("%s", why_line(decision, lasts_seconds))
        reported.why_reported = True


def _part(what: str, resource: Resource) -> Part:
    return what, f"{resource.record.ref.namespace}/{resource.record.ref.name}"


def _learned_is_due(
    reported: _Reported,
    decision: Decision,
    state: PlannerState,
    now_seconds: float,
    learned_seconds: float | None,
) -> bool:
    """At the first metrics, at a newly trusted law, at orders and reverts, else periodically."""
    if _put_back(state) != reported.learned_reverts:
        return True
    if learned_seconds is None:
        return decision.metrics is Reason.METRICS_FRESH
    scaled = decision.action is not Action.HOLD and decision.apply_replicas
    found = decision.model.trusted and not reported.learned_trusted
    rested = abs(now_seconds - learned_seconds) >= _LEARNED_SECONDS
    return scaled or found or rested


def _put_back(state: PlannerState) -> _PutBack:
    """Who puts counts and limits back, and which of our limits they may put back next."""
    batching = memory_of(state.knobs)
    return state.reverts, batching.reverts, batching.written


def _warning(reason: Reason, message: str, key: str) -> Event:
    return Event(type=EventType.WARNING, reason=reason, message=message, key=key)


def _differs(logged: Decision | None, decision: Decision) -> bool:
    """Whether a decision differs from the one logged last, and does not only repeat it."""
    if logged is None:
        return True
    names: Sequence[str] = ("action", "replicas_before", "replicas_after", "binding", "reason")
    return any(getattr(logged, name) != getattr(decision, name) for name in names)


def _line_of_document(last: Mapping[str, Any]) -> str | None:
    """The history line of a decision made before a restart."""
    if not last.get("time"):
        return None
    before, after = last.get("replicasBefore"), last.get("replicasAfter")
    change = f"{before}" if before == after else f"{before}->{after}"
    words = (last["time"], last.get("action"), change, last.get("binding"), last.get("reason"))
    return " ".join(str(word) for word in words if word is not None)
