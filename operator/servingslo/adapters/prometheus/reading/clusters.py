"""Are the series of a pod's name those of one pod, or of its namesakes in other clusters? No I/O.

Namesakes in one store differ in a label that no query asks for, such as `cluster`. So do the series
of one pod, if it is scraped by two jobs or two replicas of Prometheus, or has several ranks.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, islice

from servingslo.estimation.windows.freshness import DEFAULT_STALE_AFTER_SECONDS

Labels = Mapping[str, str]

# Parts of label names: of replicas of Prometheus and parts of an engine, of two scrapes of a pod,
# of clusters, whatever scrapes them. Source: Thanos, --query.replica-label; prometheus-operator,
# labels of ServiceMonitor and PodMonitor.
_OF_REPLICA = ("replica", "mirror", "prometheus", "rank", "pid", "priority")
_OF_SCRAPE = ("job", "scrape", "endpoint", "service", "container", "port", "path")
_OF_CLUSTER = ("cluster", "region", "zone", "datacenter", "tenant", "location", "site")
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
    return told and f"two series of pod {pod}: {told}; set prometheus.matchers"


def _apart(series: Iterable[Labels], known: Collection[str]) -> str:
    """The label of two pods of these series, with both values; '' if they are one pod's."""
    each = {
        tuple(sorted((k, v) for k, v in one.items() if _is(k, _OF_SCRAPE) or k not in known))
        for one in series
    }
    for one, other in islice(combinations(map(dict, sorted(each)), 2), _MOST_COMPARED):
        apart = sorted(k for k in {**one, **other} if one.get(k) != other.get(k))
        apart = [k for k in apart if not _is(k, _OF_REPLICA)]
        clusters = [k for k in apart if _is(k, _OF_CLUSTER) and one.get(k) and other.get(k)]
        same_scrape = not any(_is(k, _OF_SCRAPE) for k in apart)
        for label in (*clusters, *(apart if same_scrape else ())):
            return " and ".join(
                f"{label}={of[label][:_SHOWN_CHARACTERS]}" if of.get(label) else f"no {label}"
                for of in (one, other)
            )
    return ""


def _is(label: str, parts: tuple[str, ...]) -> bool:
    """Whether a label's name has one of these parts; what names a cluster is nothing else."""
    own = parts is _OF_CLUSTER or not _is(label, _OF_CLUSTER)
    return own and any(part in label.lower() for part in parts)
