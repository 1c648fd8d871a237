"""KWOK simulates the kubelets: Ready nodes, and pods that become Ready after a cold start."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes

from servingslo_lab.rig.processes import ManagedProcess, ProcessFamily
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.waiting import free_port

STAGES = Path(__file__).parent / "stages.yaml"
GPU_RESOURCE = "nvidia.com/gpu"

# Pod annotations that control stages.yaml; durations in Go's notation ("90s", "1m30s").
READY_DELAY_ANNOTATION = "rig.servingslo.dev/ready-delay"
READY_JITTER_ANNOTATION = "rig.servingslo.dev/ready-jitter-milliseconds"
STOP_DELAY_ANNOTATION = "rig.servingslo.dev/stop-delay"
LIFETIME_ANNOTATION = "rig.servingslo.dev/lifetime"
FAILURE_ANNOTATION = "rig.servingslo.dev/failure"

# A big GPU server; only the GPUs are meant to run out.
_NODE_CAPACITY = {"cpu": "192", "memory": "2Ti", "ephemeral-storage": "8Ti", "pods": "500"}
_LEASE_SECONDS = 40  # the kubelet's own default, nodeLeaseDurationSeconds


class Kwok:
    """The kwok process."""

    def __init__(
        self,
        *,
        binaries: Mapping[str, Path],
        kubeconfig: Path,
        family: ProcessFamily,
        work_dir: Path,
    ) -> None:
        self._port = free_port()
        self.process: ManagedProcess = family.add(
            "kwok",
            [
                str(binaries[versions.KWOK.name]),
                f"--kubeconfig={kubeconfig}",
                f"--config={STAGES}",
                "--manage-all-nodes",
                f"--cidr={_loopback_range()}",
                "--node-ip=127.0.0.1",
                # Without these flags it would listen on every interface at the kubelet's port.
                "--node-port=0",
                f"--server-address=127.0.0.1:{self._port}",
                f"--node-lease-duration-seconds={_LEASE_SECONDS}",
            ],
            # Otherwise it would read and write ~/.kwok.
            environment={"KWOK_WORKDIR": str(work_dir / "kwok")},
        )

    def start(self) -> None:
        """Start kwok. Raises: RigError when it cannot be executed."""
        self.process.start()

    def wait_ready(self) -> None:
        """Wait until kwok serves. Raises: RigError when it ends or stays unready."""
        self.process.wait_ready(f"http://127.0.0.1:{self._port}/healthz")


def _loopback_range() -> str:
    """Loopback addresses for the pods of one rig, 16,382 of them, where engines can listen.

    Chosen at random, so that two parallel rigs rarely share one.
    """
    return f"127.{1 + secrets.randbelow(254)}.{64 * secrets.randbelow(4)}.0/18"


def node_manifest(
    name: str, *, gpu_count: int, labels: Mapping[str, str], gpu_resource: str = GPU_RESOURCE
) -> dict[str, Any]:
    """A v1 Node with this many GPUs in capacity and allocatable; for 0 the resource is absent."""
    resources = dict(_NODE_CAPACITY)
    if gpu_count:
        resources[gpu_resource] = str(gpu_count)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                **labels,
            },
        },
        "status": {"capacity": resources, "allocatable": resources},
    }


def schedulable(node: kubernetes.client.V1Node) -> bool:
    """Whether the node is Ready and the node controller has removed its taints."""
    conditions = {item.type: item.status for item in node.status.conditions or []}
    return conditions.get("Ready") == "True" and not node.spec.taints
