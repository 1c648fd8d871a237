"""To no replica and back on a real control plane, with requests that wait at the gateway."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.gateway_manifests import Gateway
from tests.integration.operator_under_test import Operator, Tenant, steady_trace, ticks_pass

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.envoy_front import EnvoyFront, policy_manifest

IDLE_AFTER_SECONDS = 20.0
# What is seen of a workload for the first time is watched for two minutes before anything goes.
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """With the right to read how routes are routed."""
    return ("gateway.profile=envoy-gateway",)


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """The administrator has Envoy Gateway read."""
    return ("--gateway-profile=envoy-gateway",)


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_requests_that_wait_at_the_gateway_wake_what_sleeps(
    operator: Operator, tenant: Tenant, gateway_crds: None, tmp_path: Path
) -> None:
    """One replica goes once nothing came for the stated time, and is back for the first request."""
    tenant.create_deployment()
    Gateway(tenant).create_all(routingType="Service")
    few = steady_trace(tmp_path / "few.csv", rate=2.0, seconds=10.0)
    plan = {"route": "chat", "when_no_engine": "wait"}
    # Windows of engines and gateway begin a second apart: of forty requests that is nothing.
    tenant.begin_traffic(few, duration_seconds=40.0, **plan)
    tenant.create_slo(replicas={"min": 0, "max": 4, "idleAfter": f"{IDLE_AFTER_SECONDS:g}s"})
    tenant.wait(lambda: tenant.replicas() == 0, what="it sleeps", timeout_seconds=PATIENCE_SECONDS)
    tenant.wait(lambda: not tenant.pods(), what="no pod is left")
    tenant.wait(lambda: "asleep" in tenant.message("Ready"), what="it is told")
    ticks_pass(operator)
    assert tenant.replicas() == 0
    tenant.wait_condition("MetricsFresh", "True", "MetricsFresh")
    tenant.wait_line(operator, "decided", "reason=Idle", "replicas=1->0")

    tenant.end_traffic()
    tenant.begin_traffic(few, duration_seconds=600.0, **plan)
    tenant.wait(lambda: tenant.replicas() >= 1, what="requests wake it")
    tenant.wait(lambda: tenant.ready_replicas() >= 1, what="a replica is ready")
    tenant.wait_line(operator, "decided", "reason=WokenByRequests")
    ticks_pass(operator, 20)
    assert tenant.replicas() >= 1
    served = tenant.served()
    assert served["outcomes"]["failed"] == 0
    assert served["waiting_at_gateway"] == 0


@pytest.fixture
def front(rig: Rig, tenant: Tenant) -> Iterator[EnvoyFront]:
    """A real Envoy before a workload without replica, whose route has a policy."""
    tenant.create_deployment(replicas=0)
    found = EnvoyFront(rig, tenant.namespace)
    found.create("chat")
    found.put_policy(policy_manifest("wakes", route="chat"))
    with rig.scrape_plan_kept():
        found.start()
        yield found
        found.stop()


def _ask(front: EnvoyFront) -> int:
    body = json.dumps({"prompt_tokens": 16, "max_tokens": 4}).encode()
    request = urllib.request.Request(  # noqa: S310  a loopback address
        f"{front.url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _route_to_service(tenant: Tenant) -> None:
    Gateway(tenant).patch_policy({"spec": {"routingType": "Service"}}, "wakes")


def _asleep(operator: Operator, tenant: Tenant) -> None:
    tenant.wait(
        lambda: "asleep" in tenant.message("Ready"),
        what="it sleeps",
        timeout_seconds=PATIENCE_SECONDS,
    )
    tenant.wait(lambda: not tenant.pods(), what="no pod is left")
    ticks_pass(operator)
    assert tenant.replicas() == 0


def _refusal_wakes(tenant: Tenant, front: EnvoyFront) -> None:
    assert _ask(front) == 503
    tenant.wait(lambda: tenant.replicas() >= 1, what="the refusal wakes it")
    tenant.wait(lambda: _ask(front) == 200, what="an answer")


def test_what_a_real_envoy_refuses_for_want_of_a_replica_wakes_the_target(
    operator: Operator, tenant: Tenant, front: EnvoyFront
) -> None:
    """It answers a first request 503, of which it had no counter yet, and serves later ones."""
    tenant.create_slo(replicas={"min": 0, "max": 4, "idleAfter": "10m"})
    tenant.wait_condition("Ready", "False", "NoWakeUpSignal")
    tenant.wait_message("Ready", "set routingType: Service in its BackendTrafficPolicy")
    _route_to_service(tenant)
    _asleep(operator, tenant)
    _refusal_wakes(tenant, front)
    tenant.wait_line(operator, "decided", "reason=WokenByRequests")


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_a_target_that_a_real_envoy_woke_sleeps_again_and_is_woken_again(
    operator: Operator, tenant: Tenant, front: EnvoyFront
) -> None:
    """What a woken pod counts in its first window passed Envoy before that: none went past it."""
    _route_to_service(tenant)
    tenant.create_slo(replicas={"min": 0, "max": 4, "idleAfter": f"{IDLE_AFTER_SECONDS:g}s"})
    for _ in range(2):
        _asleep(operator, tenant)
        _refusal_wakes(tenant, front)
    _asleep(operator, tenant)
    log = operator.log_lines("decided", tenant.namespace)
    assert sum("reason=Idle" in line and "replicas=1->0" in line for line in log) == 2
    assert sum("reason=WokenByRequests" in line for line in log) == 2


@pytest.mark.acceptance
def test_without_a_gateway_that_knows_it_nothing_sleeps(operator: Operator, tenant: Tenant) -> None:
    """The last replica stays, and the conditions say why."""
    tenant.create_deployment()
    tenant.create_slo(replicas={"min": 0, "max": 4, "idleAfter": "10s"})
    tenant.wait_condition(
        "ScalingLimited", "True", "NoWakeUpSignal", timeout_seconds=PATIENCE_SECONDS
    )
    tenant.wait_message("Ready", "not scaled to zero")
    assert tenant.replicas() == 1
