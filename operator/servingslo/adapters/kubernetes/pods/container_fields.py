"""Fields of a pod's container: requested devices, ports, whether it is a native sidecar.

Source: Kubernetes, core/v1 Container, ResourceRequirements and ContainerPort.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# The annotation with which many scrape configurations find the port: its number or name.
_PORT_ANNOTATION = "prometheus.io/port"
# Cards that serve models, by common parts of their device plugins' resource names. Agents and
# proxies also request devices of other kinds (rdma/hca, vpc.amazonaws.com/efa,
# smarter-devices/fuse). Source: the device plugins of NVIDIA (MIG and shared ones included), AMD,
# Intel, Habana, Google, AWS, Huawei, Hygon, MetaX, Enflame, Iluvatar, Cambricon, Moore Threads,
# Kunlunxin, Tencent, Furiosa, Rebellions, Qualcomm and Tenstorrent, and of HAMi and Volcano.
_CARDS = re.compile(
    r"gpu|(?<![a-z])([thnx]pu|[dg]cu)|vcuda|gaudi|neuron|ascend|/mig-|qaic|cambricon|iluvatar"
    r"|mthreads|furiosa\.ai/|rebellions\.ai/|tenstorrent|[a-z]px_nps",
    re.IGNORECASE,
)
# A slice of a card, or a share of its memory or time. Source: the device plugins of NVIDIA (MIG and
# time-slicing) and AMD (all but spx split a card), HAMi, Volcano, GPU Manager, Alibaba's gpushare,
# nos, Koordinator, MetaX and AWS.
_PARTS = re.compile(
    r"/mig-|gpu\.shared$|gpu-?mem|gpu-?cores?|vcuda-|gpu-\d+gb$|/(?!spx)[a-z]px_nps|/[sv]gpu$"
    r"|koordinator\.sh/gpu$",
    re.IGNORECASE,
)
# Annotations of run:ai, the KAI scheduler and TensorFusion.
_PART_ANNOTATION = re.compile(
    r"(?:.*/)?gpu-(?:fraction|memory)"
    r"|tensor-fusion\.ai/(?:vram|tflops|compute-percent)-(?:limit|request)"
)
# Nodes whose cards are split, by label=value. Source: GKE, and NVIDIA's gpu-feature-discovery and
# mig-manager.
_SPLIT_NODES = re.compile(
    r"cloud\.google\.com/gke-(?:gpu-(?:partition-size|sharing-strategy)|max-shared-clients).*"
    r"|nvidia\.com/gpu\.product=.*-(?:MIG-.*|SHARED)"
    r"|nvidia\.com/(?:gpu\.sharing-strategy=(?!none)|mig\.config=(?!all-disabled)).+"
)
_WHOLE_PERCENT = "100"
_NOTHING = frozenset({"", "0", "0.0", "None"})


def asks_for_device(resources: Mapping[str, Any]) -> bool:
    """Whether a device is requested: the resource names of devices contain a domain name."""
    if resources.get("claims"):
        return True
    return any("/" in name and not name.startswith("kubernetes.io/") for name in asked(resources))


def asks_for_card(resources: Mapping[str, Any]) -> bool:
    """Whether a card that serves models is requested; a claim counts, its kind is unknown."""
    if resources.get("claims"):
        return True
    return any(is_card(name) for name in asked(resources))


def asks_for_part(
    resources: Mapping[str, Any], annotations: Mapping[str, str], nodes: Sequence[str] = ()
) -> bool:
    """Whether a part of a card is requested; a claim counts, its size is unknown.

    nodes: see `nodes_asked`.
    """
    shares = (
        str(quantity) != _WHOLE_PERCENT
        for name, quantity in asked(resources).items()
        if "/" in name and _PARTS.search(name)
    )
    annotated = any(_PART_ANNOTATION.fullmatch(name) for name in annotations)
    split = asks_for_card(resources) and any(map(_SPLIT_NODES.fullmatch, nodes))
    return bool(resources.get("claims")) or annotated or split or any(shares)


def nodes_asked(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels that a pod's nodes must have, as label=value: its selector and node affinity."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    rules = (
        rule
        for term in required.get("nodeSelectorTerms") or ()
        for rule in term.get("matchExpressions") or ()
        if rule.get("operator") in {"In", "Exists"}
    )
    chosen = ((rule["key"], value) for rule in rules for value in rule.get("values") or ("",))
    selector: Mapping[str, str] = spec.get("nodeSelector") or {}
    return tuple(f"{key}={value}" for key, value in (*selector.items(), *chosen))


def ports_of(container: Mapping[str, Any]) -> tuple[int, ...]:
    """The ports that a container declares."""
    ports: Sequence[Mapping[str, Any]] = container.get("ports") or ()
    return tuple(number for port in ports if (number := _integer(port.get("containerPort"))))


def is_scraped(container: Mapping[str, Any], annotations: Mapping[str, str]) -> bool:
    """Whether the pod's annotation names one of the container's ports as the one to scrape."""
    told = annotations.get(_PORT_ANNOTATION) or ""
    ports: Sequence[Mapping[str, Any]] = container.get("ports") or ()
    named = {str(port[key]) for port in ports for key in ("containerPort", "name") if port.get(key)}
    return bool(told) and told in named


def native_sidecars(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Init containers that keep running next to the main containers."""
    entries: Sequence[Mapping[str, Any]] = spec.get("initContainers") or ()
    return [entry for entry in entries if entry.get("restartPolicy") == "Always"]


def is_card(name: str) -> bool:
    """Whether a resource of this name is a card that serves models, or a part of one."""
    return "/" in name and _CARDS.search(name) is not None


def asked(resources: Mapping[str, Any]) -> dict[str, Any]:
    """The requested resources with a quantity above zero, by name; of devices, both are equal."""
    return {
        name: quantity
        for key in ("limits", "requests")
        for name, quantity in (resources.get(key) or {}).items()
        if str(quantity) not in _NOTHING
    }


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
