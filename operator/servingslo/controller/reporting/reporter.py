"""Reports each decision: log line, events, status, metrics. All derive from the decision."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.controller.adapters import Adapters
from servingslo.controller.registry import Resource
from servingslo.controller.reporting import status as status_of
from servingslo.controller.reporting.outage import Outages, Part, ReadingNews
from servingslo.controller.reporting.pool_status import fleet_status_fields, target_line
from servingslo.controller.reporting.said import (
    Reported,
    Said,
    differs_from,
    learned_is_due,
    put_back,
    trusted_laws,
)
from servingslo.controller.reporting.status_writer import StatusWriter
from servingslo.controller.reporting.stored_state import learned_field
from servingslo.errors import ClusterError, NotFoundError, NotLeaderError
from servingslo.explain.changes import Change, change_event, change_line
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType, Verdict
from servingslo.explain.conditions.derived import not_ready, stamped_conditions, verdicts
from servingslo.explain.events import Event, EventType, events
from servingslo.explain.headline import headline, shortened
from servingslo.explain.log_line import (
    fails,
    further_lines,
    held_by,
    log_line,
    material_change,
    why_line,
)
from servingslo.explain.pools import (
    fleet_answer,
    fleet_document,
    fleet_summary_line,
    fleet_verdicts,
)
from servingslo.policy.decision import Decision
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.report import with_latencies
from servingslo.reasons import Reason
from servingslo.units import timestamp_from_seconds

_LOG = logging.getLogger(__name__)
Json = Mapping[str, Any]
# Longer than any stabilization or cold start that needs no explanation.
_LASTING_HOLD_SECONDS = 300.0


@dataclass(slots=True)
class Reporter:
    """Remembers what was reported, so that nothing is reported twice."""

    adapters: Adapters
    outages: Outages = field(default_factory=Outages)
    reading: ReadingNews = field(default_factory=ReadingNews)
    _reported: dict[str, Reported] = field(default_factory=dict)
    _refused: dict[tuple[str, str, str, str], Reason] = field(default_factory=dict)
    _statuses: StatusWriter = field(init=False)

    def __post_init__(self) -> None:
        self._statuses = StatusWriter(self.adapters, self.outages)

    async def write_behind(self, tick_seconds: float) -> None:
        """Write statuses in the background until cancelled, so that no tick waits for them."""
        await self._statuses.run(tick_seconds)

    async def hand_over(self, known: ResourceRecord, fields: Json) -> ResourceRecord:
        """Write all that is new of a status with these fields, if the resource is as known.

        Raises: WriteConflictError if it is not; ClusterError otherwise.
        """
        return await self._statuses.hand_over(known, fields)

    async def report(
        self,
        resource: Resource,
        targets: FleetTargets,
        fleet: FleetDecision,
        state: FleetState,
        *,
        acts: bool,
    ) -> None:
        """Log, export, post and write what is new in a decision, as it was carried out.

        acts: decisions are carried out, not only reported.
        """
        reported, uid = self._remember(resource), resource.record.ref.uid
        self.adapters.exporter.observe(fleet)
        news = [await self._say(resource, reported, one) for one in fleet.pools.values()]
        material, differs = (any(each) for each in zip(*news, strict=True))
        told = {name: reported.said[name].told for name in fleet.pools}
        generation, now_seconds = resource.record.generation, self._now_seconds()
        self._stamp(resource, reported, fleet_verdicts(fleet, told), acts=acts)
        reported.said = {name: reported.said[name] for name in fleet.pools}
        fields = fleet_status_fields(fleet, targets, state, told, generation=generation)
        decided: Json = self._statuses.says(uid, "lastDecision") or {}
        since = timestamp_from_seconds(fleet.time_seconds)
        if differs:
            before = self._statuses.says(uid, "decisions") or ()
            fields["decisions"] = status_of.decision_lines(fleet_summary_line(fleet), before)
        else:
            since = decided.get("time") or since
        learned_seconds = self._statuses.learned_seconds(uid)
        due = learned_is_due(reported, fleet, state, now_seconds, learned_seconds)
        if due:
            fields["learned"] = learned_field(state, targets, now_seconds)
            reported.learned_trusted = trusted_laws(fleet)
            reported.learned_reverts = put_back(state)
        if material or due:
            # A document evaluates more predictions, so it is made only when it is written.
            sized = {name: state.pools[name].sized for name in fleet.pools}
            pools = {n: with_latencies(one, sized[n]) for n, one in fleet.pools.items()}
            document = fleet_document(fleet, pools)
            fields["lastDecision"] = status_of.decision_record(document, since)
        fields["summary"] = fleet_answer(fleet, told)
        reason = headline(reported.conditions, fleet.pools[fleet.binding_pool])
        await self._write(resource, reported, fields, reason)

    async def _say(
        self, resource: Resource, reported: Reported, decision: Decision
    ) -> tuple[bool, bool]:
        """Log and post what is new in the decision on one target.

        Returns whether it is worth a write, and whether it is another than that logged before.
        """
        said = reported.said.setdefault(decision.pool, Said())
        material = material_change(said.logged, decision)
        differs = material and differs_from(said.logged, decision)
        if material:
            _LOG.log(logging.WARNING if fails(decision) else logging.INFO, "%s", log_line(decision))
            for line in further_lines(decision):
                _LOG.info("%s", line)
            said.logged = decision
        _explain_hold(said, decision)
        told = verdicts(decision)
        for event in events(decision, said.last, told, said.told):
            if self.reading.is_news(resource.record.ref.namespace, event.reason):
                await self.post(resource, event)
        said.last, said.told = decision, told
        return material, differs

    async def refuse(self, resource: Resource) -> None:
        """Report that the spec is invalid and which values are allowed."""
        if resource.invalid is None:
            return
        reported = self._remember(resource)
        message, generation = str(resource.invalid), resource.record.generation
        observed = self._statuses.says(resource.record.ref.uid, "observedGeneration")
        news = (observed, reported.last) != (generation, None)
        if news:
            _warn(resource, "refused", Reason.INVALID_SPEC, f"detail={message!r}")
        key = f"{Reason.INVALID_SPEC}/{generation}" if news else ""
        await self._not_ready(resource, Reason.INVALID_SPEC, message, key)

    async def pause(self, resource: Resource) -> None:
        """Report that nothing is decided while the resource is paused; its numbers are removed."""
        reported = self._remember(resource)
        message = "spec.mode is Paused: nothing is decided"
        paused = Verdict(ConditionStatus.TRUE, Reason.PAUSED, message)
        both = {ConditionType.READY: paused, ConditionType.SCALING_LIMITED: paused}
        self._stamp(resource, reported, both)
        reported.said.clear()
        await self._write_conditions(resource, reported, None)

    async def fail(self, resource: Resource, error: Exception) -> None:
        """Report that this resource was not reconciled, because of a fault of the operator."""
        message = f"{type(error).__name__}: {error}"
        await self._not_ready(resource, Reason.INTERNAL_ERROR, message, Reason.INTERNAL_ERROR.value)

    def _stamp(
        self,
        resource: Resource,
        reported: Reported,
        told: Mapping[ConditionType, Verdict],
        *,
        acts: bool = True,
    ) -> None:
        reported.conditions = stamped_conditions(
            told,
            reported.conditions,
            generation=resource.record.generation,
            now_seconds=self._now_seconds(),
            acts=acts,
        )

    async def _not_ready(self, resource: Resource, reason: Reason, message: str, key: str) -> None:
        """Report why nothing was decided. key: of an event about it; '' for none."""
        reported = self._remember(resource)
        reported.conditions = not_ready(
            reason,
            message,
            reported.conditions,
            generation=resource.record.generation,
            now_seconds=self._now_seconds(),
        )
        if key:
            await self.post(resource, _warning(reason, message, key))
        for said in reported.said.values():
            said.last = None
        await self._write_conditions(resource, reported, reason)

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
        key = (change.namespace, change.name, change.target, change.knob)
        before = self._refused.pop(key, None)
        if change.refusal is not None:
            self._refused[key] = change.refusal
        level = logging.INFO if change.refusal in {None, before} else logging.WARNING
        _LOG.log(level, "%s", change_line(change))

    def drops_learned(self, record: ResourceRecord) -> bool:
        """Whether the API server dropped the learnt state that this process wrote."""
        return self._statuses.is_dropped(record.ref.uid, record.status)

    async def report_lost(self, resource: Resource, parts: Sequence[str]) -> None:
        """Report which parts of the memory in a status are not valid, and are learnt again."""
        named = ", ".join(parts)
        message = f"status.learned lacks valid values of {named}; they are learnt again"
        key = f"{Reason.LEARNED_DROPPED}/{named}"
        await self.post(resource, _warning(Reason.LEARNED_DROPPED, message, key))
        _warn(resource, "dropped", Reason.LEARNED_DROPPED, f"parts={named!r}")

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

    def _remember(self, resource: Resource) -> Reported:
        record = resource.record
        if record.ref.uid not in self._reported:
            now_seconds = self._now_seconds()
            self._statuses.begin(record.ref, record.status, now_seconds)
            self._reported[record.ref.uid] = Reported(
                conditions=status_of.conditions_of(record.status, now_seconds=now_seconds),
                learned_trusted=int(bool(record.status.get("learned"))),
            )
        return self._reported[record.ref.uid]

    async def _write_conditions(
        self, resource: Resource, reported: Reported, not_ready_for: Reason | None
    ) -> None:
        """Write conditions of a resource without a decision; what Ready says is its summary."""
        ref = resource.record.ref
        self.adapters.exporter.observe_undecided(ref.namespace, ref.name, not_ready_for)
        ready = next(one for one in reported.conditions if one.type is ConditionType.READY)
        summary = shortened(ready.message)
        fields = {
            **(status_of.NOTHING_DECIDED if not_ready_for is None else {}),
            "observedGeneration": resource.record.generation,
            "summary": summary,
        }
        await self._write(resource, reported, fields, headline(reported.conditions, None))

    async def _write(
        self, resource: Resource, reported: Reported, fields: Json, reason: Reason | None
    ) -> None:
        wanted = {
            **fields,
            "target": target_line(resource.record.spec),
            "reason": reason,
            "conditions": status_of.conditions_field(reported.conditions),
        }
        await self._statuses.want(resource.record.ref.uid, wanted)

    def _now_seconds(self) -> float:
        return self.adapters.clock.now_seconds()


def _explain_hold(said: Said, decision: Decision) -> None:
    """Log one line for a hold that lasts; another hold has its own line."""
    holds = held_by(decision)
    if holds is not said.held_by:
        said.held_by, said.held_seconds = holds, decision.time_seconds
        said.why_reported = False
    lasts_seconds = decision.time_seconds - said.held_seconds
    if holds is not None and not said.why_reported and lasts_seconds >= _LASTING_HOLD_SECONDS:
        _LOG.info("%s", why_line(decision, lasts_seconds))
        said.why_reported = True


def _part(what: str, resource: Resource) -> Part:
    return what, f"{resource.record.ref.namespace}/{resource.record.ref.name}"


def _warn(resource: Resource, what: str, reason: Reason, detail: str) -> None:
    ref = resource.record.ref
    where = f"namespace={ref.namespace} name={ref.name}"
    _LOG.warning("%s %s reason=%s %s", what, where, reason, detail)


def _warning(reason: Reason, message: str, key: str) -> Event:
    return Event(type=EventType.WARNING, reason=reason, message=message, key=key)
