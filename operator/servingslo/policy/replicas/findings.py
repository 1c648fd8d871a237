"""Facts found before any decision, as steps of the decision: one function for each."""

from dataclasses import replace

from servingslo.estimation.pods.batch_limits import Limit, LimitSource
from servingslo.estimation.requests.arrivals import COUNTING_ERROR_RATIO
from servingslo.policy.decision_parts import DecisionStep, StepValue
from servingslo.policy.inputs import LIMIT_FIELDS
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.pods import Condition
from servingslo.reasons import Reason

ARRIVAL_RATE_KNOB = "arrival-rate"
SEASON_KNOB = "season"
# A step of a decision is one line of a log, so it names at most this many slow pods.
MOST_SLOW_NAMED = 5
# If the season changes less than this share of the rate, the change is not worth reporting.
TOLD_SHARE = 0.1


def _step(
    stage: str,
    knob: str,
    reason: Reason,
    *,
    before: StepValue = None,
    after: StepValue = None,
    **inputs: StepValue,
) -> DecisionStep:
    return DecisionStep(
        stage=stage, knob=knob, before=before, after=after, reason=reason, inputs=inputs
    )


def failing_pods_step(context: TickContext) -> DecisionStep | None:
    """The failing pods by name with the reason: 'llama-7 (OOMKilled)'; None without any.

    after: how many fail. inputs: the same number, of how many pods, and the names.
    """
    failing = context.pods.of(Condition.FAILING)
    if not failing:
        return None
    inputs = context.pods.inputs(Condition.FAILING)
    return _step("observed", "failing-pods", Reason.PODS_FAILING, after=len(failing), **inputs)


def law_step(context: TickContext) -> DecisionStep:
    """The source of the service law, and its known error; the busy shares if GPUs refute it.

    Of a law that bends: how many sequences were seen, how many it is known for, and whether
    saturation is beyond.
    """
    law = context.estimate.law
    stated = law.stated_error_ratio
    inputs: dict[str, StepValue] = {} if stated is None else {"stated_error": stated}
    gpus = context.estimate.gpus
    if law.reason is Reason.GPUS_DISAGREE and gpus is not None:
        inputs |= {"gpu_busy": gpus.utilization_ratio, "law_busy": gpus.law_ratio}
    if law.reach_sequences is not None:
        full = None if context.prepared is None else context.prepared.model.cap
        inputs |= {
            "seen_sequences": law.seen_sequences,
            "reach_sequences": law.reach_sequences,
            "extrapolated": full is not None and full > law.reach_sequences,
        }
    return _step(
        "model", "service-law", law.reason, after=law.source,
        fit_error=law.fit_error, samples=law.sample_count, **inputs,
    )  # fmt: skip


def limits_step(context: TickContext) -> DecisionStep | None:
    """A limit that is not stated: the default, or the value learnt from data; None without one.

    A learnt limit is reported with the default that it replaces.
    """
    in_force = context.estimate.in_force
    named = zip(LIMIT_FIELDS, (in_force.max_num_seqs, in_force.max_num_batched_tokens), strict=True)
    unstated: list[tuple[str, Limit]] = [
        (name, limit)
        for name, limit in named
        if limit is not None and limit.source in {LimitSource.LEARNT, LimitSource.DEFAULT}
    ]
    if not unstated:
        return None
    learnt = [one for one in unstated if one[1].source is LimitSource.LEARNT]
    knob, told = (learnt or unstated)[0]
    inputs: dict[str, StepValue] = {}
    for name, limit in unstated:
        inputs[name] = limit.value
        inputs[f"{name}_source"] = limit.source.value
        inputs[f"{name}_default"] = limit.assumed
    reason = Reason.LIMITS_LEARNT if learnt else Reason.LIMITS_ASSUMED
    return _step("observed", knob, reason, before=told.assumed, after=told.value, **inputs)


def gateway_step(context: TickContext) -> DecisionStep | None:
    """The source of the arrival counts, with both counts; None if no gateway is read.

    before: what the engines counted. after: the arrival rate that is planned with.
    """
    use = context.estimate.gateway
    if use is None:
        return None
    rates = {"before": use.engines_per_second, "after": context.estimate.arrival_rate_per_second}
    return _step(
        "observed", ARRIVAL_RATE_KNOB, use.reason, **rates,
        gateway_per_second=use.gateway_per_second, refused_per_second=use.refused_per_second,
    )  # fmt: skip


def retries_step(context: TickContext) -> DecisionStep | None:
    """The offered rate, and the first tries that are planned for; None if they are equal.

    measured: whether added capacity has shown how many refused requests are retried; else it is
    assumed.
    """
    estimate = context.estimate
    offered, first = estimate.offered_rate_per_second, estimate.arrival_rate_per_second
    if offered is None or first is None or offered - first <= COUNTING_ERROR_RATIO * offered:
        return None
    return _step(
        "observed", "first-attempts", Reason.RETRIES_EXCLUDED, before=offered, after=first,
        refused_per_second=estimate.rejected_per_second, measured=estimate.retries_known,
    )  # fmt: skip


def unscraped_pods_step(context: TickContext) -> DecisionStep | None:
    """The count from scraped pods, and the rate that is used; None if they agree."""
    counted, stands = (
        context.estimate.discarded_per_second,
        context.estimate.offered_rate_per_second,
    )
    if counted is None:
        return None
    knob, reason = ARRIVAL_RATE_KNOB, Reason.PODS_UNSCRAPED
    return _step("observed", knob, reason, before=counted, after=stands)


def season_step(context: TickContext) -> DecisionStep | None:
    """The season in the history, at the tick it is read; later a large effect of the season.

    before and after, of the arrival rate: expected at the lead time without the season and with it.
    """
    if context.observation.history is not None:
        return _season_found(context)
    demand, forecast = context.demand, context.estimate.forecast
    if demand is None or forecast.season is None:
        return None
    lead = demand.lead_seconds
    plain = replace(forecast, season=None).mean_per_second(lead)
    expected = demand.mean_at_lead_per_second
    if abs(expected - plain) <= TOLD_SHARE * max(expected, plain):
        return None
    return _step(
        "forecast", ARRIVAL_RATE_KNOB, Reason.SEASON_EXPECTED, before=plain, after=expected,
        weight=forecast.season_weight(lead), lead_seconds=lead,
    )  # fmt: skip


def _season_found(context: TickContext) -> DecisionStep | None:
    finding = context.state.estimator.forecast.season.finding
    history = context.observation.history
    if finding is None or history is None:
        return None
    season = finding.season
    name = None if season is None else "weekly" if season.rest_days else "daily"
    detail: dict[str, StepValue] = {"detail": history.detail} if history.detail else {}
    return _step(
        "forecast", SEASON_KNOB, finding.reason, after=name,
        days=finding.day_count, explained_ratio=finding.strength_ratio,
        changes_explained_ratio=finding.change_ratio, **detail,
    )  # fmt: skip


def slow_pods_step(context: TickContext) -> DecisionStep | None:
    """The slow pods by name, with how many times as long their steps take; None without any."""
    slow = context.estimate.slow_pods
    if not slow:
        return None
    named = ", ".join(f"{pod.pod} x{pod.ratio:.1f}" for pod in slow[:MOST_SLOW_NAMED])
    return _step("observed", "slow-pods", Reason.SLOW_PODS, after=len(slow), pods=named)


def latency_step(context: TickContext) -> DecisionStep | None:
    """Reports that observed percentiles do not come from a histogram, and their real source."""
    estimate = context.estimate
    if not estimate.means or not estimate.observed:
        return None
    asked = {objective.metric.value for objective in context.targets.objectives}
    from_law = bool(asked & estimate.observed.keys() - estimate.summaries)
    reason = Reason.LATENCY_FROM_MEANS if from_law else Reason.LATENCY_OF_WORST_POD
    means = {f"mean_{name}_seconds": delta.mean for name, delta in estimate.means.items()}
    return _step("observed", "latency", reason, **means)


_STEPS = (
    failing_pods_step,
    law_step,
    limits_step,
    gateway_step,
    retries_step,
    unscraped_pods_step,
    season_step,
    slow_pods_step,
    latency_step,
)


def findings(context: TickContext) -> tuple[DecisionStep, ...]:
    """A step for each fact that is worth reporting."""
    found = (step(context) for step in _STEPS)
    return tuple(step for step in found if step is not None)


def with_unreliable(
    context: TickContext, steps: tuple[DecisionStep, ...]
) -> tuple[DecisionStep, ...]:
    """The steps, with one that names pods left out or in doubt if no step names them yet.

    Where replacements are ordered for the pods left out, that step names them. The step that blocks
    a scale-down names the pods in doubt. Without a model and a shortage, and in a hold, nothing is
    ordered: then this step names them.
    """
    told = {step.reason for step in steps}
    left_out, suspect = context.pods.unreliable, context.pods.of(Condition.SUSPECT)
    if Reason.UNRELIABLE_PODS in told or not (left_out or suspect):
        return steps
    knob = "unreliable-pods" if left_out else "suspect-pods"
    inputs = context.pods.inputs(Condition.UNRELIABLE if left_out else Condition.SUSPECT)
    named = len(left_out or suspect)
    return (*steps, _step("observed", knob, Reason.UNRELIABLE_PODS, after=named, **inputs))
