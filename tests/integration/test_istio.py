"""A real istiod and a real Envoy before engines that answer HTTP: what a DestinationRule does."""

import json
import time
from collections.abc import Iterator
from typing import Any

import kubernetes
import pytest
from tests.integration.bursts import crowd, statuses
from tests.integration.gateway_manifests import LAW, MANAGED
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Engines, Operator, Tenant

from servingslo.rig.cluster import Rig
from servingslo.rig.istio import ENGINE_PORT, IstioFront
from servingslo.rig.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1200)]
BOUND, RAISED, BURST = 4, 6, 12
CROWD = 60
# Clusters of Istio's proxies; its own counts need Istio's own build of Envoy.
PATTERN = r"outbound\|[0-9]+\|\|(?P<name>[^.]+)\.(?P<namespace>[^.]+)\.svc\..*"
# istiod waits 0.1 s for further changes before it sends one.
SETTLED_SECONDS = 3.0


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator lists the kind, and has statistics read as Istio names them."""
    return (
        "admission.kinds[0]=DestinationRule",
        "gateway.profile=envoy-gateway",
        "gateway.labels.workload=cluster_name",
        f"gateway.pattern={PATTERN}",
    )


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart would start it."""
    return (
        "--admission-kind=DestinationRule",
        "--gateway-profile=envoy-gateway",
        "--gateway-workload-label=cluster_name",
        f"--gateway-pattern={PATTERN}",
    )


@pytest.fixture
def front(rig: Rig, namespace: str, engines: Engines) -> Iterator[IstioFront]:
    """Istio's gateway before two engines that bound nothing themselves."""
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    apps.create_namespaced_deployment(namespace, workload("chat", replicas=2))
    found = IstioFront(rig, namespace)
    found.create("chat")
    with rig.scrape_plan_kept():
        found.start()
        wait_until(
            lambda: statuses(found.url, 1) == {200: 1}, what="an answer through Envoy",
            interval_seconds=0.2,
        )  # fmt: skip
        yield found
        found.stop()


def pool(limit: int) -> dict[str, Any]:
    """The part of a traffic policy that bounds requests in flight."""
    return {"connectionPool": {"http": {"http2MaxRequests": limit}}}


def test_the_bound_of_a_rule_is_enforced_by_envoy(front: IstioFront) -> None:
    """So many of a burst as the rule on the API server says succeed, then as it says anew."""
    assert statuses(front.url, BURST) == {200: BURST}, "no bound without a rule"
    front.put_rule("chat", {"host": "chat", "trafficPolicy": pool(BOUND)})
    wait_until(lambda: front.bound() == BOUND, what="istiod tells Envoy of it")
    # Envoy's worker has it a moment later than the page that tells it.
    enforced = {200: BOUND, 503: BURST - BOUND}
    wait_until(lambda: statuses(front.url, BURST) == enforced, what="it is enforced")
    before = front.counter("upstream_rq_active_overflow")
    assert statuses(front.url, BURST) == enforced
    assert front.counter("upstream_rq_active_overflow") == before + BURST - BOUND
    front.delete_rule("chat")
    wait_until(lambda: statuses(front.url, BURST) == {200: BURST}, what="it is gone")


# Of each rule: what is in force. Those without ours are refused by the operator.
IN_FORCE: dict[str, tuple[dict[str, Any], int | None]] = {
    "short": ({"host": "chat", "trafficPolicy": pool(BOUND)}, BOUND),
    "whole": ({"host": "chat.{namespace}.svc.cluster.local", "trafficPolicy": pool(BOUND)}, BOUND),
    "half": ({"host": "chat.{namespace}", "trafficPolicy": pool(BOUND)}, None),
    "exported": ({"host": "chat", "exportTo": ["."], "trafficPolicy": pool(BOUND)}, None),
    "some-clients": (
        {
            "host": "chat",
            "workloadSelector": {"matchLabels": {"app": "web"}},
            "trafficPolicy": pool(BOUND),
        },
        None,
    ),
    "ports": (
        {
            "host": "chat",
            "trafficPolicy": {
                **pool(BOUND),
                "portLevelSettings": [{"port": {"number": ENGINE_PORT}, **pool(9)}],
            },
        },
        9,
    ),
    "ports-without": (
        {
            "host": "chat",
            "trafficPolicy": {
                **pool(BOUND),
                "portLevelSettings": [
                    {
                        "port": {"number": ENGINE_PORT},
                        "loadBalancer": {"simple": "ROUND_ROBIN"},
                    }
                ],
            },
        },
        None,
    ),
}


def test_what_a_rule_says_and_what_is_in_force(front: IstioFront) -> None:
    """A mark on the same rule tells that istiod has sent it."""
    found = {}
    for name, (spec, _) in IN_FORCE.items():
        named = json.loads(json.dumps(spec).replace("{namespace}", front.namespace))
        front.put_rule("chat", named)
        time.sleep(SETTLED_SECONDS)
        found[name] = front.bound()
        front.delete_rule("chat")
        wait_until(lambda: front.bound() is None, what="the rule is gone")
    assert found == {name: limit for name, (_, limit) in IN_FORCE.items()}


def test_of_two_rules_for_one_service_one_is_in_force(front: IstioFront) -> None:
    """The older one; which is why the operator refuses both."""
    front.put_rule("chat", {"host": "chat", "trafficPolicy": pool(BOUND)})
    wait_until(lambda: front.bound() == BOUND, what="istiod tells Envoy of it")
    time.sleep(1.5)  # creation times have whole seconds
    front.put_rule("again", {"host": "chat", "trafficPolicy": pool(RAISED)})
    time.sleep(SETTLED_SECONDS)
    assert front.bound() == BOUND


def test_the_operator_s_bound_reaches_envoy_and_holds(
    rig: Rig, tenant: Tenant, operator: Operator
) -> None:
    """Written into the rule, sent by istiod, and verified by what Envoy refuses under load."""
    # Few slots, so that a small crowd is too much for them.
    tenant.create_deployment(replicas=2, args=("--max-num-seqs=8",))
    front = IstioFront(rig, tenant.namespace)
    front.create("chat")
    front.put_rule("chat", {"host": "chat"}, labels=MANAGED)
    with rig.scrape_plan_kept():
        front.start()
        tenant.create_slo(
            replicas={"min": 2, "max": 2}, serviceLaw=LAW,
            admission={"mode": "Auto", "via": {"kind": "DestinationRule", "name": "chat"}},
        )  # fmt: skip
        with crowd(front.url, CROWD):
            tenant.wait(lambda: front.bound() is not None, what="Envoy has a bound")
            tenant.wait(
                lambda: tenant.condition("AdmissionBound")[1] == "LimitVerified",
                what="refusals rise and no more is in flight",
                timeout_seconds=240.0,
            )
            assert front.counter("upstream_rq_active_overflow") > 0
        tenant.delete_slo()
        tenant.wait(lambda: front.bound() is None, what="no bound again")
        front.stop()
