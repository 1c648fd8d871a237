"""What a container of a pod asks for and offers: devices, ports, whether it is a native sidecar.

Source: Kubernetes, core/v1 Container, ResourceRequirements and ContainerPort.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# The annotation by which many scrapes find a pod's port; a port's number, or its name.
_PORT_ANNOTATION = "prometheus.io/port"
# Cards that serve models, by what the resource names of their device plugins have in common.
# Devices of other kinds (rdma/hca, vpc.amazonaws.com/efa, smarter-devices/fuse) are asked for by
# agents and proxies too. Source: the device plugins of NVIDIA (MIG and shared ones included), AMD,
# Intel, Habana, Google, AWS, Huawei, Hygon, MetaX, Enflame, Iluvatar, Cambricon, Moore Threads,
# Kunlunxin, Tencent, Furiosa, Rebellions, Qualcomm and Tenstorrent, and of HAMi and Volcano.
_CARDS = re.compile(
    r"gpu|(?<![a-z])([thnx]pu|[dg]cu)|vcuda|gaudi|neuron|ascend|/mig-|qaic|cambricon|iluvatar"
    r"|mthreads|furiosa\.ai/|rebellions\.ai/|tenstorrent",
    re.IGNORECASE,
)
_NOTHING = frozenset({"", "0", "0.0", "None"})


def asks_for_device(resources: Mapping[str, Any]) -> bool:
    """Whether anything but the node's own resources is asked for: devices have a domain's name."""
    if resources.get("claims"):
        return True
    return any("/" in name and not name.startswith("kubernetes.io/") for name in _asked(resources))


def asks_for_card(resources: Mapping[str, Any]) -> bool:
    """Whether a card that serves models is asked for; a claim counts, whose kind is not told."""
    if resources.get("claims"):
        return True
    return any("/" in name and _CARDS.search(name) for name in _asked(resources))


def ports_of(container: Mapping[str, Any]) -> tuple[int, ...]:
    """The ports that a container says it listens on."""
    ports: Sequence[Mapping[str, Any]] = container.get("ports") or ()
    return tuple(number for port in ports if (number := _integer(port.get("containerPort"))))


def is_scraped(container: Mapping[str, Any], annotations: Mapping[str, str]) -> bool:
    """Whether the pod's annotation names one of the container's ports as the one to scrape."""
    told = annotations.get(_PORT_ANNOTATION) or ""
    ports: Sequence[Mapping[str, Any]] = container.get("ports") or ()
    named = {str(port[key]) for port in ports for key in ("containerPort", "name") if port.get(key)}
    return bool(told) and told in named


def native_sidecars(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Init containers that go on running beside the containers."""
    entries: Sequence[Mapping[str, Any]] = spec.get("initContainers") or ()
    return [entry for entry in entries if entry.get("restartPolicy") == "Always"]


def _asked(resources: Mapping[str, Any]) -> set[str]:
    """Names of the resources of which more than nothing is asked for."""
    return {
        name
        for key in ("limits", "requests")
        for name, quantity in (resources.get(key) or {}).items()
        if str(quantity) not in _NOTHING
    }


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
