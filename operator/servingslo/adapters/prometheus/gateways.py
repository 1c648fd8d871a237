"""Read a gateway's counters of the whole cluster in one query, and assign them to workloads.

The query contains only values from the profile and the administrator's settings, never names of
resources. Python code assigns each series of the answer to a workload.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from servingslo.adapters.prometheus.client import Answer
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.gateway_queries import (
    AGE_GROUP,
    BUCKET,
    SUM,
    gateway_query,
    latency_query,
    owner_labels,
    scrape_labels,
)
from servingslo.adapters.prometheus.queries import GROUP_LABEL
from servingslo.errors import MetricsUnavailableError
from servingslo.estimation.sample import (
    GatewayInstance,
    GatewaySample,
    HistogramSample,
    PrioritySample,
)
from servingslo.runtimes.gateways import (
    GatewayField,
    GatewayMetric,
    GatewayProfile,
    is_unknown,
)

_INTEGER = re.compile(r"-?\d{1,9}")

# Namespace and name of a workload in a gateway's metrics; of one backend, with the numbers of its
# rule and of the backend itself.
Workload = tuple[str, str]
Backend = tuple[str, str, int, int]
# The scrape of a series: values of the namespace, pod and source labels.
Scrape = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCounts:
    """The gateway's counts by workload, and by backend where it counts backends apart."""

    workloads: Mapping[Workload, GatewaySample] = field(default_factory=dict)
    backends: Mapping[Backend, GatewaySample] = field(default_factory=dict)


def read_gateways(ask: Callable[[str], Answer], config: PrometheusConfig) -> GatewayCounts | None:
    """The gateway's counts; None if no gateway is set, empty if none answers.

    ask: the answer to an instant query. Raises: MetricsUnavailableError.
    """
    profile = config.gateway
    if profile is None:
        return None
    promql = gateway_query(profile, config)
    try:
        answer = ask(promql)
        if answer.warnings:
            return GatewayCounts()
        times = _read_latencies(ask, config, profile)
        return GatewayCounts(
            workloads=gateways_of(profile, config, answer.result, times),
            backends=backends_of(profile, config, answer.result),
        )
    except (MetricsUnavailableError, KeyError, TypeError, ValueError, IndexError):
        return GatewayCounts()


def _read_latencies(
    ask: Callable[[str], Answer], config: PrometheusConfig, profile: GatewayProfile
) -> list[Any]:
    """Series of the gateway's latency histogram; nothing if it has none or does not answer."""
    if profile.latency is None:
        return []
    promql = latency_query(profile, profile.latency, config)
    try:
        answer = ask(promql)
    except MetricsUnavailableError:
        return []
    return [] if answer.warnings else list(answer.result)


def gateways_of(
    profile: GatewayProfile,
    config: PrometheusConfig,
    series: Iterable[Mapping[str, Any]],
    times: Iterable[Mapping[str, Any]] = (),
) -> dict[Workload, GatewaySample]:
    """Samples by workload. Series have the form of the Prometheus HTTP API.

    times: of the latency histogram.
    Raises: KeyError, TypeError or ValueError if the answer is malformed.
    """
    answer = _Answer(profile, config, series)
    for one in times:
        answer.add_time(one["metric"], float(one["value"][1]))
    by_workload: dict[Workload, list[tuple[Scrape, GatewayInstance]]] = defaultdict(list)
    for workload, scrape, instance in answer.instances():
        by_workload[workload].append((scrape, instance))
    by_priority: dict[Workload, dict[int, list[tuple[Scrape, GatewayInstance]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for workload, priority, scrape, instance in answer.priorities():
        by_priority[workload][priority].append((scrape, instance))
    return {
        workload: GatewaySample(
            counted=profile.counted,
            instances=_each_once(found),
            priorities=tuple(
                PrioritySample(priority=priority, instances=_each_once(of_it))
                for priority, of_it in sorted(by_priority[workload].items())
            ),
        )
        for workload, found in by_workload.items()
    }


def backends_of(
    profile: GatewayProfile, config: PrometheusConfig, series: Iterable[Mapping[str, Any]]
) -> dict[Backend, GatewaySample]:
    """Samples by backend, of a gateway that counts backends apart; else empty.

    Raises: KeyError, TypeError or ValueError if the answer is malformed.
    """
    if not profile.backend_metrics:
        return {}
    by_backend: dict[Backend, list[tuple[Scrape, GatewayInstance]]] = defaultdict(list)
    for backend, scrape, instance in _Answer(profile, config, series).backends():
        by_backend[backend].append((scrape, instance))
    return {
        backend: GatewaySample(counted=profile.counted, instances=_each_once(found))
        for backend, found in by_backend.items()
    }


@dataclass(slots=True)
class _Counted:
    """One scrape's counts of one workload: sums by metric name, and by index in the profile.

    known: whether series other than the counters show that the scrape knows the workload. buckets,
    seconds: of the latency histograms, by base name.
    """

    sums: dict[tuple[int, str], float] = field(default_factory=dict)
    known: bool = False
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, place: int, name: str, value: float) -> None:
        self.sums[place, name] = self.sums.get((place, name), 0.0) + value

    def add_time(self, name: str, edge: str, value: float, unit: float) -> None:
        """Add a bucket or a sum; an edge that is no number is left out.

        An edge that is written in two ways ('1' and '1.0') is one bucket: see `Buckets`.
        """
        if name.endswith(SUM):
            base = name.removesuffix(SUM)
            self.seconds[base] = self.seconds.get(base, 0.0) + unit * value
            return
        try:
            bound = unit * float(edge)
        except ValueError:
            return
        buckets = self.buckets.setdefault(name.removesuffix(BUCKET), {})
        buckets[bound] = max(value, buckets.get(bound, value))

    def absorb(self, other: "_Counted") -> None:
        """Add the counts of another owner of the same workload."""
        self.known |= other.known
        for (place, name), value in other.sums.items():
            self.add(place, name, value)
        for base, buckets in other.buckets.items():
            mine = self.buckets.setdefault(base, {})
            for edge, value in buckets.items():
                mine[edge] = mine.get(edge, 0.0) + value
        for base, seconds in other.seconds.items():
            self.seconds[base] = self.seconds.get(base, 0.0) + seconds

    def latency(self, names: Iterable[str]) -> HistogramSample | None:
        """The histogram under the first of these names that is exported; None if there is none."""
        for base in names:
            edges = sorted(self.buckets.get(base, ()))
            if edges and edges[-1] == math.inf and base in self.seconds:
                counts = [self.buckets[base][edge] for edge in edges]
                return HistogramSample(
                    upper_bounds=tuple(edges),
                    cumulative_counts=tuple(counts),
                    sum=self.seconds[base],
                    count=counts[-1],
                )
        return None


class _Answer:
    """The series of one answer, by scrape and by the labels of their owner."""

    def __init__(
        self,
        profile: GatewayProfile,
        config: PrometheusConfig,
        series: Iterable[Mapping[str, Any]],
    ) -> None:
        self._profile = profile
        self._config = config
        self._pattern = re.compile(profile.pattern) if profile.pattern else None
        self._ages: dict[Scrape, float] = {}
        self._pages: dict[Scrape, set[str]] = defaultdict(set)
        self._counted: dict[tuple[Scrape, tuple[str, ...]], _Counted] = defaultdict(_Counted)
        self._of_priority: dict[tuple[Scrape, int], _Counted] = defaultdict(_Counted)
        self._saturation: dict[Scrape, float] = {}
        for one in series:
            self._add(one["metric"], float(one["value"][1]))

    def _add(self, labels: Mapping[str, str], value: float) -> None:
        profile = self._profile
        scrape = tuple([labels.get(label, "") for label in scrape_labels(self._config)])
        if labels.get(GROUP_LABEL) == AGE_GROUP:
            self._ages[scrape] = value
            return
        name = labels["__name__"]
        if name in profile.pages:
            self._pages[scrape].add(labels.get(profile.workload_label, ""))
            return
        if not math.isfinite(value):
            return
        if name in profile.saturation:
            self._saturation[scrape] = value
            return
        self._add_to_priority(labels, scrape, name, value)
        owner = tuple([labels.get(label, "") for label in owner_labels(profile)])
        counted = self._counted[scrape, owner]
        counted.known |= name in profile.known_by
        for place, metric in enumerate(profile.all_metrics):
            if name in metric.names and metric.counts(labels.get(metric.label, "")):
                counted.add(place, name, value)
            elif name in metric.names and GatewayField.ERRORS in metric.fields:
                # Answers are counted by class: none of 5xx is zero of them.
                counted.add(place, name, 0.0)

    def add_time(self, labels: Mapping[str, str], value: float) -> None:
        """Add a bucket or a sum of the latency histogram."""
        profile = self._profile
        if profile.latency is None or not math.isfinite(value):
            return
        scrape = tuple([labels.get(label, "") for label in scrape_labels(self._config)])
        owner = tuple([labels.get(label, "") for label in owner_labels(profile)])
        unit, edge = profile.latency.unit, labels.get("le", "")
        self._counted[scrape, owner].add_time(labels["__name__"], edge, value, unit)

    def _add_to_priority(
        self, labels: Mapping[str, str], scrape: Scrape, name: str, value: float
    ) -> None:
        text = labels.get(self._profile.priority_label, "")
        if not _INTEGER.fullmatch(text):
            return
        counted = self._of_priority[scrape, int(text)]
        for place, metric in enumerate(self._profile.priority_metrics):
            if name in metric.names and metric.counts(labels.get(metric.label, "")):
                counted.add(place, name, value)

    def priorities(self) -> Iterator[tuple[Workload, int, Scrape, GatewayInstance]]:
        """Each scrape's counters of each priority, once; for profiles that find by page."""
        for (scrape, priority), counted in self._of_priority.items():
            workload = self._workload(scrape, (), {})
            if workload is not None and counted.sums:
                # Before its first request is passed on, a priority may have refusals alone.
                sums = _sums(self._profile.priority_metrics, counted)
                instance = self._instance(scrape, {GatewayField.REQUESTS: 0.0, **sums})
                if instance is not None:
                    yield workload, priority, scrape, instance

    def instances(self) -> Iterator[tuple[Workload, Scrape, GatewayInstance]]:
        """Each scrape's counters of each workload, once."""
        services = self._services()
        merged: dict[tuple[Workload, Scrape], _Counted] = defaultdict(_Counted)
        for (scrape, owner), counted in self._counted.items():
            workload = self._workload(scrape, owner, services)
            if workload is not None:
                merged[workload, scrape].absorb(counted)
        for (workload, scrape), counted in merged.items():
            latency = self._profile.latency
            instance = self._instance(scrape, _fields(self._profile.metrics, counted))
            if instance is not None and latency is not None:
                instance = replace(instance, latency_seconds=counted.latency(latency.names))
            if instance is not None:
                yield workload, scrape, instance

    def backends(self) -> Iterator[tuple[Backend, Scrape, GatewayInstance]]:
        """Each scrape's counters of each backend that is counted apart."""
        for (scrape, owner), counted in self._counted.items():
            match = None if self._pattern is None else self._pattern.fullmatch(owner[0])
            found = {} if match is None else match.groupdict()
            if found.get("rule") is None or found.get("backend") is None:
                continue
            instance = self._instance(scrape, _fields(self._profile.all_metrics, counted))
            if instance is not None:
                numbers = int(found["rule"]), int(found["backend"])
                yield (found["namespace"], found["name"], *numbers), scrape, instance

    def _instance(
        self, scrape: Scrape, fields: Mapping[GatewayField, float]
    ) -> GatewayInstance | None:
        if GatewayField.REQUESTS not in fields:
            return None
        named: dict[str, Any] = {name.value: value for name, value in fields.items()}
        return GatewayInstance(
            name=_instance_name(scrape),
            age_seconds=self._ages.get(scrape),
            saturation_ratio=self._saturation.get(scrape),
            **named,
        )

    def _services(self) -> Mapping[tuple[str, ...], set[Workload]]:
        """The workloads behind each service."""
        found: dict[tuple[str, ...], set[Workload]] = defaultdict(set)
        for scrape, owner in self._counted:
            if self._profile.service_labels and not is_unknown(owner[0]):
                found[owner[2:]].add((self._namespace(scrape, owner), owner[0]))
        return found

    def _workload(
        self,
        scrape: Scrape,
        owner: tuple[str, ...],
        services: Mapping[tuple[str, ...], set[Workload]],
    ) -> Workload | None:
        """The workload of these labels; None if unknown or ambiguous."""
        if self._profile.pages:
            names = self._pages.get(scrape, set())
            return (scrape[0], next(iter(names))) if len(names) == 1 else None
        if self._pattern is not None:
            match = self._pattern.fullmatch(owner[0])
            return (str(match["namespace"]), str(match["name"])) if match else None
        if not is_unknown(owner[0]):
            return self._namespace(scrape, owner), owner[0]
        reached = services.get(owner[2:], set())
        return next(iter(reached)) if len(reached) == 1 else None

    def _namespace(self, scrape: Scrape, owner: tuple[str, ...]) -> str:
        return owner[1] if self._profile.namespace_label else scrape[0]


def _fields(metrics: tuple[GatewayMetric, ...], counted: _Counted) -> dict[GatewayField, float]:
    """The sum of each field; requests only if the metric that counts all of them is present.

    A workload that the scrape knows but has no counter for has had no request, and has none in
    flight.
    """
    if not any((0, name) in counted.sums for name in metrics[0].names):
        if not counted.known:
            return {}
        at_once = {GatewayField.REQUESTS, GatewayField.ACTIVE}
        return {field: 0.0 for one in metrics for field in one.fields if field in at_once}
    return _sums(metrics, counted)


def _sums(metrics: tuple[GatewayMetric, ...], counted: _Counted) -> dict[GatewayField, float]:
    """The sum of each field; of each metric the newest name that is there."""
    fields: dict[GatewayField, float] = {}
    less: dict[GatewayField, float] = {}
    for place, metric in enumerate(metrics):
        value = next(
            (counted.sums[place, n] for n in metric.names if (place, n) in counted.sums), None
        )
        if value is not None:
            fields |= {added: fields.get(added, 0.0) + value for added in metric.fields}
            less |= {taken: less.get(taken, 0.0) + value for taken in metric.less}
    return {name: value - less.get(name, 0.0) for name, value in fields.items()}


def _instance_name(scrape: Scrape) -> str:
    """The scraped pod; if no pod is known, all labels of the scrape."""
    namespace, pod = scrape[0], scrape[1]
    return f"{namespace}/{pod}" if pod else "/".join(filter(None, scrape))


def _each_once(found: list[tuple[Scrape, GatewayInstance]]) -> tuple[GatewayInstance, ...]:
    """One instance of each name: if it was scraped twice, only the newest scrape is used."""
    newest: dict[str, GatewayInstance] = {}
    for _, instance in sorted(found, key=lambda item: item[0]):
        best = newest.get(instance.name)
        if best is None or _age(instance) < _age(best):
            newest[instance.name] = instance
    return tuple(newest[name] for name in sorted(newest))


def _age(instance: GatewayInstance) -> float:
    return math.inf if instance.age_seconds is None else instance.age_seconds
