"""Kueue's own controller on the rig, with its webhooks for Deployments and pods."""

import json
from pathlib import Path
from typing import Any

import kubernetes
from tests.integration.operator_under_test import RELEASE_NAMESPACE, SERVICE_ACCOUNT
from tests.integration.webhook_servers import WebhookServer, server_at_free_port

from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import (
    KUEUE_CRDS,
    KUEUE_WEBHOOKS,
    install_crds,
)
from servingslo_lab.rig.programs.versions import KUEUE
from servingslo_lab.rig.waiting import free_port

NAMESPACE = "kueue-system"
GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
QUEUE_LABEL = f"{GROUP}/queue-name"
_SERVICE, _SECRET = "kueue-webhook-service", "kueue-webhook-server-cert"
# Kinds that are stored in one version and served in two. Source: kueue, config/components/crd.
_CONVERTED = ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")
_PATHS = ("kueue-x-k8s-io", "apps-v1-deployment", "--v1-pod")


def run_kueue(rig: Rig, folder: Path) -> None:
    """Kueue's CRDs, webhooks and controller; the controller ends with the rig.

    folder: for its configuration and certificates.
    """
    client, health = rig.api_client(), free_port()
    server = server_at_free_port(NAMESPACE, _SERVICE, _SECRET)
    server.create(rig)
    install_crds(client, KUEUE_CRDS)
    _convert(client, server)
    elsewhere = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
    selector = {"matchExpressions": [{**elsewhere, "values": ["kube-system", NAMESPACE]}]}
    # Those for Deployments, pods and Kueue's own kinds.
    server.create_webhooks(
        rig,
        KUEUE_WEBHOOKS,
        prefix="kueue",
        paths=_PATHS,
        fields=lambda _path: {"namespaceSelector": selector},
    )
    certificates, configuration = folder / "certificates", folder / "kueue.json"
    configuration.write_text(json.dumps(_configuration(certificates, server.port, health)), "utf-8")
    program = ensure_tools((KUEUE,))[KUEUE.name]
    server.run(rig, [str(program), f"--config={configuration}"], certificates, health)


def create_queue(rig: Rig, namespace: str, gpus: int) -> None:
    """A ClusterQueue with this many GPUs, and a LocalQueue `chat` of the namespace to it."""
    api = kubernetes.client.CustomObjectsApi(rig.api_client())
    flavor = {"metadata": {"name": "default"}, "kind": "ResourceFlavor", "spec": {}}
    queue = {"metadata": {"name": namespace}, "kind": "ClusterQueue", "spec": _quota(gpus)}
    for body in (flavor, queue):
        plural = f"{body['kind'].lower()}s"
        api.create_cluster_custom_object(
            GROUP, VERSION, plural, {**body, "apiVersion": f"{GROUP}/{VERSION}"}
        )
    local = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "LocalQueue",
        "metadata": {"name": "chat"},
        "spec": {"clusterQueue": namespace},
    }
    api.create_namespaced_custom_object(GROUP, VERSION, namespace, "localqueues", local)


def set_quota(rig: Rig, namespace: str, gpus: int) -> None:
    """Another number of GPUs of the namespace's ClusterQueue."""
    api = kubernetes.client.CustomObjectsApi(rig.api_client())
    body = {"spec": _quota(gpus)}
    api.patch_cluster_custom_object(GROUP, VERSION, "clusterqueues", namespace, body)


def pending(rig: Rig, namespace: str) -> int:
    """How many Workloads wait in the LocalQueue, in Kueue's own count."""
    api = kubernetes.client.CustomObjectsApi(rig.api_client())
    found = api.get_namespaced_custom_object(GROUP, VERSION, namespace, "localqueues", "chat")
    return int((found.get("status") or {}).get("pendingWorkloads", 0))


def let_operator_read(rig: Rig, role: dict[str, Any]) -> None:
    """The ClusterRole of the page, bound to the operator's ServiceAccount."""
    api = kubernetes.client.RbacAuthorizationV1Api(rig.api_client())
    api.create_cluster_role(role)
    name = role["metadata"]["name"]
    account = {
        "kind": "ServiceAccount",
        "namespace": RELEASE_NAMESPACE,
        "name": SERVICE_ACCOUNT,
    }
    api.create_cluster_role_binding(
        {
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": name,
            },
            "subjects": [account],
        }
    )


def _quota(gpus: int) -> dict[str, Any]:
    resource = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
    flavors = [{"name": "default", "resources": [resource]}]
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}
    return {"namespaceSelector": {}, "resourceGroups": [group]}


def _configuration(certificates: Path, port: int, health: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": _SERVICE,
            "webhookSecretName": _SECRET,
        },
        "integrations": {"frameworks": ["pod", "deployment"]},
        # It would listen on every interface, for a command line that is not used here.
        "featureGates": {"VisibilityOnDemand": False},
    }


def _convert(client: kubernetes.client.ApiClient, server: WebhookServer) -> None:
    """Let Kueue convert its kinds, as its own overlay of the CRDs does."""
    api = kubernetes.client.CustomObjectsApi(client)
    webhook = {"clientConfig": server.at("/convert"), "conversionReviewVersions": ["v1"]}
    body = {"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}}
    for plural in _CONVERTED:
        where = ("apiextensions.k8s.io", "v1", "customresourcedefinitions", f"{plural}.{GROUP}")
        api.patch_cluster_custom_object(*where, body)
