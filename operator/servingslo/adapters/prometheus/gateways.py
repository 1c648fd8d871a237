"""Read a gateway's counters of the whole cluster in one query, and assign them to workloads.

The query contains only values from the profile and the administrator's settings, never names of
resources. Python code assigns each series of the answer to a workload.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from servingslo.adapters.prometheus.client import PrometheusClient, PrometheusConfig
from servingslo.adapters.prometheus.queries import GROUP_LABEL, any_of
from servingslo.errors import MetricsUnavailableError
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.runtimes.gateways import (
    GatewayField,
    GatewayMetric,
    GatewayProfile,
    is_unknown,
)

_AGE_GROUP = "gateway"

# Namespace and name of a workload in a gateway's metrics.
Workload = tuple[str, str]
# The scrape of a series: values of the namespace, pod and source labels.
Scrape = tuple[str, ...]


def read_gateways(
    client: PrometheusClient, config: PrometheusConfig, *, deadline: float, at_seconds: float
) -> dict[Workload, GatewaySample] | None:
    """The gateway's counts by workload; None if no gateway is set, {} if none answers."""
    profile = config.gateway
    if profile is None:
        return None
    promql = gateway_query(profile, config)
    try:
        answer = client.query(promql, deadline=deadline, at_seconds=at_seconds)
        if answer.warnings:
            return {}
        return gateways_of(profile, config, answer.result)
    except (MetricsUnavailableError, KeyError, TypeError, ValueError, IndexError):
        return {}


def gateway_query(profile: GatewayProfile, config: PrometheusConfig) -> str:
    """PromQL for every counter of the profile and for the age of each scrape, in one answer.

    Prometheus adds up series that differ only in unused labels (codes, callers), because they count
    different requests. Scrapes are kept separate, so nothing is counted twice.
    """
    scrape = _scrape_labels(config)
    counted = (m.label for m in profile.metrics if m.label)
    labels = dict.fromkeys((*scrape, *_owner_labels(profile), *counted))
    counters = (name for metric in profile.metrics for name in metric.names)
    names = dict.fromkeys((*counters, *profile.known_by))
    matchers = "".join(f", {matcher}" for matcher in profile.matchers)
    parts = [f"sum by (__name__, {', '.join(labels)}) ({any_of(names, *profile.matchers)})"]
    if profile.pages:
        pages = any_of(profile.pages)
        label = profile.workload_label
        parts.append(f"max by (__name__, {', '.join((*scrape, label))}) ({pages})")
    # timestamp() returns a sample's own time only if its argument is the selector itself.
    ages = " or ".join(
        f'(time() - timestamp({{__name__="{name}"{matchers}}}))'
        for name in (*profile.metrics[0].names, *profile.known_by)
    )
    age = f"min by ({', '.join(scrape)}) ({ages})"
    parts.append(f'label_replace({age}, "{GROUP_LABEL}", "{_AGE_GROUP}", "", "")')
    return " or ".join(parts)


def gateways_of(
    profile: GatewayProfile, config: PrometheusConfig, series: Iterable[Mapping[str, Any]]
) -> dict[Workload, GatewaySample]:
    """Samples by workload. Series have the form of the Prometheus HTTP API.

    Raises: KeyError, TypeError or ValueError if the answer is malformed.
    """
    answer = _Answer(profile, config, series)
    by_workload: dict[Workload, list[tuple[Scrape, GatewayInstance]]] = defaultdict(list)
    for workload, scrape, instance in answer.instances():
        by_workload[workload].append((scrape, instance))
    return {
        workload: GatewaySample(counted=profile.counted, instances=_each_once(found))
        for workload, found in by_workload.items()
    }


@dataclass(slots=True)
class _Counted:
    """One scrape's counts of one workload: sums by metric name, and by index in the profile.

    known: whether series other than the counters show that the scrape knows the workload.
    """

    sums: dict[tuple[int, str], float] = field(default_factory=dict)
    known: bool = False

    def add(self, place: int, name: str, value: float) -> None:
        self.sums[place, name] = self.sums.get((place, name), 0.0) + value


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
        for one in series:
            self._add(one["metric"], float(one["value"][1]))

    def _add(self, labels: Mapping[str, str], value: float) -> None:
        profile = self._profile
        scrape = tuple([labels.get(label, "") for label in _scrape_labels(self._config)])
        if labels.get(GROUP_LABEL) == _AGE_GROUP:
            self._ages[scrape] = value
            return
        name = labels["__name__"]
        if name in profile.pages:
            self._pages[scrape].add(labels.get(profile.workload_label, ""))
            return
        if not math.isfinite(value):
            return
        owner = tuple([labels.get(label, "") for label in _owner_labels(profile)])
        counted = self._counted[scrape, owner]
        counted.known |= name in profile.known_by
        for place, metric in enumerate(profile.metrics):
            if name in metric.names and metric.counts(labels.get(metric.label, "")):
                counted.add(place, name, value)

    def instances(self) -> Iterator[tuple[Workload, Scrape, GatewayInstance]]:
        """Each scrape's counters of each workload, once."""
        services = self._services()
        merged: dict[tuple[Workload, Scrape], _Counted] = defaultdict(_Counted)
        for (scrape, owner), counted in self._counted.items():
            workload = self._workload(scrape, owner, services)
            if workload is not None:
                whole = merged[workload, scrape]
                whole.known |= counted.known
                for (place, name), value in counted.sums.items():
                    whole.add(place, name, value)
        for (workload, scrape), counted in merged.items():
            fields = _fields(self._profile.metrics, counted)
            if GatewayField.REQUESTS in fields:
                named = {name.value: value for name, value in fields.items()}
                yield (
                    workload,
                    scrape,
                    GatewayInstance(
                        name=_instance_name(scrape), age_seconds=self._ages.get(scrape), **named
                    ),
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


def _scrape_labels(config: PrometheusConfig) -> tuple[str, ...]:
    return (config.namespace_label, config.pod_label, *config.source_labels)


def _owner_labels(profile: GatewayProfile) -> tuple[str, ...]:
    """Labels that identify a series' owner: workload, namespace ('' for none), service."""
    if profile.pages:
        return ()
    if not profile.namespace_label:
        return (profile.workload_label,)
    return (profile.workload_label, profile.namespace_label, *(profile.service_labels or ()))


def _fields(metrics: tuple[GatewayMetric, ...], counted: _Counted) -> dict[GatewayField, float]:
    """The sum of each field; requests only if the metric that counts all of them is present.

    A workload that the scrape knows but has no counter for has had no request.
    """
    fields: dict[GatewayField, float] = {}
    for place, metric in enumerate(metrics):
        name = next((name for name in metric.names if (place, name) in counted.sums), None)
        if name is None:
            if place == 0:
                return {GatewayField.REQUESTS: 0.0} if counted.known else {}
            continue
        for added in metric.fields:
            fields[added] = fields.get(added, 0.0) + counted.sums[place, name]
    return fields


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
