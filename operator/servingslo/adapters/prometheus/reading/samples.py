"""One engine's sample, from the data of its scrape under the metric names of its runtime."""

import math
import re
from collections.abc import Mapping
from typing import Any

from servingslo.adapters.prometheus.reading.buckets import Edges
from servingslo.adapters.prometheus.reading.scraped import Scraped
from servingslo.adapters.prometheus.vectors import NAME_LABEL
from servingslo.copying import replace
from servingslo.estimation.sample import EngineSample, HistogramSample
from servingslo.estimation.windows.plausible import can_be, can_be_counts
from servingslo.runtimes.profile import AdapterLabels, MetricKind, MetricNames, RuntimeProfile

# Of many fields most are unknown: a copy of this one costs a third of the constructor.
_UNREAD = EngineSample(engine="")
# An integer in a label; no engine reports a longer one.
_INTEGER = re.compile(r"[0-9]{1,15}")
# A tenant's page must not fill the memory: adapters and models of one engine.
MOST_NAMES = 128
_AGES = {
    MetricKind.GAUGE: "gauges_age_seconds",
    MetricKind.COUNTER: "counters_age_seconds",
    MetricKind.HISTOGRAM: "histograms_age_seconds",
}


def engine_sample(
    engine: str,
    scraped: Scraped,
    profile: RuntimeProfile,
    edges: Edges,
    elapsed_seconds: float,
) -> EngineSample:
    """The engine's sample, with the metric names of this runtime only.

    elapsed_seconds: since the time that the ages of its groups refer to.
    """
    refused = _Refused()
    fields: dict[str, Any] = {}
    value: float | Mapping[str, float] | HistogramSample | None
    for metric in profile.metrics:
        if metric.kind is not MetricKind.HISTOGRAM:
            value = _number(metric, scraped, refused)
        elif scraped.histograms:
            value = _histogram(metric, scraped, edges, refused)
        else:
            continue
        if value is not None:
            fields[metric.field] = value
    ages: dict[str, Any] = {
        field: scraped.ages[kind] + elapsed_seconds
        for kind, field in _AGES.items()
        if kind in scraped.ages
    }
    return replace(
        _UNREAD,
        engine=engine,
        runtime=profile.name,
        nan_metrics=tuple(refused.not_numbers),
        impossible_metrics=tuple(refused.impossible),
        sumless_metrics=tuple(refused.sumless),
        **ages,
        **_with_labels(fields, scraped, profile),
    )


def unread(engine: EngineSample, why: str) -> EngineSample:
    """The engine without a number, because of what its series say of themselves."""
    return replace(_UNREAD, engine=engine.engine, runtime=engine.runtime, impossible_metrics=(why,))


class _Refused:
    """Names whose value is no number or lacks its sum, and values that no engine can have."""

    __slots__ = ("impossible", "not_numbers", "sumless")

    def __init__(self) -> None:
        self.not_numbers: list[str] = []
        self.impossible: list[str] = []
        self.sumless: list[str] = []


def _with_labels(
    fields: dict[str, Any], scraped: Scraped, profile: RuntimeProfile
) -> dict[str, Any]:
    """The fields, and those that are in labels: capacity, adapters, models."""
    if profile.capacity and scraped.capacity.get(NAME_LABEL) == profile.capacity.metric:
        fields["kv_block_tokens"] = _integer(scraped.capacity.get(profile.capacity.block_tokens))
        fields["kv_capacity_tokens"] = _capacity_tokens(profile, scraped.capacity)
    elif profile.capacity_in_blocks:
        block, blocks = fields.get("kv_block_tokens"), fields.pop("kv_capacity_tokens", None)
        if block and blocks:
            fields |= {"kv_block_tokens": round(block), "kv_capacity_tokens": block * blocks}
    if profile.adapters and scraped.adapters.get(NAME_LABEL) == profile.adapters.metric:
        fields |= _adapters_of(profile.adapters, scraped.adapters)
    if len(scraped.tokens_by_model) > 1:
        fields["tokens_by_model"] = _largest(scraped.tokens_by_model)
    return fields


def _histogram(
    metric: MetricNames, scraped: Scraped, edges: Edges, refused: _Refused
) -> HistogramSample | None:
    """The field's histogram under the first name that the engine exports, if it can be one."""
    name = _exported(metric, scraped.histograms)
    if name is None:
        return None
    buckets = scraped.histograms[name]
    if label := buckets.not_an_edge(edges):
        refused.impossible.append(f"{name}=a bucket up to {label}")
        return None
    found = buckets.sample(edges)
    if found is None and buckets.parts:
        refused.sumless.append(name)
    if found is None or can_be_counts(found):
        return found
    if all(map(math.isfinite, (*found.cumulative_counts, found.sum, found.count))):
        refused.impossible.append(f"{metric.names[0]}=a histogram that is none")
    else:
        refused.not_numbers.append(name)
    return None


def _exported(metric: MetricNames, found: Mapping[str, object]) -> str | None:
    for name in metric.names:
        if name in found:
            return name
    return None


def _number(
    metric: MetricNames, scraped: Scraped, refused: _Refused
) -> float | Mapping[str, float] | None:
    """The field's value under the first name that the engine exports, if it can be one."""
    for name in metric.names:
        if metric.by_labels and metric.is_split(name):
            if name in scraped.splits:
                return _split(metric, name, scraped.splits[name], refused)
        elif name in scraped.numbers:
            value = metric.unit * scraped.numbers[name]
            if not math.isfinite(value):
                refused.not_numbers.append(name)
            elif can_be(metric.field, value):
                return value
            else:
                refused.impossible.append(f"{metric.names[0]}={value:.6g}")
            return None
    return None


def _split(
    metric: MetricNames, name: str, split: Mapping[str, float], refused: _Refused
) -> float | Mapping[str, float] | None:
    """The field by its parts, or the sum of its parts, if each can be one."""
    value = _parts(metric, name, split, refused.not_numbers)
    if value is None:
        return None
    parts = (value,) if isinstance(value, float | int) else value.values()
    for part in parts:
        if not can_be(metric.field, part):
            refused.impossible.append(f"{metric.names[0]}={part:.6g}")
            return None
    return value


def _parts(
    metric: MetricNames, name: str, split: Mapping[str, float], not_numbers: list[str]
) -> float | Mapping[str, float] | None:
    """The field by its parts, or the sum of its parts; a missing part adds nothing."""
    wanted = {key: v for key, v in split.items() if not metric.only or key in metric.only}
    finite = {key: metric.unit * v for key, v in wanted.items() if math.isfinite(v)}
    if len(finite) < len(wanted):
        not_numbers.append(name)
    if not metric.only:
        return finite
    return sum(finite.values()) if len(finite) == len(wanted) else None


def _capacity_tokens(profile: RuntimeProfile, labels: Mapping[str, str]) -> float | None:
    if profile.capacity is None:
        return None
    tokens = _integer(labels.get(profile.capacity.tokens))
    if tokens is not None:
        return float(tokens)
    block_tokens = _integer(labels.get(profile.capacity.block_tokens))
    blocks = _integer(labels.get(profile.capacity.blocks))
    return None if block_tokens is None or blocks is None else float(block_tokens * blocks)


def _integer(text: str | None) -> int | None:
    """A positive integer in a label, None for 'None', '' and anything else."""
    return int(text) or None if text is not None and _INTEGER.fullmatch(text) else None


def _adapters_of(names: AdapterLabels, labels: Mapping[str, str]) -> dict[str, Any]:
    """The adapters in flight, running or waiting, and the slots; empty without a number of slots.

    An engine names each adapter once, or once for each of its requests.
    """
    slots = _integer(labels.get(names.slots))
    if slots is None:
        return {}
    told = ",".join(labels.get(label, "") for label in (names.running, names.waiting))
    found = {name.strip() for name in told.split(",")} - {""}
    return {"adapters": tuple(sorted(found)[:MOST_NAMES]), "adapter_slots": slots}


def _largest(counts: Mapping[str, float]) -> dict[str, float]:
    """The largest counts by name, of a bounded number of names."""
    finite = [one for one in counts.items() if math.isfinite(one[1]) and one[1] >= 0.0]
    return dict(sorted(finite, key=lambda one: (-one[1], one[0]))[:MOST_NAMES])
