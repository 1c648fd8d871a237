"""KEDA's own programs on the rig: its operator, and its server of external metrics."""

import base64
from pathlib import Path

import kubernetes
from tests.integration.keda_manifests import DATA, SCALED_OBJECTS, documented
from tests.integration.operator_under_test import Tenant

from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.versions import KEDA_ADAPTER, KEDA_OPERATOR
from servingslo_lab.rig.waiting import free_port

NAMESPACE = "kube-system"
SERVICE = "keda-metrics-apiserver"
API = "v1beta1.external.metrics.k8s.io"
_AUTHENTICATIONS = {**SCALED_OBJECTS, "plural": "triggerauthentications"}
_AUTHORITY = (DATA / "loopback-ca.pem").read_text(encoding="utf-8")
_START_SECONDS = 60.0


def run_operator(rig: Rig, certificates: Path, metrics_port: int) -> None:
    """KEDA's operator; it ends with the rig. Its metrics server asks it at metrics_port."""
    rig.run_process(
        "keda-operator",
        [
            str(ensure_tools((KEDA_OPERATOR,))[KEDA_OPERATOR.name]),
            f"--cert-dir={_certificates(certificates)}",
            f"--metrics-bind-address=127.0.0.1:{free_port()}",
            f"--health-probe-bind-address=127.0.0.1:{free_port()}",
            f"--metrics-service-bind-address=127.0.0.1:{metrics_port}",
            "--enable-webhook-patching=false",
            "--enable-apiservice-patching=false",
        ],
        environment=_environment(rig),
    )


def run_metrics_server(rig: Rig, certificates: Path, metrics_port: int) -> None:
    """KEDA's metrics server, registered with the API server as external.metrics.k8s.io."""
    port = free_port()
    process = rig.run_process(
        "keda-adapter",
        [
            str(ensure_tools((KEDA_ADAPTER,))[KEDA_ADAPTER.name]),
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--port={free_port()}",
            f"--cert-dir={certificates}",
            f"--tls-cert-file={certificates / 'tls.crt'}",
            f"--tls-private-key-file={certificates / 'tls.key'}",
            f"--metrics-service-address=127.0.0.1:{metrics_port}",
            f"--authentication-kubeconfig={rig.admin_kubeconfig}",
            f"--authorization-kubeconfig={rig.admin_kubeconfig}",
            f"--lister-kubeconfig={rig.admin_kubeconfig}",
        ],
        environment=_environment(rig),
    )
    client = rig.api_client()
    # A Service with endpoints on loopback is refused.
    kubernetes.client.CoreV1Api(client).create_namespaced_service(
        NAMESPACE,
        {
            "metadata": {"name": SERVICE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
    )
    registration = kubernetes.client.ApiregistrationV1Api(client)
    registration.create_api_service(
        {
            "metadata": {"name": API},
            "spec": {
                "service": {"name": SERVICE, "namespace": NAMESPACE, "port": port},
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                # The certificate is for the address alone.
                "insecureSkipTLSVerify": True,
            },
        }
    )

    def available() -> bool:
        found = registration.read_api_service(API).status
        return any(
            one.type == "Available" and one.status == "True" for one in found.conditions or ()
        )

    process.wait_for(available, what=f"{API} is available", timeout_seconds=_START_SECONDS)


def apply_authentication(tenant: Tenant) -> None:
    """The authority of the scaler, as the page has it applied."""
    authority = base64.b64encode(_AUTHORITY.encode()).decode()
    tenant.core.create_namespaced_secret(
        tenant.namespace,
        {"metadata": {"name": "servingslo-scaler-ca"}, "data": {"ca.crt": authority}},
    )
    tenant.custom.create_namespaced_custom_object(
        namespace=tenant.namespace,
        body=documented("kind: TriggerAuthentication", tenant.namespace, "chat"),
        field_validation="Strict",
        **_AUTHENTICATIONS,
    )


def apply_documented(tenant: Tenant, scaler_port: int, **changes: object) -> None:
    """What the page tells users to apply for workload chat, with these fields of its spec."""
    apply_authentication(tenant)
    scaled_object = documented("type: external-push", tenant.namespace, "chat")
    scaled_object["spec"].update(changes)
    scaled_object["spec"]["triggers"][0]["metadata"]["scalerAddress"] = f"127.0.0.1:{scaler_port}"
    tenant.custom.create_namespaced_custom_object(
        namespace=tenant.namespace, body=scaled_object, field_validation="Strict", **SCALED_OBJECTS
    )


def conditions(tenant: Tenant, name: str = "chat") -> dict[str, str]:
    """What KEDA says of a ScaledObject: the status of each condition by its type."""
    found = tenant.custom.get_namespaced_custom_object(
        namespace=tenant.namespace, name=name, **SCALED_OBJECTS
    )
    return {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", ())}


def _certificates(folder: Path) -> Path:
    """The folder, with the certificate of loopback as KEDA's programs look for it."""
    key, begin, rest = (
        (DATA / "loopback.pem").read_text(encoding="utf-8").partition("-----BEGIN CERTIFICATE")
    )
    for name, text in (("tls.key", key), ("tls.crt", begin + rest), ("ca.crt", _AUTHORITY)):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _environment(rig: Rig) -> dict[str, str]:
    return {
        "KUBECONFIG": str(rig.admin_kubeconfig),
        "WATCH_NAMESPACE": "",
        "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE,
        "POD_NAMESPACE": NAMESPACE,
    }
