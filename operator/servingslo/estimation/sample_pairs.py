"""Samples of an engine beside each other: its zero, its counters, and whether anything moved."""

from dataclasses import replace

from servingslo.estimation.sample import EngineSample, HistogramSample


def zero_like(sample: EngineSample) -> EngineSample:
    """The engine as it was when its counters stood at zero; unknown stays unknown."""
    return EngineSample(
        engine=sample.engine,
        running=0.0,
        waiting=0.0,
        kv_usage_ratio=0.0,
        kv_capacity_tokens=sample.kv_capacity_tokens,
        prompt_tokens_total=_zero(sample.prompt_tokens_total),
        cached_prompt_tokens_total=_zero(sample.cached_prompt_tokens_total),
        generation_tokens_total=_zero(sample.generation_tokens_total),
        accepted_draft_tokens_total=_zero(sample.accepted_draft_tokens_total),
        finished_total=dict.fromkeys(sample.finished_total, 0.0),
        preempted_total=_zero(sample.preempted_total),
        rejected_total=_zero(sample.rejected_total),
        executions_total=_zero(sample.executions_total),
        request_seconds_total=_zero(sample.request_seconds_total),
        queued_seconds_total=_zero(sample.queued_seconds_total),
        ttft_seconds=_empty(sample.ttft_seconds),
        inter_token_seconds=_empty(sample.inter_token_seconds),
        iteration_tokens=_empty(sample.iteration_tokens),
    )


def without_histograms(sample: EngineSample) -> EngineSample:
    """The counters and gauges of a sample whose histograms are of another scrape."""
    return replace(
        sample,
        ttft_seconds=None,
        inter_token_seconds=None,
        time_per_output_token_seconds=None,
        latency_seconds=None,
        queue_seconds=None,
        prompt_tokens=None,
        output_tokens=None,
        iteration_tokens=None,
    )


def tells_the_same(before: EngineSample | None, after: EngineSample) -> bool:
    """Whether not one number has moved although requests run."""
    if before is None or not after.running:
        return False
    names = (
        "generation_tokens_total", "prompt_tokens_total", "finished_total", "running", "waiting",
        "kv_usage_ratio",
    )  # fmt: skip
    return all(getattr(before, name) == getattr(after, name) for name in names)


def _zero(value: float | None) -> float | None:
    return None if value is None else 0.0


def _empty(histogram: HistogramSample | None) -> HistogramSample | None:
    if histogram is None:
        return None
    return HistogramSample(upper_bounds=(), cumulative_counts=(), sum=0.0, count=0.0)
