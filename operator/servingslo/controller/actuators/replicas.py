"""The replica count of the target, written through /scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.protocol import Acting, Assignment
from servingslo.explain.changes import Change, Knob, replica_count_change
from servingslo.policy.decision import Decision, hold
from servingslo.policy.inputs import InForce, ScaleTarget, Targets
from servingslo.policy.ports import ReplicaWriter, RereadableWorkloads, WorkloadView
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """Sets the count from the one that the plan started from."""

    writer: ReplicaWriter
    workloads: RereadableWorkloads
    knob: str = Knob.REPLICAS
    repeats_at_once: bool = True

    async def in_force(
        self, _ref: ResourceRef, _targets: Targets, _view: WorkloadView
    ) -> InForce | None:
        """None: the view contains the count, and which other client sets it."""
        return None

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change of the count."""
        return replica_count_change(assignment.decision, _written(assignment))

    async def change(self, assignment: Assignment) -> bool | None:
        """Set the count; the next read is newer than this write or its refusal."""
        decision, target = assignment.decision, _written(assignment)
        before, after = decision.replicas_before, decision.replicas_after
        if before is None or after is None:
            return False
        namespace = assignment.ref.namespace
        try:
            await self.writer.scale(namespace, target, before, after)
        finally:
            self.workloads.invalidate(namespace, target)
        return True

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """A hold of the whole decision: batch limits are planned together with the count."""
        return hold(decision, reason, detail)

    async def undo(self, _acting: Acting) -> Sequence[Change]:
        """Do nothing: a workload keeps its count."""
        return ()


def _written(assignment: Assignment) -> ScaleTarget:
    """The object whose count is set."""
    return assignment.scaled or assignment.targets.target
