"""Learn the law T(b) = fixed + per request·b of a server of dynamic batches from its counters.

Only the mean batch size E[b] is counted, but the law needs E[b²]/E[b]. Triton adds a batch's time
once for each request in it: over a window the requests of batches of b add b·T(b) each, so their
mean is fixed + per request·E[b²]/E[b]. Batch sizes vary as the arrivals in an interval do (Poisson,
besides the request that opens it), except full batches: the variance is (m − 1)·(B − m)/(B − m + 1)
at a mean of m, which is that of Poisson for a large limit B and zero for full batches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from servingslo.copying import replace
from servingslo.estimation.law.rows import BatchCounts, Row, regression_rows
from servingslo.estimation.law.trust import LawEstimate, LawSource
from servingslo.estimation.requests.histograms import HistogramDelta, of_quantiles
from servingslo.estimation.requests.lengths import Lengths, LengthState, ended_requests
from servingslo.estimation.requests.observed import MEANS
from servingslo.estimation.sample import EngineSample
from servingslo.estimation.windows.counters import Window
from servingslo.models.engine.service_time import DynamicBatcher, EngineLimits
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution

# Error of E[b²]/E[b], by simulation of 1 to 4 instances, with a window and without: 2 to 9 % of the
# time of a batch, larger if more of it is per request.
BATCH_ERROR_RATIO = 0.05
# Error of a mean over so many batches, whose sizes vary about as much as they are large.
ONE_BATCH_ERROR_RATIO = 0.5
LEAST_BATCHES = 4.0
# Per request over fixed, while loads do not show it: the larger one of the book's laws, 5 ms + 0.6
# ms·b and 50 ms + 0.5 ms·b, because underestimating a full batch means a fleet that is too small.
# Source: Machine Learning Systems (V. J. Reddi), chapter "Model Serving".
REQUEST_RATIO = 0.12
# Requests of one row each may look a little larger: counters are not read at one moment.
ONE_ROW = 1.05
# A request is answered once; no prompt is computed before, and no memory is shared.
WHOLE_REQUESTS = Lengths(
    prompt=LengthDistribution.constant(0.0), output=LengthDistribution.constant(1.0)
)
_NO_BOUND = 1_000_000_000
# Error of one execution's time, if executions are counted by size: the effect of a busy machine.
EXECUTION_ERROR_RATIO = 0.1
COUNTED_ERROR_RATIO = 0.02


def window_rows(
    window: Window, batcher: DynamicBatcher | None, dispersion: float, window_count: int
) -> tuple[Row, ...]:
    """Return the equations of a window, of so many, from steps or from batches."""
    if window.executions is None:
        return regression_rows(window, dispersion, window_count)
    return batch_rows(window, batcher)


def batch_rows(window: Window, batcher: DynamicBatcher | None) -> tuple[Row, ...]:
    """Return the equation of a window; none if too little ran in it."""
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
    """Return one equation per batch size that ran in between: its mean time.

    If counts fell, the model was loaded again.
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


def _variance(mean: float, batcher: DynamicBatcher | None) -> float:
    room = math.inf if batcher is None else max(batcher.largest_batch - mean, 0.0)
    return (mean - 1.0) * (1.0 if math.isinf(room) else room / (room + 1.0))


@dataclass(frozen=True, slots=True)
class WholeRequests:
    """What is different about engines that answer requests whole; nothing without a batcher.

    counted: whether executions are counted by size.
    """

    batcher: DynamicBatcher | None
    counted: bool

    @classmethod
    def of(
        cls, batcher: DynamicBatcher | None, lengths: LengthState, *, counted: bool = False
    ) -> Self:
        """The largest batch is stated in rows, and is one of requests here."""
        ended = ended_requests(lengths)
        rows = lengths.generated_tokens / ended if ended > 0.0 else 1.0
        if batcher is not None and rows > ONE_ROW:
            batcher = replace(batcher, largest_batch=max(int(batcher.largest_batch / rows), 1))
        return cls(batcher, counted)

    def lengths(self, published: Lengths) -> Lengths:
        """The lengths to plan with."""
        return published if self.batcher is None else WHOLE_REQUESTS

    def limits(self, found: EngineLimits | None) -> EngineLimits | None:
        """The limits in force."""
        return found if self.batcher is None else limits_of(self.batcher)

    def named(self, law: LawEstimate) -> LawEstimate:
        """The law with the source that a fit has here."""
        if self.batcher is None or law.source is not LawSource.FIT:
            return law
        source = LawSource.STATISTICS if self.counted else LawSource.COUNTERS
        return replace(law, source=source)


def limits_of(batcher: DynamicBatcher) -> EngineLimits:
    """Return the limits of an engine that serves batches: only those of its batcher."""
    return EngineLimits(
        max_num_seqs=batcher.largest_batch,
        max_num_batched_tokens=_NO_BOUND,
        kv_capacity_tokens=float(_NO_BOUND),
        batcher=batcher,
    )


def mean_deltas(windows: Sequence[Window]) -> dict[str, HistogramDelta]:
    """Return sums over the requests that ended in these windows, by the names of means."""
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


def summary_deltas(
    engines: Sequence[EngineSample], windows: Sequence[Window]
) -> dict[str, HistogramDelta]:
    """Return latencies from the summaries of servers, by metric; empty if none are exported.

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
    """Return a histogram with these quantiles; the open bucket holds the values above."""
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
    return of_quantiles(worst, count, count * mean)
