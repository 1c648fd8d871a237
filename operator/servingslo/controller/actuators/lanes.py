"""The lanes of classes: the bound of each class's own BackendTrafficPolicy, written as one change.

Each object is checked and written as the gateway's bound is (`gateway_limits`), which also restores
the bounds of lanes that no resource asks for any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.gateway_limits import GatewayLimits, lane_object
from servingslo.controller.actuators.protocol import Acting, Assignment
from servingslo.explain.changes import Change, Knob
from servingslo.explain.classes import lanes_change
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import AdmissionMode, InForce, Targets
from servingslo.policy.knobs.lanes.knob import lane_in_force
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True)
class Lanes:
    """Writes the lane of each class. limits: how one object is read, checked and written."""

    limits: GatewayLimits
    knob: str = Knob.LANES
    repeats_at_once: bool = False

    async def in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> InForce | None:
        """The bound of each class, and the former one if the current is ours.

        None if no lanes are requested. If one of them may not be written, none is: lanes of higher
        classes mean nothing without those of lower ones.
        """
        if targets.admission_mode is not AdmissionMode.AUTO or not targets.classes:
            return None
        values: dict[str, int | None] = {}
        refused = None
        for one in targets.classes:
            lane = await self.limits.look(ref, lane_object(one), view, route=one.route)
            values |= {f"{one.name}.{key}": value for key, value in lane.values.items()}
            if lane.refused is not None and refused is None:
                detail = f"class {one.name}: {lane.refused.detail}"
                refused = replace(lane.refused, detail=detail)
        return InForce(values=values, refused=refused)

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change of all lanes."""
        return lanes_change(assignment.decision)

    async def change(self, assignment: Assignment) -> bool | None:
        """Write each lane that changes; those that are lowered first."""
        lanes, planned = assignment.decision.lanes, assignment.in_force[self.knob]
        objects = {one.name: lane_object(one) for one in assignment.targets.classes}
        changed = [
            one for one in (() if lanes is None else lanes.classes) if one.change_reason is not None
        ]
        written = False
        for one in sorted(changed, key=lambda one: (one.after or 0) > (one.before or 0)):
            written |= await self.limits.set(
                assignment.ref,
                objects[one.name],
                lane_in_force(planned, one.name).values,
                one.after,
                puts_back=lanes is not None and lanes.puts_back,
            )
        return written

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision with unchanged lanes, and why."""
        if decision.lanes is None:
            return decision
        held = replace(decision.lanes.hold(), reason=reason, detail=detail)
        return replace_knob(decision, self.knob, held)

    async def undo(self, _acting: Acting) -> Sequence[Change]:
        """Nothing: `GatewayLimits` restores every bound that nobody asks for."""
        return ()
