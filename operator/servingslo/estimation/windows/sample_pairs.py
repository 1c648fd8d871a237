"""Compare samples of one engine: its zero sample, its counters, how far and whether they moved."""

from dataclasses import fields
from operator import attrgetter
from typing import Any

from servingslo.copying import replace
from servingslo.estimation.sample import EngineSample, HistogramSample

# Names of sample fields: counters, and the histograms from which windows are measured.
_COUNTERS = tuple(f.name for f in fields(EngineSample) if f.name.endswith("_total"))
_COUNTED = ("ttft_seconds", "inter_token_seconds", "iteration_tokens")
_moving = attrgetter(
    "generation_tokens_total", "prompt_tokens_total", "finished_total", "running", "waiting",
    "kv_usage_ratio",
)  # fmt: skip
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
        transfer_seconds=None,
        prefill_seconds=None,
        decode_seconds=None,
    )


def tells_the_same(before: EngineSample | None, after: EngineSample) -> bool:
    """Return whether no number has moved although requests run."""
    if before is None or not after.running:
        return False
    return _moving(before) == _moving(after)


def other_parts(before: EngineSample, after: EngineSample) -> bool:
    """Return whether a model's counts appear with a past of their own, or are gone.

    The counts of an engine are the sums over its models. A model that begins has few; one with as
    many as all had before is counted since long, or is another name for them.
    """
    old, new = before.tokens_by_model, after.tokens_by_model
    was, now = before.generation_tokens_total or 0.0, after.generation_tokens_total or 0.0
    if now < was:
        return not old.keys() <= new.keys()
    known = sum(new.get(name, 0.0) for name in old) if old else max(new.values(), default=0.0)
    return 0.0 < was <= sum(new.values()) - known


def increase(after: float | None, before: float | None) -> float | None:
    """Return a counter's growth; None if either end is unknown. A fall is a restart from zero."""
    if after is None or before is None:
        return None
    return after - before if after >= before else after


def _count(histogram: HistogramSample | None) -> float | None:
    return None if histogram is None else histogram.count


def count_increase(after: HistogramSample | None, before: HistogramSample | None) -> float | None:
    """Return how many observations a histogram grew by; None if either end is unknown."""
    return increase(_count(after), _count(before))


def sum_increase(after: HistogramSample | None, before: HistogramSample | None) -> float | None:
    """Return how much the sum of the observed values grew by."""
    if after is None or before is None:
        return None
    return increase(after.sum, before.sum)


def finished_count(sample: EngineSample) -> float | None:
    """Return the requests that ended, whatever the reason."""
    return sum(sample.finished_total.values()) if sample.finished_total else None


def kv_used_tokens(sample: EngineSample) -> float | None:
    """Return the tokens in the KV cache."""
    if sample.kv_usage_ratio is None or sample.kv_capacity_tokens is None:
        return None
    return sample.kv_usage_ratio * sample.kv_capacity_tokens
