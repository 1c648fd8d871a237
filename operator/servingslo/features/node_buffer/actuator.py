"""The replicas of a CapacityBuffer, by which node autoscalers provision nodes ahead."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.endings import Switch, forbidden, refusal
from servingslo.controller.actuators.means import ActuatorRow, Means
from servingslo.controller.actuators.protocol import Acting, Assignment
from servingslo.errors import ClusterError, LimitNotEnforceableError, WriteConflictError
from servingslo.explain.changes import Change, Setting
from servingslo.features.node_buffer.buffers import (
    KIND,
    Buffer,
    BufferOwner,
    Buffers,
    capacity_buffers,
)
from servingslo.features.node_buffer.decision import (
    MOST,
    NODE_BUFFER,
    OURS,
    OWN,
    REPLICAS,
    TARGETS,
    buffer_of,
)
from servingslo.features.node_buffer.run import BufferFlags
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import InForce, ScaleTarget, SignalProblem, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason

_NOT_ENABLED = "the administrator does not enable node buffers"


@dataclass(slots=True)
class NodeBuffer:
    """Sets the replicas of a buffer if the administrator and the buffer's owner allow it.

    A tenant could make the same write themselves: it is in their own namespace, in a buffer that
    its owner made and labelled for it, and only its replicas. most: that the administrator allows;
    0 for none at all.
    """

    buffers: Buffers
    most: int
    knob: str = NODE_BUFFER
    repeats_at_once: bool = False
    _switch: Switch = field(init=False)

    def __post_init__(self) -> None:
        self._switch = Switch(self.most > 0)

    async def in_force(
        self, ref: ResourceRef, targets: Targets, _view: WorkloadView
    ) -> InForce | None:
        """The buffer's present replicas, or why they may not be changed.

        None if no buffer is named. Without replicas in the values, they are not known.
        """
        asked = TARGETS.of(targets.features)
        if asked is None:
            return None
        standing = InForce()
        try:
            buffer = await self.buffers.read(ref.namespace, asked.buffer)
            standing = standing_buffer(ref, buffer, targets.target)
        except ClusterError as error:
            standing = replace(standing, refused=refusal(error, Reason.BUFFER_NOT_USABLE))
        if self.most > 0:
            return replace(standing, values={**standing.values, MOST: self.most})
        problem = SignalProblem(reason=Reason.NOT_PERMITTED, detail=_NOT_ENABLED)
        return replace(standing, refused=problem)

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change of the replicas."""
        decided = buffer_of(assignment.decision.knobs)
        if decided is None or decided.change_reason is None:
            return None
        resource = (assignment.decision.namespace, assignment.decision.name)
        change = _change(resource, decided.buffer, decided.before, decided.after)
        seconds, detail = decided.ahead_seconds, decided.detail
        if decided.ahead_replicas is not None and seconds is not None:
            detail = f"{decided.ahead_replicas} replicas in {seconds:.0f} s"
        return replace(change, reason=decided.change_reason, detail=detail)

    async def change(self, assignment: Assignment) -> bool | None:
        """Write the replicas, or restore the owner's, if the buffer is as it was when planned."""
        decided = buffer_of(assignment.decision.knobs)
        if decided is None:
            return False
        ref, planned = assignment.ref, assignment.in_force[self.knob]
        buffer = await self.buffers.read(ref.namespace, decided.buffer)
        standing = standing_buffer(ref, buffer, assignment.targets.target)
        refused = standing.refused is not None and not decided.puts_back
        if refused or any(planned.values.get(k) != v for k, v in standing.values.items()):
            raise WriteConflictError(f"{buffer.title} is not as it was read any more")
        if decided.puts_back:
            return await self.buffers.put_back(buffer)
        owner = BufferOwner(name=ref.name, uid=ref.uid, replicas=decided.after, former=decided.own)
        await self.buffers.write(buffer, owner)
        return True

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision with its count and unchanged replicas of the buffer, and why."""
        decided = buffer_of(decision.knobs)
        if decided is None:
            return decision
        held = replace(decided.hold(), reason=reason, detail=detail)
        return replace_knob(decision, self.knob, held)

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Restore the replicas for each resource that is gone or names the buffer no longer."""
        return await self._switch.undo(self.buffers, acting, _is_wanted, _way_back)


def standing_buffer(ref: ResourceRef, buffer: Buffer, target: ScaleTarget) -> InForce:
    """The replicas of the buffer itself, and why they may not be changed."""
    owner, replicas, own = buffer.owner, buffer.replicas, buffer.replicas
    other, ours = "", {}
    if owner is not None and not buffer.is_ours:
        other = "another client set other replicas; they are left alone"
    elif owner is not None and owner.name != ref.name:
        other = f"ServingSLO {owner.name} sets them already"
    elif owner is not None:
        own, ours = owner.former, {OURS: 1}
    problem = forbidden(buffer, Reason.BUFFER_RELEASED, Reason.BUFFER_SET_BY_ANOTHER, other)
    try:
        buffer.check(target)
    except LimitNotEnforceableError as error:
        problem = problem or refusal(error, Reason.BUFFER_NOT_USABLE)
    return InForce(values={REPLICAS: replicas, OWN: own, **ours}, refused=problem)


def _is_wanted(buffer: Buffer, pools: Sequence[Targets]) -> bool:
    named = (TARGETS.of(targets.features) for targets in pools)
    return any(asked is not None and asked.buffer == buffer.name for asked in named)


def _way_back(buffer: Buffer) -> Change:
    owner, now = buffer.owner, buffer.replicas or 0
    name = "" if owner is None else owner.name
    former = owner.former if owner is not None and buffer.is_ours else now
    return _change((buffer.namespace, name), buffer.name, now, former)


def _change(resource: tuple[str, str], buffer: str, before: int, after: int) -> Change:
    """A change of the replicas; the owner's are restored. resource: namespace and name."""
    return Change(
        namespace=resource[0],
        name=resource[1],
        target=f"{KIND}/{buffer}",
        knob=NODE_BUFFER,
        settings=(Setting(name="buffer_replicas", before=before, after=after),),
        reason=Reason.BUFFER_PUT_BACK,
    )


def _actuator(means: Means) -> NodeBuffer:
    flags = means.option(BufferFlags) or BufferFlags()
    most = flags.node_buffer_max_replicas
    return NodeBuffer(capacity_buffers(means.client, namespaces=means.namespaces), most)


PART: ActuatorRow = _actuator
