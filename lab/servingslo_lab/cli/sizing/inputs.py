"""What a user states about engine, requests and objectives, checked and in SI units."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import gammainc, gammaincinv

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.latency import Objective
from servingslo.models.known_engines import KnownEngine, known_engine
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.runtimes.engines.vllm_defaults import (
    FIRST_WITH_LARGEST_CARDS as _NEWEST_READ,
)
from servingslo.runtimes.engines.vllm_defaults import default_limits
from servingslo.runtimes.profile import EngineSetting
from servingslo.units import (
    SECONDS_PER_MINUTE,
    format_duration,
    parse_duration_seconds,
    parse_short_duration_seconds,
)
from servingslo_lab.sim.fleets.engine_kinds import ENGINE_KINDS, engine_kind
from servingslo_lab.sim.traces.trace import Trace, read_trace

# Bounds of the resource: a count sized here can be written into one.
MOST_GPUS = 1024
HIGHEST_HOURLY = 10_000.0
LOWEST_PERCENTILE, HIGHEST_PERCENTILE = 50.0, 99.9
SHORTEST_THRESHOLD_SECONDS, LONGEST_THRESHOLD_SECONDS = 1e-3, 3600.0
# A gamma law of the stated variation, cut into parts of equal probability; the last are finer,
# because the heavy tail of prompts makes the high percentiles of TTFT.
_BODY_PARTS = 48
_TAIL_SHARES = (0.99, 0.995, 0.998, 0.999, 0.9995)
_LAW_KEYS = {
    "a": "step_fixed_seconds",
    "b": "step_per_sequence_seconds",
    "c": "prefill_per_token_seconds",
    "d": "context_per_token_seconds",
}
_LAW_FORM = "a=…,b=…,c=…[,d=…], each a time with its unit, such as a=6.5ms,b=0.04ms,c=0.03ms"


def parse_objective(text: str, field: str = "--objective") -> Objective:
    """The objective in 'ttft:p99:500ms'.

    Raises: InvalidInputError for another form, an unknown metric, or a value out of range.
    """
    parts = text.split(":")
    if len(parts) != 3 or not parts[1].startswith("p"):
        raise InvalidInputError(field, text, "METRIC:pPERCENTILE:THRESHOLD, such as ttft:p99:500ms")
    metric, percentile, threshold = parts
    if metric not in set(LatencyMetric):
        raise InvalidInputError(f"{field}: metric", metric, ", ".join(LatencyMetric))
    seconds = parse_duration_seconds(threshold, f"{field}: threshold")
    if not SHORTEST_THRESHOLD_SECONDS <= seconds <= LONGEST_THRESHOLD_SECONDS:
        raise InvalidInputError(f"{field}: threshold", threshold, "a duration from 1ms to 1h")
    return Objective(
        metric=LatencyMetric(metric),
        percentile=_percentile(percentile, f"{field}: percentile"),
        threshold_seconds=seconds,
    )


def parse_objectives(texts: Sequence[str]) -> tuple[Objective, ...]:
    """All objectives, each metric and percentile once. Raises: InvalidInputError."""
    objectives = tuple(parse_objective(text) for text in texts)
    seen = set()
    for text, objective in zip(texts, objectives, strict=True):
        key = objective.metric, objective.percentile
        if key in seen:
            raise InvalidInputError("--objective", text, "each metric and percentile once")
        seen.add(key)
    return objectives


def parse_law(text: str, field: str = "--service-law") -> ServiceLaw:
    """The service law in 'a=6.5ms,b=0.04ms,c=0.03ms,d=0.05us'.

    Raises: InvalidInputError for another form, or where a step would take no time.
    """
    values: dict[str, float] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in _LAW_KEYS:
            raise InvalidInputError(field, text, _LAW_FORM)
        if _LAW_KEYS[key] in values:
            raise InvalidInputError(f"{field}: {key}", value, "each letter once")
        values[_LAW_KEYS[key]] = parse_short_duration_seconds(value, f"{field}: {key}")
    missing = [key for key in "abc" if _LAW_KEYS[key] not in values]
    if missing:
        raise InvalidInputError(f"{field}: {missing[0]}", None, _LAW_FORM)
    if values["step_fixed_seconds"] <= 0:
        raise InvalidInputError(f"{field}: a", text, "above 0: every step takes time")
    return ServiceLaw(**values)


class StatedEngine(NamedTuple):
    """An engine to size for, its name, and the price of a GPU for an hour if that is known.

    known: of an engine that is named by card and model, where its law comes from.
    """

    name: str
    law: ServiceLaw
    limits: EngineLimits
    price_per_hour: float | None = None
    known: KnownEngine | None = None


def stated_engine(
    fleet: str | None,
    law: str | None,
    *,
    card: str | None = None,
    model: str | None = None,
    gpus: int = 1,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    kv_tokens: float | None,
) -> StatedEngine:
    """Law and limits, from a preset or from card and model, and what is stated wins.

    Raises: InvalidInputError naming what is missing.
    """
    if fleet is not None and fleet not in ENGINE_KINDS:
        raise InvalidInputError("--fleet", fleet, ", ".join(ENGINE_KINDS))
    if (card is None) != (model is None) or (fleet is not None and card is not None):
        allowed = "--card and --model together, and not with --fleet"
        raise InvalidInputError("--card", card, allowed)
    found: StatedEngine | None = None
    if fleet is not None:
        kind = engine_kind(fleet)
        found = StatedEngine(kind.name, kind.law, kind.limits, kind.price_per_hour)
    elif card is not None and model is not None:
        found = _named_engine(card, model, gpus)
    elif law is None:
        allowed = f"{_LAW_FORM}; or --card and --model, or --fleet"
        raise InvalidInputError("--service-law", None, allowed)
    named: dict[str, float | None] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_capacity_tokens": kv_tokens,
    }
    stated = {name: value for name, value in named.items() if value is not None}
    if found is None and len(stated) < len(named):
        flags = ("--max-num-seqs", "--max-num-batched-tokens", "--kv-tokens")
        missing = next(f for f, name in zip(flags, named, strict=True) if name not in stated)
        raise InvalidInputError(missing, None, "1 or more; required without --fleet or --card")
    limits = EngineLimits(**stated) if found is None else replace(found.limits, **stated)  # type: ignore[arg-type]
    if found is not None and law is None:
        return found._replace(limits=limits)
    price = None if found is None else found.price_per_hour
    return StatedEngine("this engine", parse_law(law or ""), limits, price)


def _named_engine(card: str, model: str, gpus: int) -> StatedEngine:
    """With the batch limits that vLLM has on such a card, and the KV cache that fits."""
    known = known_engine(card, model, gpus, fields=("--card", "--model", "--gpus-per-replica"))
    setting = EngineSetting(
        version=_NEWEST_READ,
        card=known.card.name.upper(),
        card_memory_bytes=known.card.memory,
        accelerator=True,
    )
    defaults = default_limits(setting)
    limits = EngineLimits(
        max_num_seqs=defaults.max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        kv_capacity_tokens=known.kv_tokens,
    )
    cards = f"{gpus} x {known.card.name}" if gpus > 1 else known.card.name
    return StatedEngine(f"{known.model.name} on {cards}", known.law, limits, known=known)


def spread_lengths(mean_tokens: float, variation: float) -> LengthDistribution:
    """Token counts with this mean and coefficient of variation, of a gamma law; one token at least.

    variation: standard deviation over mean; 0 gives a constant. Each point is the mean of its part
    of the law: E[X; X < x] = mean · P(shape + 1, x/scale). What lies below one token is one, and
    what is above it comes so much nearer that the mean stays.
    """
    if variation <= 0 or mean_tokens <= 1.0:
        return LengthDistribution.constant(mean_tokens)
    shape = 1.0 / variation**2
    shares = np.array([*(i / _BODY_PARTS for i in range(_BODY_PARTS)), *_TAIL_SHARES, 1.0])
    shares = np.unique(shares)
    ends = gammaincinv(shape, shares)
    partial = mean_tokens * gammainc(shape + 1.0, ends)
    weights = np.diff(shares)
    points = np.maximum(np.diff(partial) / weights, 1.0)
    points = 1.0 + (points - 1.0) * (mean_tokens - 1.0) / (float(points @ weights) - 1.0)
    points, first = np.unique(points, return_inverse=True)
    merged = np.bincount(first, weights)
    return LengthDistribution(
        tokens=tuple(points.tolist()), weights=tuple((merged / merged.sum()).tolist())
    )


def stated_workload(
    rate: float,
    *,
    prompt_tokens: float,
    prompt_variation: float,
    output_tokens: float,
    output_variation: float,
    cached_ratio: float,
    dispersion: float,
) -> Workload:
    """Requests as stated: a rate, mean lengths and how they vary."""
    return Workload(
        arrival_rate_per_second=rate,
        prompt=spread_lengths(prompt_tokens, prompt_variation),
        output=spread_lengths(output_tokens, output_variation),
        cached_ratio=cached_ratio,
        arrival_dispersion=dispersion,
    )


def traced_workload(
    path: Path, rate: float | None, *, cached_ratio: float, dispersion: float
) -> Workload:
    """Requests as in a trace; without a rate, that of its busiest minute.

    Prompt and output lengths belong together: what a running sequence holds is measured as
    E[O·(P + O/2)]/E[O], not made from the means.
    Raises: InvalidInputError when the file is no trace.
    """
    trace = read_trace(path, "--trace")
    prompt = trace.prompt_tokens.astype(float)
    output = trace.output_tokens.astype(float)
    return Workload(
        arrival_rate_per_second=busiest_minute_per_second(trace) if rate is None else rate,
        prompt=LengthDistribution.from_samples(np.maximum(prompt, 1.0).tolist()),
        output=LengthDistribution.from_samples(output.tolist()),
        cached_ratio=cached_ratio,
        arrival_dispersion=dispersion,
        context_tokens_per_sequence=float((output * (prompt + output / 2)).sum() / output.sum()),
    )


def busiest_minute_per_second(trace: Trace) -> float:
    """Arrivals per second in the fullest whole minute; the mean of a trace shorter than that."""
    if trace.duration_seconds < SECONDS_PER_MINUTE:
        # Two requests within a tenth of a second are no twenty a second.
        return len(trace) / max(trace.duration_seconds, 1.0)
    _, counts = np.unique(np.floor(trace.arrival_seconds / SECONDS_PER_MINUTE), return_counts=True)
    return float(counts.max() / SECONDS_PER_MINUTE)


def objective_text(objective: Objective) -> str:
    """'ttft p99 ≤ 0.5s'."""
    name = objective_name(objective)
    return f"{name} ≤ {format_duration(objective.threshold_seconds)}"


def objective_name(objective: Objective) -> str:
    """'ttft p99'."""
    return f"{objective.metric.value} p{objective.percentile:g}"


def _percentile(text: str, field: str) -> float:
    allowed = f"p{LOWEST_PERCENTILE:g} to p{HIGHEST_PERCENTILE:g}"
    try:
        percentile = float(text.removeprefix("p"))
    except ValueError as error:
        raise InvalidInputError(field, text, allowed) from error
    inside = LOWEST_PERCENTILE <= percentile <= HIGHEST_PERCENTILE
    if not inside or math.isnan(percentile):
        raise InvalidInputError(field, text, allowed)
    return percentile


def hourly_price(value: float) -> float:
    """The price of a GPU for an hour. Raises: InvalidInputError for what is none."""
    return in_range("--gpu-hourly", value, 0.0, HIGHEST_HOURLY, f"0 to {HIGHEST_HOURLY:g}")


def gpu_count(value: int) -> int:
    """The GPUs of a replica. Raises: InvalidInputError for fewer than one or far too many."""
    return int(in_range("--gpus-per-replica", value, 1, MOST_GPUS, f"1 to {MOST_GPUS}"))


def in_range(field: str, value: float, low: float, high: float, allowed: str) -> float:
    """The value. Raises: InvalidInputError unless low ≤ value ≤ high (NaN never is)."""
    if not low <= value <= high:
        raise InvalidInputError(field, value, allowed)
    return value
