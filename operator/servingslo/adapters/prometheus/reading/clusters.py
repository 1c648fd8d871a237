"""Are the series of a pod's name those of one pod, or of its namesakes in other clusters? No I/O.

Namesakes in one store differ in a label that no query asks for, such as `cluster`. So do the series
of one pod, if it is scraped by two jobs or two replicas of Prometheus, or has several ranks; or if
requests are counted by a label that the runtime's part labels do not name.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, islice

from servingslo.adapters.prometheus.reading.servers import INSTANCE_LABEL
from servingslo.estimation.windows.freshness import DEFAULT_STALE_AFTER_SECONDS

Labels = Mapping[str, str]

# Ends of label names: of replicas of Prometheus and parts of an engine. Parts of names: of two
# scrapes of a pod; of clusters, whatever scrapes them; of these, those that no node's or object's
# label has; and of Kubernetes objects, which a job may copy from a pod or from its Service.
# Source: Thanos, --query.replica-label; Cortex, HA tracker; prometheus-operator, labels of
# ServiceMonitor and PodMonitor; Kubernetes, recommended labels.
_OF_REPLICA = ("replica", "mirror", "rank", "pid", "priority")
_OF_SCRAPE = ("job", "scrape", "endpoint", "service", "container", "port", "path")
_OF_CLUSTER = ("cluster", "region", "zone", "datacenter", "tenant", "location", "site")
_OF_CLUSTER_ALONE = ("cluster", "datacenter", "tenant")
_OF_OBJECT = ("app", "component", "release", "chart", "version", "hash", "name", "revision")
_ADDRESS = re.compile(r"(?:https?://)?(\d+\.\d+\.\d+\.\d+)(?::\d+)?(?:/.*)?")
# A tenant's page may have any number of series.
_MOST_COMPARED = 100
_SHOWN_CHARACTERS = 40


def namesakes(
    pod: str,
    series: Sequence[tuple[Labels, float]],
    source_labels: Sequence[str],
    known: Collection[str],
) -> str:
    """Which label tells series of this pod's name apart, and what to do; '' if all are of one pod.

    series: with all labels, and when each was sampled. source_labels: series that are equal in them
    are combined, whatever their age; of others the newest is used, and the rest may be from before
    the pod was made anew. known: labels that the queries keep, or an engine's page has.
    """
    latest = max((at for _, at in series), default=0.0)
    groups: dict[tuple[str, ...], list[Labels]] = defaultdict(list)
    for labels, at in series:
        groups[tuple([labels.get(name, "") for name in source_labels])].append(labels)
        if at > latest - DEFAULT_STALE_AFTER_SECONDS:
            groups[()].append(labels)
    each = (_apart(group, known) for group in groups.values() if group[1:])
    told = next(filter(None, each), "")
    if not told:
        return ""
    return f"two series of pod {pod}: {told}; set prometheus.matchers, or the runtime's partLabels"


def _apart(series: Iterable[Labels], known: Collection[str]) -> str:
    """The label of two pods of these series, with both values; '' if they are one pod's."""
    each = {
        tuple(
            sorted(
                (k, _address(v) if k == INSTANCE_LABEL else v)
                for k, v in one.items()
                if k not in known or k == INSTANCE_LABEL or _is(k, _OF_SCRAPE)
            )
        )
        for one in series
    }
    for one, other in islice(combinations(map(dict, sorted(each)), 2), _MOST_COMPARED):
        apart = sorted(k for k in {**one, **other} if one.get(k) != other.get(k))
        same_scrape = not any(_is(k, _OF_SCRAPE) for k in apart)
        told = [k for k in apart if _tells(k, one.get(k, ""), other.get(k, ""), same_scrape)]
        for label in sorted(told, key=lambda k: (not _is(k, _OF_CLUSTER), k == INSTANCE_LABEL)):
            return " and ".join(
                f"{label}={of[label][:_SHOWN_CHARACTERS]}" if of.get(label) else f"no {label}"
                for of in (one, other)
            )
    return ""


def _tells(label: str, one: str, other: str, same_scrape: bool) -> bool:
    """Whether these values of a label are of two pods; same_scrape: no label of a scrape differs.

    Two jobs may each add labels of their own, so one that only one of them has tells less.
    """
    if label == INSTANCE_LABEL:
        return bool(one and other)
    if _is(label, _OF_CLUSTER):
        return same_scrape or bool(one and other) or _is(label, _OF_CLUSTER_ALONE)
    if label == "prometheus" or label.lower().rstrip("_").endswith(_OF_REPLICA):
        return False
    return same_scrape or bool(one and other and not _is(label, (*_OF_SCRAPE, *_OF_OBJECT)))


def _address(instance: str) -> str:
    """The address in an instance; '' if it is another name of a host, which may be of the same."""
    found = _ADDRESS.fullmatch(instance)
    return found[1] if found else ""


def _is(label: str, parts: tuple[str, ...]) -> bool:
    """Whether a label's name has one of these parts; what names a cluster is nothing else."""
    own = parts in (_OF_CLUSTER, _OF_CLUSTER_ALONE) or not _is(label, _OF_CLUSTER)
    return own and any(part in label.lower() for part in parts)
