"""A decision in a few lines: why, what limits it, how certain it is, what would change it."""

from collections.abc import Iterator

from servingslo.estimation.law.trust import OF_SPEC, LawSource
from servingslo.explain import features
from servingslo.explain.conditions.cause import dependent_verdict, failing_pods
from servingslo.explain.conditions.derived import limit_detail, suspect_pods, unreliable_pods
from servingslo.explain.conditions.objectives import infeasible_message
from servingslo.explain.format import (
    UNKNOWN,
    asked_count,
    counted,
    joined,
    number,
    per_second,
    percent,
    predicted,
    seconds,
)
from servingslo.explain.limit_sentences import LIMIT_SENTENCES
from servingslo.models.fleet.objective_metrics import ROW_OF_CONSTRAINT, ROWS
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep, PredictedCount
from servingslo.policy.replicas.proposal import STEP_DOWN_STAGE
from servingslo.reasons import Constraint, Reason

CONSTRAINTS = {
    Constraint.UTILIZATION: "the utilization target",
    Constraint.KV_CACHE: "KV cache memory",
    **{row.constraint: row.about for row in ROWS},
    Constraint.ADAPTER_SLOTS: "slots of adapters",
    Constraint.BACKLOG: "the backlog to be drained",
    Constraint.SATURATION: "measured saturation",
    Constraint.RESERVE: "the reserve that past arrivals ask for",
    Constraint.DEADLINE: "work with a deadline",
    Constraint.WARM: "replicas on call",
    Constraint.MIN_REPLICAS: "replicas.min",
}
_QUIET = {
    Reason.IDLE: "no requests arrive or run",
    Reason.ASLEEP: "no requests arrive, and a gateway reports the next one",
    Reason.SCALED_TO_ZERO_BY_USER: "a user set them",
    Reason.WOKEN_BY_REQUESTS: "requests arrived while no replica runs",
}

# A smaller correction of predictions is not worth reporting.
SMALL_CORRECTION = 0.01
# Stages that may keep a count from falling.
_GUARDS = frozenset({STEP_DOWN_STAGE, "bounds", "behavior", "administrator", "fallback"})
_WAY_OUT = "only a higher threshold or faster replicas would change that"


def summary(decision: Decision) -> Iterator[str]:
    """The lines, each only if it has something to report."""
    if why := because(decision):
        yield f"Because: {why}"
    if pods := failing_pods(decision):
        yield f"Failing: {pods}"
    yield from features.headlines(decision.features)
    yield from _on_top(decision)
    for objective in decision.objectives:
        if message := infeasible_message(decision, objective):
            yield f"Out of reach according to the model: {message}; {_WAY_OUT}"
    if decision.limited_by is not None:
        why = LIMIT_SENTENCES.get(decision.limited_by, decision.limited_by.value)
        # Pods in doubt are named above.
        doubted = decision.limited_by is Reason.UNRELIABLE_PODS
        detail = "" if doubted else limit_detail(decision)
        yield f"Held by: {why}{f': {detail}' if detail else ''}"
    chance = decision.demand.planned_probability
    planned = "" if chance is None or decision.binding is None else percent(chance)
    quantile = f"planned for the {planned} quantile of demand" if planned else ""
    yield f"How sure: {joined((_certainty(decision), quantile), '; ')}"
    if otherwise := "; ".join(_otherwise(decision)):
        yield f"Otherwise: {otherwise}"


def bound_by(decision: Decision, binding: Constraint) -> str:
    """The constraint in words, with whose minimum it is."""
    stated = features.minimum(decision.features) if binding is Constraint.MIN_REPLICAS else ""
    return stated or CONSTRAINTS[binding]


def because(decision: Decision) -> str:
    """The constraint that needs this count, and the demand; '' if none does."""
    demand = decision.demand
    if decision.reason in _QUIET:
        return _QUIET[decision.reason]
    if decision.binding is None:
        return ""
    what = bound_by(decision, decision.binding)
    asked = next((asked_count(n) for n in decision.needs if n.constraint is decision.binding), "")
    if not asked or demand.forecast_rate_per_second is None:
        return f"{what} binds"
    arrivals = per_second(demand.arrival_rate_per_second)
    now = f" ({arrivals} now)" if arrivals else ""
    at = f"{number(demand.forecast_rate_per_second)} requests/s"
    when = f"expected within {seconds(demand.lead_seconds)}{now}"
    return f"{what} asks for {counted(asked, 'replica')} at {at} {when}"


def _on_top(decision: Decision) -> Iterator[str]:
    """Replicas beyond the need of the demand, and what would save them."""
    more = next((s for s in decision.steps if s.reason is Reason.TOLERATED_FAILURES), None)
    if more and (spare := more.inputs.get("tolerated_failures")):
        fewer = f"demand alone needs {spare} fewer"
        yield f"Spare: {spare} more for replicas.toleratedFailures; {fewer}"
    if pods := unreliable_pods(decision):
        more = next((s for s in decision.steps if s.reason is Reason.UNRELIABLE_PODS), None)
        on_top = f"{decision.replicas.excluded} on top" if more and more.before else "no capacity"
        yield f"Left out: {pods}; {on_top} until they serve again"
    if pods := suspect_pods(decision):
        yield f"In doubt: {pods}; more than half of the ready pods, so none is left out"


def _certainty(decision: Decision) -> str:
    model, age = decision.model, decision.metrics_age_seconds
    old = UNKNOWN if age is None else f"{seconds(age)} old"
    if dependent_verdict(decision) is not None and not model.trusted:
        return "nothing is known without metrics; the replica count is kept"
    if not model.trusted:
        why = LIMIT_SENTENCES.get(model.reason, model.reason.value)
        return f"little; {why}, so measured saturation decides (metrics {old})"
    error = percent(model.fit_error)
    if model.source in OF_SPEC:
        seen = "not yet compared with measurements"
        if model.fit_error is not None:
            seen = f"off by {error} in {model.sample_count} windows so far"
        told = "fairly; the law is stated in spec.serviceLaw"
        if model.source == LawSource.ASSUMED:
            told = "roughly; the law is assumed from spec.engine.card and model"
        return f"{told}, {seen} (metrics {old})"
    off = model.relative_error
    if off is not None and off >= SMALL_CORRECTION:
        error = f"{error}, its percentiles were off by {percent(off)} and are corrected"
    return f"the model is trusted, its error is {error} (metrics {old})"


def _otherwise(decision: Decision) -> Iterator[str]:
    """The demand up to which the count holds, and the effect of one replica fewer or more."""
    wanted = decision.recommended_replicas
    counts = {count.replicas: count for count in decision.predicted_counts}
    if wanted is None:
        return
    most = counts[wanted].greatest_rate_per_second if wanted in counts else None
    if most is not None:
        yield f"{wanted} would hold up to {number(most)} requests/s"
    row = None if decision.binding is None else ROW_OF_CONSTRAINT.get(decision.binding)
    for other in (wanted - 1, wanted + 1):
        if (count := counts.get(other)) is not None:
            binding = (
                predicted(one) for one in count.latencies if row and one.metric == row.metric
            )
            yield f"{joined((_alternative(count), *binding))}{_held(decision, count)}"


def _held(decision: Decision, count: PredictedCount) -> str:
    """The guards that refused a count which would be enough now, in the order they were asked."""
    wanted = decision.recommended_replicas
    if not count.meets_objectives or wanted is None or count.replicas > wanted:
        return ""
    why = [_why_held(step) for step in decision.steps if _refused(step, count.replicas)]
    return f" for the demand planned for, {'; '.join(dict.fromkeys(why))}" if why else ""


def _why_held(step: DecisionStep) -> str:
    if step.reason is Reason.STEP_DOWN_UNSAFE:
        return "not until a new replica could be ready"
    return f"but {LIMIT_SENTENCES.get(step.reason, step.reason.value)}"


def _refused(step: DecisionStep, replicas: int) -> bool:
    """Whether this step is a guard that raised the count from this one, or a lower one."""
    if step.knob != "replicas" or step.stage not in _GUARDS:
        return False
    before, after = step.before, step.after
    return isinstance(before, int) and isinstance(after, int) and before <= replicas < after


def _alternative(count: PredictedCount) -> str:
    used = count.utilization_ratio
    usage = "" if used is None else f" at {percent(used)} utilization"
    if count.meets_objectives is None:
        # The model is not trusted.
        return (
            f"{count.replicas} would run{usage}" if usage else f"{count.replicas} is not predicted"
        )
    verdict = "would do" if count.meets_objectives else "would fall short"
    return f"{count.replicas} {verdict}{usage}"
