"""The batch limits of the engines, written into the pod template."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.protocol import Acting, Assignment
from servingslo.explain.changes import Change, Knob, batch_limits_change
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import InForce, Targets
from servingslo.policy.ports import BatchingWriter, EngineArguments, WorkloadView
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sets both limits of the engine's container, which rolls the pods out anew."""

    writer: BatchingWriter
    knob: str = Knob.BATCH_LIMITS
    repeats_at_once: bool = False

    async def in_force(
        self, _ref: ResourceRef, _targets: Targets, _view: WorkloadView
    ) -> InForce | None:
        """The view tells each pod's arguments, and why they cannot be changed."""
        return None

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change of the limits, or their way back; none of engines that are not known."""
        if assignment.decision.runtime.name is None:
            return None
        return batch_limits_change(assignment.decision, assignment.targets.target)

    async def change(self, assignment: Assignment) -> bool | None:
        """Set the limits; a flag that a change had added is removed with it."""
        batching, targets = assignment.decision.batching, assignment.targets
        runtime = assignment.decision.runtime.name
        if runtime is None:
            return False
        wanted = replace(
            EngineArguments(
                max_num_seqs=batching.recommended_max_num_seqs,
                max_num_batched_tokens=batching.recommended_max_num_batched_tokens,
            ),
            **dict.fromkeys(batching.flags_removed),
        )
        return await self.writer.apply(
            assignment.ref.namespace, targets.target, batching.container, wanted, runtime
        )

    def not_made(self, decision: Decision, reason: Reason, _detail: str) -> Decision:
        """The count stands; the limits are not applied, and why."""
        return replace(decision, batching=replace(decision.batching, apply=False, reason=reason))

    async def undo(self, _acting: Acting) -> Sequence[Change]:
        """Nothing: limits that proved better stay, and what did not is taken back by the plan."""
        return ()
