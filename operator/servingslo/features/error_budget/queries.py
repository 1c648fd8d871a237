"""The misses of an error budget in each time bin of the answers.

The matchers contain names of resources. The API server has checked that they are DNS names; an
invalid one is refused here.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.gateway_queries import METRIC_LABEL, gateway_increases
from servingslo.adapters.prometheus.gateways import backends_of, gateways_of
from servingslo.adapters.prometheus.past.rates import pods_pattern
from servingslo.adapters.prometheus.queries import growths, native_increases, of_pages
from servingslo.adapters.prometheus.reading.native import native_histogram
from servingslo.errors import InvalidInputError, QueryRefusedError
from servingslo.estimation.gateway.counts import unanswered
from servingslo.estimation.requests.misses import Misses, Within, misses
from servingslo.estimation.sample import GatewayInstance
from servingslo.estimation.windows.endings import ABORTED, FAILED
from servingslo.features.error_budget.report import of_classes, within_threshold
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.policy.ports import WorkloadQuestion
from servingslo.policy.replicas.promise import with_degraded
from servingslo.runtimes.catalogue import known
from servingslo.runtimes.profile import RuntimeProfile

Ask = Callable[[str], list[Any]]
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")
_OPEN = math.inf
# Fields of engines that count requests without a whole answer, and the reasons that are such.
_REFUSED: dict[str, tuple[str, ...]] = {"rejected_total": ()}
_LOST = {"finished_total": (ABORTED, FAILED), "aborted_total": (), "failed_total": ()}


class BudgetQueries:
    """Queries the increases of a workload's counters over bins that end at given times."""

    def __init__(
        self, config: PrometheusConfig, profiles: tuple[RuntimeProfile, ...] | None = None
    ) -> None:
        self._config = config
        of_runtime = known() if profiles is None else profiles
        self._profiles = {profile.name: profile for profile in of_runtime}

    def read(
        self, ask: Ask, asked: WorkloadQuestion, bin_seconds: int, ends: Collection[int] = ()
    ) -> dict[int, Misses]:
        """Misses by the end of each bin with any data.

        ends: if one of them has no classic histogram, native ones are asked for too.
        Raises: the errors of `ask`; KeyError, TypeError or ValueError if an answer is malformed.
        """
        profile = self._profiles[asked.runtime or ""]
        whose = self._matchers(asked, profile)
        found: dict[int, list[Within]] = defaultdict(list)
        by_metric: dict[str, list[float]] = defaultdict(list)
        for objective in asked.targets.objectives:
            by_metric[ROW_OF[objective.metric].histogram].append(objective.threshold_seconds)
        for field, thresholds in by_metric.items():
            names = profile.metric(field).names
            buckets = [f"{name}_bucket" for name in names]
            series = ask(self._increases(profile, buckets, whose, bin_seconds, ("le",)))
            if not {end for one in series for end, _ in _points(one)}.issuperset(ends):
                with suppress(QueryRefusedError):  # Some stores know no native histograms.
                    labels = self._labels(profile)
                    asked_for = native_increases(names, labels, self._config, whose, bin_seconds)
                    series = [*series, *ask(asked_for)]
            for end, counts in _by_end(series):
                found[end].append(within_threshold(counts, min(thresholds)))
        refused = self._by_engines(ask, profile, whose, bin_seconds, _REFUSED)
        degraded: dict[int, float] = defaultdict(float)
        classes, lost = self._add_gateway(ask, asked, bin_seconds, refused, degraded)
        for end, value in self._by_engines(ask, profile, whose, bin_seconds, _LOST).items():
            lost.setdefault(end, value)
        for end, value in lost.items():
            refused[end] += value
        ordering = {one.name for one in asked.targets.classes if one.orders}
        return {
            end: of_classes(
                with_degraded(
                    misses(within, refused.get(end, 0.0)), degraded.get(end, 0.0), asked.targets
                ),
                classes.get(end, {}),
                ordering,
            )
            for end, within in found.items()
            if len(within) == len(by_metric)
        }

    def knows(self, asked: WorkloadQuestion) -> bool:
        """Whether the runtime has a histogram of each objective."""
        profile = self._profiles.get(asked.runtime or "")
        wanted = {ROW_OF[objective.metric].histogram for objective in asked.targets.objectives}
        return profile is not None and wanted <= {metric.field for metric in profile.metrics}

    def _matchers(self, asked: WorkloadQuestion, profile: RuntimeProfile) -> tuple[str, ...]:
        for value in (asked.namespace, asked.targets.target.name):
            if _DNS_NAME.fullmatch(value) is None:
                raise InvalidInputError("name", value, "a DNS name")
        pods = pods_pattern(asked.targets.target)
        namespace, pod = self._config.namespace_label, self._config.pod_label
        whose = (f'{namespace}="{asked.namespace}"', f'{pod}=~"{pods}"')
        model = asked.targets.model
        if model is None or not profile.engines_are_models:
            return whose
        if _MODEL_NAME.fullmatch(model) is None:
            raise InvalidInputError("spec.model", model, "letters, digits, -, _ and .")
        return (*whose, f'{profile.engine_label}="{model}"')

    def _increases(
        self,
        profile: RuntimeProfile,
        names: Sequence[str],
        whose: tuple[str, ...],
        bin_seconds: int,
        by: tuple[str, ...] = (),
    ) -> str:
        labels = self._labels(profile, by)
        each = growths("increase", names, labels, self._config, whose, bin_seconds)
        return f"sum by ({', '.join(by)}) ({' or '.join(each)})"

    def _labels(self, profile: RuntimeProfile, by: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Labels that tell counts apart, but not the scrapes of one engine."""
        splits = (label for metric in profile.metrics for label in metric.by_labels)
        own = of_pages((profile.engine_label, *profile.part_labels, *splits))
        return self._config.pod_label, *own, *by

    def _add_gateway(
        self,
        ask: Ask,
        asked: WorkloadQuestion,
        bin_seconds: int,
        refused: dict[int, float],
        degraded: dict[int, float],
    ) -> tuple[Mapping[int, Mapping[str, tuple[float, float]]], dict[int, float]]:
        """Add what the gateway refused, and what a fallback refused and served.

        Returns offered and refused requests of each class, by the end of the bin; and requests that
        failed or were aborted, where the gateway counts them. With classes, the gateway's refusals
        are in those of the classes alone. An answer of 5xx by which an engine refused is among the
        refusals already.
        """
        classes: dict[int, dict[str, tuple[float, float]]] = defaultdict(dict)
        lost: dict[int, float] = {}
        by_engines = dict(refused)
        gateway = self._config.gateway
        if gateway is None:
            return classes, lost
        name = asked.targets.gateway_name or asked.targets.target.name
        apart = asked.fallback is not None
        series = ask(gateway_increases(gateway, self._config, bin_seconds, backends=apart))
        for end, at_end in _each_end(series):
            told = gateways_of(gateway, self._config, at_end)
            for one in asked.targets.classes:
                if (sample := told.get((asked.namespace, one.route))) is not None:
                    classes[end][one.name] = (
                        sum(each.requests_total or 0.0 for each in sample.all_instances),
                        sum(each.rejected_total or 0.0 for each in sample.all_instances),
                    )
            whole = None if asked.targets.classes else told.get((asked.namespace, name))
            for instance in () if whole is None else whole.all_instances:
                refused[end] += instance.rejected_total or 0.0
                if instance.errors_total is not None:
                    lost[end] = lost.get(end, 0.0) + _lost(instance, by_engines.get(end, 0.0))
            if asked.fallback is None:
                continue
            place = (asked.namespace, name, *asked.fallback)
            there = backends_of(gateway, self._config, at_end).get(place)
            for instance in () if there is None else there.all_instances:
                at_gateway = instance.rejected_total or 0.0
                failed = max(instance.failed_total or 0.0, at_gateway)
                refused[end] += failed - at_gateway
                # The route's count of failures has those of its fallback.
                if end in lost:
                    lost[end] = max(lost[end] - max(instance.errors_total or 0.0, 0.0), 0.0)
                degraded[end] += max((instance.requests_total or 0.0) - failed, 0.0)
        return classes, lost

    def _by_engines(
        self,
        ask: Ask,
        profile: RuntimeProfile,
        whose: tuple[str, ...],
        bin_seconds: int,
        fields: Mapping[str, tuple[str, ...]],
    ) -> dict[int, float]:
        """Requests by the end of the bin. fields: of engines, with the reasons that count."""
        counted: dict[int, float] = defaultdict(float)
        for metric in profile.metrics:
            if metric.field not in fields:
                continue
            reasons = metric.only or fields[metric.field]
            found = self._increases(profile, metric.names, whose, bin_seconds, metric.by_labels)
            for series in ask(found):
                values = {series["metric"].get(label) for label in metric.by_labels}
                if not metric.by_labels or not values.isdisjoint(reasons):
                    for end, value in _points(series):
                        counted[end] += value
        return counted


def _lost(instance: GatewayInstance, refused_by_engines: float) -> float:
    """Failed and aborted requests of a bin, from an instance whose counts are increases."""
    failed, aborted = unanswered(
        failed=instance.errors_total or 0.0,
        aborted=instance.aborted_total or 0.0,
        cut=instance.cut_total or 0.0,
    )
    return max(failed - refused_by_engines, 0.0) + aborted


def _by_end(series: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """Cumulative counts of a histogram by the end of each bin.

    If scrapes began to convert it to a native one within a bin, those of more requests are used.
    """
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    native: dict[int, list[tuple[float, float]]] = {}
    for one in series:
        if (label := one["metric"].get("le")) is not None:
            for end, value in _points(one):
                found[end].append((float(label), value))
        for at, value in one.get("histograms", ()):
            native[round(float(at))] = native_histogram(value).counts()
    for end in dict.fromkeys((*found, *native)):
        each = [counts for counts in (found.get(end), native.get(end)) if counts]
        totals = [max((n for edge, n in counts if edge == _OPEN), default=-1.0) for counts in each]
        best = max(totals)
        if best >= 0.0:
            yield end, each[totals.index(best)]


def _each_end(
    series: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """The series as instant answers, by the end of each bin."""
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for one in series:
        labels = {**one["metric"], "__name__": one["metric"][METRIC_LABEL]}
        for end, value in _points(one):
            found[end].append({"metric": labels, "value": (end, value)})
    return iter(found.items())


def _points(series: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    for at, text in series.get("values", ()):
        value = float(text)
        if math.isfinite(value):
            yield round(float(at)), value
