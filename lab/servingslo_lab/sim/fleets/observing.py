"""Convert a simulated engine to Prometheus samples, in the form of the planner's observation."""

from itertools import accumulate
from typing import Any

from servingslo.estimation.sample import EngineSample, HistogramSample
from servingslo.models.engine.service_time import EngineLimits
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.layout import EngineRow

_INFINITY = (float("inf"),)


def engine_sample(row: EngineRow, limits: EngineLimits, age_seconds: float) -> EngineSample:
    """A scrape of this engine in its current state, with an age of age_seconds."""
    ints, edges, counts = _plain(row.ints), _plain(row.edges), _plain(row.counts)
    waiting = float(ints[layout.WAITING_COUNT])
    if ints[layout.KIND] == layout.DYNAMIC:
        return _batch_sample(ints, limits, age_seconds)
    blocks = int(ints[layout.BLOCKS])
    return EngineSample(
        engine="0",
        gauges_age_seconds=age_seconds,
        counters_age_seconds=age_seconds,
        histograms_age_seconds=age_seconds,
        running=float(ints[layout.RUNNING]),
        waiting=waiting,
        waiting_by_reason={"capacity": waiting, "deferred": 0.0},
        kv_usage_ratio=1.0 - int(ints[layout.FREE_BLOCKS]) / blocks,
        kv_capacity_tokens=float((blocks + 1) * layout.PHASES),
        kv_block_tokens=layout.PHASES,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        prompt_tokens_total=float(ints[layout.PROMPT_TOKENS]),
        cached_prompt_tokens_total=float(ints[layout.CACHED_TOKENS]),
        generation_tokens_total=float(ints[layout.GENERATED_TOKENS]),
        finished_total={"stop": float(ints[layout.SUCCESSES]), "length": 0.0, "abort": 0.0},
        preempted_total=float(ints[layout.PREEMPTIONS]),
        rejected_total=float(ints[layout.REJECTIONS]),
        ttft_seconds=_histogram(edges, counts, row, layout.TTFT),
        inter_token_seconds=_histogram(edges, counts, row, layout.ITL),
        time_per_output_token_seconds=_histogram(edges, counts, row, layout.TPOT),
        latency_seconds=_histogram(edges, counts, row, layout.E2E),
        queue_seconds=_histogram(edges, counts, row, layout.QUEUE),
        prompt_tokens=_histogram(edges, counts, row, layout.PROMPT_LENGTH),
        output_tokens=_histogram(edges, counts, row, layout.OUTPUT_LENGTH),
        iteration_tokens=_histogram(edges, counts, row, layout.ITERATION),
    )


def _batch_sample(ints: list[int], limits: EngineLimits, age_seconds: float) -> EngineSample:
    """The sample of a server of dynamic batches: no tokens, no memory, and no histograms.

    Source: Triton Inference Server, user guide, "Metrics" (nv_inference_pending_request_count,
    nv_inference_request_success); requests in execution are those begun and not ended.
    """
    return EngineSample(
        engine="0",
        gauges_age_seconds=age_seconds,
        counters_age_seconds=age_seconds,
        running=float(ints[layout.RUNNING]),
        waiting=float(ints[layout.WAITING_COUNT]),
        max_num_seqs=limits.max_num_seqs,
        finished_total={"success": float(ints[layout.SUCCESSES])},
        rejected_total=float(ints[layout.REJECTIONS]),
    )


def _histogram(
    edges: list[float], counts: list[int], row: EngineRow, number: int
) -> HistogramSample:
    low, high = int(row.offsets[number]), int(row.offsets[number + 1])
    cumulative = tuple(map(float, accumulate(counts[low + number : high + number + 1])))
    return HistogramSample(
        upper_bounds=(*edges[low:high], *_INFINITY),
        cumulative_counts=cumulative,
        sum=float(row.sums[number]),
        count=cumulative[-1],
    )


def _plain(column: Any) -> Any:
    """A column as a list: reading single numbers from an array takes longer."""
    return column if isinstance(column, list) else column.tolist()
