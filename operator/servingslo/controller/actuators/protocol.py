"""Protocol of an actuator: an object that changes one thing on the cluster for a workload."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.errors import ServingSLOError
from servingslo.explain.changes import Change
from servingslo.explain.format import joined
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import InForce, ScaleTarget, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason

# The targets of the resource of that namespace, name and uid, by pool, while it may act; else none.
# None: another process decides about it, and what was written for it stays.
Acting = Callable[[ResourceRef], Sequence[Targets] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What to carry out: for which resource, from which decision.

    in_force: the values at the time of the decision, by knob. scaled: the workload that the target
    stood for then, if it is another object.
    """

    ref: ResourceRef
    targets: Targets
    decision: Decision
    in_force: Mapping[str, InForce] = field(default_factory=dict)
    scaled: ScaleTarget | None = None


class PartlyWrittenError(ServingSLOError):
    """A change of several objects ended half-way, for `error`. written, left: its two parts."""

    def __init__(self, error: ServingSLOError, written: Change, left: Change) -> None:
        super().__init__(f"{error}; written: {joined((written.target, written.detail), ' ')}")
        self.error, self.written, self.left = error, written, left


class Actuator(Protocol):
    """One thing that may be changed. Its wanted value comes from the decision alone.

    An exception from its methods that is no ServingSLOError ends the turn of that resource.
    """

    @property
    def knob(self) -> str:
        """Its name in `changed` lines, metrics and recordings."""
        ...

    @property
    def repeats_at_once(self) -> bool:
        """Whether to plan again at once, a few times, if another client changed it first.

        Otherwise the change waits for the next tick.
        """
        ...

    async def in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> InForce | None:
        """The current value, and why it may not be changed, if so; for the planner.

        None if the view of the workload contains it already. Never raises for trouble with the
        cluster: that is then the reason why it may not be changed.
        """
        ...

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change that a decision orders; None if it orders none."""
        ...

    async def change(self, assignment: Assignment) -> bool | None:
        """Make that change, unless the former value has changed meanwhile.

        Returns False if nothing had to be written. Raises: WriteConflictError if another client was
        first; PartlyWrittenError if a part was written; ServingSLOError otherwise.
        """
        ...

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision as carried out when its change was not made."""
        ...

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Put back the values of resources that no longer ask for the operator's.

        Returns the changes made, refused ones included. Raises: ClusterError if the current values
        cannot be found out.
        """
        ...
