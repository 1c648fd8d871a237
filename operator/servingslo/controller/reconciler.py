"""One resource in one tick: read, join, plan, write, report. Decides nothing itself."""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.controller.actuators.protocol import Assignment, PartlyWrittenError
from servingslo.controller.adapters import Adapters
from servingslo.controller.grants import Grants, MakeGrants
from servingslo.controller.looking import Looks, PoolLook
from servingslo.controller.orders import Failure, Order, assignment_of
from servingslo.controller.overtaken import Standing, last_look
from servingslo.controller.recordings.recording import Header, Outcome, Recorder, reconciled
from servingslo.controller.registry import Registry, Resource
from servingslo.controller.reporting.reporter import Reporter
from servingslo.controller.reporting.stored_state import (
    FORMERLY_PRUNED,
    PRUNED,
    is_pruned,
    learned_field,
    learned_of,
)
from servingslo.copying import replace
from servingslo.errors import (
    ClusterUnavailableError,
    NotLeaderError,
    ServingSLOError,
    WriteConflictError,
)
from servingslo.explain.changes import Change, not_written
from servingslo.explain.format import replica_change
from servingslo.policy.decision import Decision, hold
from servingslo.policy.inputs import Limits, Mode, SignalProblem, Targets
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.stored import (
    carried_on,
    learned_fleet,
    lost_fleet_parts,
    restore_fleet,
)
from servingslo.policy.ports import ClusterMetrics
from servingslo.policy.replicas.ownership import acting_limit
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

    lost: stored parts that are not valid, until that is reported. pruned: it was reported that the
    API server drops what is stored. clocks_set: from the last
    reading; a change is treated as a restart. conflicts: writes in a row that met one, by pool.
    pods: names of those that it had last; None before the first look.
    """

    uid: str
    generation: int
    targets: FleetTargets
    state: FleetState
    conflicts: dict[str, int] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    pruned: bool = False
    clocks_set: int | None = None
    pods: frozenset[str] | None = None


@dataclass(slots=True)
class Reconciler:
    """Carries the planner's memory of every resource from tick to tick."""

    adapters: Adapters
    limits: Limits
    recorder: Recorder
    reporter: Reporter
    registry: Registry
    make_grants: MakeGrants = Grants
    grants: Grants = field(init=False)
    _memories: dict[str, _Memory] = field(default_factory=dict)
    _planning: asyncio.Lock = field(default_factory=asyncio.Lock)
    _looks: Looks = field(init=False)

    def __post_init__(self) -> None:
        self._looks = Looks(self.adapters)
        self.grants = self.make_grants(self.adapters, self.limits, self.registry.stands_for)

    async def reconcile(
        self, resource: Resource, metrics: ClusterMetrics, conflict: SignalProblem | None
    ) -> bool:
        """Reconcile one resource; return whether to do it again at once.

        conflict: why another ServingSLO owns the target, None if this one does.
        """
        targets = resource.fleet
        if targets is None:
            await self.reporter.refuse(resource)
            return False
        if targets.pools[0].targets.mode is Mode.PAUSED:
            await self.reporter.pause(resource)
            return False
        memory = self._remember(resource, targets, metrics)
        if not memory.pruned and self.reporter.drops_learned(resource.record):
            memory.lost, memory.pruned = (PRUNED,), True
        if memory.lost:
            await self.reporter.report_lost(resource, memory.lost)
            memory.lost = ()
        looks = [
            await self._looks.observe(resource, pool.name, pool.targets, metrics, conflict)
            for pool in targets.pools
        ]
        seen = frozenset(pod.name for look in looks for pod in look.view.pods)
        memory.pods = seen or memory.pods or seen
        # All pools are decided at once, and carried out one after the other.
        fleet = await self._decide(resource, looks, memory)
        by_pool, again = {one.observation.pool: one for one in looks}, False
        for name, decision in fleet.pools.items():
            assignment = assignment_of(resource, by_pool[name], decision)
            carried = await self._carry_out(resource, assignment, memory)
            if carried is None:
                return True
            decision_made, once_more = carried
            fleet = fleet.with_pool(name, decision_made)
            again = again or once_more
        acts = acting_limit(targets.pools[0].targets, self.limits) is None
        await self.reporter.report(resource, targets, fleet, memory.state, acts=acts)
        return again

    async def _carry_out(
        self, resource: Resource, assignment: Assignment, memory: _Memory
    ) -> tuple[Decision, bool] | None:
        """The decision as carried out, and whether to plan again; None if the resource changed."""
        orders: Sequence[Order] = self._orders(assignment)
        if orders:
            standing = await self._look(resource, assignment, orders, memory)
            if standing is None:
                return None
            assignment, orders = standing
        return await self._act(resource, assignment, orders, memory)

    def learned(self, uid: str) -> dict[str, Any]:
        """The status field of the state that a resource has learnt; empty before its first plan."""
        memory = self._memories.get(uid)
        if memory is None:
            return {}
        now_seconds = self.adapters.clock.now_seconds()
        return {"learned": learned_field(memory.state, memory.targets, now_seconds)}

    def pods(self, resource: Resource) -> Collection[str] | None:
        """Names of the pods that a resource had last; None if they are not known yet."""
        if resource.targets is None or resource.targets.mode is Mode.PAUSED:
            return ()
        memory = self._memories.get(resource.record.ref.uid)
        if memory is None or memory.generation != resource.record.generation:
            return None  # its target may be another one
        return memory.pods

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a deleted resource, or of one that another process has."""
        self._memories.pop(uid, None)

    def _remember(
        self, resource: Resource, targets: FleetTargets, metrics: ClusterMetrics
    ) -> _Memory:
        record = resource.record
        now_seconds = self.adapters.clock.now_seconds()
        memory = self._memories.get(record.ref.uid)
        clocks = None if metrics.time_seconds is None else metrics.clocks_set
        stored = learned_of(record.status)
        if memory is not None and clocks is not None:
            if memory.clocks_set not in (None, clocks):
                stored = learned_fleet(memory.state, memory.targets, now_seconds)
                memory = None
            else:
                memory.clocks_set = clocks
        if memory is not None and memory.generation == record.generation:
            return memory
        carry_on = memory is not None
        if memory is None:
            memory = _Memory(
                uid=record.ref.uid,
                generation=record.generation,
                targets=targets,
                state=restore_fleet(stored, targets, now_seconds),
                lost=(FORMERLY_PRUNED,)
                if not stored and is_pruned(record.status)
                else lost_fleet_parts(stored, now_seconds),
                clocks_set=clocks,
            )
            self._memories[record.ref.uid] = memory
        else:
            memory.state = carried_on(memory.state, memory.targets, targets)
        memory.targets, memory.generation = targets, record.generation
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
        self, resource: Resource, looks: Sequence[PoolLook], memory: _Memory
    ) -> FleetDecision:
        """The decision on all pools, whose observations count as of one time."""
        now_seconds = looks[0].observation.time_seconds
        seen = (self._looks.with_past(looks), *(look.observation for look in looks[1:]))
        async with self._planning:
            # One plan for each turn of the event loop: probes are answered between two plans.
            await asyncio.sleep(0)
            observations = {
                one.pool: replace(
                    one, time_seconds=now_seconds, grant=self.grants.grant(resource, look)
                )
                for one, look in zip(seen, looks, strict=True)
            }
            for observation in observations.values():
                self.recorder.observation(observation)
            fleet, memory.state = plan_fleet(
                observations, memory.targets, self.limits, memory.state, now_seconds
            )
            self.grants.decided(resource, looks, memory.targets, fleet, memory.state)
        return fleet

    def _orders(self, assignment: Assignment) -> tuple[Order, ...]:
        """The changes that a decision orders, in the order in which they are made."""
        wanted = [(actuator, actuator.wanted(assignment)) for actuator in self.adapters.actuators]
        return tuple(
            Order(actuator=actuator, change=change)
            for actuator, change in wanted
            if change is not None
        )

    async def _look(
        self,
        resource: Resource,
        assignment: Assignment,
        orders: Sequence[Order],
        memory: _Memory,
    ) -> tuple[Assignment, Sequence[Order]] | None:
        """The orders to carry out after a last look; None if the resource has changed."""
        ref, decision = resource.record.ref, assignment.decision
        try:
            standing, took_seconds = await self._timed_look(resource, assignment.targets)
            if not standing.changed and _LONG_LOOK_SECONDS < took_seconds <= _LONGEST_LOOK_SECONDS:
                standing, took_seconds = await self._timed_look(resource, assignment.targets)
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

    async def _timed_look(self, resource: Resource, targets: Targets) -> tuple[Standing, float]:
        """A last look, and how many seconds it took."""
        began_seconds = self.adapters.clock.now_seconds()
        standing = await last_look(self.adapters, self.registry, resource, targets, self.limits)
        return standing, self.adapters.clock.now_seconds() - began_seconds

    def _held(
        self, assignment: Assignment, orders: Sequence[Order], reason: Reason, detail: str
    ) -> tuple[Assignment, Sequence[Order]]:
        """The assignment as carried out, with none of its orders."""
        decision = assignment.decision
        for order in orders:
            decision = order.actuator.not_made(decision, reason, detail)
        return replace(assignment, decision=hold(decision, reason, detail)), ()

    def _void(self, assignment: Assignment, orders: Sequence[Order], memory: _Memory) -> None:
        """Settle the orders that are not written at all."""
        for order in orders:
            self._settle(assignment, order, memory, written=False)

    async def _act(
        self,
        resource: Resource,
        assignment: Assignment,
        orders: Sequence[Order],
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
                pool, kept = assignment.decision.pool, memory.conflicts
                in_a_row = kept[pool] = kept.get(pool, 0) + 1 if conflict else 0
                # Plan again at once from the actual values, but not for ever.
                again = again or 0 < in_a_row < _MOST_REPEATS
            if failure is not None:
                decision = order.actuator.not_made(
                    assignment.decision, failure.reason, failure.detail
                )
                assignment = replace(assignment, decision=decision)
        return assignment.decision, again

    async def _write(
        self, resource: Resource, change: Change, write: Awaitable[bool | None]
    ) -> Failure | None:
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
            cause = error
            if isinstance(error, PartlyWrittenError):
                await self.reporter.report_change(resource, error.written)
                cause, change = error.error, error.left
            failure = Failure(reason=self._count_refusal(cause), detail=str(error))
            answered = not isinstance(cause, ClusterUnavailableError)
            ended = not_written(change, failure.reason, failure.detail, answered=answered)
            await self.reporter.report_change(resource, ended)
            return failure
        if written is not False:
            await self.reporter.report_change(resource, change)
        return None

    def _settle(
        self, assignment: Assignment, order: Order, memory: _Memory, *, written: bool
    ) -> None:
        first = order.change.settings[0]
        outcome = Outcome(
            uid=memory.uid,
            time_seconds=self.adapters.clock.now_seconds(),
            before=first.before or 0,
            after=first.after or 0,
            written=written,
            knob=order.actuator.knob,
            pool=assignment.decision.pool,
        )
        self.recorder.outcome(outcome)
        memory.state = reconciled(memory.state, outcome, memory.targets)

    def _count_refusal(self, error: ServingSLOError) -> Reason:
        """Why a write was refused; also counts it."""
        if isinstance(error, WriteConflictError):
            self.adapters.exporter.count_conflict()
            return Reason.WRITE_CONFLICT
        if isinstance(error, NotLeaderError):
            return Reason.LEASE_LOST
        self.adapters.exporter.count_failure("kubernetes")
        return Reason.WRITE_FAILED
