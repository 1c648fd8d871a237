"""The queries about a gateway: the same for a cluster of any size, with no name of a resource."""

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import GROUP_LABEL, any_of
from servingslo.runtimes.gateways import GatewayField, GatewayLatency, GatewayProfile

AGE_GROUP = "gateway"
METRIC_LABEL = "servingslo_metric"
BUCKET, SUM = "_bucket", "_sum"


def latency_query(
    profile: GatewayProfile, latency: GatewayLatency, config: PrometheusConfig
) -> str:
    """PromQL for buckets and sums of whole requests, by scrape and owner."""
    names = [base + suffix for base in latency.names for suffix in (BUCKET, SUM)]
    labels = (*scrape_labels(config), *owner_labels(profile), "le")
    matchers = (*profile.matchers, *latency.matchers)
    selectors = any_of(names, config, *matchers)
    return f"sum by (__name__, {', '.join(dict.fromkeys(labels))}) ({selectors})"


def gateway_query(profile: GatewayProfile, config: PrometheusConfig) -> str:
    """PromQL for every counter of the profile and for the age of each scrape, in one answer.

    Prometheus adds up series that differ only in unused labels (codes, callers), because they count
    different requests. Scrapes are kept separate, so nothing is counted twice.
    """
    scrape = scrape_labels(config)
    metrics = (*profile.all_metrics, *profile.priority_metrics)
    split = (*(m.label for m in metrics), profile.priority_label)
    labels = dict.fromkeys((*scrape, *owner_labels(profile), *filter(None, split)))
    counters = (name for metric in metrics for name in metric.names)
    names = dict.fromkeys((*counters, *profile.known_by, *profile.saturation))
    counted = any_of(names, config, *profile.matchers)
    parts = [f"sum by (__name__, {', '.join(labels)}) ({counted})"]
    if profile.pages:
        pages = any_of(profile.pages, config)
        label = profile.workload_label
        parts.append(f"max by (__name__, {', '.join((*scrape, label))}) ({pages})")
    # timestamp() returns a sample's own time only if its argument is the selector itself.
    ages = " or ".join(
        f"(time() - timestamp({any_of((name,), config, *profile.matchers)}))"
        for name in (*profile.metrics[0].names, *profile.known_by)
    )
    age = f"min by ({', '.join(scrape)}) ({ages})"
    parts.append(f'label_replace({age}, "{GROUP_LABEL}", "{AGE_GROUP}", "", "")')
    return " or ".join(parts)


def gateway_increases(
    profile: GatewayProfile, config: PrometheusConfig, bin_seconds: int, *, backends: bool = False
) -> str:
    """PromQL for a gateway's counts in each bin, grouped by all labels that identify the owner.

    backends: with what is counted of single backends.
    """
    metrics = profile.all_metrics if backends else profile.metrics
    owner = (profile.workload_label, profile.namespace_label, *(profile.service_labels or ()))
    counted = (metric.label for metric in metrics)
    labels = ", ".join(filter(None, dict.fromkeys((*scrape_labels(config), *owner, *counted))))
    selector = config.selector(*profile.matchers)
    wanted = {*GatewayField} - {GatewayField.QUEUED, GatewayField.RETRIED}
    wanted -= {GatewayField.ENDED, GatewayField.ENDED_MILLISECONDS}
    names = dict.fromkeys(
        name
        for metric in metrics
        if not wanted.isdisjoint((*metric.fields, *metric.less))
        for name in metric.names
    )
    parts = [
        f"label_replace(sum by ({labels}) (increase({name}{selector}[{bin_seconds}s])), "
        f'"{METRIC_LABEL}", "{name}", "", "")'
        for name in names
    ]
    parts += [
        f"label_replace(max by ({labels}) ({page}{config.selector()}), "
        f'"{METRIC_LABEL}", "{page}", "", "")'
        for page in profile.pages
    ]
    return " or ".join(parts)


def scrape_labels(config: PrometheusConfig) -> tuple[str, ...]:
    """Labels that tell scrapes apart."""
    return (config.namespace_label, config.pod_label, *config.source_labels)


def owner_labels(profile: GatewayProfile) -> tuple[str, ...]:
    """Labels that identify a series' owner: workload, namespace ('' for none), service."""
    if profile.pages:
        return ()
    if not profile.namespace_label:
        return (profile.workload_label,)
    return (profile.workload_label, profile.namespace_label, *(profile.service_labels or ()))
