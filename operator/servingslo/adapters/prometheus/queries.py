"""The queries of one reading: the same few for a cluster of any size.

Everything in them comes from runtime profiles and the administrator's label names, nothing from a
resource. Samples that differ in a label nobody listed (a replica of Prometheus, say) are the same
sample twice, so they are put together by max. The parts of a counter (its model names) are added by
who reads the answer: a second aggregation would double Prometheus's work for nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.runtimes.dcgm import GPUMetrics
from servingslo.runtimes.profile import MetricKind, RuntimeProfile

# Prometheus's own clock; all other queries are evaluated at this time.
NOW = "time()"
GROUP_LABEL = "servingslo_group"
GPU_GROUP = "gpu"
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """PromQL of one reading. histograms: one query each, so that one answer is in memory at once.

    ages: seconds since the newest sample, of each group in GROUP_LABEL: a MetricKind and the label
    that tells engines apart, see `group_of`, or GPU_GROUP. newest: when the newest sample of each
    pod was taken.
    """

    gauges: str
    counters: str
    ages: str
    newest: str
    gpus: str
    histograms: tuple[str, ...]


def build_queries(
    profiles: tuple[RuntimeProfile, ...], gpu: GPUMetrics, config: PrometheusConfig
) -> Queries:
    """The queries for these runtimes; their number depends on the profiles alone."""
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
    gpu_pods = [label for pair in gpu.pod_labels for label in pair]
    gpu_identity = _labels((*gpu_pods, *gpu.gpu_labels, *config.source_labels))
    return Queries(
        gauges=f"max by ({gauge_labels}) ({_any_of(gauges, config)})",
        counters=_each_part(
            counter_labels, _parts(profiles), _any_of(_names(profiles, MetricKind.COUNTER), config)
        ),
        ages=_ages(profiles, gpu, _labels(identity), gpu_identity, config),
        newest=f"max by ({config.namespace_label}, {config.pod_label}) "
        f"({_newest(profiles, config)})",
        gpus=f"max by (__name__, {gpu_identity}, {gpu.product_label}) ({_regex(gpu.names)}}})",
        histograms=histogram_queries(profiles, config),
    )


def histogram_queries(
    profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig, pods: str = ""
) -> tuple[str, ...]:
    """PromQL of the histograms of pods that match: one each, so that one answer is in memory."""
    whose = ", ".join(filter(None, (config.of_engines, pods)))
    labels = ("__name__", *_identity(profiles, config), "le")
    return tuple(
        _each_part(
            labels,
            _parts(profiles),
            f"{_regex(_with_suffixes(names))}, {whose}}}",
        )
        for names in _histogram_names(profiles)
    )


def _with_suffixes(names: Iterable[str]) -> list[str]:
    return [name + suffix for name in names for suffix in HISTOGRAM_SUFFIXES]


def _identity(profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig) -> tuple[str, ...]:
    engine = dict.fromkeys(profile.engine_label for profile in profiles)
    return (config.namespace_label, config.pod_label, *engine, *config.source_labels)


def _ages(
    profiles: tuple[RuntimeProfile, ...],
    gpu: GPUMetrics,
    identity: str,
    gpu_identity: str,
    config: PrometheusConfig,
) -> str:
    groups: list[str] = []
    for kind in MetricKind:
        suffix = "_count" if kind is MetricKind.HISTOGRAM else ""
        by_label: dict[str, list[str]] = {}
        for profile in profiles:
            names = [name + suffix for name in profile.age_names(kind)]
            by_label.setdefault(profile.engine_label, []).extend(names)
        for label, names in by_label.items():
            ages = " or ".join(
                f"(time() - {_stamp(name, config)})" for name in dict.fromkeys(names)
            )
            if ages:
                told = f"min by ({identity}) ({ages})"
                groups.append(_in_group(told, group_of(kind, label)))
    utilization = f'time() - timestamp({{__name__="{gpu.utilization_percent}"}})'
    groups.append(_in_group(f"min by ({gpu_identity}) ({utilization})", GPU_GROUP))
    return " or ".join(groups)


def _newest(profiles: tuple[RuntimeProfile, ...], config: PrometheusConfig) -> str:
    names = (name for profile in profiles for name in profile.age_names(MetricKind.GAUGE))
    return " or ".join(_stamp(name, config) for name in dict.fromkeys(names))


def _stamp(name: str, config: PrometheusConfig) -> str:
    """timestamp() tells a sample's own time only when it is given the selector itself."""
    return f'timestamp({{__name__="{name}", {config.of_engines}}})'


def group_of(kind: MetricKind, engine_label: str) -> str:
    """The name of the group of a kind whose engines are told apart by this label."""
    return f"{kind}/{engine_label}"


def _in_group(promql: str, group: str) -> str:
    return f'label_replace({promql}, "{GROUP_LABEL}", "{group}", "", "")'


def _each_part(labels: tuple[str, ...], parts: tuple[str, ...], selector: str) -> str:
    return f"max by ({_labels((*labels, *parts))}) ({selector})"


def _any_of(names: Iterable[str], config: PrometheusConfig) -> str:
    return f"{_regex(names)}, {config.of_engines}}}"


def _regex(names: Iterable[str]) -> str:
    return '{__name__=~"' + "|".join(dict.fromkeys(names)) + '"'


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
    return [label for profile in profiles for label in profile.split_labels(kind)]


def _parts(profiles: tuple[RuntimeProfile, ...]) -> tuple[str, ...]:
    return tuple(label for profile in profiles for label in profile.part_labels)
