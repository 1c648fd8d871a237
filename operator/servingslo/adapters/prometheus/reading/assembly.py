"""Combine the answers of one reading: series in, engines and GPUs by pod out. No I/O.

If an engine was scraped twice (two jobs, two replicas of Prometheus), only the scrape with the
newest sample is used. Samples of different scrapes are never added or mixed. Two servers of one pod
are distinguished by their ports, see `servers`.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import (
    GPU_GROUP,
    GROUP_LABEL,
    HISTOGRAM_SUFFIXES,
    NATIVE_GROUP,
    histogram_labels,
    labels_of_pages,
)
from servingslo.adapters.prometheus.reading.buckets import Buckets, Edges
from servingslo.adapters.prometheus.reading.clusters import namesakes
from servingslo.adapters.prometheus.reading.native import NativeEdges, NativeHistogram, each_once
from servingslo.adapters.prometheus.reading.samples import engine_sample, unread
from servingslo.adapters.prometheus.reading.scraped import CountedNames, Scraped, with_pod_metrics
from servingslo.adapters.prometheus.reading.servers import Pod, SeenServers, Source, servers_of
from servingslo.adapters.prometheus.vectors import NAME_LABEL, Known, Labels, groups_of
from servingslo.estimation.sample import EngineSample, GPUSample
from servingslo.policy.ports import PodMetrics
from servingslo.runtimes.dcgm import DCGM
from servingslo.runtimes.profile import MetricKind, RuntimeProfile
from servingslo.units import bytes_from_mebibytes, ratio_from_percent

# The counter that shows the mix of models, and the label that names them.
_TOKENS = "generation_tokens_total"
_MODEL_LABEL = "model_name"
# A port in a label, which a tenant may set to any length.
_PORT = re.compile(r"[0-9]{1,5}")
# Fields that count requests at their start or end.
_OF_REQUESTS = ("finished_total", "ttft_seconds", "latency_seconds")


class Assembly:
    """Collects the answers of one reading. Series have the form of the Prometheus HTTP API.

    Invalid labels of an engine spoil only that engine, because a tenant controls its page.
    seen: servers and engines of pods in earlier readings; None for a single reading. known: labels
    that earlier readings parsed.
    mixed_namespaces: of pods with namesakes in other clusters, whose gateways add up both.
    Raises, from every method: KeyError, TypeError or ValueError if an answer is malformed.
    """

    def __init__(
        self,
        profiles: tuple[RuntimeProfile, ...],
        config: PrometheusConfig,
        seen: SeenServers | None = None,
        known: Known | None = None,
    ) -> None:
        self._names = tuple((profile, profile.metric_names) for profile in profiles)
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
        self._known = Known() if known is None else known
        of_scrapes = {config.namespace_label, config.pod_label, *config.source_labels}
        of_pages = labels_of_pages(profiles)
        self._known.begin(frozenset(of_pages) - of_scrapes)
        self._elapsed_seconds = 0.0
        self.mixed_namespaces: set[str] = set()
        self._series: dict[Pod, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        self._known_labels = frozenset((*of_scrapes, *of_pages))
        self._histogram_labels = histogram_labels(profiles, config)
        self._records: dict[tuple[Labels, str], Scraped] = {}
        self._splits = {
            name: metric.by_labels
            for profile in profiles
            for metric in profile.metrics
            for name in metric.names
            if metric.is_split(name)
        }
        self._capacities = {p.capacity.metric for p in profiles if p.capacity}
        self._adapters = {p.adapters.metric for p in profiles if p.adapters}
        self._tokens = {
            name
            for profile in profiles
            if _MODEL_LABEL in profile.part_labels
            for metric in profile.metrics
            if metric.field == _TOKENS
            for name in metric.names
        }

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
        for name, group, values in groups_of(series, self._known, again=True):
            labels, value = group.by_name, next(iter(values.values()))
            scraped = self._record(group, name)
            if name in self._capacities:
                scraped.capacity = {NAME_LABEL: name, **labels}
            elif name in self._adapters:
                scraped.add_adapters({NAME_LABEL: name, **labels}, value)
            elif name in self._splits:
                key = _first_label(labels, self._splits[name])
                split = scraped.splits.setdefault(name, {})
                split[key] = split.get(key, 0.0) + value
            else:
                scraped.numbers[name] = scraped.numbers.get(name, 0.0) + value
                if name in self._tokens and (model := labels.get(_MODEL_LABEL)):
                    by_model = scraped.tokens_by_model
                    by_model[model] = by_model.get(model, 0.0) + value

    def add_ages(
        self,
        series: Iterable[Mapping[str, Any]],
        is_sure: Callable[[Mapping[str, str], float], bool] = lambda _labels, _age: True,
    ) -> int:
        """Add the ages of engine groups and of GPUs, in seconds; return how many were added.

        is_sure: whether an age of these labels is trusted; others are left out.
        """
        count = 0
        for _, labels, values in groups_of(series, self._known, again=True):
            age = next(iter(values.values()))
            if not is_sure(labels.by_name, age):
                continue
            count += 1
            group, _, engine_label = labels.by_name[GROUP_LABEL].partition("/")
            if group == GPU_GROUP:
                self._add_gpu_value(labels.by_name, GPU_GROUP, age)
            else:
                self._scraped_at(labels, engine_label).ages[group] = age
        return count

    def add_newest(self, series: Iterable[Mapping[str, Any]]) -> None:
        """Add when each engine's series were sampled last, with all their labels."""
        config = self._config
        for _, labels, values in groups_of(series, self._known, again=True):
            named = labels.by_name
            pod = (named.get(config.namespace_label, ""), named[config.pod_label])
            self._series[pod].append((named, next(iter(values.values()))))

    def newer_seconds(self, at_seconds: float, stamps: Mapping[Pod, float]) -> dict[str, float]:
        """By pod, how much newer these times of samples are than by the ages at this time."""
        found = {}
        for pod, stamp in stamps.items():
            ages = [
                record.ages[MetricKind.GAUGE]
                for record in self._scraped.get(pod, {}).values()
                if MetricKind.GAUGE in record.ages
            ]
            if ages:
                found["/".join(pod)] = stamp - (at_seconds - min(ages))
        return found

    def add_gpus(self, series: Iterable[Mapping[str, Any]]) -> None:
        """Add the fields of GPUs."""
        for name, labels, values in groups_of(series, self._known, again=True):
            self._add_gpu_value(labels.by_name, name, next(iter(values.values())))

    def add_histograms(self, series: Iterable[Mapping[str, Any]]) -> None:
        """Add the buckets, sums and counts of one histogram field."""
        bucket_suffix, sum_suffix, _ = HISTOGRAM_SUFFIXES
        for name, labels, values in groups_of(series, self._known):
            base, _, suffix = name.rpartition("_")
            histograms = self._record(labels, name).histograms
            buckets = histograms.get(base)
            if buckets is None:
                buckets = histograms[base] = Buckets()
            if suffix == bucket_suffix[1:]:
                buckets.parts.append(values)
                continue
            value = next(iter(values.values()))
            if suffix == sum_suffix[1:]:
                buckets.sum = value + (buckets.sum or 0.0)
            else:
                buckets.count = value + (buckets.count or 0.0)

    @property
    def lacks_classic(self) -> bool:
        """Whether native histograms of an engine are known by their age, and no classic ones."""
        return any(
            NATIVE_GROUP in record.ages and MetricKind.HISTOGRAM not in record.ages
            for records in self._scraped.values()
            for record in records.values()
        )

    def add_native(self, series: Iterable[Mapping[str, Any]], edges: NativeEdges) -> None:
        """Add native histograms of engines that have no classic ones of the same names.

        edges: known from earlier readings; those of these histograms are added.
        """
        namespace_label = self._config.namespace_label
        found: dict[tuple[int, str], tuple[Scraped, str, NativeHistogram]] = {}
        for name, named, part in each_once(series, self._histogram_labels):
            record = self._record(self._known.of(named), name)
            if name in record.histograms:
                continue
            own = found.setdefault(
                (id(record), name), (record, named.get(namespace_label, ""), NativeHistogram())
            )
            own[2].add(part)
        for (_, name), (_, namespace, histogram) in found.items():
            edges.add(namespace, name, histogram)
        for (_, name), (record, namespace, histogram) in found.items():
            record.histograms[name] = histogram.classic(edges.of(namespace, name))
            if NATIVE_GROUP in record.ages:
                record.ages.setdefault(MetricKind.HISTOGRAM, record.ages[NATIVE_GROUP])

    def pods(self, elapsed_seconds: float = 0.0) -> dict[Pod, PodMetrics]:
        """Every pod in the answers, with its engines in the order of their names.

        elapsed_seconds: since the answers' time; all ages are greater by it.
        """
        self._elapsed_seconds = elapsed_seconds
        names = {**dict.fromkeys(self._scraped), **dict.fromkeys(self._gpus)}
        return {pod: self._pod(pod) for pod in names}

    def _pod(self, pod: Pod) -> PodMetrics:
        series, sources = self._series[pod], self._config.source_labels
        refused = namesakes("/".join(pod), series, sources, self._known_labels)
        if refused:
            self.mixed_namespaces.add(pod[0])
        engines = self._engines(pod, self._scraped.get(pod, {}))
        return PodMetrics(
            engines=tuple(unread(engine, refused) if refused else engine for engine in engines),
            gpus=() if refused else tuple(self._gpu_samples(pod)),
            ports=self._ports(pod),
        )

    def _ports(self, pod: Pod) -> frozenset[int]:
        """The ports in the `instance` labels of a pod's scrapes; a scrape sets host:port."""
        labels = self._config.source_labels
        told = (dict(zip(labels, source, strict=True)) for source, _ in self._scraped.get(pod, {}))
        ports = (one.get("instance", "").rpartition(":")[2] for one in told)
        return frozenset(int(port) for port in ports if _PORT.fullmatch(port))

    def _record(self, labels: Labels, name: str) -> Scraped:
        """The record for series of these labels and this name."""
        engine_label = self._label_of.get(name, "")
        record = self._records.get((labels, engine_label))
        if record is None:
            record = self._scraped_at(labels, engine_label)
            self._records[labels, engine_label] = record
        return record

    def _scraped_at(self, labels: Labels, engine_label: str) -> Scraped:
        """The record for an engine's series; other runtimes' engine labels are ordinary labels."""
        place = labels.places.get(engine_label)
        if place is None:
            named, config = labels.by_name, self._config
            pod = (named.get(config.namespace_label, ""), named[config.pod_label])
            source = tuple([named.get(label, "") for label in config.source_labels])
            engine = _first_label(named, (engine_label,) if engine_label else self._engine_labels)
            place = labels.places[engine_label] = pod, (source, engine)
        pod, which = place
        return self._scraped[pod][which]

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
        for engine, server in self._each_once(pod, newest):
            record = newest[engine, server]
            exported = record.names()
            name = self._seen.name(pod, server, engine)
            for profile, names in self._names:
                if exported & names:
                    yield engine_sample(name, record, profile, self._edges, self._elapsed_seconds)

    def _each_once(
        self, pod: Pod, newest: Mapping[tuple[str, str], Scraped]
    ) -> list[tuple[str, str]]:
        """The engines of the servers, without those whose page is another port's."""
        by_engine: dict[str, dict[str, Scraped]] = defaultdict(dict)
        for (engine, server), record in newest.items():
            by_engine[engine][server] = record
        kept = []
        for engine, of_server in by_engine.items():
            first = dict.fromkeys(of_server, "")
            if len(of_server) > 1:
                pages = {name: one.counts(self._counted) for name, one in of_server.items()}
                first |= self._seen.first_of(pod, engine, pages)
            kept += [(engine, name) for name in of_server if first[name] in {"", name}]
        return sorted(kept)

    def _add_gpu_value(self, labels: Mapping[str, str], name: str, value: float) -> None:
        for namespace_label, pod_label in DCGM.pod_labels:
            if labels.get(pod_label):
                pod = (labels.get(namespace_label, ""), labels[pod_label])
                card = "/".join(filter(None, (labels.get(x, "") for x in DCGM.gpu_labels)))
                source = tuple([labels.get(label, "") for label in self._config.source_labels])
                self._gpus[pod][card, source][name] = value
                if product := labels.get(DCGM.product_label):
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
            sample = _gpu_sample(card, newest[card])
            age = None if sample.age_seconds is None else sample.age_seconds + self._elapsed_seconds
            yield replace(sample, age_seconds=age, product=self._products.get((pod, card)))


def _series_of(profile: RuntimeProfile) -> Iterator[str]:
    """Names of all series of a runtime."""
    for metric in profile.metrics:
        suffixes = (*HISTOGRAM_SUFFIXES, "") if metric.kind is MetricKind.HISTOGRAM else ("",)
        yield from (name + suffix for name in metric.names for suffix in suffixes)
    if profile.capacity is not None:
        yield profile.capacity.metric
    if profile.adapters is not None:
        yield profile.adapters.metric


def _counted_names(profiles: Iterable[RuntimeProfile]) -> CountedNames:
    """Names of all counters and histograms, and of those that count requests."""
    counted = [m for p in profiles for m in p.metrics if m.kind is not MetricKind.GAUGE]
    return CountedNames(
        every=frozenset(name for metric in counted for name in metric.names),
        requests=frozenset(n for m in counted if m.field in _OF_REQUESTS for n in m.names),
    )


def _first_label(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """The value of the first existing label that is not empty, or ''."""
    for name in names:
        value = labels.get(name)
        if value:
            return value
    return ""


def _gpu_sample(card: str, values: Mapping[str, float]) -> GPUSample:
    def finite(name: str) -> float | None:
        value = values.get(name)
        return value if value is not None and math.isfinite(value) else None

    utilization = finite(DCGM.utilization_percent)
    used = finite(DCGM.memory_used_mebibytes)
    free = finite(DCGM.memory_free_mebibytes)
    xid = finite(DCGM.xid_error)
    return GPUSample(
        gpu=card,
        age_seconds=finite(GPU_GROUP),
        utilization_ratio=None if utilization is None else ratio_from_percent(utilization),
        memory_used_bytes=None if used is None else bytes_from_mebibytes(used),
        memory_free_bytes=None if free is None else bytes_from_mebibytes(free),
        power_watts=finite(DCGM.power_watts),
        xid_error=None if xid is None else round(xid),
    )
