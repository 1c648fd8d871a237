"""One resource in one tick: read, join, plan, write, report. Decides nothing itself."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.protocol import Actuator, Assignment
from servingslo.controller.adapters import Adapters
from servingslo.controller.join import Subject, join
from servingslo.controller.overtaken import Standing, last_look
from servingslo.controller.recording import Header, Outcome, Recorder, initial_state, reconciled
from servingslo.controller.registry import Registry, Resource
from servingslo.controller.reporter import Reporter
from servingslo.controller.stored_state import learned_of
from servingslo.errors import (
    ClusterUnavailableError,
    NotLeaderError,
    ServingSLOError,
    WriteConflictError,
)
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.requests.misses import BudgetReading
from servingslo.explain.changes import Change, not_written
from servingslo.explain.format import replica_change
from servingslo.policy.decision import Decision, held
from servingslo.policy.inputs import InForce, Limits, Mode, SignalProblem, Targets
from servingslo.policy.planner import plan
from servingslo.policy.ports import BudgetQuestion, ClusterMetrics, WorkloadView
from servingslo.policy.state import PlannerState
from servingslo.policy.stored_state import learned, lost_parts
from servingslo.reasons import Reason

_LOG = logging.getLogger(__name__)
# A conflict is planned again at once this often in a row, then with the next tick.
_MOST_REPEATS = 3
# The few requests of a look take milliseconds, and 5 s each at most. If a look takes longer than
# the first of these times, early answers may be outdated: it is repeated once. Beyond the second,
# the plan itself is outdated: a process that was stopped knows nothing of the present.
_LONG_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 1.0, 10.0


@dataclass(slots=True)
class _Memory:
    """What is remembered of one resource between ticks.

    lost: stored parts that are not valid, until that is reported. clocks_set: from the last
    reading; if it changes, values remembered from other clocks are treated as after a restart.
    """

    uid: str
    generation: int
    state: PlannerState
    conflicts: int = 0
    lost: tuple[str, ...] = ()
    clocks_set: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """A change that a decision orders, and the actuator that makes it."""

    actuator: Actuator
    change: Change


@dataclass(slots=True)
class Reconciler:
    """Carries the planner's memory of every resource from tick to tick."""

    adapters: Adapters
    limits: Limits
    recorder: Recorder
    reporter: Reporter
    registry: Registry
    _memories: dict[str, _Memory] = field(default_factory=dict)
    _planning: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reconcile(
        self, resource: Resource, metrics: ClusterMetrics, conflict: SignalProblem | None
    ) -> bool:
        """Reconcile one resource; return whether to do it again at once.

        conflict: why another ServingSLO owns the target, None if this one does.
        """
        if resource.targets is None:
            await self.reporter.refuse(resource)
            return False
        if resource.targets.mode is Mode.PAUSED:
            await self.reporter.pause(resource)
            return False
        memory = self._remember(resource, metrics)
        if memory.lost:
            await self.reporter.report_lost(resource, memory.lost)
            memory.lost = ()
        assignment = await self._decide(resource, resource.targets, metrics, conflict, memory)
        orders: Sequence[_Order] = self._orders(assignment)
        if orders:
            standing = await self._look(resource, assignment, orders, memory)
            if standing is None:
                return True
            assignment, orders = standing
        decision, again = await self._act(resource, assignment, orders, memory)
        await self.reporter.report(resource, decision, memory.state)
        return again

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a deleted resource."""
        self._memories.pop(uid, None)

    def _remember(self, resource: Resource, metrics: ClusterMetrics) -> _Memory:
        record = resource.record
        now_seconds = self.adapters.clock.now_seconds()
        memory = self._memories.get(record.ref.uid)
        clocks = None if metrics.time_seconds is None else metrics.clocks_set
        stored = learned_of(record.status)
        if memory is not None and clocks is not None:
            if memory.clocks_set not in (None, clocks):
                stored, memory = learned(memory.state, now_seconds), None
            else:
                memory.clocks_set = clocks
        if memory is not None and memory.generation == record.generation:
            return memory
        carry_on = memory is not None
        if memory is None:
            memory = _Memory(
                uid=record.ref.uid,
                generation=record.generation,
                state=initial_state(stored, now_seconds),
                lost=lost_parts(stored, now_seconds),
                clocks_set=clocks,
            )
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
                learned=None if carry_on else stored,
                carry_on=carry_on,
                time_seconds=now_seconds,
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
    ) -> Assignment:
        ref = resource.record.ref
        view = await self.adapters.workloads.read(
            ref.namespace,
            targets.target,
            targets.batching.container,
            metrics.recognize(ref.namespace, targets.runtime),
        )
        view = replace(
            view,
            in_force=await self._in_force(ref, targets, view),
            not_woken=await self._not_woken(ref, targets),
        )
        observation = join(
            Subject(
                namespace=ref.namespace,
                name=ref.name,
                uid=ref.uid,
                generation=resource.record.generation,
                gateway_name=targets.gateway_name,
                model=targets.model,
                metrics=tuple(one.metric.value for one in targets.objectives),
            ),
            view,
            metrics,
            now_seconds=self.adapters.clock.now_seconds(),
            problems=() if conflict is None else (conflict,),
            history=self._history(ref, targets, view),
        )
        misses = self._error_budget(ref, targets, view)
        observation = replace(observation, error_budget=misses)
        self.recorder.observation(observation)
        async with self._planning:
            # One plan for each turn of the event loop: probes are answered between two plans.
            await asyncio.sleep(0)
            decision, memory.state = plan(
                observation, targets, self.limits, memory.state, observation.time_seconds
            )
        return Assignment(ref=ref, targets=targets, decision=decision, in_force=view.in_force)

    async def _in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> Mapping[str, InForce]:
        """The current values of each actuator, in addition to the view of the workload."""
        found = [
            (actuator.knob, await actuator.in_force(ref, targets, view))
            for actuator in self.adapters.actuators
        ]
        return {knob: standing for knob, standing in found if standing is not None}

    async def _not_woken(self, ref: ResourceRef, targets: Targets) -> str:
        """Why a gateway would count no request for the target at zero, if it may go to zero."""
        if self.adapters.routing is None or not targets.replicas.may_sleep:
            return ""
        name = targets.gateway_name or targets.target.name
        return await self.adapters.routing.not_kept(ref.namespace, name)

    def _history(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> RateHistory | None:
        if self.adapters.history is None:
            return None
        pods = [pod.name for pod in view.pods]
        return self.adapters.history.take(ref.uid, ref.namespace, targets, pods)

    def _error_budget(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> BudgetReading | None:
        if self.adapters.budgets is None or targets.error_budget is None:
            return None
        pods = [pod.name for pod in view.pods]
        asked = BudgetQuestion(
            namespace=ref.namespace, targets=targets, runtime=view.read_as.runtime
        )
        return self.adapters.budgets.take(ref.uid, asked, pods)

    def _orders(self, assignment: Assignment) -> tuple[_Order, ...]:
        """The changes that a decision orders, in the order in which they are made."""
        wanted = [(actuator, actuator.wanted(assignment)) for actuator in self.adapters.actuators]
        return tuple(
            _Order(actuator=actuator, change=change)
            for actuator, change in wanted
            if change is not None
        )

    async def _look(
        self,
        resource: Resource,
        assignment: Assignment,
        orders: Sequence[_Order],
        memory: _Memory,
    ) -> tuple[Assignment, Sequence[_Order]] | None:
        """The orders to carry out after a last look; None if the resource has changed."""
        ref, decision = resource.record.ref, assignment.decision
        try:
            standing, took_seconds = await self._timed_look(resource)
            if not standing.changed and _LONG_LOOK_SECONDS < took_seconds <= _LONGEST_LOOK_SECONDS:
                standing, took_seconds = await self._timed_look(resource)
        except ServingSLOError as error:
            self._void(assignment, orders, memory)
            reason, detail = self._count_refusal(error), str(error)
            for order in orders:
                ended = not_written(order.change, reason, detail, answered=True)
                await self.reporter.report_change(resource, ended)
            return self._held(assignment, orders, reason, detail)
        if not standing.changed and took_seconds > _LONGEST_LOOK_SECONDS:
            standing = Standing(changed=f"the last look took {took_seconds:.0f} s")
        if standing.changed:
            self._void(assignment, orders, memory)
            _LOG.info(
                "overtaken namespace=%s name=%s replicas=%s detail=%r",
                ref.namespace,
                ref.name,
                replica_change(decision),
                f"nothing written: {standing.changed}",
            )
            return None
        if standing.owner is not None:
            self._void(assignment, orders, memory)
            return self._held(assignment, orders, standing.owner.reason, standing.owner.detail)
        return assignment, orders

    async def _timed_look(self, resource: Resource) -> tuple[Standing, float]:
        """A last look, and how many seconds it took."""
        began_seconds = self.adapters.clock.now_seconds()
        standing = await last_look(self.adapters, self.registry, resource, self.limits)
        return standing, self.adapters.clock.now_seconds() - began_seconds

    def _held(
        self, assignment: Assignment, orders: Sequence[_Order], reason: Reason, detail: str
    ) -> tuple[Assignment, Sequence[_Order]]:
        """The assignment as carried out, with none of its orders."""
        decision = assignment.decision
        for order in orders:
            decision = order.actuator.not_made(decision, reason, detail)
        return replace(assignment, decision=held(decision, reason, detail)), ()

    def _void(self, assignment: Assignment, orders: Sequence[_Order], memory: _Memory) -> None:
        """Settle the orders that are not written at all."""
        for order in orders:
            self._settle(assignment, order, memory, written=False)

    async def _act(
        self,
        resource: Resource,
        assignment: Assignment,
        orders: Sequence[_Order],
        memory: _Memory,
    ) -> tuple[Decision, bool]:
        """The decision as carried out, and whether to plan again at once."""
        again = False
        for order in orders:
            if order.actuator.wanted(assignment) is None:
                # An earlier change that this one belongs to was not made.
                self._settle(assignment, order, memory, written=False)
                continue
            failure = await self._write(resource, order.change, order.actuator.change(assignment))
            self._settle(assignment, order, memory, written=failure is None)
            if order.actuator.repeats_at_once:
                conflict = failure is not None and failure.reason is Reason.WRITE_CONFLICT
                memory.conflicts = memory.conflicts + 1 if conflict else 0
                # Plan again at once from the actual values, but not for ever.
                again = again or 0 < memory.conflicts < _MOST_REPEATS
            if failure is not None:
                decision = order.actuator.not_made(
                    assignment.decision, failure.reason, failure.detail
                )
                assignment = replace(assignment, decision=decision)
        return assignment.decision, again

    async def _write(
        self, resource: Resource, change: Change, write: Awaitable[bool | None]
    ) -> "_Failure | None":
        """Make a change and report how it ended; return why it failed.

        write: returns False if nothing had to be written; then there is no change to report.
        """
        try:
            written = await write
        except asyncio.CancelledError:
            # The request may be under way already.
            ended = not_written(change, Reason.WRITE_FAILED, "the operator ends", answered=False)
            self.reporter.log_change(ended)
            raise
        except ServingSLOError as error:
            failure = _Failure(reason=self._count_refusal(error), detail=str(error))
            answered = not isinstance(error, ClusterUnavailableError)
            ended = not_written(change, failure.reason, failure.detail, answered=answered)
            await self.reporter.report_change(resource, ended)
            return failure
        if written is not False:
            await self.reporter.report_change(resource, change)
        return None

    def _settle(
        self, assignment: Assignment, order: _Order, memory: _Memory, *, written: bool
    ) -> None:
        first = order.change.settings[0]
        outcome = Outcome(
            uid=memory.uid,
            time_seconds=self.adapters.clock.now_seconds(),
            before=first.before or 0,
            after=first.after or 0,
            written=written,
            knob=order.actuator.knob,
        )
        self.recorder.outcome(outcome)
        memory.state = reconciled(memory.state, outcome, assignment.targets)

    def _count_refusal(self, error: ServingSLOError) -> Reason:
        """Why a write was refused; also counts it."""
        if isinstance(error, WriteConflictError):
            self.adapters.exporter.count_conflict()
            return Reason.WRITE_CONFLICT
        if isinstance(error, NotLeaderError):
            return Reason.LEASE_LOST
        self.adapters.exporter.count_failure("kubernetes")
        return Reason.WRITE_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Why a write failed. detail: in the API server's words."""

    reason: Reason
    detail: str
