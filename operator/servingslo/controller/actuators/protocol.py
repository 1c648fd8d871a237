"""What is asked of an actuator: of whatever changes one thing on the cluster for a workload."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.explain.changes import Change
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import InForce, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason

# The targets of the resource of that namespace, name and uid while it may act; else None.
Acting = Callable[[ResourceRef], Targets | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What is carried out: for which resource, by which decision.

    in_force: what stood when it was decided, by knob.
    """

    ref: ResourceRef
    targets: Targets
    decision: Decision
    in_force: Mapping[str, InForce] = field(default_factory=dict)


class Actuator(Protocol):
    """One thing that may be changed. What is wanted of it comes from the decision alone.

    Whatever its methods raise beside ServingSLOError ends the turn of that resource.
    """

    @property
    def knob(self) -> str:
        """Its name in `changed` lines, metrics and recordings."""
        ...

    @property
    def repeats_at_once(self) -> bool:
        """Whether a change that somebody overtook is planned again at once, a few times.

        Else it waits for the next tick.
        """
        ...

    async def in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> InForce | None:
        """What stands on the cluster, and why it may not be changed, if so; for the planner.

        None where the view of the workload says it already. Never raises for trouble with the
        cluster: that is why it may not be changed.
        """
        ...

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change that a decision orders; None where it orders none."""
        ...

    async def change(self, assignment: Assignment) -> bool | None:
        """Make that change, unless what stood before it stands no more.

        Returns False where nothing had to be written. Raises: WriteConflictError when somebody
        else was there first; ServingSLOError otherwise.
        """
        ...

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision as it came true when its change was not made."""
        ...

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Put back what was written for resources that do not ask for it any more.

        Returns what was changed, refused changes among it. Raises: ClusterError where it cannot be
        found out what there is.
        """
        ...
