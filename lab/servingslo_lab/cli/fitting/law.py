"""A service law fitted to samples by the operator's own estimator, with its error."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from servingslo.estimation import estimator
from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.law.trust import LEAST_WINDOWS, TRUSTED_ERROR_RATIO
from servingslo.explain.format import mean_tokens, number, percent
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.reasons import Reason
from servingslo.units import format_short_duration

_WHY = {
    Reason.MODEL_LEARNING: (
        f"too little was seen: {LEAST_WINDOWS} windows between scrapes are needed, under load"
    ),
    Reason.CONFIGURATION_CHANGED: (
        f"the configuration changed: {LEAST_WINDOWS} windows of the new one are needed"
    ),
    Reason.MODEL_NOT_IDENTIFIABLE: (
        "concurrency hardly varied, so that a step with twice as many sequences is not known"
    ),
    Reason.MODEL_DOES_NOT_PREDICT: (
        f"it mispredicts the next window by more than {TRUSTED_ERROR_RATIO:.0%} on average"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The law of one workload's engines.

    law: None where nothing could be fitted; step_per_sequence_seconds then holds what context adds
    at the workload's mean context. relative_error: mean error of predicting the next window.
    standard_error_ratio: of the step time at twice the concurrency seen, or at that one if it
    bends. window_count: behind it.
    service_law: as `servingslo size --service-law` reads it, None for a law that bends. spec: a
    ServingSLO's with this law, None where it is not trusted or bends. gateway: whose count the
    arrival rate is, None where no gateway was read.
    """

    workload: str
    trusted: bool
    reason: Reason
    law: ServiceLaw | None
    service_law: str | None
    spec: Mapping[str, Mapping[str, float]] | None
    relative_error: float | None
    standard_error_ratio: float | None
    window_count: int
    arrival_rate_per_second: float | None
    gateway: Reason | None
    prompt_tokens_mean: float | None
    output_tokens_mean: float | None
    cached_ratio: float | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    kv_capacity_tokens: float | None


def fitted(workload: str, samples: Iterable[FleetSample]) -> Fit:
    """The fit after all samples, in order of time; there must be one at least."""
    state = EstimatorState()
    estimate = None
    for sample in samples:
        state, estimate = estimator.update(state, sample)
    if estimate is None:
        raise ValueError("no samples")
    law = estimate.law
    straight = None if law.law is None or law.law.bends else law.law
    return Fit(
        workload=workload,
        trusted=law.trusted,
        reason=law.reason,
        law=law.law,
        service_law=None if straight is None else law_text(straight),
        spec=spec_of(straight) if straight is not None and law.trusted else None,
        relative_error=law.fit_error,
        standard_error_ratio=law.standard_error_ratio,
        window_count=law.sample_count,
        arrival_rate_per_second=estimate.arrival_rate_per_second,
        gateway=None if estimate.gateway is None else estimate.gateway.reason,
        prompt_tokens_mean=estimate.prompt_tokens_mean,
        output_tokens_mean=estimate.output_tokens_mean,
        cached_ratio=estimate.cached_ratio,
        max_num_seqs=estimate.max_num_seqs,
        max_num_batched_tokens=estimate.max_num_batched_tokens,
        kv_capacity_tokens=estimate.kv_capacity_tokens,
    )


def law_text(law: ServiceLaw) -> str:
    """'a=6.5ms,b=40us,c=30us', as `size --service-law` reads it."""
    parts = (
        ("a", law.step_fixed_seconds),
        ("b", law.step_per_sequence_seconds),
        ("c", law.prefill_per_token_seconds),
        ("d", law.context_per_token_seconds),
    )
    shown = ((key, value) for key, value in parts if value > 0 or key != "d")
    return ",".join(f"{key}={format_short_duration(value)}" for key, value in shown)


def spec_of(law: ServiceLaw) -> dict[str, dict[str, float]]:
    """The fields of a ServingSLO's spec that state this law, in seconds to four digits."""
    fields = {
        "stepFixedSeconds": law.step_fixed_seconds,
        "stepPerSequenceSeconds": law.step_per_sequence_seconds,
        "prefillPerTokenSeconds": law.prefill_per_token_seconds,
        "contextPerTokenSeconds": law.context_per_token_seconds,
    }
    shown = {name: float(f"{value:.4g}") for name, value in fields.items()}
    return {"serviceLaw": {n: v for n, v in shown.items() if v or n != "contextPerTokenSeconds"}}


def fit_text(fit: Fit) -> str:
    """The fit for people."""
    return "\n".join(_lines(fit))


def _lines(fit: Fit) -> Iterator[str]:
    if fit.law is None:
        yield f"{fit.workload}: no law"
    else:
        law = fit.law
        yield f"{fit.workload}: {fit.service_law or 'a law that bends, which no spec can state'}"
        yield (
            f"  a step takes {format_short_duration(law.step_fixed_seconds)} "
            f"+ {format_short_duration(law.step_per_sequence_seconds)} for each sequence "
            f"+ {format_short_duration(law.prefill_per_token_seconds)} for each prompt token"
        )
        if law.loading_seconds:
            yield (
                f"  + up to {format_short_duration(law.loading_seconds)} once some "
                f"{law.loading_tokens:g} tokens load all weights"
            )
    if fit.trusted:
        yield f"  trusted, from {fit.window_count} windows"
    else:
        why = _WHY.get(fit.reason, fit.reason.value)
        yield f"  not trusted ({fit.reason.value}), from {fit.window_count} windows: {why}"
    if fit.relative_error is not None:
        yield f"  error of predicting the next window: {percent(fit.relative_error)}"
    if fit.standard_error_ratio is not None:
        at = "the" if fit.law is not None and fit.law.bends else "twice the"
        error = percent(fit.standard_error_ratio)
        yield f"  standard error of a step at {at} concurrency seen: {error}"
    if fit.prompt_tokens_mean is not None and fit.output_tokens_mean is not None:
        yield (
            f"  a request: {mean_tokens(fit.prompt_tokens_mean)} prompt tokens, "
            f"{mean_tokens(fit.output_tokens_mean)} output tokens"
        )
    if fit.arrival_rate_per_second is not None:
        told = "" if fit.gateway is None else f" ({fit.gateway.value})"
        yield f"  requests/s in the last window: {number(fit.arrival_rate_per_second)}{told}"
    if fit.spec is not None:
        yield "  for a new workload on the same engine, in the spec of its ServingSLO:"
        for parent, fields in fit.spec.items():
            yield f"    {parent}:"
            yield from (f"      {name}: {_decimal(value)}" for name, value in fields.items())


def _decimal(value: float) -> str:
    """Without an exponent, which not every reader of YAML takes for a number."""
    return f"{Decimal(repr(value)):f}"
