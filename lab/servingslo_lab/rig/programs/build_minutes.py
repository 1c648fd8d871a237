"""Build time of each part of the rig, to estimate the remaining minutes of a build.

The times are weights: a build corrects them by its own pace as soon as a part is done.
"""

from collections.abc import Iterable, Mapping

# Minutes from nothing, two parts at a time on two cores, with modules to be downloaded.
# Source: from kube-apiserver to kwok, the output of a build of 2026-11-26, on cores shared with
# other work. egctl (5), istiod (6) and KEDA (10 for both) are the times of docs/how-to/test-rig.md
# and the Makefile on an idle machine, doubled to the same scale. The others were not measured:
# helm3 and promtool are assumed to take half of helm and prometheus, and kueue as long as
# kube-controller-manager; the rest is downloaded or small.
MINUTES: Mapping[str, float] = {
    "kube-apiserver": 8.1,
    "kube-controller-manager": 8.0,
    "kube-scheduler": 1.1,
    "etcd": 1.4,
    "prometheus": 5.8,
    "helm": 12.4,
    "kwok": 12.0,
    "egctl": 10.0,
    "envoy": 0.5,
    "helm3": 6.0,
    "promtool": 3.0,
    "kubeconform": 0.5,
    "keda-operator": 12.0,
    "keda-adapter": 4.0,
    "istiod": 12.0,
    "kueue": 8.0,
    "lws": 4.0,
    "CRDs": 1.0,
    "Triton": 1.0,
    "epp": 6.0,
}
# Minutes of a part that is not in the table.
OTHER_MINUTES = 3.0
# The pace of a build is used after this many minutes' worth of it are done.
LEAST_DONE_MINUTES = 1.0


def minutes_of(label: str) -> float:
    """Minutes of a part, by the first word of its label."""
    return MINUTES.get(label.split(" ", maxsplit=1)[0], OTHER_MINUTES)


def minutes_left(
    remaining: Iterable[float], *, done: float, elapsed_minutes: float, at_once: int
) -> int:
    """Whole minutes until all is built, at least one.

    remaining: the remaining minutes of each unfinished part. done: minutes' worth of the parts
    built in the elapsed minutes. at_once: parts that are built at a time; the longest of them ends
    last.
    """
    parts = list(remaining)
    left = max(sum(parts) / at_once, max(parts, default=0.0))
    if done >= LEAST_DONE_MINUTES:
        left *= elapsed_minutes * at_once / done
    return max(round(left), 1)
