"""The operator's external scaler, asked as KEDA's operator asks it, over TLS."""

import pytest
from tests.integration.keda_manifests import DATA, SCALED_OBJECTS, documented, scaler_settings
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass

from servingslo_lab.rig.waiting import free_port

grpc = pytest.importorskip("grpc", reason="the extra `keda` is not installed")

METHOD = "/externalscaler.ExternalScaler/GetMetrics"
# The operator looks for a CRD that is not installed this often.
ABSENT_CRD_SECONDS = 60.0


@pytest.fixture(scope="module")
def port() -> int:
    """Where the scaler listens."""
    return free_port()


@pytest.fixture(scope="module")
def operator_settings(port: int) -> tuple[str, ...]:
    """The scaler, with the certificate of loopback."""
    return scaler_settings(port)


def _told(port: int, namespace: str, name: str) -> str:
    """The value that KEDA is told, or the status that it gets instead."""

    def text(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    # As KEDA sends them, with metadata that names another namespace.
    metadata = text(3, text(1, b"namespace") + text(2, b"kube-system"))
    message = text(1, text(1, name.encode()) + text(2, namespace.encode()) + metadata)
    trusted = grpc.ssl_channel_credentials((DATA / "loopback-ca.pem").read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{port}", trusted) as channel:
        try:
            answer = channel.unary_unary(METHOD)(message, timeout=5)
        except grpc.RpcError as error:
            return str(error.code().name)
    # The name of the metric, then its value as a number below 128.
    _, _, value = answer.partition(b"desired-replicas\x10")
    return str(value[0])


@pytest.mark.usefixtures("keda_crds")
def test_keda_gets_the_count_of_its_own_namespace(
    operator: Operator, tenant: Tenant, port: int
) -> None:
    """By the ScaledObject's target; nothing is written, and without a count it gets an error."""
    tenant.create_deployment(replicas=2)
    tenant.create_slo(
        "other-name",
        targetRef={"kind": "Deployment", "name": "chat"},
        actuation="Keda",
        replicas={"min": 3, "max": 4},
    )
    assert _told(port, tenant.namespace, "chat") == "NOT_FOUND"
    body = documented("type: external-push", tenant.namespace, "chat")
    tenant.custom.create_namespaced_custom_object(
        namespace=tenant.namespace, body=body, field_validation="Strict", **SCALED_OBJECTS
    )
    tenant.wait(
        lambda: _told(port, tenant.namespace, "chat") == "3",
        what="KEDA is told 3",
        timeout_seconds=ABSENT_CRD_SECONDS,
    )
    tenant.wait_condition("Ready", "True", name="other-name")
    tenant.wait(
        lambda: "ScaledObject/chat" in tenant.message("Ready", "other-name"),
        what="Ready names the ScaledObject",
    )
    assert _told(port, "kube-system", "chat") == "NOT_FOUND"
    ticks_pass(operator)
    assert tenant.replicas() == 2
    given = f'servingslo_desired_replicas{{name="other-name",namespace="{tenant.namespace}"}} 3.0'
    tenant.wait(lambda: given in operator.metrics(), what=given)
    tenant.patch_slo({"mode": "Recommend"}, name="other-name")
    tenant.wait(
        lambda: _told(port, tenant.namespace, "chat") == "UNAVAILABLE",
        what="no count while acting is off",
    )
