"""Queries for an error budget, and the misses in each time bin of the answers.

The queries contain names of resources. The API server has checked that they are DNS names; an
invalid one is refused here.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.adapters.prometheus.gateways import gateways_of
from servingslo.adapters.prometheus.past_rates import pods_pattern
from servingslo.errors import InvalidInputError
from servingslo.estimation.requests.misses import Misses, Within, misses, within_threshold
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.policy.ports import BudgetQuestion
from servingslo.runtimes.catalogue import known
from servingslo.runtimes.gateways import GatewayField, GatewayProfile
from servingslo.runtimes.profile import RuntimeProfile

if TYPE_CHECKING:
    from servingslo.models.fleet.latency import Objective

Ask = Callable[[str], list[Any]]
_NAME_LABEL = "servingslo_metric"
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")
_OPEN = math.inf


class BudgetQueries:
    """Queries the increases of a workload's counters over bins that end at given times."""

    def __init__(
        self, config: PrometheusConfig, profiles: tuple[RuntimeProfile, ...] | None = None
    ) -> None:
        self._config = config
        of_runtime = known() if profiles is None else profiles
        self._profiles = {profile.name: profile for profile in of_runtime}

    def read(self, ask: Ask, asked: BudgetQuestion, bin_seconds: int) -> dict[int, Misses]:
        """Misses by the end of each bin with any data.

        Raises: the errors of `ask`; KeyError, TypeError or ValueError if an answer is malformed.
        """
        profile = self._profiles[asked.runtime or ""]
        selector = self._selector(asked, profile)
        found: dict[int, list[Within]] = defaultdict(list)
        by_metric: dict[str, list[Objective]] = defaultdict(list)
        for objective in asked.targets.objectives:
            by_metric[ROW_OF[objective.metric].histogram].append(objective)
        for field, objectives in by_metric.items():
            names = [f"{name}_bucket" for name in profile.metric(field).names]
            series = ask(self._increases(profile, names, selector, bin_seconds, ("le",)))
            for end, counts in _by_end(series):
                strictest = min(objective.threshold_seconds for objective in objectives)
                found[end].append(within_threshold(counts, strictest))
        refused = self._refused(ask, asked, profile, selector, bin_seconds)
        return {
            end: misses(within, refused.get(end, 0.0))
            for end, within in found.items()
            if len(within) == len(by_metric)
        }

    def knows(self, asked: BudgetQuestion) -> bool:
        """Whether the runtime has a histogram of each objective."""
        profile = self._profiles.get(asked.runtime or "")
        wanted = {ROW_OF[objective.metric].histogram for objective in asked.targets.objectives}
        return profile is not None and wanted <= {metric.field for metric in profile.metrics}

    def _selector(self, asked: BudgetQuestion, profile: RuntimeProfile) -> str:
        for value in (asked.namespace, asked.targets.target.name):
            if _DNS_NAME.fullmatch(value) is None:
                raise InvalidInputError("name", value, "a DNS name")
        pods = pods_pattern(asked.targets.target)
        namespace, pod = self._config.namespace_label, self._config.pod_label
        selector = f'{namespace}="{asked.namespace}", {pod}=~"{pods}"'
        model = asked.targets.model
        if model is None or not profile.serves_batches:
            return selector
        if _MODEL_NAME.fullmatch(model) is None:
            raise InvalidInputError("spec.model", model, "letters, digits, -, _ and .")
        return f'{selector}, {profile.engine_label}="{model}"'

    def _increases(
        self,
        profile: RuntimeProfile,
        names: Sequence[str],
        selector: str,
        bin_seconds: int,
        by: tuple[str, ...] = (),
    ) -> str:
        """PromQL for the increases; if several scrapes have a counter, one is used."""
        splits = (label for metric in profile.metrics for label in metric.by_labels)
        parts = (self._config.pod_label, profile.engine_label, *profile.part_labels, *splits, *by)
        labels = ", ".join(dict.fromkeys(parts))
        each = " or ".join(
            f"max by ({labels}) (increase({name}{{{selector}}}[{bin_seconds}s]))" for name in names
        )
        return f"sum by ({', '.join(by)}) ({each})"

    def _refused(
        self,
        ask: Ask,
        asked: BudgetQuestion,
        profile: RuntimeProfile,
        selector: str,
        bin_seconds: int,
    ) -> Mapping[int, float]:
        """Requests that engines and the gateway refused."""
        refused: dict[int, float] = defaultdict(float)
        rejected = [metric for metric in profile.metrics if metric.field == "rejected_total"]
        for metric in rejected:
            for series in ask(self._increases(profile, metric.names, selector, bin_seconds)):
                for end, value in _points(series):
                    refused[end] += value
        gateway = self._config.gateway
        if gateway is not None:
            name = asked.targets.gateway_name or asked.targets.target.name
            series = ask(gateway_increases(gateway, self._config, bin_seconds))
            for end, at_end in _each_end(series):
                told = gateways_of(gateway, self._config, at_end).get((asked.namespace, name))
                for instance in () if told is None else told.all_instances:
                    refused[end] += instance.rejected_total or 0.0
        return refused


def gateway_increases(profile: GatewayProfile, config: PrometheusConfig, bin_seconds: int) -> str:
    """PromQL for a gateway's counts in each bin, grouped by all labels that identify the owner."""
    scrape = (config.namespace_label, config.pod_label, *config.source_labels)
    owner = (profile.workload_label, profile.namespace_label, *(profile.service_labels or ()))
    counted = (metric.label for metric in profile.metrics)
    labels = ", ".join(filter(None, dict.fromkeys((*scrape, *owner, *counted))))
    matchers = ", ".join(profile.matchers)
    wanted = (GatewayField.REQUESTS, GatewayField.REJECTED)
    names = dict.fromkeys(
        name
        for metric in profile.metrics
        if not set(wanted).isdisjoint(metric.fields)
        for name in metric.names
    )
    parts = [
        f"label_replace(sum by ({labels}) (increase({name}{{{matchers}}}[{bin_seconds}s])), "
        f'"{_NAME_LABEL}", "{name}", "", "")'
        for name in names
    ]
    parts += [
        f'label_replace(max by ({labels}) ({page}), "{_NAME_LABEL}", "{page}", "", "")'
        for page in profile.pages
    ]
    return " or ".join(parts)


def _by_end(series: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """Cumulative counts of a histogram by the end of each bin."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for one in series:
        edge = float(one["metric"]["le"])
        for end, value in _points(one):
            found[end].append((edge, value))
    return ((end, counts) for end, counts in found.items() if any(e == _OPEN for e, _ in counts))


def _each_end(
    series: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """The series as instant answers, by the end of each bin."""
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for one in series:
        labels = {**one["metric"], "__name__": one["metric"][_NAME_LABEL]}
        for end, value in _points(one):
            found[end].append({"metric": labels, "value": (end, value)})
    return iter(found.items())


def _points(series: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    for at, text in series["values"]:
        value = float(text)
        if math.isfinite(value):
            yield round(float(at)), value
