"""LeaderWorkerSet's own controller on the rig, with its webhooks, and sets of simulated engines."""

import json
from pathlib import Path
from typing import Any

from tests.integration.manifests import workload
from tests.integration.operator_under_test import Tenant
from tests.integration.webhook_servers import server_at_free_port

from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.kubernetes.kwok import GPU_RESOURCE, READY_DELAY_ANNOTATION
from servingslo_lab.rig.programs.upstream_crds import (
    LEADER_WORKER_SET,
    LEADER_WORKER_SET_WEBHOOKS,
    install_crds,
)
from servingslo_lab.rig.programs.versions import LWS
from servingslo_lab.rig.waiting import free_port

GROUP, VERSION, PLURAL = "leaderworkerset.x-k8s.io", "v1", "leaderworkersets"
GROUP_SIZE = 2
SET_LABEL, INDEX_LABEL, GROUP_LABEL = (
    f"leaderworkerset.sigs.k8s.io/{name}" for name in ("name", "worker-index", "group-index")
)
# Where the controller looks for its own objects. Source: lws, pkg/utils, api/config/v1alpha1.
_NAMESPACE, _SERVICE, _SECRET = "lws-system", "lws-webhook-service", "lws-webhook-server-cert"
_PODS = "--v1-pod"


def run_controller(rig: Rig, folder: Path) -> None:
    """Its CRDs, webhooks and controller; the controller ends with the rig.

    folder: for its configuration and certificates.
    """
    health = free_port()
    server = server_at_free_port(_NAMESPACE, _SERVICE, _SECRET)
    server.create(rig)
    install_crds(rig.api_client(), LEADER_WORKER_SET)
    # As its own overlay of the webhooks has it.
    of_sets = {"matchExpressions": [{"key": SET_LABEL, "operator": "Exists"}]}
    server.create_webhooks(
        rig,
        LEADER_WORKER_SET_WEBHOOKS,
        prefix="lws",
        paths=("",),
        fields=lambda path: {"objectSelector": of_sets} if _PODS in path else {},
    )
    certificates, configuration = folder / "certificates", folder / "lws.json"
    settings = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": server.port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True},
    }
    configuration.write_text(json.dumps(settings), "utf-8")
    program = ensure_tools((LWS,))[LWS.name]
    server.run(rig, [str(program), f"--config={configuration}"], certificates, health)


def target(name: str) -> dict[str, str]:
    """The `targetRef` of a set."""
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "LeaderWorkerSet", "name": name}


def create_set(tenant: Tenant, name: str, *, worker_delay: str = "500ms") -> None:
    """One group: a leader with a simulated engine and a worker; waits until it is ready.

    worker_delay: from a node to a ready worker.
    """
    leader = workload(name, replicas=1)["spec"]["template"]
    # The engine of a group answers at its leader alone.
    worker = {
        "metadata": {"annotations": {READY_DELAY_ANNOTATION: worker_delay}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "worker",
                    "image": "vllm/vllm-openai:v0.32.0",
                    "resources": {"limits": {GPU_RESOURCE: "1"}},
                }
            ],
        },
    }
    template = {"size": GROUP_SIZE, "leaderTemplate": leader, "workerTemplate": worker}
    tenant.custom.create_namespaced_custom_object(
        GROUP,
        VERSION,
        tenant.namespace,
        PLURAL,
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": name},
            "spec": {"replicas": 1, "leaderWorkerTemplate": template},
        },
    )
    tenant.wait(lambda: ready_groups(tenant, name) == 1, what=f"the first group of {name} is ready")


def groups(tenant: Tenant, name: str) -> int:
    """The groups that the set asks for."""
    return int(_found(tenant, name)["spec"]["replicas"])


def ready_groups(tenant: Tenant, name: str) -> int:
    """Groups whose pods are all ready, in the controller's own count."""
    return int(_found(tenant, name).get("status", {}).get("readyReplicas", 0))


def pods(tenant: Tenant, name: str) -> dict[tuple[str, str], str]:
    """Names of the set's pods by group and place in it; the leader has place '0'."""
    found = tenant.core.list_namespaced_pod(tenant.namespace, label_selector=f"{SET_LABEL}={name}")
    return {
        (pod.metadata.labels[GROUP_LABEL], pod.metadata.labels[INDEX_LABEL]): pod.metadata.name
        for pod in found.items
        if pod.metadata.deletion_timestamp is None
    }


def _found(tenant: Tenant, name: str) -> dict[str, Any]:
    found: dict[str, Any] = tenant.custom.get_namespaced_custom_object(
        GROUP, VERSION, tenant.namespace, PLURAL, name
    )
    return found
