"""Compare samples of one engine: its zero sample, its counters, and whether any number moved."""

from dataclasses import fields, replace
from typing import Any

from servingslo.estimation.sample import EngineSample, HistogramSample

# Names of sample fields: counters, and the histograms from which windows are measured.
_COUNTERS = tuple(f.name for f in fields(EngineSample) if f.name.endswith("_total"))
_COUNTED = ("ttft_seconds", "inter_token_seconds", "iteration_tokens")
_EMPTY = HistogramSample(upper_bounds=(), cumulative_counts=(), sum=0.0, count=0.0)


def zero_like(sample: EngineSample) -> EngineSample:
    """Return the engine's sample with all counters at zero; unknown stays unknown."""
    zeros: dict[str, Any] = dict.fromkeys(_COUNTERS, 0.0) | dict.fromkeys(_COUNTED, _EMPTY)
    known = {name: zero for name, zero in zeros.items() if getattr(sample, name) is not None}
    known["finished_total"] = dict.fromkeys(sample.finished_total, 0.0)
    return EngineSample(
        engine=sample.engine,
        running=0.0,
        waiting=0.0,
        kv_usage_ratio=0.0,
        kv_capacity_tokens=sample.kv_capacity_tokens,
        **known,
    )


def without_histograms(sample: EngineSample) -> EngineSample:
    """Return the counters and gauges of a sample whose histograms are of another scrape."""
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
    """Return whether no number has moved although requests run."""
    if before is None or not after.running:
        return False
    names = (
        "generation_tokens_total", "prompt_tokens_total", "finished_total", "running", "waiting",
        "kv_usage_ratio",
    )  # fmt: skip
    return all(getattr(before, name) == getattr(after, name) for name in names)
