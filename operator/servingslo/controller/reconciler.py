"""One resource in one tick: read, join, plan, write, tell. Decides nothing itself."""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.join import Subject, join
from servingslo.controller.outside import Outside
from servingslo.controller.overtaken import last_look
from servingslo.controller.recording import Header, Outcome, Recorder, initial_state, settled
from servingslo.controller.registry import Registry, Resource
from servingslo.controller.teller import Teller
from servingslo.errors import ClusterUnavailableError, ServingSLOError, WriteConflictError
from servingslo.estimation.season import RateHistory
from servingslo.explain.changes import (
    Change,
    Knob,
    batch_limits_change,
    not_written,
    replica_count_change,
)
from servingslo.explain.format import replica_change
from servingslo.models.compiled.backend import laws_in_use
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Mode, SignalProblem, Targets
from servingslo.policy.planner import plan
from servingslo.policy.ports import ClusterMetrics, EngineArguments, WorkloadView
from servingslo.policy.state import PlannerState, settle_batching
from servingslo.reasons import Action, Reason

_LOG = logging.getLogger(__name__)
# A conflict is planned again at once this often in a row, then with the next tick.
_MOST_REPEATS = 3


@dataclass(slots=True)
class _Memory:
    """What is remembered of one resource between ticks."""

    uid: str
    generation: int
    state: PlannerState
    conflicts: int = 0


@dataclass(slots=True)
class Reconciler:
    """Carries the planner's memory of every resource from tick to tick."""

    outside: Outside
    limits: Limits
    recorder: Recorder
    teller: Teller
    registry: Registry
    _memories: dict[str, _Memory] = field(default_factory=dict)
    _planning: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reconcile(
        self, resource: Resource, metrics: ClusterMetrics, conflict: SignalProblem | None
    ) -> bool:
        """Look at one resource; returns whether it should be looked at again at once.

        conflict: why another ServingSLO owns the target, None when this one does.
        """
        if resource.targets is None:
            await self.teller.refuse(resource)
            return False
        if resource.targets.mode is Mode.PAUSED:
            await self.teller.pause(resource)
            return False
        memory = self._remember(resource)
        decision = await self._decide(resource, resource.targets, metrics, conflict, memory)
        if decision.apply_replicas or decision.batching.apply:
            standing = await self._look(resource, decision, memory)
            if standing is None:
                return True
            decision = standing
        decision, again = await self._act(resource, resource.targets, decision, memory)
        await self.teller.tell(resource, decision, memory.state)
        return again

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a deleted resource."""
        self._memories.pop(uid, None)

    def _remember(self, resource: Resource) -> _Memory:
        record = resource.record
        now_seconds = self.outside.clock.now_seconds()
        memory = self._memories.get(record.ref.uid)
        if memory is not None and memory.generation == record.generation:
            return memory
        carry_on = memory is not None
        learned = None if carry_on else (record.status.get("learned") or {}).get("state")
        if memory is None:
            state = initial_state(learned, now_seconds)
            memory = _Memory(uid=record.ref.uid, generation=record.generation, state=state)
            self._memories[record.ref.uid] = memory
        memory.generation = record.generation
        self.recorder.header(
            Header(
                uid=record.ref.uid,
                namespace=record.ref.namespace,
                name=record.ref.name,
                generation=record.generation,
                spec=record.spec,
                limits=self.limits,
                learned=learned,
                carry_on=carry_on,
                time_seconds=now_seconds,
                laws=laws_in_use(),
            )
        )
        return memory

    async def _decide(
        self,
        resource: Resource,
        targets: Targets,
        metrics: ClusterMetrics,
        conflict: SignalProblem | None,
        memory: _Memory,
    ) -> Decision:
        ref = resource.record.ref
        view = await self.outside.workloads.read(
            ref.namespace, targets.target, targets.batching.container
        )
        observation = join(
            Subject(
                namespace=ref.namespace,
                name=ref.name,
                uid=ref.uid,
                generation=resource.record.generation,
                gateway_name=targets.gateway_name,
            ),
            view,
            metrics,
            now_seconds=self.outside.clock.now_seconds(),
            problems=() if conflict is None else (conflict,),
            history=self._history(ref, targets, view),
        )
        self.recorder.observation(observation)
        async with self._planning:
            # One plan for each turn of the event loop: probes are answered between two plans.
            await asyncio.sleep(0)
            decision, memory.state = plan(
                observation, targets, self.limits, memory.state, observation.time_seconds
            )
        return decision

    def _history(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> RateHistory | None:
        if self.outside.history is None:
            return None
        pods = [pod.name for pod in view.pods]
        return self.outside.history.take(ref.uid, ref.namespace, targets, pods)

    async def _look(
        self, resource: Resource, decision: Decision, memory: _Memory
    ) -> Decision | None:
        """What may be carried out after a last look; None where the resource has changed."""
        ref = resource.record.ref
        try:
            standing = await last_look(self.outside, self.registry, resource, self.limits)
        except ServingSLOError as error:
            self._void(decision, memory, resource)
            reason = self._count_refusal(error)
            await self._tell_refused(resource, decision, reason, str(error))
            return _not_written(decision, reason, str(error))
        if standing.changed:
            self._void(decision, memory, resource)
            _LOG.info(
                "overtaken namespace=%s name=%s replicas=%s detail=%r",
                ref.namespace,
                ref.name,
                replica_change(decision),
                f"nothing written: {standing.changed}",
            )
            return None
        if standing.owner is not None:
            self._void(decision, memory, resource)
            return _not_written(decision, standing.owner.reason, standing.owner.detail)
        return decision

    async def _tell_refused(
        self, resource: Resource, decision: Decision, reason: Reason, detail: str
    ) -> None:
        """Tell of each change that was ordered that it is not made."""
        if resource.targets is None:
            return
        target = resource.targets.target
        for change in (
            replica_count_change(decision, target),
            batch_limits_change(decision, target),
        ):
            if change is not None:
                ended = not_written(change, reason, detail, answered=True)
                await self.teller.tell_change(resource, ended)

    def _void(self, decision: Decision, memory: _Memory, resource: Resource) -> None:
        """Settle the orders that are not written at all."""
        if decision.batching.apply:
            self._settle_batching(memory, decision, written=False)
        before, after = decision.replicas_before, decision.replicas_after
        if not decision.apply_replicas or before is None or after is None:
            return
        if resource.targets is not None:
            self._settle(resource.targets, memory, before, after, written=False)

    async def _act(
        self, resource: Resource, targets: Targets, decision: Decision, memory: _Memory
    ) -> tuple[Decision, bool]:
        """The decision as it came true, and whether to plan again at once."""
        again = False
        if decision.apply_replicas:
            decision, again = await self._scale(resource, targets, decision, memory)
        if decision.batching.apply:
            decision = await self._change_batching(resource, targets, decision, memory)
        return decision, again

    async def _scale(
        self, resource: Resource, targets: Targets, decision: Decision, memory: _Memory
    ) -> tuple[Decision, bool]:
        change = replica_count_change(decision, targets.target)
        before, after = decision.replicas_before, decision.replicas_after
        if change is None or before is None or after is None:
            return decision, False
        namespace = resource.record.ref.namespace
        write = self.outside.replicas.scale(namespace, targets.target, before, after)
        failure = await self._write(resource, change, write)
        self._settle(targets, memory, before, after, written=failure is None)
        # The next look must not be one from before this write, or from before what refused it.
        self.outside.workloads.distrust(namespace, targets.target)
        if failure is None:
            memory.conflicts = 0
            return decision, False
        conflict = failure.reason is Reason.WRITE_CONFLICT
        memory.conflicts = memory.conflicts + 1 if conflict else 0
        # Plan again at once, from what is really there, but not for ever.
        again = 0 < memory.conflicts < _MOST_REPEATS
        return _not_written(decision, failure.reason, failure.detail), again

    async def _write(
        self, resource: Resource, change: Change, write: Awaitable[bool | None]
    ) -> "_Failure | None":
        """Make a change and tell how it ended; returns why it failed.

        write: answers False where nothing had to be written; then there is no change to tell.
        """
        try:
            written = await write
        except asyncio.CancelledError:
            # The request may be on its way already.
            ended = not_written(change, Reason.WRITE_FAILED, "the operator ends", answered=False)
            self.teller.log_change(ended)
            raise
        except ServingSLOError as error:
            failure = _Failure(reason=self._count_refusal(error), detail=str(error))
            answered = not isinstance(error, ClusterUnavailableError)
            ended = not_written(change, failure.reason, failure.detail, answered=answered)
            await self.teller.tell_change(resource, ended)
            return failure
        if written is not False:
            await self.teller.tell_change(resource, change)
        return None

    def _settle(
        self, targets: Targets, memory: _Memory, before: int, after: int, *, written: bool
    ) -> None:
        outcome = Outcome(
            uid=memory.uid,
            time_seconds=self.outside.clock.now_seconds(),
            before=before,
            after=after,
            written=written,
        )
        self.recorder.outcome(outcome)
        memory.state = settled(memory.state, outcome, targets)

    def _settle_batching(self, memory: _Memory, decision: Decision, *, written: bool) -> None:
        batching = decision.batching
        outcome = Outcome(
            uid=memory.uid,
            time_seconds=self.outside.clock.now_seconds(),
            before=batching.current_max_num_seqs or 0,
            after=batching.recommended_max_num_seqs or 0,
            written=written,
            knob=Knob.BATCH_LIMITS,
        )
        self.recorder.outcome(outcome)
        memory.state = settle_batching(memory.state, written=written)

    def _count_refusal(self, error: ServingSLOError) -> Reason:
        """Why a write was refused, counted."""
        if isinstance(error, WriteConflictError):
            self.outside.exporter.count_conflict()
            return Reason.WRITE_CONFLICT
        self.outside.exporter.count_failure("kubernetes")
        return Reason.WRITE_FAILED

    async def _change_batching(
        self, resource: Resource, targets: Targets, decision: Decision, memory: _Memory
    ) -> Decision:
        change = batch_limits_change(decision, targets.target)
        if change is None:
            return decision
        batching = decision.batching
        wanted = replace(
            EngineArguments(
                max_num_seqs=batching.recommended_max_num_seqs,
                max_num_batched_tokens=batching.recommended_max_num_batched_tokens,
            ),
            **dict.fromkeys(batching.flags_removed),
        )
        write = self.outside.batching.apply(
            resource.record.ref.namespace, targets.target, batching.container, wanted
        )
        failure = await self._write(resource, change, write)
        self._settle_batching(memory, decision, written=failure is None)
        if failure is None:
            return decision
        return replace(decision, batching=replace(batching, apply=False, reason=failure.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Why a write failed. detail: in the API server's words."""

    reason: Reason
    detail: str


def _not_written(decision: Decision, reason: Reason, detail: str) -> Decision:
    """The decision as it came true: a hold, because nothing could or should be written."""
    return replace(
        decision,
        action=Action.HOLD,
        reason=reason,
        limited_by=reason,
        replicas_after=decision.replicas_before,
        apply_replicas=False,
        batching=replace(decision.batching, apply=False),
        detail=detail,
    )
