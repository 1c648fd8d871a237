"""KEDA's operator and metrics server beside ours, and the HPA controller that acts on them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.audit import audited_writes
from tests.integration.failover import candidate, leads
from tests.integration.keda_manifests import (
    DATA,
    SCALED_OBJECTS,
    documented_for_kserve,
    scaler_settings,
)
from tests.integration.keda_processes import (
    apply_authentication,
    apply_documented,
    conditions,
    run_metrics_server,
    run_operator,
)
from tests.integration.kserve_stand_in import SERVICES, install_crd, service, stand_in
from tests.integration.operator_under_test import (
    Engines,
    Operator,
    Tenant,
    install_chart,
    steady_trace,
)

from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.kubernetes.control_plane import FrontProxy
from servingslo_lab.rig.programs.upstream_crds import KEDA, install_crds
from servingslo_lab.rig.programs.versions import KEDA_ADAPTER, KEDA_OPERATOR
from servingslo_lab.rig.waiting import free_port

pytest.importorskip("grpc", reason="the extra `keda` is not installed")

# It looks at a trigger as often as its pollingInterval says.
POLLING_SECONDS = 2
PATIENCE_SECONDS = 120.0
# Dozens of syncs of the HPA, which come each second here.
SETTLED_SECONDS = 20.0
FIXED_FALLBACK = 14
# Far beyond what one of these engines serves within the objectives.
SURGE_PER_SECOND = 12.0

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]
RIG_TOOLS = (KEDA_OPERATOR, KEDA_ADAPTER)


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """One of its own, whose API server hands external metrics on to KEDA."""
    proxy = FrontProxy(
        certificate=DATA / "loopback.pem",
        key=DATA / "loopback.pem",
        authority=DATA / "loopback-ca.pem",
    )
    with Rig.start(RigOptions(front_proxy=proxy)) as running:
        running.add_nodes(4)
        yield running


@pytest.fixture(scope="module")
def keda(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its CRDs, its operator and its metrics server; they end with the rig."""
    install_crds(rig.api_client(), KEDA)
    folder, port = tmp_path_factory.mktemp("keda"), free_port()
    run_operator(rig, folder, port)
    run_metrics_server(rig, folder, port)


@pytest.fixture(scope="module")
def port() -> int:
    """Where the scaler listens: of two operators only the one that leads does."""
    return free_port()


@pytest.fixture
def pair(rig: Rig, engines: Engines, port: int) -> Iterator[tuple[Operator, Operator]]:
    """Two operators of one release; the first leads."""
    install_chart(rig)
    both = tuple(candidate(rig, *scaler_settings(port)) for _ in range(2))
    for one in both:
        one.start()
        rig.wait_for(lambda: any(map(leads, both)), what="somebody leads")
    yield both
    for one in both:
        one.stop()


@pytest.fixture
def user(
    rig: Rig, namespace: str, engines: Engines, pair: tuple[Operator, Operator], keda: None
) -> Tenant:
    """A tenant of both."""
    return Tenant(rig, namespace, engines)


def counts_while(user: Tenant, seconds: float) -> set[int]:
    """Which counts the Deployment was asked for meanwhile."""
    end, seen = time.monotonic() + seconds, set()
    while time.monotonic() < end:
        seen.add(user.replicas())
        time.sleep(0.1)
    return seen


def want(user: Tenant, count: int) -> set[int]:
    """Let our count be this; which ones the Deployment was asked for until long after."""
    user.patch_slo({"replicas": {"min": count, "max": count}})
    user.wait(
        lambda: user.replicas() == count, what=f"{count} replicas", timeout_seconds=PATIENCE_SECONDS
    )
    return counts_while(user, SETTLED_SECONDS)


def change_scaled_object(user: Tenant, spec: dict[str, object]) -> None:
    """Change fields of what the user applied."""
    user.custom.patch_namespaced_custom_object(
        namespace=user.namespace, name="chat", body={"spec": spec}, **SCALED_OBJECTS
    )


def test_keda_and_the_hpa_carry_our_count_out_exactly(
    rig: Rig, user: Tenant, pair: tuple[Operator, Operator], port: int
) -> None:
    """11, 12 and 11 as such, over a rollout and a takeover.

    Without a count of ours the stated fallback is carried out; without us the count stays.
    """
    user.create_deployment(replicas=11)
    user.create_slo(actuation="Keda", replicas={"min": 11, "max": 11})
    apply_documented(user, port, pollingInterval=POLLING_SECONDS)
    user.wait(
        lambda: {"Ready": "True", "Active": "True"}.items() <= conditions(user).items(),
        what="KEDA takes the count",
        timeout_seconds=PATIENCE_SECONDS,
    )
    assert counts_while(user, SETTLED_SECONDS) == {11}
    assert want(user, 12) == {12}
    assert want(user, 11) == {11}
    assert want(user, 12) == {12}
    user.wait_condition("Ready", "True", "Ready")
    for name in ("ScaledObject/chat", "HorizontalPodAutoscaler/keda-hpa-chat"):
        user.wait_message("Ready", name)

    # Pods of a rollout come on top of the count: status.replicas is no count of ours.
    template = {"metadata": {"annotations": {"rolled": "once"}}}
    user.apps.patch_namespaced_deployment("chat", user.namespace, {"spec": {"template": template}})
    assert counts_while(user, SETTLED_SECONDS) == {12}

    first, second = pair
    assert first.process is not None
    first.process.stop(kill=True)
    assert counts_while(user, SETTLED_SECONDS) == {12}
    rig.wait_for(lambda: leads(second), what="the other leads")
    assert want(user, 11) == {11}
    assert conditions(user)["Fallback"] == "False"

    fallback = {"failureThreshold": 3, "replicas": FIXED_FALLBACK, "behavior": "static"}
    change_scaled_object(user, {"fallback": fallback})
    user.patch_slo({"mode": "Recommend"})
    user.wait(
        lambda: conditions(user)["Fallback"] == "True" and user.replicas() == FIXED_FALLBACK,
        what="the fallback's count",
        timeout_seconds=PATIENCE_SECONDS,
    )
    user.patch_slo({"mode": "Auto"})
    user.wait(lambda: user.replicas() == 11, what="11 again", timeout_seconds=PATIENCE_SECONDS)

    # KEDA 2.21 asks the scaler itself for the metric's name before it falls back.
    second.stop()
    user.wait(
        lambda: conditions(user)["HPAActive"] == "False",
        what="the HPA is told nothing",
        timeout_seconds=PATIENCE_SECONDS,
    )
    assert counts_while(user, SETTLED_SECONDS) == {11}
    lines = rig.audit_log.read_text(encoding="utf-8").splitlines()
    assert [w for w in audited_writes(lines) if w.namespace == user.namespace] == []


@pytest.mark.usefixtures("pair")
def test_a_kserve_service_follows_its_load_by_its_own_scaled_object(
    rig: Rig, user: Tenant, port: int, tmp_path: Path
) -> None:
    """As its page says: KServe's ScaledObject asks the operator, and KEDA's HPA sets the child.

    KServe's controller is a stand-in; the operator itself writes no count.
    """
    install_crd(rig)
    apply_authentication(user)
    made, slo = documented_for_kserve(user.namespace, port)
    made["spec"] = {**service("llama", app="chat")["spec"], **made["spec"]}
    made["spec"]["scaling"]["keda"]["pollingInterval"] = POLLING_SECONDS
    child, scaled_object = "llama-kserve", "llama-kserve-keda"
    with stand_in(rig, user.namespace):
        user.custom.create_namespaced_custom_object(
            namespace=user.namespace, body=made, field_validation="Strict", **SERVICES
        )
        user.create_slo("llama", **{**slo["spec"], "coldStart": "5s"})
        user.wait_condition("MetricsFresh", "True", name="llama")
        user.wait(
            lambda: (
                {"Ready": "True", "Active": "True"}.items()
                <= conditions(user, scaled_object).items()
            ),
            what="KEDA takes the count",
            timeout_seconds=PATIENCE_SECONDS,
        )
        assert user.replicas(child) == 1
        surge = steady_trace(tmp_path / "surge.csv", rate=SURGE_PER_SECOND, seconds=30)
        user.begin_traffic(surge, duration_seconds=600)
        user.wait(
            lambda: user.ready_replicas(child) >= 2,
            what="the child follows the load",
            timeout_seconds=PATIENCE_SECONDS,
        )
        user.end_traffic()
        user.wait_condition("Ready", "True", "Ready", name="llama")
        for name in (f"ScaledObject/{scaled_object}", f"keda-hpa-{scaled_object}"):
            user.wait_message("Ready", name, name="llama")
    found = user.apps.read_namespaced_deployment(child, user.namespace).metadata.managed_fields
    managers = {one.manager for one in found if "f:replicas" in (one.fields_v1.get("f:spec") or {})}
    assert managers == {"kube-controller-manager"}
    lines = rig.audit_log.read_text(encoding="utf-8").splitlines()
    assert [w for w in audited_writes(lines) if w.namespace == user.namespace] == []
