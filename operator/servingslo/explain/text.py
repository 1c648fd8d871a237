"""A decision in a few lines for a person on call: what, why, how certain, what would change it."""

from collections.abc import Iterable, Iterator, Sequence

from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.explain import features
from servingslo.explain.conditions.cause import dependent_verdict
from servingslo.explain.conditions.objectives import PERCENT, objective_verdict
from servingslo.explain.format import (
    UNKNOWN,
    asked_count,
    count,
    counted,
    joined,
    mean_tokens,
    milliseconds,
    number,
    objective_name,
    percent,
    predicted,
    replica_change,
    rounded,
    seconds,
)
from servingslo.explain.knob_text import knob_lines
from servingslo.explain.parts.gpus import gpu_lines
from servingslo.explain.parts.models import model_lines
from servingslo.explain.summary import SMALL_CORRECTION, bound_by, summary
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import (
    ColdStartReport,
    DecisionStep,
    LimitsUse,
    ObjectiveReport,
    PredictedCount,
    StepValue,
)
from servingslo.reasons import Action, Reason
from servingslo.units import timestamp_from_seconds

# A model with this error may still be in use; the person on call should know.
_LARGE_ERROR = 0.2
# A smaller share of aborted requests is within the error of counters read at different times.
_LEAST_ABORTED = 0.01


def text(decision: Decision) -> str:
    """The decision explained, one statement a line."""
    return "\n".join(_lines(decision))


def _lines(decision: Decision) -> Iterator[str]:
    verb = decision.action.value.replace("-", " ")
    change = replica_change(decision)
    pool = f" pool {decision.pool}" if decision.pool else ""
    at = timestamp_from_seconds(decision.time_seconds)
    yield f"{decision.namespace}/{decision.name}{pool} at {at}"
    yield f"Decision: {verb}, {counted(change, 'replica')} ({decision.reason.value})"
    wanted = decision.recommended_replicas
    if wanted is not None and wanted != decision.replicas_after:
        yield f"Recommended: {counted(wanted, 'replica')}; not applied"
    elif decision.action is not Action.HOLD and not decision.apply_replicas:
        yield "Not applied"
    if decision.detail:
        yield f"Note: {decision.detail}"
    yield from summary(decision)
    yield "Details:"
    replicas = decision.replicas
    excluded = f", {replicas.excluded} no capacity" if replicas.excluded else ""
    yield (
        f"Replicas: {count(replicas.current)} reported, {replicas.ready} ready, "
        f"{replicas.pending} pending{excluded}"
    )
    yield from _why(decision)
    yield from _demand(decision)
    yield from model_lines(decision.models)
    yield from objective_lines(decision.objectives)
    yield from _promise(decision)
    yield from _reserve(decision)
    yield from features.lines(decision.features)
    yield from _certainty(decision)
    yield from gpu_lines(decision.gpus)
    yield from _limits(decision.limits)
    yield from _listed("How it came about", map(_step, decision.steps))
    yield from _listed("Other counts", map(_predicted_count, decision.predicted_counts))
    yield from knob_lines(decision)


def _why(decision: Decision) -> Iterator[str]:
    if decision.binding is not None:
        yield f"Binds: {bound_by(decision, decision.binding)}"
    for need in decision.needs:
        if asked := asked_count(need):
            yield f"  {need.constraint.value} needs {asked}"
            continue
        least = need.least_feasible
        best = "" if least is None else f"; the best that any count reaches is {number(least)}"
        yield f"  {need.constraint.value} cannot be met by any count{best}"
    if decision.limited_by is not None:
        yield f"Limited by: {decision.limited_by.value}"


def _demand(decision: Decision) -> Iterator[str]:
    demand = decision.demand
    if demand.arrival_rate_per_second is None:
        yield "Demand: unknown"
    else:
        forecast = ""
        if demand.forecast_rate_per_second is not None:
            forecast = (
                f", {number(demand.forecast_rate_per_second)}/s expected "
                f"in {seconds(demand.lead_seconds)}, when capacity ordered now is ready"
            )
        yield f"Demand: {number(demand.arrival_rate_per_second)} requests/s{forecast}"
    counts = (
        (demand.running_requests, "running"),
        (demand.waiting_requests, "waiting"),
        (demand.backlog_requests, "to be drained"),
    )
    usage = demand.kv_usage_ratio
    kv_cache = None if usage is None else f"KV cache {percent(usage)} full"
    known = (f"{number(value)} {what}" for value, what in counts if value is not None)
    if held := joined((*known, kv_cache)):
        yield f"  now: {held}"
    prompt, output, ratio = (
        demand.prompt_tokens_mean,
        demand.output_tokens_mean,
        demand.cached_ratio,
    )
    if prompt is not None and output is not None:
        ratio = demand.cached_ratio
        cached = "" if ratio is None else f", {percent(ratio)} of it cached"
        tokens = f"{mean_tokens(prompt)} prompt tokens{cached}, {mean_tokens(output)} output tokens"
        yield f"  a request: {tokens}"
    if demand.aborted_ratio is not None and demand.aborted_ratio >= _LEAST_ABORTED:
        yield f"  clients gave up {percent(demand.aborted_ratio)} of the requests that ended"
    yield from _ledger(demand.ledger)
    if demand.scrape_dispersion is not None:
        told = number(demand.scrape_dispersion)
        yield f"  dispersion of arrivals from scrape to scrape (1 is chance): {told}"
    if decision.cold_start is not None:
        yield f"  a cold start takes {_cold_start(decision.cold_start)}"


def _ledger(ledger: RequestLedger | None) -> Iterator[str]:
    """Rates of requests by outcome; nothing if all requests were admitted."""
    if ledger is None:
        return
    if ledger.refused_per_second is None:
        yield f"  refused requests are not counted ({ledger.reason.value})"
        return
    # Most requests end well: only what does not is worth a number.
    rates = (
        (ledger.offered_per_second, "offered"),
        (ledger.admitted_per_second, "admitted"),
        (ledger.degraded_per_second or None, "degraded"),
        (ledger.refused_per_second, "refused"),
        (ledger.queueing_per_second, "queued"),
        (ledger.retried_per_second, "of them retries"),
        (_worth_a_number(ledger.failed_per_second), "failed"),
        (_worth_a_number(ledger.aborted_per_second), "aborted"),
    )
    shown = [(number(rate), what) for rate, what in rates if rate is not None]
    if any(rate not in {"0", "-0"} for rate, _ in shown[2:]):
        told = ", ".join(f"{rate}/s {what}" for rate, what in shown)
        yield f"  requests: {told} ({ledger.reason.value})"


def _worth_a_number(rate: float | None) -> float | None:
    return None if rate is None or number(rate) == "0" else rate


def _cold_start(start: ColdStartReport) -> str:
    """The cold start, its source, and the parts of the measured starts."""
    parts = (
        ("scheduling", start.scheduling_seconds),
        ("image", start.image_seconds),
        (
            "loading" if start.image_seconds is not None else "image and loading",
            start.loading_seconds,
        ),
    )
    known = [(what, value) for what, value in parts if value is not None]
    split = ", ".join(f"{what} {seconds(value)}" for what, value in known)
    starts = counted(start.sample_count, "start")
    if start.source == "measured":
        return f"{seconds(start.seconds)}, measured on {starts}: {split}"
    if start.source != "stated":
        return f"{seconds(start.seconds)}, assumed until one is measured"
    if not known:
        return f"{seconds(start.seconds)}, as stated"
    took = seconds(sum(value for _, value in known))
    return f"{seconds(start.seconds)}, as stated; {starts} took {took}: {split}"


def _promise(decision: Decision) -> Iterator[str]:
    """The attained and the declared share."""
    promise = decision.promise
    if promise is None or promise.attained_ratio is None:
        return
    attained, most = promise.attained_ratio, promise.attained_most_ratio
    over = 60.0 * max(round(min(promise.period_seconds, promise.observed_seconds) / 60.0), 1)
    yield (
        f"All objectives: {_between(attained, most or attained)} of requests attained, "
        f"{percent(promise.target_ratio)} declared, over {seconds(over)}"
    )


def _reserve(decision: Decision) -> Iterator[str]:
    """The reserve in force, and the price of the promise: what one replica fewer would miss."""
    known = decision.reserve
    if known is None:
        return
    window = known.window_seconds
    rate = f"the greatest rate of {seconds(window)}" if window else "the rate at the lead time"
    rules = (
        (known.missed_ratio, known.mean_replicas),
        (known.cheaper_missed_ratio, known.cheaper_mean_replicas),
    )
    lived = ", ".join(f"{percent(one)} missed at {number(mean)} replicas" for one, mean in rules)
    yield (
        f"Reserve: {rate} × {number(known.margin_ratio)}, at least {known.floor_replicas} "
        f"replicas; over the last day {lived}"
    )


def objective_lines(objectives: Sequence[ObjectiveReport]) -> Iterator[str]:
    """Each objective with its prediction, its observation and the verdict."""
    for objective in objectives:
        verdict = objective_verdict(objective)
        yield (
            f"Objective {objective_name(objective)}: "
            f"predicted {_predicted(objective)}, "
            f"observed {_observed(objective, verdict.reason)}, {_share(objective)} "
            f"({verdict.reason.value})"
        )


def _predicted(objective: ObjectiveReport) -> str:
    """The prediction, and how far observations corrected the model's."""
    value, ratio = seconds(objective.predicted_seconds), objective.calibration_ratio
    if objective.predicted_seconds is None or ratio is None or abs(ratio - 1.0) < SMALL_CORRECTION:
        return value
    return f"{value} (the model's × {ratio:.2f}, by what was observed)"


def _share(objective: ObjectiveReport) -> str:
    low, high = objective.share_low_ratio, objective.share_high_ratio
    share = "nothing observed yet" if objective.unobserved else "no requests to measure"
    if low is not None and high is not None:
        share = f"{_between(low, high)} of requests within it"
    elif objective.missing:
        share = objective.missing
    return f"{share}, {percent(objective.percentile / PERCENT)} wanted"


def _observed(objective: ObjectiveReport, verdict: Reason) -> str:
    """The percentile; only its bound if the threshold lies in the same bucket."""
    if verdict is Reason.BELOW_BUCKET_RESOLUTION:
        return f"{seconds(objective.least_seconds)} or more"
    return seconds(objective.observed_seconds)


def _between(low: float, high: float) -> str:
    least, most = percent(low), percent(high)
    return least if least == most else f"{least} to {most}"


def _certainty(decision: Decision) -> Iterator[str]:
    age = decision.metrics_age_seconds
    oldest = "age unknown" if age is None else f"oldest sample in use {seconds(age)} old"
    yield f"Metrics: {decision.metrics.value}, {oldest}"
    if decision.metrics_missing:
        yield f"  missing: {decision.metrics_missing}"
    model = decision.model
    dependent = dependent_verdict(decision)
    trusted = "trusted" if model.trusted else f"not trusted ({model.reason.value})"
    if dependent is not None and not model.trusted:
        trusted = f"not known ({dependent.reason.value})"
    yield (
        f"Model: {trusted}, from {model.source}, {model.sample_count} samples, error of its "
        f"windows {percent(model.fit_error)}, of its percentiles {percent(model.relative_error)}"
    )
    if model.trusted and max(model.fit_error or 0.0, model.relative_error or 0.0) > _LARGE_ERROR:
        yield "  the model is used with a large error; expect corrections"
    if model.law is not None:
        law = model.law
        yield (
            f"  a step takes {milliseconds(law.step_fixed_seconds)} "
            f"+ {milliseconds(law.step_per_sequence_seconds)} for each sequence "
            f"+ {milliseconds(law.prefill_per_token_seconds)} for each prompt token"
            + _further_terms(law)
        )


def _limits(limits: LimitsUse) -> Iterator[str]:
    """Limits in force, each with its source."""
    if limits.sources is not None:
        sequences = _limit(limits.max_num_seqs, limits.max_num_seqs_source)
        budget = _limit(limits.max_num_batched_tokens, limits.max_num_batched_tokens_source)
        yield f"Limits: max_num_seqs {sequences}, max_num_batched_tokens {budget}"
    if limits.unread:
        yield f"  not read: {limits.unread}"


def _limit(value: int | None, source: str | None) -> str:
    return count(value) if source is None else f"{count(value)} ({source})"


def _further_terms(law: ServiceLaw) -> str:
    seconds_each = law.context_per_token_seconds
    terms = f" beyond {count(int(law.hidden_tokens))} of a step" if law.hidden_tokens else ""
    terms += f" + {milliseconds(seconds_each)} for each token of context" if seconds_each else ""
    if law.loading_seconds:
        loaded = f"{milliseconds(law.loading_seconds)} once some {count(int(law.loading_tokens))}"
        terms += f" + up to {loaded} tokens load all weights"
    return terms


def _step(step: DecisionStep) -> str:
    before, after = rounded(step.before), rounded(step.after)
    stays = before is None or before == after
    change = f"{step.knob} {after}" if stays else f"{step.knob} {before} → {after}"
    inputs = ", ".join(f"{name}={_value(value)}" for name, value in step.inputs.items())
    return f"{step.stage}: {change}, {step.reason.value}" + (f" ({inputs})" if inputs else "")


def _value(value: StepValue) -> StepValue:
    return UNKNOWN if value is None else rounded(value)


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    """The lines below their title; nothing without any."""
    for at, line in enumerate(lines):
        yield from (() if at else (f"{title}:",))
        yield f"  {line}"


def _predicted_count(count: PredictedCount) -> str:
    verdict = {True: "meets every target", False: "falls short", None: "not judged"}
    shares = (("utilization", count.utilization_ratio), ("KV cache", count.kv_usage_ratio))
    most = count.greatest_rate_per_second
    parts = (
        verdict[count.meets_objectives],
        *(f"{what} {percent(value)}" for what, value in shares if value is not None),
        *map(predicted, count.latencies),
        None if most is None else f"holds up to {number(most)} requests/s",
    )
    return f"{count.replicas}: {joined(parts)}"
