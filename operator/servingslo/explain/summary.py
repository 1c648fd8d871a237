"""A decision in four lines: why, what holds it back, how sure it is, what would change it."""

from collections.abc import Iterator

from servingslo.estimation.stated_law import STATED_SOURCE
from servingslo.explain.conditions import limit_detail
from servingslo.explain.format import UNKNOWN, number, percent, seconds
from servingslo.policy.decision import CountOutlook, Decision
from servingslo.reasons import Constraint, Reason

CONSTRAINTS = {
    Constraint.UTILIZATION: "the utilization target",
    Constraint.KV_CACHE: "KV cache memory",
    Constraint.TTFT: "the time to first token",
    Constraint.TPOT: "the time per output token",
    Constraint.LATENCY: "the end-to-end latency",
    Constraint.QUEUE_TIME: "the queue time",
    Constraint.BACKLOG: "the backlog to be drained",
    Constraint.SATURATION: "measured saturation",
    Constraint.MIN_REPLICAS: "replicas.min",
}
_LIMITS = {
    Reason.PROMETHEUS_UNAVAILABLE: "Prometheus does not answer, and nothing is taken away blind",
    Reason.METRICS_MISSING: "the pods have no metrics, and nothing is taken away blind",
    Reason.METRICS_STALE: "metrics are too old, and nothing is taken away blind",
    Reason.METRICS_PARTIAL: "some pods are not seen, and nothing is taken away blind",
    Reason.METRICS_NOT_A_NUMBER: "metrics are not numbers, and nothing is taken away blind",
    Reason.FALLBACK_FLOOR: "metrics stay away, so fallback.replicas is the floor",
    Reason.STABILIZED: "fewer were wanted for less than the stabilization window",
    Reason.STEP_DOWN_UNSAFE: "fewer would not hold until a replica could be had again",
    Reason.WARMING_UP: "the workload has been watched for too short a time",
    Reason.ROLLOUT_IN_PROGRESS: "a rollout is in progress",
    Reason.SCALE_UP_POLICY: "behavior.scaleUp allows no more",
    Reason.SCALE_DOWN_POLICY: "behavior.scaleDown allows no fewer",
    Reason.MIN_REPLICAS_REACHED: "replicas.min is reached",
    Reason.MAX_REPLICAS_REACHED: "replicas.max is reached",
    Reason.ADMINISTRATOR_LIMIT: "the administrator allows no more",
    Reason.UNSCHEDULABLE_PODS: "the cluster cannot place the pods ordered",
    Reason.QUOTA_REACHED: "a quota of the namespace allows no more pods",
    Reason.PODS_REFUSED: "the API server refuses the pods ordered",
    Reason.PENDING_PODS: "no pod is ready yet",
    Reason.RECOMMEND_ONLY: "mode is Recommend: nothing is written",
    Reason.PAUSED: "mode is Paused: nothing is written",
    Reason.KILL_SWITCH: "the administrator's switch is on Recommend: nothing is written",
    Reason.SCALER_CONFLICT: "another autoscaler owns the replica count",
    Reason.TARGET_CONFLICT: "an older ServingSLO owns the target",
    Reason.SCALED_TO_ZERO_BY_USER: "somebody set the target to 0 by hand",
    Reason.MODEL_LEARNING: "the model is still learning",
    Reason.MODEL_DOES_NOT_PREDICT: "the model does not predict what is seen",
    Reason.MODEL_NOT_IDENTIFIABLE: "load has not varied enough to know the model",
    Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT: "spec.serviceLaw does not predict what is seen",
}


def summary(decision: Decision) -> Iterator[str]:
    """The lines, each only where there is something to say."""
    because = _because(decision)
    if because:
        yield f"Because: {because}"
    if decision.limited_by is not None:
        why = _LIMITS.get(decision.limited_by, decision.limited_by.value)
        detail = limit_detail(decision)
        yield f"Held by: {why}{f': {detail}' if detail else ''}"
    yield _certainty(decision)
    otherwise = "; ".join(_otherwise(decision))
    if otherwise:
        yield f"Otherwise: {otherwise}"


def _because(decision: Decision) -> str:
    demand = decision.demand
    if decision.reason is Reason.IDLE:
        return "nothing arrives and nothing is served"
    if decision.binding is None:
        return ""
    what = CONSTRAINTS[decision.binding]
    asked = next((n.replicas for n in decision.needs if n.constraint is decision.binding), None)
    if asked is None or demand.forecast_rate_per_second is None:
        return f"{what} binds"
    now = ""
    if demand.arrival_rate_per_second is not None:
        now = f" ({number(demand.arrival_rate_per_second)}/s now)"
    return (
        f"{what} asks for {asked} replicas at {number(demand.forecast_rate_per_second)} requests/s "
        f"expected within {seconds(demand.lead_seconds)}{now}"
    )


def _certainty(decision: Decision) -> str:
    model, age = decision.model, decision.metrics_age_seconds
    old = UNKNOWN if age is None else f"{seconds(age)} old"
    if not model.trusted:
        why = _LIMITS.get(model.reason, model.reason.value)
        return f"How sure: little; {why}, so measured saturation decides (metrics {old})"
    error = UNKNOWN if model.relative_error is None else percent(model.relative_error)
    if model.source == STATED_SOURCE:
        seen = "not yet compared with what is seen"
        if model.relative_error is not None:
            seen = f"off by {error} in {model.sample_count} windows so far"
        return f"How sure: fairly; the law is stated in spec.serviceLaw, {seen} (metrics {old})"
    return f"How sure: the model is trusted, its error is {error} (metrics {old})"


def _otherwise(decision: Decision) -> Iterator[str]:
    """What one replica fewer and one more would give."""
    wanted = decision.recommended_replicas
    for outlook in decision.outlook:
        if wanted is not None and abs(outlook.replicas - wanted) == 1:
            yield _alternative(outlook)


def _alternative(outlook: CountOutlook) -> str:
    usage = ""
    if outlook.utilization_ratio is not None:
        usage = f" at {percent(outlook.utilization_ratio)} utilization"
    if outlook.meets_objectives is None:
        # No objective can be judged: the model is not trusted, or no count meets any.
        return (
            f"{outlook.replicas} would run{usage}"
            if usage
            else f"{outlook.replicas} is not predicted"
        )
    verdict = "would do" if outlook.meets_objectives else "would miss an objective"
    return f"{outlook.replicas} {verdict}{usage}"
