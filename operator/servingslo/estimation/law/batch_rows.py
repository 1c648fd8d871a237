"""What counters of a server of dynamic batches say about its law T(b) = fixed + per request·b.

Triton adds what a batch takes once for each request in it: over a window the requests of batches of
b add b·T(b) each, so their mean is fixed + per request·E[b²]/E[b]. Only E[b] is counted. Batches
vary as what arrives in an interval does (Poisson, beside the request that opens it), but for those
that are full: the variance is (m − 1)·(B − m)/(B − m + 1) at a mean of m, which is that of Poisson
for a large limit B and none for full batches.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from servingslo.estimation.law.fit import TRUSTED_ERROR_RATIO, LawEstimate
from servingslo.estimation.law.rows import Row
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.lengths import Lengths, LengthState, ended_requests
from servingslo.estimation.requests.observed import MEANS
from servingslo.estimation.sample import EngineSample
from servingslo.estimation.windows.counters import Window
from servingslo.models.engine.service_time import DynamicBatcher, EngineLimits
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution
from servingslo.reasons import Reason

# Of E[b²]/E[b] by simulation of 1 to 4 instances, with a window and without: 2 to 9 % of the time
# of a batch, the more of it is per request.
BATCH_ERROR_RATIO = 0.05
# Of a mean over so many batches, whose sizes vary about as much as they are large.
ONE_BATCH_ERROR_RATIO = 0.5
LEAST_BATCHES = 4.0
# Per request over fixed where loads do not tell: the larger one of the book's laws, 5 ms + 0.6 ms·b
# and 50 ms + 0.5 ms·b, for a full batch that is thought too short is a fleet that is too small.
# Source: Machine Learning Systems (V. J. Reddi), chapter "Model Serving".
REQUEST_RATIO = 0.12
# Requests of one row each may look a little larger: counters are not of one moment.
ONE_ROW = 1.05
# A request is answered once; no prompt is computed before, and no memory is shared.
WHOLE_REQUESTS = Lengths(
    prompt=LengthDistribution.constant(0.0), output=LengthDistribution.constant(1.0)
)
_NO_BOUND = 1_000_000_000
# Executions and their time in microseconds, by size of the batch, as a server adds them up.
BatchCounts = Mapping[int, tuple[int, int]]
# Of the time of one execution, where each is counted by its size: what a busy machine adds to it.
EXECUTION_ERROR_RATIO = 0.1
COUNTED_ERROR_RATIO = 0.02
# Of one size, so that its mean is known to a few per cent.
LEAST_EXECUTIONS = 8


def batch_rows(window: Window, batcher: DynamicBatcher | None) -> tuple[Row, ...]:
    """The equation that a window gives; none where too little ran in it."""
    batches, requests = window.executions, window.finished
    if window.from_zero or window.restarted or not batches or not requests:
        return ()
    seconds = (window.request_seconds or 0.0) - (window.queued_seconds or 0.0)
    if batches < LEAST_BATCHES or seconds <= 0.0:
        return ()
    mean = max(requests / batches, 1.0)
    seen_by_request = mean + _variance(mean, batcher) / mean
    each = seconds / requests
    return (
        Row(
            x=(1.0 / each, seen_by_request / each, 0.0),
            error_ratio=math.hypot(BATCH_ERROR_RATIO, ONE_BATCH_ERROR_RATIO / math.sqrt(batches)),
            sequences=seen_by_request,
            prefill_per_step_tokens=0.0,
            sequence_ratio=REQUEST_RATIO,
        ),
    )


def counted_rows(before: BatchCounts, now: BatchCounts) -> tuple[Row, ...]:
    """An equation of each size that ran in between: what a batch of it took on average.

    Counts that fell are those of a model that was loaded anew.
    """
    if any(count < before.get(size, (0, 0))[0] for size, (count, _) in now.items()) or any(
        size not in now for size in before
    ):
        before = {}
    rows = []
    for size, (count, microseconds) in sorted(now.items()):
        count_before, microseconds_before = before.get(size, (0, 0))
        ran = count - count_before
        seconds = (microseconds - microseconds_before) / 1e6
        if ran <= 0 or seconds <= 0.0:
            continue
        each = seconds / ran
        rows.append(
            Row(
                x=(1.0 / each, size / each, 0.0),
                error_ratio=math.hypot(COUNTED_ERROR_RATIO, EXECUTION_ERROR_RATIO / math.sqrt(ran)),
                sequences=float(size),
                prefill_per_step_tokens=0.0,
                sequence_ratio=REQUEST_RATIO,
            )
        )
    return tuple(rows)


def judged_by_size(found: LawEstimate, counts: Iterable[BatchCounts]) -> LawEstimate:
    """The law as it stands beside each size of batch that ran, not beside the mean of them all.

    Where most batches are small a table with a step predicts them well on average, and a full batch
    not at all. Not trusted where any size is further off than a law may be.
    """
    law = found.law
    ran: dict[int, tuple[int, int]] = {}
    for size, (count, microseconds) in (item for one in counts for item in one.items()):
        known = ran.get(size, (0, 0))
        ran[size] = known[0] + count, known[1] + microseconds
    means = {size: took / n / 1e6 for size, (n, took) in ran.items() if n >= LEAST_EXECUTIONS}
    if law is None or not means:
        return found
    error = max(abs(law.step_seconds(size) / mean - 1.0) for size, mean in means.items())
    found = replace(found, fit_error=max(found.fit_error or 0.0, error))
    if not found.trusted or error <= TRUSTED_ERROR_RATIO:
        return found
    return replace(found, trusted=False, reason=Reason.MODEL_DOES_NOT_PREDICT)


def _variance(mean: float, batcher: DynamicBatcher | None) -> float:
    room = math.inf if batcher is None else max(batcher.largest_batch - mean, 0.0)
    return (mean - 1.0) * (1.0 if math.isinf(room) else room / (room + 1.0))


def batcher_in_requests(
    batcher: DynamicBatcher | None, lengths: LengthState
) -> DynamicBatcher | None:
    """The batcher with its largest batch in requests: what it states is in rows."""
    ended = ended_requests(lengths)
    rows = lengths.generated_tokens / ended if ended > 0.0 else 1.0
    if batcher is None or rows <= ONE_ROW:
        return batcher
    return replace(batcher, largest_batch=max(int(batcher.largest_batch / rows), 1))


def limits_of(batcher: DynamicBatcher) -> EngineLimits:
    """The limits of an engine that serves batches: those of its batcher alone."""
    return EngineLimits(
        max_num_seqs=batcher.largest_batch,
        max_num_batched_tokens=_NO_BOUND,
        kv_capacity_tokens=float(_NO_BOUND),
        batcher=batcher,
    )


def mean_deltas(windows: Sequence[Window]) -> dict[str, HistogramDelta]:
    """Sums over the requests that ended in these windows, by the names that means have."""
    sums = {
        LatencyMetric.LATENCY.value: sum(w.request_seconds or 0.0 for w in windows),
        LatencyMetric.QUEUE_TIME.value: sum(w.queued_seconds or 0.0 for w in windows),
    }
    count = sum(w.finished or 0.0 for w in windows if w.request_seconds is not None)
    if not count:
        return {}
    return {
        MEANS[metric]: HistogramDelta(upper_bounds=(), counts=(count,), sum=seconds)
        for metric, seconds in sums.items()
    }


def summarized(
    engines: Sequence[EngineSample], windows: Sequence[Window]
) -> dict[str, HistogramDelta]:
    """Latencies by the summaries of servers, by metric; nothing where none are exported.

    Quantiles of several servers cannot be added: each is that of the worst.
    """
    count = sum(window.finished or 0.0 for window in windows)
    told = {
        LatencyMetric.LATENCY.value: [engine.latency_quantiles for engine in engines],
        LatencyMetric.QUEUE_TIME.value: [engine.queue_quantiles for engine in engines],
    }
    found = {metric: _of_worst(quantiles, count) for metric, quantiles in told.items()}
    return {metric: delta for metric, delta in found.items() if delta}


def _of_worst(quantiles: Sequence[Mapping[str, float]], count: float) -> HistogramDelta | None:
    """A histogram whose edges are these quantiles; the open bucket holds what lies beyond."""
    worst: dict[float, float] = {}
    for one in quantiles:
        for share, seconds in one.items():
            worst[float(share)] = max(seconds, worst.get(float(share), 0.0))
    shares = sorted(worst)
    edges = [worst[share] for share in shares]
    if not edges or count <= 0.0 or any(low > high for low, high in pairwise(edges)):
        return None
    parts = [high - low for low, high in pairwise((0.0, *shares, 1.0))]
    middles = [(low + high) / 2.0 for low, high in pairwise((0.0, *edges, edges[-1]))]
    mean = sum(part * middle for part, middle in zip(parts, middles, strict=True))
    return HistogramDelta(
        upper_bounds=tuple(edges), counts=tuple(count * part for part in parts), sum=count * mean
    )
