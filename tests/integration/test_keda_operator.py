"""KEDA's own operator beside ours: it asks the external scaler over TLS and makes its HPA of it."""

import base64
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from tests.integration.keda_manifests import DATA, SCALED_OBJECTS, documented, scaler_settings
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass

from servingslo.rig.build import ensure_tools
from servingslo.rig.cluster import Rig
from servingslo.rig.versions import KEDA_OPERATOR
from servingslo.rig.waiting import free_port

pytest.importorskip("grpc", reason="the extra `keda` is not installed")

# It looks at a trigger as often as its pollingInterval says, half a minute by default.
PATIENCE_SECONDS = 120.0
AUTHENTICATIONS = {**SCALED_OBJECTS, "plural": "triggerauthentications"}


@pytest.fixture(scope="module")
def port() -> int:
    """Where the scaler listens."""
    return free_port()


@pytest.fixture(scope="module")
def operator_settings(port: int) -> tuple[str, ...]:
    """The scaler, with the certificate of loopback."""
    return scaler_settings(port)


@pytest.fixture
def keda(rig: Rig, keda_crds: None, tmp_path: Path) -> None:
    """KEDA's operator; it ends with the rig."""
    program = ensure_tools((KEDA_OPERATOR,))[KEDA_OPERATOR.name]
    key, _, certificate = (
        (DATA / "loopback.pem").read_text(encoding="utf-8").partition("-----BEGIN CERTIFICATE")
    )
    authority = (DATA / "loopback-ca.pem").read_text(encoding="utf-8")
    for name, text in (
        ("tls.key", key),
        ("tls.crt", f"-----BEGIN CERTIFICATE{certificate}"),
        ("ca.crt", authority),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    rig.run_process(
        "keda-operator",
        [
            str(program),
            f"--cert-dir={tmp_path}",
            f"--metrics-bind-address=127.0.0.1:{free_port()}",
            f"--health-probe-bind-address=127.0.0.1:{free_port()}",
            f"--metrics-service-bind-address=127.0.0.1:{free_port()}",
            "--enable-webhook-patching=false",
            "--enable-apiservice-patching=false",
        ],
        environment={
            "KUBECONFIG": str(rig.admin_kubeconfig),
            "WATCH_NAMESPACE": "",
            "KEDA_CLUSTER_OBJECT_NAMESPACE": "kube-system",
            "POD_NAMESPACE": "kube-system",
        },
    )


def _conditions(tenant: Tenant) -> dict[str, str]:
    found: dict[str, Any] = tenant.custom.get_namespaced_custom_object(
        namespace=tenant.namespace, name="chat", **SCALED_OBJECTS
    )
    return {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", ())}


@pytest.mark.acceptance
@pytest.mark.usefixtures("keda")
def test_keda_scales_by_our_count(rig: Rig, operator: Operator, tenant: Tenant, port: int) -> None:
    """The documented ScaledObject is Ready and Active, and its HPA's target is one a replica."""
    api = rig.api_client()
    authority = base64.b64encode((DATA / "loopback-ca.pem").read_bytes()).decode()
    kubernetes.client.CoreV1Api(api).create_namespaced_secret(
        tenant.namespace,
        {"metadata": {"name": "servingslo-scaler-ca"}, "data": {"ca.crt": authority}},
    )
    tenant.create_deployment(replicas=2)
    tenant.create_slo(actuation="Keda", replicas={"min": 3, "max": 4})
    authentication = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": {"name": "servingslo"},
        "spec": {
            "secretTargetRef": [
                {"parameter": "caCert", "name": "servingslo-scaler-ca", "key": "ca.crt"}
            ]
        },
    }
    scaled_object = documented("type: external-push", tenant.namespace, "chat")
    scaled_object["spec"]["triggers"][0]["metadata"]["scalerAddress"] = f"127.0.0.1:{port}"
    for body, where in ((authentication, AUTHENTICATIONS), (scaled_object, SCALED_OBJECTS)):
        tenant.custom.create_namespaced_custom_object(
            namespace=tenant.namespace, body=body, field_validation="Strict", **where
        )
    tenant.wait(
        lambda: {"Ready": "True", "Active": "True"}.items() <= _conditions(tenant).items(),
        what="KEDA takes the count",
        timeout_seconds=PATIENCE_SECONDS,
    )
    autoscaling = kubernetes.client.AutoscalingV2Api(api)
    hpa = autoscaling.read_namespaced_horizontal_pod_autoscaler("keda-hpa-chat", tenant.namespace)
    (metric,) = hpa.spec.metrics
    assert metric.external.metric.name == "s0-desired-replicas"
    assert (metric.external.target.type, metric.external.target.average_value) == (
        "AverageValue",
        "1",
    )
    assert hpa.spec.behavior.scale_up.tolerance == "0"
    ticks_pass(operator)
    tenant.wait_condition("Ready", "True", "Ready")
    for name in ("ScaledObject/chat", "HorizontalPodAutoscaler/keda-hpa-chat"):
        assert name in tenant.message("Ready")
