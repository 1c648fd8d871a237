"""Guards: checks between the count that the models want and the count that is ordered.

Each guard is a pure function from a proposal to a proposal. It appends its own step when it changes
something. Running the chain on its own output changes nothing more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from servingslo.estimation.sample import PodSample
from servingslo.policy.decision_parts import DecisionStep, HandOver, StepValue
from servingslo.policy.hpa_behavior import Behavior, BehaviorState, normalize
from servingslo.policy.inputs import (
    Actuation,
    FallbackBehavior,
    FallbackTargets,
    Limits,
    Mode,
    Observation,
    SignalProblem,
    Targets,
)
from servingslo.policy.replicas.reverts import Reverts
from servingslo.reasons import Reason

REPLICAS_KNOB = "replicas"
# Stages whose steps other parts look for.
DEMAND_STAGE, STEP_DOWN_STAGE = "demand", "step-down"

# The largest count if no bound limits it: in mode Recommend, replicas.max may be absent.
UNBOUNDED_REPLICAS = 4096

_OWNERSHIP = (
    Reason.TARGET_NOT_FOUND,
    Reason.TARGET_NOT_SCALABLE,
    Reason.TARGET_NOT_READABLE,
    Reason.PERMISSION_DENIED,
    Reason.CLUSTER_UNAVAILABLE,
    Reason.SCALER_CONFLICT,
    Reason.TARGET_CONFLICT,
)
# Another client sets the count; the operator's own result is still reported.
CONFLICTS = frozenset({Reason.SCALER_CONFLICT, Reason.TARGET_CONFLICT})
# Acting is switched off: the decision is still made, with its own reason.
ADVICE_ONLY = frozenset({Reason.RECOMMEND_ONLY, Reason.KILL_SWITCH})
# With each of these a decision is only reported: no client carries its count out.
NOT_CARRIED_OUT = frozenset(
    {
        *_OWNERSHIP,
        *ADVICE_ONLY,
        Reason.SCALED_TO_ZERO_BY_USER,
        Reason.PAUSED,
        Reason.NODES_OF_AN_ENGINE,
    }
)
# Ordered pods are not created; the plan goes on.
_REFUSALS = frozenset({Reason.QUOTA_REACHED, Reason.PODS_REFUSED})
_NOBODY = "no HorizontalPodAutoscaler or ScaledObject is on it"
_NOT_SERVED = "the operator serves KEDA no scaler"
_UNASKED = "does not ask the operator: KEDA does by a trigger of type external-push"
_NO_METRICS = (
    Reason.PROMETHEUS_UNAVAILABLE,
    Reason.SEVERAL_RUNTIMES,
    Reason.SEVERAL_MODELS,
    Reason.MODEL_NOT_SERVED,
    Reason.METRIC_NOT_OF_RUNTIME,
    Reason.METRICS_IMPLAUSIBLE,
    Reason.METRICS_TOO_MANY,
    Reason.METRICS_MISSING,
    Reason.METRICS_STALE,
    Reason.METRICS_PARTIAL,
    Reason.METRICS_NOT_A_NUMBER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Allowed counts, both ends included, and who set the upper one."""

    minimum: int
    maximum: int
    maximum_reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A count on its way through the guards.

    limited_by: the last guard that kept the planner from its requirement; None if none did.
    """

    replicas: int
    limited_by: Reason | None = None
    steps: tuple[DecisionStep, ...] = ()

    def moved(self, stage: str, replicas: int, reason: Reason, **inputs: StepValue) -> "Proposal":
        """The proposal after this stage set another count; unchanged if the count is the same."""
        if replicas == self.replicas:
            return self
        steps = self._steps_with(stage, replicas, reason, inputs)
        return Proposal(replicas=replicas, limited_by=reason, steps=steps)

    def required(
        self, stage: str, replicas: int, reason: Reason, **inputs: StepValue
    ) -> "Proposal":
        """The proposal after this stage changed the requirement itself, which limits nothing."""
        steps = self._steps_with(stage, replicas, reason, inputs)
        return Proposal(replicas=replicas, limited_by=self.limited_by, steps=steps)

    def noted(
        self, stage: str, after: StepValue, reason: Reason, **inputs: StepValue
    ) -> "Proposal":
        """The proposal with one more step that changes no count by itself."""
        return replace(self, steps=self._steps_with(stage, after, reason, inputs))

    def _steps_with(
        self, stage: str, after: StepValue, reason: Reason, inputs: Mapping[str, StepValue]
    ) -> tuple[DecisionStep, ...]:
        step = DecisionStep(
            stage=stage,
            knob=REPLICAS_KNOB,
            before=self.replicas,
            after=after,
            reason=reason,
            inputs=inputs,
        )
        return (*self.steps, step)


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


def ownership_problem(
    observation: Observation, actuation: Actuation = Actuation.SCALE, *, may_sleep: bool = False
) -> SignalProblem | None:
    """Why the operator must not decide the replica count; None if it may.

    With another `actuation`, the client that scales the target is no problem, but with Keda it
    must ask the operator. may_sleep: a target at zero is allowed.
    """
    found = [
        problem
        for problem in observation.problems
        if problem.reason in _OWNERSHIP
        and (problem.reason is not Reason.SCALER_CONFLICT or _is_rival(problem, actuation))
    ]
    if found:
        # A target that cannot be used at all comes before a target that another client uses.
        first = min(found, key=lambda problem: problem.reason in CONFLICTS)
        unasked = first.unasking and actuation is Actuation.KEDA
        return replace(first, detail=f"{first.detail} and {_UNASKED}") if unasked else first
    if observation.desired_replicas is None:
        return SignalProblem(
            reason=Reason.TARGET_NOT_READABLE, detail="the replica count of the target is unknown"
        )
    if observation.desired_replicas == 0 and not may_sleep:
        return SignalProblem(
            reason=Reason.SCALED_TO_ZERO_BY_USER,
            detail="the operator decides again at 1 replica or more",
        )
    return None


def _is_rival(scaler: SignalProblem, actuation: Actuation) -> bool:
    """Whether another scaler of the target sets a count of its own."""
    return actuation is Actuation.SCALE or (actuation is Actuation.KEDA and scaler.unasking)


def metrics_problem(observation: Observation) -> SignalProblem | None:
    """Why the engines of this workload cannot be observed, if the reader reports it."""
    return next((p for p in observation.problems if p.reason in _NO_METRICS), None)


def refused_pods(observation: Observation) -> SignalProblem | None:
    """Why ordered pods are not created; None if they are."""
    return next((p for p in observation.problems if p.reason in _REFUSALS), None)


def hold_without_metrics(
    *,
    current: int,
    bounds: Bounds,
    fallback: FallbackTargets,
    problem: SignalProblem,
    without_metrics_seconds: float | None,
    max_step: int | None,
) -> Proposal:
    """The count without metrics: the current count, after a while the floor, never fewer than now.

    Raising to the stated minimum needs no metrics, so it still happens. A count above the maximum
    stays until there are metrics again: an outage never removes capacity. without_metrics_seconds:
    time since they were last good; None if they never were, which counts as long.
    """
    names_cause = {"names_cause": True} if problem.names_cause else {}
    proposal = Proposal(replicas=current).noted(
        "signals", current, problem.reason, detail=problem.detail or None, **names_cause
    )
    proposal = replace(proposal, limited_by=problem.reason)
    away = (
        without_metrics_seconds is None or without_metrics_seconds >= fallback.stale_after_seconds
    )
    if fallback.behavior is FallbackBehavior.FLOOR and fallback.replicas is not None and away:
        floor = max(current, min(fallback.replicas, bounds.maximum))
        proposal = proposal.moved(
            "fallback",
            floor,
            Reason.FALLBACK_FLOOR,
            fallback_replicas=fallback.replicas,
            without_metrics_seconds=without_metrics_seconds,
        )
    proposal = proposal.moved(
        "bounds",
        max(proposal.replicas, bounds.minimum),
        Reason.MIN_REPLICAS_REACHED,
        min_replicas=bounds.minimum,
    )
    return limit_step(proposal, current=current, max_step=max_step)


def block_step_down(
    proposal: Proposal, *, current: int, blocks: tuple[StepDownBlock, ...]
) -> Proposal:
    """Allow no fewer replicas than now while anything forbids it; report every reason."""
    if proposal.replicas >= current or not blocks:
        return proposal
    for block in blocks[1:]:
        proposal = proposal.noted(STEP_DOWN_STAGE, current, block.reason, **block.inputs)
    return proposal.moved(STEP_DOWN_STAGE, current, blocks[0].reason, **blocks[0].inputs)


def check_step_down(
    proposal: Proposal, *, current: int, safe_replicas: int, **inputs: StepValue
) -> Proposal:
    """Step down only as far as every constraint holds until a new replica could be ready.

    safe_replicas: the least count that holds at the step-down demand (the N−1 check, or N−k).
    """
    if proposal.replicas >= current:
        return proposal
    allowed = max(proposal.replicas, min(current, safe_replicas))
    return proposal.moved(
        STEP_DOWN_STAGE, allowed, Reason.STEP_DOWN_UNSAFE, safe_replicas=safe_replicas, **inputs
    )


def clamp(proposal: Proposal, bounds: Bounds) -> Proposal:
    """Move the count into the allowed range."""
    if proposal.replicas > bounds.maximum:
        return proposal.moved(
            "bounds", bounds.maximum, bounds.maximum_reason, max_replicas=bounds.maximum
        )
    if proposal.replicas < bounds.minimum:
        return proposal.moved(
            "bounds",
            bounds.minimum,
            Reason.MIN_REPLICAS_REACHED,
            min_replicas=bounds.minimum,
        )
    return proposal


def apply_behavior(
    proposal: Proposal,
    state: BehaviorState,
    *,
    behavior: Behavior,
    current: int,
    bounds: Bounds,
    now_seconds: float,
) -> tuple[Proposal, BehaviorState]:
    """Apply stabilization and rate policies to the count; return it with their memory."""
    outcome, state = normalize(
        state,
        behavior=behavior,
        current=current,
        desired=proposal.replicas,
        min_replicas=bounds.minimum,
        max_replicas=bounds.maximum,
        now_seconds=now_seconds,
    )
    reason = outcome.limited_by or Reason.STABILIZED
    proposal = proposal.moved(
        "behavior", outcome.replicas, reason, stabilized_replicas=outcome.stabilized
    )
    return proposal, state


def limit_step(proposal: Proposal, *, current: int, max_step: int | None) -> Proposal:
    """Limit the change in one decision to the administrator's largest."""
    if max_step is None:
        return proposal
    limited = min(max(proposal.replicas, current - max_step), current + max_step)
    return proposal.moved("administrator", limited, Reason.ADMINISTRATOR_LIMIT, max_step=max_step)


def behind_queue(
    proposal: Proposal, queued: Sequence[PodSample], *, current: int, minimum: int
) -> Proposal:
    """Order no more replicas while ordered pods wait in a queue: new pods would wait too."""
    most = max(current, minimum)
    if not queued or proposal.replicas <= most:
        return proposal
    return proposal.moved("queue", most, Reason.QUEUED, **queue_inputs(queued))


def queue_inputs(queued: Sequence[PodSample]) -> dict[str, StepValue]:
    """How many pods wait in a queue, and the longest of their reasons."""
    told = max((pod.queued_reason or "" for pod in queued), key=len)
    return {"queued_pods": len(queued), "detail": told}


def leave_to_reverter(
    proposal: Proposal, reverts: Reverts | None, *, current: int, now_seconds: float
) -> Proposal:
    """Keep the current count while another client reverts each change of it.

    This limits the count as long as the pause lasts, whatever the demand requires meanwhile.
    """
    if reverts is None or not reverts.pauses(now_seconds):
        return proposal
    inputs = reverts.inputs()
    noted = proposal.noted("reverts", current, Reason.REPLICAS_REVERTED, **inputs)
    return replace(noted, replicas=current, limited_by=Reason.REPLICAS_REVERTED)


def hold_nodes(proposal: Proposal, nodes: Sequence[str], *, current: int) -> Proposal:
    """Keep the current count if pods of the target are nodes of an engine: none is a replica."""
    if not nodes:
        return proposal
    detail = f"{nodes[0]} runs no server"
    noted = proposal.noted("nodes", current, Reason.NODES_OF_AN_ENGINE, detail=detail)
    held = proposal.limited_by if proposal.replicas == current else None
    return replace(noted, replicas=current, limited_by=held or Reason.NODES_OF_AN_ENGINE)


def acting_limit(targets: Targets, limits: Limits) -> Reason | None:
    """Why a decision is only reported and not carried out; None if it is carried out."""
    if limits.recommend_only:
        return Reason.KILL_SWITCH
    if targets.mode is Mode.PAUSED:
        return Reason.PAUSED
    if targets.mode is Mode.RECOMMEND:
        return Reason.RECOMMEND_ONLY
    return None


def hand_over(
    targets: Targets,
    observation: Observation,
    wanted: int | None,
    *,
    known: bool,
    scaler_served: bool = True,
) -> HandOver | None:
    """Who receives the count, and which count; None if the operator sets it.

    wanted: None if the target's count is unknown. known: the count rests on fresh metrics. Without
    them no count is handed over: the other scaler then does what it is configured to do in that
    case. scaler_served: KEDA can ask the operator.
    """
    if targets.actuation is Actuation.SCALE:
        return None
    scalers = [p.detail for p in observation.problems if p.reason is Reason.SCALER_CONFLICT]
    if targets.actuation is Actuation.NONE:
        reason, replicas = Reason.REPORTED_ONLY, None
    elif targets.actuation is Actuation.KEDA and not scaler_served:
        reason, replicas, scalers = Reason.SCALER_NOT_SERVED, None, [_NOT_SERVED]
    else:
        reason = Reason.HANDED_OVER if scalers else Reason.NOBODY_SCALES
        replicas = wanted if known else None
    detail = "; ".join(scalers) or _NOBODY
    return HandOver(actuation=targets.actuation, reason=reason, replicas=replicas, detail=detail)
