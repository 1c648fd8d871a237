"""A count on its way from what demand requires through the guards, with the bounds on it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from servingslo.models.objectives import Objective
from servingslo.policy.decision_parts import ConstraintNeed, DecisionStep, StepValue
from servingslo.policy.hpa_behavior import BehaviorState
from servingslo.policy.inputs import Limits, Targets
from servingslo.policy.replicas.sizing import Sized
from servingslo.reasons import Constraint, Reason

REPLICAS_KNOB = "replicas"
# Stages whose steps other parts look for.
DEMAND_STAGE, STEP_DOWN_STAGE = "demand", "step-down"

# The largest count if no bound limits it: in mode Recommend, replicas.max may be absent.
UNBOUNDED_REPLICAS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Allowed counts, both ends included, and who set the upper one."""

    minimum: int
    maximum: int
    maximum_reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """The count that demand needs, and the reasons for it.

    safe_replicas: the least count that also holds until a new replica could be ready. sized: the
    case and load of the sizing, None without a model. idle: no requests arrive and none are served.
    """

    replicas: int
    safe_replicas: int
    binding: Constraint | None = None
    needs: tuple[ConstraintNeed, ...] = ()
    infeasible: tuple[Objective, ...] = ()
    sized: Sized | None = None
    idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A count on its way through the guards.

    limited_by: the last guard that kept the planner from its requirement; None if none did.
    behavior: the memory of rate policies and stabilization after them, None before.
    """

    replicas: int
    requirement: Requirement
    limited_by: Reason | None = None
    steps: tuple[DecisionStep, ...] = ()
    behavior: BehaviorState | None = None

    @classmethod
    def of(cls, replicas: int) -> "Proposal":
        """A count that nothing asks to change."""
        return cls(
            replicas=replicas, requirement=Requirement(replicas=replicas, safe_replicas=replicas)
        )

    def moved(self, stage: str, replicas: int, reason: Reason, **inputs: StepValue) -> "Proposal":
        """The proposal after this stage set another count; unchanged if the count is the same."""
        if replicas == self.replicas:
            return self
        return replace(self.required(stage, replicas, reason, **inputs), limited_by=reason)

    def required(
        self, stage: str, replicas: int, reason: Reason, **inputs: StepValue
    ) -> "Proposal":
        """The proposal after this stage changed the requirement itself, which limits nothing."""
        return replace(self.noted(stage, replicas, reason, **inputs), replicas=replicas)

    def noted(
        self, stage: str, after: StepValue, reason: Reason, **inputs: StepValue
    ) -> "Proposal":
        """The proposal with one more step that changes no count by itself."""
        step = DecisionStep(
            stage=stage,
            knob=REPLICAS_KNOB,
            before=self.replicas,
            after=after,
            reason=reason,
            inputs=inputs,
        )
        return replace(self, steps=(*self.steps, step))

    def held(self, stage: str, replicas: int, reason: Reason, **inputs: StepValue) -> "Proposal":
        """The proposal at this count for this reason, noted even where it is there already."""
        noted = self.noted(stage, replicas, reason, **inputs)
        return replace(noted, replicas=replicas, limited_by=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDownBlock:
    """A reason against fewer replicas than now, with its numbers."""

    reason: Reason
    inputs: Mapping[str, StepValue]


def bounds_of(targets: Targets, limits: Limits, *, current: int | None = None) -> Bounds:
    """The allowed counts: the tenant's, inside the administrator's.

    A minimum of 0 counts as 1 until the count is 0: `zero` decides about scaling to zero and back.
    """
    own = UNBOUNDED_REPLICAS if targets.replicas.maximum is None else targets.replicas.maximum
    cap = UNBOUNDED_REPLICAS if limits.max_replicas is None else limits.max_replicas
    maximum = min(own, cap)
    least = targets.replicas.minimum if current == 0 else max(targets.replicas.minimum, 1)
    return Bounds(
        minimum=min(least, maximum),
        maximum=maximum,
        maximum_reason=Reason.ADMINISTRATOR_LIMIT if cap < own else Reason.MAX_REPLICAS_REACHED,
    )
