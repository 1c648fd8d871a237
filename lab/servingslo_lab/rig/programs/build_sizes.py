"""Packages that each part of the rig compiles, so that a build can say how much of it is done.

Packages and not minutes: how long one takes differs between machines and between one's hours.
"""

from collections.abc import Mapping

# Packages compiled from nothing, in the rig's order, two parts at a time: what an earlier part
# compiled is not compiled again. Source: the lines of `go build -v` in a build of 2026-11-28.
PACKAGES: Mapping[str, int] = {
    "kube-apiserver": 1842,
    "etcd": 528,
    "prometheus": 1005,
    "kube-controller-manager": 383,
    "kube-scheduler": 6,
    "helm": 842,
    "kwok": 582,
    "egctl": 1918,
    "helm3": 435,
    "promtool": 8,
    "llm-d-sim": 124,
}
# Fetched, not compiled: CRDs and wheels.
FETCHED = frozenset({"envoy", "CRDs", "Triton"})
# Packages of a part that is not in the table: about the mean of those that are.
OTHER_PACKAGES = 600


def packages_of(label: str) -> int:
    """Packages of a part, by the first word of its label."""
    name = label.split(" ", maxsplit=1)[0]
    return 0 if name in FETCHED else PACKAGES.get(name, OTHER_PACKAGES)
