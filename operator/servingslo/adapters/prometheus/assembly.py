"""Combine the answers of one reading: series in, engines and GPUs by pod out. No I/O.

If an engine was scraped twice (two jobs, two replicas of Prometheus), only the scrape with the
newest sample is used. Samples of different scrapes are never added or mixed. Two servers of one pod
are distinguished by their ports, see `servers`.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from servingslo.adapters.prometheus.buckets import Buckets, Edges
from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.adapters.prometheus.queries import GPU_GROUP, GROUP_LABEL, HISTOGRAM_SUFFIXES
from servingslo.adapters.prometheus.scraped import CountedNames, Scraped, with_pod_metrics
from servingslo.adapters.prometheus.servers import Pod, SeenServers, Source, servers_of
from servingslo.estimation.sample import EngineSample, GPUSample, HistogramSample
from servingslo.estimation.windows.plausible import can_be, can_be_counts
from servingslo.policy.ports import PodMetrics
from servingslo.runtimes.dcgm import GPUMetrics
from servingslo.runtimes.profile import MetricKind, MetricNames, RuntimeProfile
from servingslo.units import bytes_from_mebibytes, ratio_from_percent

# An integer in a label; no engine reports a longer one.
_INTEGER = re.compile(r"[0-9]{1,15}")

# Fields that count requests at their start or end.
_OF_REQUESTS = ("finished_total", "ttft_seconds", "latency_seconds")


class Assembly:
    """Collects the answers of one reading. Series have the form of the Prometheus HTTP API.

    Invalid labels of an engine spoil only that engine, because a tenant controls its page.
    seen: servers and engines of pods in earlier readings; None for a single reading.
    Raises, from every method: KeyError, TypeError or ValueError if an answer is malformed.
    """

    def __init__(
        self,
        profiles: tuple[RuntimeProfile, ...],
        gpu: GPUMetrics,
        config: PrometheusConfig,
        seen: SeenServers | None = None,
    ) -> None:
        self._profiles = profiles
        self._gpu = gpu
        self._config = config
        self._seen = SeenServers() if seen is None else seen
        self._seen.begin()
        self._counted = _counted_names(profiles)
        self._engine_labels = tuple(dict.fromkeys(p.engine_label for p in profiles))
        self._label_of = {name: p.engine_label for p in profiles for name in _series_of(p)}
        self._scraped: dict[Pod, dict[tuple[Source, str], Scraped]] = defaultdict(
            lambda: defaultdict(Scraped)
        )
        self._gpus: dict[Pod, dict[tuple[str, Source], dict[str, float]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._products: dict[tuple[Pod, str], str] = {}
        self._edges = Edges()
        self._splits = {
            name: metric.by_labels
            for profile in profiles
            for metric in profile.metrics
            for name in metric.names
            if metric.is_split(name)
        }
        self._capacities = {p.capacity.metric for p in profiles if p.capacity}

    @property
    def engine_count(self) -> int:
        """Number of engine scrapes with a known age; an engine scraped by two jobs counts twice."""
        return sum(
            MetricKind.GAUGE in record.ages
            for records in self._scraped.values()
            for record in records.values()
        )

    def add_numbers(self, series: Iterable[Mapping[str, Any]]) -> None:
        """Add gauges, counters and capacities; the parts of a counter are summed."""
        for one in _once(series):
            labels, value = one["metric"], float(one["value"][1])
            name = labels["__name__"]
            scraped = self._record(labels)
            if name in self._capacities:
                scraped.capacity = labels
            elif name in self._splits:
                key = _first_label(labels, self._splits[name])
                split = scraped.splits.setdefault(name, {})
                split[key] = split.get(key, 0.0) + value
            else:
                scraped.numbers[name] = scraped.numbers.get(name, 0.0) + value

    def add_ages(self, series: Iterable[Mapping[str, Any]]) -> None:
        """Add the ages of engine groups and of GPUs, in seconds."""
        for one in series:
            labels, age = one["metric"], float(one["value"][1])
            group, _, engine_label = labels[GROUP_LABEL].partition("/")
            if group == GPU_GROUP:
                self._add_gpu_value(labels, GPU_GROUP, age)
            else:
                self._record(labels, engine_label).ages[group] = age

    def add_gpus(self, series: Iterable[Mapping[str, Any]]) -> None:
        """Add the fields of GPUs."""
        for one in series:
            labels = one["metric"]
            self._add_gpu_value(labels, labels["__name__"], float(one["value"][1]))

    def add_histograms(self, series: list[Mapping[str, Any]]) -> None:
        """Add the buckets, sums and counts of one histogram field."""
        bucket_suffix, sum_suffix, _ = HISTOGRAM_SUFFIXES
        for one in _once(series):
            labels, value = one["metric"], float(one["value"][1])
            base, _, suffix = labels["__name__"].rpartition("_")
            histograms = self._record(labels).histograms
            buckets = histograms.get(base)
            if buckets is None:
                buckets = histograms[base] = Buckets()
            if suffix == bucket_suffix[1:]:
                buckets.add(labels.get("le", ""), value, self._edges)
            elif suffix == sum_suffix[1:]:
                buckets.sum = value + (buckets.sum or 0.0)
            else:
                buckets.count = value + (buckets.count or 0.0)

    def pods(self) -> dict[Pod, PodMetrics]:
        """Every pod in the answers, with its engines in the order of their names."""
        names = {**dict.fromkeys(self._scraped), **dict.fromkeys(self._gpus)}
        return {
            pod: PodMetrics(
                engines=tuple(self._engines(pod, self._scraped.get(pod, {}))),
                gpus=tuple(self._gpu_samples(pod)),
                ports=self._ports(pod),
            )
            for pod in names
        }

    def _ports(self, pod: Pod) -> frozenset[int]:
        """The ports in the `instance` labels of a pod's scrapes; a scrape sets host:port."""
        labels = self._config.source_labels
        told = (dict(zip(labels, source, strict=True)) for source, _ in self._scraped.get(pod, {}))
        ports = (one.get("instance", "").rpartition(":")[2] for one in told)
        return frozenset(int(port) for port in ports if port.isascii() and port.isdecimal())

    def _record(self, labels: Mapping[str, str], engine_label: str = "") -> Scraped:
        """The record for an engine's series; other runtimes' engine labels are ordinary labels."""
        config = self._config
        pod = (labels.get(config.namespace_label, ""), labels[config.pod_label])
        source = tuple([labels.get(label, "") for label in config.source_labels])
        known = engine_label or self._label_of.get(labels.get("__name__", ""))
        engine = _first_label(labels, (known,) if known else self._engine_labels)
        return self._scraped[pod][source, engine]

    def _engines(
        self, pod: Pod, scraped: Mapping[tuple[Source, str], Scraped]
    ) -> Iterator[EngineSample]:
        servers = servers_of({source for source, _ in scraped}, self._config.source_labels)
        for source, engine in scraped:
            if engine and (server := servers[source]) is not None:
                self._seen.see(pod, server, engine)

        def engine_count(source: Source) -> int:
            return self._seen.engine_count(pod, servers[source] or "")

        newest: dict[tuple[str, str], Scraped] = {}
        merged = with_pod_metrics(scraped, self._counted, engine_count)
        for (source, engine), record in sorted(merged.items()):
            server = servers[source]
            if server is None:
                continue
            self._seen.see(pod, server, engine)
            best = newest.get((engine, server))
            if best is None or record.newest_age() < best.newest_age():
                newest[engine, server] = record
        for engine, server in sorted(newest):
            record = newest[engine, server]
            exported = record.names()
            name = self._seen.name(pod, server, engine)
            for profile in self._profiles:
                if exported & profile.metric_names:
                    yield self._engine_sample(name, record, profile)

    def _engine_sample(
        self, engine: str, scraped: Scraped, profile: RuntimeProfile
    ) -> EngineSample:
        """The engine's sample, with the metric names of this runtime only."""
        fields: dict[str, Any] = {}
        not_numbers: list[str] = []
        impossible: list[str] = []
        for metric in profile.metrics:
            value = self._value(metric, scraped, not_numbers, impossible)
            if value is not None and (why := _impossible(metric.field, value)):
                impossible.append(f"{metric.names[0]}={why}")
            elif value is not None:
                fields[metric.field] = value
        if profile.capacity and scraped.capacity.get("__name__") == profile.capacity.metric:
            fields["kv_block_tokens"] = _integer(
                scraped.capacity.get(profile.capacity.block_tokens)
            )
            fields["kv_capacity_tokens"] = _capacity_tokens(profile, scraped.capacity)
        elif profile.capacity_in_blocks:
            block, blocks = fields.get("kv_block_tokens"), fields.pop("kv_capacity_tokens", None)
            if block and blocks:
                fields |= {"kv_block_tokens": round(block), "kv_capacity_tokens": block * blocks}
        return EngineSample(
            engine=engine,
            runtime=profile.name,
            gauges_age_seconds=scraped.ages.get(MetricKind.GAUGE),
            counters_age_seconds=scraped.ages.get(MetricKind.COUNTER),
            histograms_age_seconds=scraped.ages.get(MetricKind.HISTOGRAM),
            nan_metrics=tuple(not_numbers),
            impossible_metrics=tuple(impossible),
            **fields,
        )

    def _value(
        self,
        metric: MetricNames,
        scraped: Scraped,
        not_numbers: list[str],
        impossible: list[str],
    ) -> float | Mapping[str, float] | HistogramSample | None:
        """The field's value under the first name that the engine exports; None if there is none."""
        for name in metric.names:
            if metric.kind is MetricKind.HISTOGRAM:
                buckets = scraped.histograms.get(name)
                if buckets is not None and buckets.not_an_edge:
                    impossible.append(f"{name}=a bucket up to {buckets.not_an_edge}")
                    return None
                if buckets is not None:
                    return self._histogram(name, buckets, not_numbers)
            elif metric.is_split(name):
                if name in scraped.splits:
                    return _parts(metric, name, scraped.splits[name], not_numbers)
            elif name in scraped.numbers:
                value = metric.unit * scraped.numbers[name]
                if math.isfinite(value):
                    return value
                not_numbers.append(name)
                return None
        return None

    def _histogram(
        self, name: str, buckets: Buckets, not_numbers: list[str]
    ) -> HistogramSample | None:
        found = buckets.sample(self._edges)
        if found is None:
            return None
        if not all(map(math.isfinite, (*found.cumulative_counts, found.sum, found.count))):
            not_numbers.append(name)
            return None
        return found

    def _add_gpu_value(self, labels: Mapping[str, str], name: str, value: float) -> None:
        for namespace_label, pod_label in self._gpu.pod_labels:
            if labels.get(pod_label):
                pod = (labels.get(namespace_label, ""), labels[pod_label])
                card = "/".join(filter(None, (labels.get(x, "") for x in self._gpu.gpu_labels)))
                source = tuple([labels.get(label, "") for label in self._config.source_labels])
                self._gpus[pod][card, source][name] = value
                if product := labels.get(self._gpu.product_label):
                    self._products[pod, card] = product
                return

    def _gpu_samples(self, pod: Pod) -> Iterator[GPUSample]:
        newest: dict[str, Mapping[str, float]] = {}
        values = self._gpus.get(pod, {})
        for (card, _), record in sorted(values.items(), key=lambda item: item[0]):
            best = newest.get(card)
            if best is None or record.get(GPU_GROUP, math.inf) < best.get(GPU_GROUP, math.inf):
                newest[card] = record
        for card in sorted(newest):
            sample = _gpu_sample(card, newest[card], self._gpu)
            yield replace(sample, product=self._products.get((pod, card)))


def _series_of(profile: RuntimeProfile) -> Iterator[str]:
    """Names of all series of a runtime."""
    for metric in profile.metrics:
        suffixes = HISTOGRAM_SUFFIXES if metric.kind is MetricKind.HISTOGRAM else ("",)
        yield from (name + suffix for name in metric.names for suffix in suffixes)
    if profile.capacity is not None:
        yield profile.capacity.metric


def _counted_names(profiles: Iterable[RuntimeProfile]) -> CountedNames:
    """Names of all counters and histograms, and of those that count requests."""
    counted = [m for p in profiles for m in p.metrics if m.kind is not MetricKind.GAUGE]
    return CountedNames(
        every=frozenset(name for metric in counted for name in metric.names),
        requests=frozenset(n for m in counted if m.field in _OF_REQUESTS for n in m.names),
    )


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


def _impossible(field: str, value: float | Mapping[str, float] | HistogramSample) -> str:
    """Why a field's value is impossible; '' if it is possible."""
    if isinstance(value, HistogramSample):
        return "" if can_be_counts(value) else "a histogram that is none"
    parts = value.values() if isinstance(value, Mapping) else (value,)
    return next((f"{part:.6g}" for part in parts if not can_be(field, part)), "")


def _once(series: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The series of an answer without duplicates: a series repeated by a proxy is not added."""
    seen: set[tuple[str, ...]] = set()
    for one in series:
        labels = one["metric"]
        key = (*labels, *labels.values())
        if key not in seen:
            seen.add(key)
            yield one


def _first_label(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """The value of the first existing label that is not empty, or ''."""
    for name in names:
        value = labels.get(name)
        if value:
            return value
    return ""


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


def _gpu_sample(card: str, values: Mapping[str, float], names: GPUMetrics) -> GPUSample:
    def finite(name: str) -> float | None:
        value = values.get(name)
        return value if value is not None and math.isfinite(value) else None

    utilization = finite(names.utilization_percent)
    used = finite(names.memory_used_mebibytes)
    free = finite(names.memory_free_mebibytes)
    xid = finite(names.xid_error)
    return GPUSample(
        gpu=card,
        age_seconds=finite(GPU_GROUP),
        utilization_ratio=None if utilization is None else ratio_from_percent(utilization),
        memory_used_bytes=None if used is None else bytes_from_mebibytes(used),
        memory_free_bytes=None if free is None else bytes_from_mebibytes(free),
        power_watts=finite(names.power_watts),
        xid_error=None if xid is None else round(xid),
    )
