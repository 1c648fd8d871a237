"""Engines out of a saved /metrics page, by the names and rules that a reading of Prometheus has."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import GROUP_LABEL, HISTOGRAM_SUFFIXES
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.errors import InvalidInputError
from servingslo.estimation.sample import EngineSample
from servingslo.runtimes.catalogue import known
from servingslo.runtimes.profile import MetricKind, RuntimeProfile

# Labels are those of a scrape; the address is never asked.
_CONFIG = PrometheusConfig(url="http://localhost")
_POD = "page"


def engines_of_page(
    page: str, file: str, profiles: tuple[RuntimeProfile, ...] | None = None
) -> tuple[EngineSample, ...]:
    """The engines of one page, as scraped at this very moment (all ages are 0).

    Raises: InvalidInputError when it is no metrics page or holds no known engine.
    """
    profiles = known() if profiles is None else profiles
    assembly = Assembly(profiles, _CONFIG)
    names = {name for profile in profiles for name in _names(profile)}
    histograms = {name for profile in profiles for name in _histogram_names(profile)}
    try:
        series = list(_series(page))
        assembly.add_numbers(one for one in series if one["metric"]["__name__"] in names)
        assembly.add_histograms([one for one in series if one["metric"]["__name__"] in histograms])
        assembly.add_ages(_ages(series, profiles))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidInputError(
            file, str(error)[:200], "a page in Prometheus' text form"
        ) from error
    engines = tuple(e for pod in assembly.pods().values() for e in pod.engines)
    if not any(engine.running is not None or engine.waiting is not None for engine in engines):
        gauges = ", ".join(profile.age_names(MetricKind.GAUGE)[0] for profile in profiles)
        raise InvalidInputError(file, "no engine", f"a page with {gauges}")
    return engines


def _series(page: str) -> Iterator[Mapping[str, Any]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {
                "__name__": sample.name,
                _CONFIG.namespace_label: "",
                _CONFIG.pod_label: _POD,
                **sample.labels,
            }
            yield {"metric": labels, "value": [0, repr(float(sample.value))]}


def _ages(
    series: list[Mapping[str, Any]], profiles: tuple[RuntimeProfile, ...]
) -> Iterator[Mapping[str, Any]]:
    """An age of 0 for each group of each engine that is on the page."""
    for profile in profiles:
        for kind in MetricKind:
            suffix = HISTOGRAM_SUFFIXES[2] if kind is MetricKind.HISTOGRAM else ""
            names = {name + suffix for name in profile.age_names(kind)}
            for one in series:
                if one["metric"]["__name__"] in names:
                    yield {"metric": {**one["metric"], GROUP_LABEL: kind}, "value": [0, "0"]}


def _names(profile: RuntimeProfile) -> Iterator[str]:
    for kind in (MetricKind.GAUGE, MetricKind.COUNTER):
        for metric in profile.of_kind(kind):
            yield from metric.names
    if profile.capacity is not None:
        yield profile.capacity.metric


def _histogram_names(profile: RuntimeProfile) -> Iterator[str]:
    for metric in profile.of_kind(MetricKind.HISTOGRAM):
        for name in metric.names:
            yield from (name + suffix for suffix in HISTOGRAM_SUFFIXES)
