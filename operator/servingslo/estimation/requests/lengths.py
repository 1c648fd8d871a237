"""Estimate lengths of prompts and outputs without bias against long, unfinished requests.

Engines observe lengths when a request ends, so at first only short outputs have been observed. Mean
output length is tokens over requests ended. Tokens of running requests, beyond those that ran
before, are weighted by the spread of lengths: fully if lengths are memoryless (maximum likelihood
under censoring), not at all if all are equal; exact for any law in the steady state. The histogram
gives the shape and is stretched to that mean. Prompts are counted at their first token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.requests.histograms import HistogramDelta, length_distribution, merge
from servingslo.estimation.requests.mix_change import (
    LEAST_MIX_REQUESTS,
    Evidence,
    enough,
    gather,
    is_longer,
    longer_ratios,
    running_changes,
)
from servingslo.estimation.windows.counters import Window
from servingslo.models.workload import LengthDistribution
from servingslo.records import record

# Memory of lengths: long enough for the tail, short enough for a change of mix. The error of a mean
# is σ/√(λτ) from chance and grows with √τ as the mix drifts, so the best memory τ is proportional
# to 1/√λ: from ten minutes at the rate of the small fleet of docs/lab/findings.md down to two.
LENGTH_MEMORY_SECONDS = 600.0
LEAST_MEMORY_SECONDS = 120.0
PLAIN_RATE_PER_SECOND = 30.0
# Memory of the prefill per decoded token, which bounds batches: two or three scrapes. When the mix
# changes, new requests slow the running ones long before the new lengths are known.
RECENT_PREFILL_SECONDS = 30.0
# Means of the Azure LLM inference trace 2023 (conversation): the prior until there are requests,
# worth this many of them.
PRIOR_PROMPT_TOKENS = 1155.0
PRIOR_OUTPUT_TOKENS = 211.0
PRIOR_LENGTH_REQUESTS = 4.0
# Shape of the prior around its mean: five equal parts of an exponential law (Erlang, memoryless).
EXPONENTIAL_POINTS = (0.105, 0.353, 0.687, 1.193, 2.662)
# Requests in the histogram before its shape is preferred to the prior's.
# Judgement; measured by the error of a p99 of lengths drawn from the Azure trace, by count.
SHAPE_REQUESTS = 20.0
# How far the histogram may be stretched to the censored mean.
STRETCH_BOUNDS = (0.5, 3.0)
# A distribution is published again only if its mean or second moment moved by more than this, so
# that tables computed for it stay valid while nothing changes.
# Judgement; measured by the percentiles that 3 % longer requests move, and by the time of a tick.
CHANGE_RATIO = 0.03
# Shapes are computed again when this share of the histogram is new.
NEW_SHAPE_RATIO = 0.1
# Hidden aborts are requests that began and are in no counter of finished ones. They are reported
# only beyond this many standard deviations of their own count: engines admit a request before its
# first token.
HIDDEN_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthState:
    """Exponentially forgotten sums of flows, pooled histograms, and the last published values.

    unpublished: requests that ended since shapes were last computed. recent_*: computed prompt
    tokens and decoded tokens, with a shorter memory. evidence: the last minute, used to detect a
    change of the workload.
    """

    started: float = 0.0
    finished: float = 0.0
    aborted: float = 0.0
    running_change: float = 0.0
    generated_tokens: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    held_tokens: float = 0.0
    held_by: float = 0.0
    prompt: HistogramDelta | None = None
    output: HistogramDelta | None = None
    published_prompt: LengthDistribution | None = None
    published_output: LengthDistribution | None = None
    unpublished: float = 0.0
    recent_prefill_tokens: float = 0.0
    recent_decoded_tokens: float = 0.0
    evidence: tuple[Evidence, ...] = ()


@record(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths as they are now; None if nothing was counted yet.

    context_tokens_per_sequence: KV tokens held by a running sequence. abort_ratio: share of the
    ended requests whose clients gave up: those that the engine counts as aborted, and those that
    got a first token and are in none of its counters, beyond chance; None with too few requests.
    prefill_tokens_per_token: prompt tokens computed for each token decoded, recently.
    mean_error_ratio: standard error of the less certain of both means, as a share of it.
    longer_ratios: see there.
    """

    prompt: LengthDistribution | None = None
    output: LengthDistribution | None = None
    prompt_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    cached_ratio: float | None = None
    context_tokens_per_sequence: float | None = None
    abort_ratio: float | None = None
    prefill_tokens_per_token: float | None = None
    mean_error_ratio: float = 0.0
    longer_ratios: tuple[float, float] = (1.0, 1.0)


def observe(
    state: LengthState,
    windows: Sequence[Window],
    prompt: HistogramDelta | None,
    output: HistogramDelta | None,
    *,
    unbroken: bool = True,
) -> LengthState:
    """Return the state with the windows and the pooled length histograms of one tick.

    unbroken: whether every scraped engine reported a window and none restarted inside it.
    """
    evidence = gather(state.evidence, windows, unbroken=unbroken)
    state = _without_old_workload(state, evidence) if windows else state
    # Some requests of a restarted engine are in no counter, and others have just begun.
    lasting = [window for window in windows if not window.restarted]
    return replace(_count(state, lasting, prompt, output), evidence=evidence)


def _count(
    state: LengthState,
    windows: Sequence[Window],
    prompt: HistogramDelta | None,
    output: HistogramDelta | None,
) -> LengthState:
    if not windows:
        return state
    seconds = max(w.seconds for w in windows)
    begun = sum(w.first_tokens or 0.0 for w in windows)
    keep = max(1.0 - seconds / memory_seconds(begun / seconds if seconds > 0 else 0.0), 0.0)
    keep_recent = max(1.0 - seconds / RECENT_PREFILL_SECONDS, 0.0)

    def after(old: float, values: Sequence[float | None]) -> float:
        return old * keep + sum(v for v in values if v is not None)

    steady = [w for w in windows if not w.restarted]
    held = [
        (tokens, running)
        for w in steady
        if (tokens := w.kv_used_after_tokens) is not None and (running := w.running_after)
    ]
    return replace(
        state,
        started=after(state.started, [w.first_tokens for w in windows]),
        finished=after(state.finished, [w.finished for w in windows]),
        aborted=after(state.aborted, [w.aborted for w in windows]),
        running_change=after(state.running_change, running_changes(windows)),
        generated_tokens=after(state.generated_tokens, [w.generated_tokens for w in windows]),
        prompt_tokens=after(state.prompt_tokens, [w.prompt_tokens for w in windows]),
        cached_tokens=after(state.cached_tokens, [w.cached_tokens for w in windows]),
        held_tokens=after(state.held_tokens, [tokens for tokens, _ in held]),
        held_by=after(state.held_by, [running for _, running in held]),
        prompt=_remember(state.prompt, prompt, keep),
        output=_remember(state.output, output, keep),
        unpublished=state.unpublished + (0.0 if output is None else output.count),
        recent_prefill_tokens=state.recent_prefill_tokens * keep_recent
        + sum((w.prompt_tokens or 0.0) - (w.cached_tokens or 0.0) for w in windows),
        recent_decoded_tokens=state.recent_decoded_tokens * keep_recent
        + sum((w.generated_tokens or 0.0) - (w.first_tokens or 0.0) for w in windows),
    )


def memory_seconds(rate_per_second: float) -> float:
    """Return how long lengths are remembered at this rate of requests.

    Source: the steady gain of a local-level model with little drift, proportional to the root of
    drift over noise (A. Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter",
    1989, section 4.1).
    """
    if rate_per_second <= PLAIN_RATE_PER_SECOND:
        return LENGTH_MEMORY_SECONDS
    shorter = LENGTH_MEMORY_SECONDS * math.sqrt(PLAIN_RATE_PER_SECOND / rate_per_second)
    return max(shorter, LEAST_MEMORY_SECONDS)


def ended_requests(state: LengthState) -> float:
    """Return the requests that ended, including aborts that no counter of finished ones holds."""
    return max(state.finished, state.started - max(state.running_change, 0.0))


def publish(state: LengthState) -> tuple[LengthState, Lengths]:
    """Return lengths now, and the state that remembers the published values."""
    if state.started + state.finished <= 0:
        return state, Lengths()
    starts = max(state.started, state.finished)
    ended = ended_requests(state)
    prompt_mean = (state.prompt_tokens + PRIOR_LENGTH_REQUESTS * PRIOR_PROMPT_TOKENS) / (
        starts + PRIOR_LENGTH_REQUESTS
    )
    seen_output = _seen_shape(state.output)
    output_mean = _output_mean(state, starts, ended, seen_output)
    prompt, output = state.published_prompt, state.published_output
    seen = 0.0 if state.output is None else state.output.count
    is_due = (
        state.unpublished > NEW_SHAPE_RATIO * seen
        or _has_moved(prompt, prompt_mean)
        or _has_moved(output, output_mean)
    )
    if prompt is None or output is None or is_due:
        prompt = _stable(prompt, _shape(_seen_shape(state.prompt), prompt_mean))
        output = _stable(output, _shape(seen_output, output_mean))
        state = replace(state, unpublished=0.0)
    held = (
        state.held_tokens / state.held_by if state.held_by > 0 and state.held_tokens > 0 else None
    )
    lengths = Lengths(
        prompt=prompt,
        output=output,
        prompt_tokens_mean=prompt_mean,
        output_tokens_mean=output_mean,
        cached_ratio=_cached_ratio(state),
        context_tokens_per_sequence=held,
        abort_ratio=_abort_ratio(state),
        prefill_tokens_per_token=(
            max(state.recent_prefill_tokens, 0.0) / state.recent_decoded_tokens
            if state.recent_decoded_tokens > 0.0
            else None
        ),
        mean_error_ratio=max(_mean_error_ratio(prompt, starts), _mean_error_ratio(output, ended)),
        longer_ratios=longer_ratios(prompt, output, state.evidence),
    )
    return replace(state, published_prompt=prompt, published_output=output), lengths


def _cached_ratio(state: LengthState) -> float | None:
    """Return the share of prompt tokens that a cache had; None if no prompt was counted."""
    if state.prompt_tokens <= 0:
        return None
    return min(max(state.cached_tokens / state.prompt_tokens, 0.0), 1.0)


def _mean_error_ratio(lengths: LengthDistribution, requests: float) -> float:
    """Return the standard error of their mean, σ/√n, as a share of it; at most 1."""
    spread = lengths.second_moment_tokens2 / lengths.mean_tokens**2 - 1.0
    return min(math.sqrt(max(spread, 0.0) / max(requests, 1.0)), 1.0)


def _output_mean(
    state: LengthState, starts: float, ended: float, shape: LengthDistribution | None
) -> float:
    """Return the mean output length; ended: ended requests, of those that the state remembers.

    shape: of the outputs seen; None if they are too few.

    A request that has made x tokens makes m - w·x more on average, with w = (1 - v) / (1 + v) for a
    squared coefficient of variation v. This is the straight line through two points: a request that
    begins has the mean m left; running requests in the steady state have the mean age and the mean
    rest m·(1 + v) / 2.
    Source: mean residual life in renewal theory (W. Feller, "An Introduction to Probability Theory
    and Its Applications", vol. 2, 1971, section XI.4).
    """
    tokens, least = state.generated_tokens, 0.0
    seen = state.output
    if seen is not None:
        # Aborted requests ended too, and no histogram has them.
        weight = min(seen.count / ended, 1.0) if ended > 0.0 else 1.0
        if shape is None:
            # Too few requests ended to know how many more tokens the running ones will make.
            least = tokens / starts
        else:
            variation = shape.second_moment_tokens2 / shape.mean_tokens**2 - 1.0
            weight *= (1.0 - variation) / (1.0 + variation)
        tokens += weight * ((seen.mean or 0.0) * ended - tokens)
    return max(
        (tokens + PRIOR_LENGTH_REQUESTS * PRIOR_OUTPUT_TOKENS) / (ended + PRIOR_LENGTH_REQUESTS),
        least,
    )


def _remember(
    old: HistogramDelta | None, new: HistogramDelta | None, keep: float
) -> HistogramDelta | None:
    if new is None:
        return old
    return new if old is None else merge((old, new), (keep, 1.0))


def _seen_shape(histogram: HistogramDelta | None) -> LengthDistribution | None:
    """Return the histogram's shape; None with too few requests."""
    if histogram is None or histogram.count < SHAPE_REQUESTS:
        return None
    return length_distribution(histogram)


def _shape(shape: LengthDistribution | None, mean_tokens: float) -> LengthDistribution:
    """Return this shape at this mean; the prior's shape if it is None."""
    mean_tokens = max(mean_tokens, 1.0)
    if shape is None or shape.mean_tokens <= 0:
        total = sum(EXPONENTIAL_POINTS)
        share = 1.0 / len(EXPONENTIAL_POINTS)
        points = tuple(p * mean_tokens / (total * share) for p in EXPONENTIAL_POINTS)
        return LengthDistribution(tokens=points, weights=(share,) * len(points))
    low, high = STRETCH_BOUNDS
    factor = min(max(mean_tokens / shape.mean_tokens, low), high)
    return LengthDistribution(tokens=tuple(t * factor for t in shape.tokens), weights=shape.weights)


def _has_moved(published: LengthDistribution | None, mean_tokens: float) -> bool:
    if published is None:
        return True
    return abs(published.mean_tokens - mean_tokens) > CHANGE_RATIO * mean_tokens


def _stable(
    published: LengthDistribution | None, candidate: LengthDistribution
) -> LengthDistribution:
    """Return the published value, unless the candidate differs in mean or second moment."""
    if published is None:
        return candidate
    mean, second = candidate.mean_tokens, candidate.second_moment_tokens2
    same_mean = abs(published.mean_tokens - mean) <= CHANGE_RATIO * mean
    same_second = abs(published.second_moment_tokens2 - second) <= 2.0 * CHANGE_RATIO * second
    return published if same_mean and same_second else candidate


def _abort_ratio(state: LengthState) -> float | None:
    ended = ended_requests(state)
    if ended < LEAST_MIX_REQUESTS or state.finished <= 0:
        return None
    hidden = max(ended - state.finished, 0.0)
    if hidden <= HIDDEN_DEVIATIONS * math.sqrt(hidden):
        ended = state.finished
    return min(max(1.0 - (state.finished - state.aborted) / ended, 0.0), 1.0)


def _without_old_workload(state: LengthState, ticks: Sequence[Evidence]) -> LengthState:
    """Forget what these windows disprove: after a change of workload, keep only what still holds.

    Only longer requests trigger this. Shorter requests only cost money until memory has followed;
    longer requests mean that the fleet is too small. The shortest run of newest ticks that shows
    the change is used. What did not change keeps its mean, with the weight of the evidence alone.
    """
    if state.started <= 0:
        return state
    cached = _cached_ratio(state) or 0.0
    for evidence in enough(ticks):
        prompt, output = evidence.prompt_mean_tokens, evidence.output_mean_tokens
        longer_prompt = is_longer(state.published_prompt, prompt, evidence.started)
        longer_output = is_longer(state.published_output, output, evidence.ended)
        less_cached = is_longer(
            state.published_prompt, evidence.uncached_mean_tokens, evidence.started, 1.0 - cached
        )
        if longer_prompt or longer_output or less_cached:
            break
    else:
        return state
    started = evidence.started
    state = _fade(state, min(started / state.started, 1.0))
    if longer_output:
        state = replace(state, generated_tokens=ended_requests(state) * output, output=None)
    if longer_prompt or less_cached:
        tokens = max(state.started, state.finished) * prompt
        cached = evidence.cached_tokens / started / prompt
        shape = None if longer_prompt else state.prompt
        state = replace(state, prompt_tokens=tokens, cached_tokens=tokens * cached, prompt=shape)
    return replace(state, held_tokens=0.0, held_by=0.0)


def _fade(state: LengthState, weight: float) -> LengthState:
    return replace(
        state,
        started=weight * state.started,
        finished=weight * state.finished,
        aborted=weight * state.aborted,
        running_change=weight * state.running_change,
        generated_tokens=weight * state.generated_tokens,
        prompt_tokens=weight * state.prompt_tokens,
        cached_tokens=weight * state.cached_tokens,
        prompt=None if state.prompt is None else merge((state.prompt,), (weight,)),
        output=None if state.output is None else merge((state.output,), (weight,)),
    )
