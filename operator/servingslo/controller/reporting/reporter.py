"""Reports each decision: log line, events, status, metrics. All derive from the decision."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.controller.adapters import Adapters
from servingslo.controller.registry import Resource
from servingslo.controller.reporting import status as status_of
from servingslo.controller.reporting.outage import Outages, Part, ReadingNews
from servingslo.controller.reporting.pool_status import pools_status_fields, target_line
from servingslo.controller.reporting.said import (
    News,
    Report,
    Reported,
    Said,
    differs_from,
    learned_is_due,
)
from servingslo.controller.reporting.status_writer import StatusWriter
from servingslo.controller.reporting.stored_state import learned_field
from servingslo.errors import ClusterError, NotFoundError, NotLeaderError
from servingslo.explain.changes import Change, change_event, change_line
from servingslo.explain.classes import class_lines
from servingslo.explain.conditions.condition import Condition, ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import not_ready, stamped_conditions, verdicts
from servingslo.explain.document import as_dict, summary_line
from servingslo.explain.events import Event, EventType, events
from servingslo.explain.headline import answer_line, headline, shortened
from servingslo.explain.log_line import fails, held_by, log_line, material_change, why_line
from servingslo.explain.pools import (
    fleet_answer,
    fleet_conditions,
    fleet_document,
    fleet_summary_line,
)
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Targets
from servingslo.policy.knobs.engine_limits.memory import memory_of
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.report import with_latencies
from servingslo.reasons import Reason
from servingslo.units import timestamp_from_seconds

_LOG = logging.getLogger(__name__)
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

    async def hand_over(self, known: ResourceRecord, fields: Mapping[str, Any]) -> ResourceRecord:
        """Write all that is new of a status with these fields, if the resource is as known.

        Raises: WriteConflictError if it is not; ClusterError otherwise.
        """
        return await self._statuses.hand_over(known, fields)

    async def report(
        self, resource: Resource, plans: Targets, decision: Decision, state: PlannerState
    ) -> None:
        """Log, export, post and write what is new in a decision, as it was carried out."""
        reported = self._remember(resource)
        news = await self._say(resource, reported, decision)
        told = reported.said[decision.pool].told
        reported.conditions = stamped_conditions(
            told,
            reported.conditions,
            generation=resource.record.generation,
            now_seconds=self._now_seconds(),
        )
        fields = status_of.status_fields(
            decision,
            generation=resource.record.generation,
            last_batch_change_seconds=memory_of(state.knobs).last_change_seconds,
        )
        said = Report(
            decisions=(decision,),
            states=(state,),
            line=partial(summary_line, decision),
            document=lambda: as_dict(with_latencies(decision, state.sized)),
            answer=answer_line(decision, told),
            reason=headline(reported.conditions, decision),
        )
        self._keep_pools(reported, decision.namespace, decision.name, {decision.pool})
        learned = partial(learned_field, state, plans)
        await self._write_decided(resource, reported, news, fields, said, learned)

    async def report_pools(
        self, resource: Resource, plans: FleetTargets, fleet: FleetDecision, state: FleetState
    ) -> None:
        """The same for a decision over several pools."""
        reported = self._remember(resource)
        every = [await self._say(resource, reported, decision) for decision in fleet.pools.values()]
        news = News(
            material=any(one.material for one in every), differs=any(one.differs for one in every)
        )
        reported.conditions = fleet_conditions(
            fleet,
            reported.conditions,
            generation=resource.record.generation,
            now_seconds=self._now_seconds(),
        )
        fields = pools_status_fields(fleet, plans, state, generation=resource.record.generation)
        said = Report(
            decisions=tuple(fleet.pools.values()),
            states=tuple(state.pools[name] for name in fleet.pools),
            line=partial(fleet_summary_line, fleet),
            document=lambda: fleet_document(fleet, _with_latencies(fleet, state)),
            answer=fleet_answer(fleet),
            reason=headline(reported.conditions, fleet.pools[fleet.binding_pool]),
        )
        self._keep_pools(reported, fleet.namespace, fleet.name, fleet.pools.keys())
        learned = partial(learned_field, state, plans)
        await self._write_decided(resource, reported, news, fields, said, learned)

    async def _say(self, resource: Resource, reported: Reported, decision: Decision) -> News:
        """Export, log and post what is new in the decision on one target."""
        said = reported.said.setdefault(decision.pool, Said())
        self.adapters.exporter.observe_decision(decision)
        material = material_change(said.logged, decision)
        differs = material and differs_from(said.logged, decision)
        if material:
            _LOG.log(logging.WARNING if fails(decision) else logging.INFO, "%s", log_line(decision))
            for line in class_lines(decision):
                _LOG.info("%s", line)
            said.logged = decision
        _explain_hold(said, decision)
        told = verdicts(decision)
        for event in events(decision, said.last, told, said.told):
            if self.reading.is_news(resource.record.ref.namespace, event.reason):
                await self.post(resource, event)
        said.last, said.told = decision, told
        return News(material=material, differs=differs)

    async def _write_decided(
        self,
        resource: Resource,
        reported: Reported,
        news: News,
        fields: dict[str, Any],
        said: "Report",
        learned: Callable[[float], Mapping[str, Any]],
    ) -> None:
        """Write the status after a decision: history, learnt state and document if they are due."""
        uid, now_seconds = resource.record.ref.uid, self._now_seconds()
        decided: Mapping[str, Any] = self._statuses.says(uid, "lastDecision") or {}
        since = timestamp_from_seconds(said.decisions[0].time_seconds)
        if news.differs:
            fields["decisions"] = status_of.decision_lines(
                said.line(), self._statuses.says(uid, "decisions") or ()
            )
        else:
            since = decided.get("time") or since
        due = learned_is_due(reported, said, now_seconds, self._statuses.learned_seconds(uid))
        if due:
            fields["learned"] = learned(now_seconds)
            reported.learned_trusted = said.trusted
            reported.learned_reverts = said.put_back
        if news.material or due:
            fields["lastDecision"] = status_of.decision_record(said.document(), since)
        fields["summary"] = said.answer
        await self._write(resource, reported, fields, said.reason)

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
        for said in reported.said.values():
            said.last = None
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
        reported.said.clear()
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
        for said in reported.said.values():
            said.last = None
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

    def _keep_pools(
        self, reported: Reported, namespace: str, name: str, pools: Collection[str]
    ) -> None:
        """Drop what was said and exported of pools that the resource has no longer."""
        reported.said = {pool: said for pool, said in reported.said.items() if pool in pools}
        self.adapters.exporter.keep_pools(namespace, name, pools)

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
        fields = {"observedGeneration": resource.record.generation, "summary": summary}
        await self._write(resource, reported, fields, headline(reported.conditions, None))

    async def _write(
        self,
        resource: Resource,
        reported: Reported,
        fields: Mapping[str, Any],
        reason: Reason | None,
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


def _with_latencies(fleet: FleetDecision, state: FleetState) -> dict[str, Decision]:
    return {
        name: with_latencies(decision, state.pools[name].sized)
        for name, decision in fleet.pools.items()
    }


def _explain_hold(said: Said, decision: Decision) -> None:
    """Log one line for a hold that lasts; another hold has its own line."""
    holds = held_by(decision)
    if holds is not said.held_by:
        said.held_by, said.held_seconds, said.why_reported = (
            holds,
            decision.time_seconds,
            False,
        )
    lasts_seconds = decision.time_seconds - said.held_seconds
    if holds is not None and not said.why_reported and lasts_seconds >= _LASTING_HOLD_SECONDS:
        _LOG.info("%s", why_line(decision, lasts_seconds))
        said.why_reported = True


def _part(what: str, resource: Resource) -> Part:
    return what, f"{resource.record.ref.namespace}/{resource.record.ref.name}"


def _warning(reason: Reason, message: str, key: str) -> Event:
    return Event(type=EventType.WARNING, reason=reason, message=message, key=key)
