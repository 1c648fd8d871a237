"""The queries of one reading: the same few for a cluster of any size.

They contain values of runtime profiles and the administrator's labels and matchers. Of tenants,
only names of pods' owners enter, escaped, if a process reads its own pods alone (`pods_like`).
Samples that differ only in an unlisted label (a replica of Prometheus, for example) are the same
sample twice, so max combines them; a label of another cluster is refused, see `reading.clusters`.
The reader of the answer adds the parts of a counter (its model names): a
second aggregation would double Prometheus's work.

Each metric is selected by its full name: Google's managed store and others refuse a regular
expression of names. `or` compares labels without the name, so it would drop a series with the same
other labels as an earlier metric: `or on(__name__)` keeps all series of another name. Nested to the
right, each metric is compared once: a reading then costs Prometheus less than the scrapes do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servingslo.adapters.prometheus.client import LONGEST_QUERY_CHARACTERS
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.vectors import MOVED
from servingslo.runtimes.dcgm import DCGM
from servingslo.runtimes.profile import MetricKind, RuntimeProfile

# Prometheus's own clock; all other queries are evaluated at this time.
NOW = "time()"
# A store that rounds its time is not behind.
_ROUNDED_SECONDS = 1.0
GROUP_LABEL = "servingslo_group"
GPU_GROUP = "gpu"
# Of native histograms, which have the metric's own name.
NATIVE_GROUP = "native"
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
_AGED_SUFFIX = {MetricKind.HISTOGRAM: "_count"}
_OR, _OR_METRIC = " or ", " or on(__name__) "


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """PromQL of one reading. histograms: one query each, so that one answer is in memory at a time.

    gauges, counters, ages, newest: one query each, or several if one would be too long.
    ages: seconds since the newest sample, of each group in GROUP_LABEL: a MetricKind, or
    NATIVE_GROUP, and the label that distinguishes engines, see `group_of`; or GPU_GROUP.
    newest: time of the newest sample of each engine, with all labels of its series. adapters: the
    newest set of adapters (LoRA) of each scrape; an engine keeps a series of each that it ever ran.
    """

    gauges: tuple[str, ...]
    counters: tuple[str, ...]
    ages: tuple[str, ...]
    newest: tuple[str, ...]
    gpus: str
    histograms: tuple[str, ...]
    adapters: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of queries in a full reading of engines and GPUs."""
        each = (self.gauges, self.counters, self.ages, self.newest, self.histograms, self.adapters)
        return 1 + sum(map(len, each))


def told_time(result: Sequence[Any]) -> tuple[float, float]:
    """The time at which NOW was evaluated, and how far behind the store's clock, in seconds.

    VictoriaMetrics evaluates a query without a time before now, and answers a vector with the time
    of now. Source: VictoriaMetrics, app/vmselect/prometheus, QueryHandler; -search.latencyOffset.
    Raises: KeyError, TypeError, ValueError or IndexError if the answer is malformed.
    """
    told, text = result[0]["value"] if isinstance(result[0], Mapping) else result
    at = float(text)
    behind = float(told) - at
    return at, behind if behind > _ROUNDED_SECONDS else 0.0


def build_queries(profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig) -> Queries:
    """The queries for these runtimes; their number depends only on the profiles."""
    identity = _identity(profiles, config)
    capacity = [
        label
        for profile in profiles
        if profile.capacity
        for label in (
            profile.capacity.tokens,
            profile.capacity.block_tokens,
            profile.capacity.blocks,
        )
    ]
    gauges = [
        *_names(profiles, MetricKind.GAUGE),
        *(profile.capacity.metric for profile in profiles if profile.capacity),
    ]
    gauge_labels = _labels(("__name__", *identity, *_split(profiles, MetricKind.GAUGE), *capacity))
    counter_labels = ("__name__", *identity, *_split(profiles, MetricKind.COUNTER))
    scrape = _labels((config.namespace_label, config.pod_label, *config.source_labels))
    gpu_pods = [label for pair in DCGM.pod_labels for label in pair]
    gpu_identity = _labels((*gpu_pods, *DCGM.gpu_labels, *config.source_labels))
    return Queries(
        gauges=_queries(f"max by ({gauge_labels})", gauges, config, config.of_engines),
        counters=_queries(
            _each_part(counter_labels, _parts(profiles)),
            _names(profiles, MetricKind.COUNTER),
            config,
            config.of_engines,
        ),
        ages=_ages(profiles, _labels(identity), gpu_identity, config),
        newest=_newest(profiles, config),
        gpus=f"max by (__name__, {gpu_identity}, {DCGM.product_label}) "
        f"({any_of(DCGM.names, config)})",
        histograms=histogram_queries(profiles, config),
        adapters=tuple(
            f"topk by ({scrape}) (1, {_of_engines(profile.adapters.metric, config)})"
            for profile in profiles
            if profile.adapters
        ),
    )


def histogram_queries(
    profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig, pods: str = ""
) -> tuple[str, ...]:
    """PromQL of the histograms of matching pods: one each, so that one answer is in memory."""
    whose = ", ".join(filter(None, (config.of_engines, pods)))
    labels = ("__name__", *_identity(profiles, config), "le")
    aggregation = _each_part(labels, _parts(profiles))
    return tuple(
        promql
        for names in _histogram_names(profiles)
        for promql in _queries(aggregation, _with_suffixes(names), config, whose)
    )


def narrowed(promql: str, config: PrometheusConfig, pods: str) -> str:
    """The query for engines and GPUs of pods with such a name; '' for any.

    GPUs have no other matcher, and their pod is in the first of two labels that is there.
    """
    if not pods:
        return promql
    whose = config.of_engines
    moved, own = (label for _, label in DCGM.pod_labels)
    each = (f'{moved}=~"{pods}"', f'{moved}="", {own}=~"{pods}"')
    # A selector by the metric's name alone, or the age of its samples.
    of_any_pod = re.escape(_selector("NAME", config)).replace("NAME", '([^"]+)')

    def of_pods(found: re.Match[str]) -> str:
        before, name = found[1] or "", found[2]
        after = ")" if before else ""
        return _OR.join(f"{before}{_selector(name, config, matcher)}{after}" for matcher in each)

    gpus_narrowed = re.sub(rf"(time\(\) - timestamp\()?{of_any_pod}(?(1)\))", of_pods, promql)
    return gpus_narrowed.replace(whose, f'{whose}, {config.pod_label}=~"{pods}"')


def pods_like(pods: Iterable[str]) -> str:
    """A regular expression for these pods and those that the same owners will create.

    A pod is named after its owner, a ReplicaSet or a StatefulSet, up to the last dash. One pattern
    for each owner is shorter than all names, and Prometheus looks it up in a map.
    """
    return "|".join(sorted({_pattern(name) for name in pods}))


def _pattern(pod: str) -> str:
    """A regular expression for the pods of this one's owner."""
    owner, dash, _ = pod.rpartition("-")
    escaped = (owner or pod).replace(".", "[.]")
    return f"{escaped}-.*" if dash else escaped


def native_queries(
    profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig, pods: str = ""
) -> tuple[str, ...]:
    """PromQL of the native histograms of matching pods, without aggregation: max has none.

    Only for engines whose classic ones are missing: their age, in NATIVE_GROUP, is always asked.
    """
    whose = ", ".join(filter(None, (config.of_engines, pods)))
    names = dict.fromkeys(name for field in _histogram_names(profiles) for name in field)
    selectors = [_selector(name, config, whose) for name in names]
    parts = _divided(selectors, LONGEST_QUERY_CHARACTERS, between=f"{_OR_METRIC}()")
    return tuple(map(_union, parts))


def histogram_labels(
    profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig
) -> tuple[str, ...]:
    """Labels that tell histograms of one name apart."""
    return tuple(filter(None, dict.fromkeys((*_identity(profiles, config), *_parts(profiles)))))


def labels_of_pages(profiles: tuple[RuntimeProfile, ...]) -> tuple[str, ...]:
    """Labels of the engines of a pod, and of their gauges and counters."""
    kinds = (MetricKind.GAUGE, MetricKind.COUNTER)
    splits = (label for kind in kinds for label in _split(profiles, kind))
    return (*_engines(profiles), *_parts(profiles), *splits)


def of_pages(labels: Iterable[str]) -> tuple[str, ...]:
    """These labels of an engine's page, and their names where Prometheus moved them."""
    return tuple(name for label in labels if label for name in (label, f"{MOVED}{label}"))


def growths(
    function: str,
    names: Iterable[str],
    labels: Iterable[str],
    config: PrometheusConfig,
    whose: Iterable[str],
    seconds: int,
) -> list[str]:
    """PromQL for the increase or rate of each counter; if several scrapes have it, one is used."""
    by = _labels(labels)
    return [
        f"max by ({by}) ({function}({_selector(name, config, *whose)}[{seconds}s]))"
        for name in names
    ]


def native_increases(
    names: Iterable[str],
    labels: Iterable[str],
    config: PrometheusConfig,
    whose: Iterable[str],
    seconds: int,
) -> str:
    """PromQL for the increases of native histograms, which have no maximum.

    Of several scrapes of one engine those with the most observations are used, whose average is
    each of them.
    """
    by, each = _labels(labels), []
    for name in names:
        own = f"increase({_selector(name, config, *whose)}[{seconds}s])"
        count = f"histogram_count({own})"
        most = f"{count} == on ({by}) group_left () max by ({by}) ({count})"
        each.append(f"avg by ({by}) ({own} and ({most}))")
    return f"sum ({_OR.join(each)})"


def any_of(names: Iterable[str], config: PrometheusConfig, *matchers: str) -> str:
    """PromQL for the series of all these metrics, each by its full name."""
    return _union([_selector(name, config, *matchers) for name in dict.fromkeys(names)])


def _queries(
    aggregation: str, names: Iterable[str], config: PrometheusConfig, *matchers: str
) -> tuple[str, ...]:
    """The aggregation over all these metrics, in as few queries as the length limit allows."""
    selectors = [_selector(name, config, *matchers) for name in dict.fromkeys(names)]
    room = LONGEST_QUERY_CHARACTERS - len(aggregation)
    parts = _divided(selectors, room, between=f"{_OR_METRIC}()")
    return tuple(f"{aggregation} ({_union(part)})" for part in parts)


def _union(selectors: Sequence[str]) -> str:
    """The series of these selectors of different metrics, the longest answers best first."""
    *before, union = selectors
    for selector in reversed(before):
        union = f"{selector}{_OR_METRIC}({union})"
    return union


def _selector(name: str, config: PrometheusConfig, *matchers: str) -> str:
    return config.selector(f'__name__="{name}"', *matchers)


def _divided(expressions: Iterable[str], room: int, between: str) -> Iterator[list[str]]:
    """The expressions in as few lists as this room allows, with these characters between them."""
    together: list[str] = []
    for expression in expressions:
        if together and len(between.join([*together, expression])) > room:
            yield together
            together = []
        together.append(expression)
    if together:
        yield together


def _with_suffixes(names: Iterable[str]) -> list[str]:
    return [name + suffix for name in names for suffix in HISTOGRAM_SUFFIXES]


def _identity(profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig) -> tuple[str, ...]:
    return (config.namespace_label, config.pod_label, *_engines(profiles), *config.source_labels)


def _engines(profiles: tuple[RuntimeProfile, ...]) -> tuple[str, ...]:
    return of_pages(dict.fromkeys(profile.engine_label for profile in profiles))


def _ages(
    profiles: tuple[RuntimeProfile, ...],
    identity: str,
    gpu_identity: str,
    config: PrometheusConfig,
) -> tuple[str, ...]:
    groups: list[str] = []
    each = [(str(kind), kind, _AGED_SUFFIX.get(kind, "")) for kind in MetricKind]
    for group, kind, suffix in (*each, (NATIVE_GROUP, MetricKind.HISTOGRAM, "")):
        by_label: dict[str, list[str]] = {}
        for profile in profiles:
            names = [name + suffix for name in profile.age_names(kind)]
            by_label.setdefault(profile.engine_label, []).extend(names)
        for label, names in by_label.items():
            ages = _OR.join(f"(time() - {_stamp(name, config)})" for name in dict.fromkeys(names))
            if ages:
                told = f"min by ({identity}) ({ages})"
                groups.append(_in_group(told, group_of(group, label)))
    utilization = f"time() - timestamp({_selector(DCGM.utilization_percent, config)})"
    groups.append(_in_group(f"min by ({gpu_identity}) ({utilization})", GPU_GROUP))
    return tuple(map(_OR.join, _divided(groups, LONGEST_QUERY_CHARACTERS, _OR)))


def _newest(profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig) -> tuple[str, ...]:
    names = (
        name
        for profile in profiles
        for kind in (MetricKind.GAUGE, MetricKind.COUNTER)
        # A server's models may have no gauge, and requests labels of their own.
        if kind is MetricKind.GAUGE or profile.engines_are_models or profile.requests_have_labels
        for name in profile.age_names(kind)
    )
    stamps = (_stamp(name, config) for name in dict.fromkeys(names))
    parts = _divided(stamps, LONGEST_QUERY_CHARACTERS, _OR)
    return tuple(f"({_OR.join(part)})" for part in parts)


def _stamp(name: str, config: PrometheusConfig) -> str:
    """timestamp() returns a sample's own time only if its argument is the selector itself."""
    return f"timestamp({_of_engines(name, config)})"


def _of_engines(name: str, config: PrometheusConfig) -> str:
    return _selector(name, config, config.of_engines)


def group_of(kind: str, engine_label: str) -> str:
    """The name of a kind's or NATIVE_GROUP's ages; the label distinguishes its engines."""
    return f"{kind}/{engine_label}"


def _in_group(promql: str, group: str) -> str:
    return f'label_replace({promql}, "{GROUP_LABEL}", "{group}", "", "")'


def _each_part(labels: tuple[str, ...], parts: tuple[str, ...]) -> str:
    return f"max by ({_labels((*labels, *parts))})"


def _labels(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, names)))


def _names(profiles: tuple[RuntimeProfile, ...], kind: MetricKind) -> list[str]:
    return [name for p in profiles for metric in p.of_kind(kind) for name in metric.names]


def _histogram_names(profiles: tuple[RuntimeProfile, ...]) -> list[tuple[str, ...]]:
    """Names of each histogram field, over all profiles: one query for each field."""
    by_field: dict[str, tuple[str, ...]] = {}
    for profile in profiles:
        for metric in profile.of_kind(MetricKind.HISTOGRAM):
            by_field[metric.field] = (*by_field.get(metric.field, ()), *metric.names)
    return list(by_field.values())


def _split(profiles: tuple[RuntimeProfile, ...], kind: MetricKind) -> list[str]:
    return list(of_pages(label for p in profiles for label in p.split_labels(kind)))


def _parts(profiles: tuple[RuntimeProfile, ...]) -> tuple[str, ...]:
    return of_pages(label for profile in profiles for label in profile.part_labels)
