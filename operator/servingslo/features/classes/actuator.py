"""The lanes of classes: the bound of each class's own BackendTrafficPolicy, written as one change.

Each object is checked and written as the gateway's bound is (`gateway_limits`), which also restores
the bounds of lanes that no resource asks for any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.gateway_limits import (
    GatewayLimits,
    class_object,
    gateway_limits,
)
from servingslo.controller.actuators.means import ActuatorRow, Means
from servingslo.controller.actuators.protocol import Acting, Assignment, PartlyWrittenError
from servingslo.errors import ServingSLOError
from servingslo.explain.changes import Change, Setting
from servingslo.features.classes.decision import LANES_DECIDED, ClassReport
from servingslo.features.classes.knob import lane_in_force
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import AdmissionMode, InForce, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.policy.routes import LANES
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True)
class Lanes:
    """Writes the lane of each class. limits: how one object is read, checked and written."""

    limits: GatewayLimits
    knob: str = LANES
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
            lane = await self.limits.look(ref, class_object(one), view, route=one.route)
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
        lanes, planned = LANES_DECIDED.of(assignment.decision.knobs), assignment.in_force[self.knob]
        if lanes is None:
            return False
        objects = {one.name: class_object(one) for one in assignment.targets.classes}
        written, left = list[ClassReport](), list(lanes.changed)
        for one in sorted(left, key=lambda one: (one.after or 0) > (one.before or 0)):
            try:
                made = await self.limits.set(
                    assignment.ref,
                    objects[one.name],
                    lane_in_force(planned, one.name).values,
                    one.after,
                    puts_back=lanes.puts_back,
                )
            except ServingSLOError as error:
                if not written:
                    raise
                parts = (_change(assignment.decision, part) for part in (written, left))
                raise PartlyWrittenError(error, *parts) from error
            left.remove(one)
            written += [one] * made
        return bool(written)

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision with unchanged lanes, and why."""
        lanes = LANES_DECIDED.of(decision.knobs)
        if lanes is None:
            return decision
        held = replace(lanes.hold(), reason=reason, detail=detail)
        return replace_knob(decision, self.knob, held)

    async def undo(self, _acting: Acting) -> Sequence[Change]:
        """Nothing: `GatewayLimits` restores every bound that no resource asks for."""
        return ()


def lanes_change(decision: Decision) -> Change | None:
    """The change of lanes that a decision orders; None if it orders none."""
    lanes = LANES_DECIDED.of(decision.knobs)
    changed = () if lanes is None else lanes.changed
    return _change(decision, changed) if changed else None


def _change(decision: Decision, lanes: Sequence[ClassReport]) -> Change:
    """The change of some of its lanes, all of which change."""
    return Change(
        namespace=decision.namespace,
        name=decision.name,
        target=f"BackendTrafficPolicy/{','.join(one.policy for one in lanes)}",
        knob=LANES,
        settings=tuple(
            Setting(name=f"lane_{one.name}", before=one.before, after=one.after) for one in lanes
        ),
        reason=lanes[0].change_reason or decision.reason,
    )


def _lanes(means: Means) -> Lanes:
    return Lanes(gateway_limits(means))


PART: ActuatorRow = _lanes
