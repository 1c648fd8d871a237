"""A real istiod and a real Envoy before engines that answer HTTP: what a DestinationRule does."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kubernetes
import pytest
from tests.integration.bursts import crowd, statuses, wait_for_answer
from tests.integration.gateway_manifests import LAW, MANAGED
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Engines, Operator, Tenant

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.gateway_objects import ENGINE_PORT
from servingslo_lab.rig.gateways.istio import GATEWAY_NAMESPACE, ROOT_NAMESPACE, IstioFront
from servingslo_lab.rig.programs.versions import ISTIOD
from servingslo_lab.rig.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1200)]
RIG_TOOLS = (ISTIOD,)
BOUND, RAISED, BURST = 4, 6, 12
CROWD = 60
# Clusters of Istio's proxies; its own counts need Istio's own build of Envoy.
PATTERN = r"outbound\|[0-9]+\|\|(?P<name>[^.]+)\.(?P<namespace>[^.]+)\.svc\..*"
# Creation times, by which istiod orders rules, have whole seconds.
APART_SECONDS = 1.1
# istiod waits 0.1 s for further changes before it sends one; the rest is for a slow machine.
IN_FORCE_SECONDS = 10.0


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
        wait_for_answer(found.url)
        yield found
        found.stop()


def pool(limit: int) -> dict[str, Any]:
    """The part of a traffic policy that bounds requests in flight."""
    return {"connectionPool": {"http": {"http2MaxRequests": limit}}}


def enforced(limit: int) -> dict[int, int]:
    """How a burst is answered under this bound."""
    return {200: limit, 503: BURST - limit}


def wait_for_enforced(url: str, limit: int) -> None:
    """Envoy's worker has a bound a moment later than the page that tells it."""
    wait_until(
        lambda: statuses(url, BURST) == enforced(limit), what=f"{limit} are enforced",
        timeout_seconds=IN_FORCE_SECONDS,
    )  # fmt: skip


def test_the_bound_of_a_rule_is_enforced_by_envoy(front: IstioFront) -> None:
    """So many of a burst as the rule on the API server says succeed, then as it says anew."""
    assert statuses(front.url, BURST) == {200: BURST}, "no bound without a rule"
    front.put_rule("chat", rule(BOUND))
    wait_until(lambda: front.bound() == BOUND, what="istiod tells Envoy of it")
    wait_for_enforced(front.url, BOUND)
    before = front.counter("upstream_rq_active_overflow")
    assert statuses(front.url, BURST) == enforced(BOUND)
    assert front.counter("upstream_rq_active_overflow") == before + BURST - BOUND
    front.change_rule("chat", {"trafficPolicy": pool(RAISED)})
    wait_for_enforced(front.url, RAISED)
    front.delete_rule("chat")
    wait_until(lambda: statuses(front.url, BURST) == {200: BURST}, what="it is gone")


def rule(limit: int | None, **others: Any) -> dict[str, Any]:
    """A rule's spec with this bound, or with none."""
    policy = {} if limit is None else {"trafficPolicy": pool(limit)}
    return {"host": "chat", **policy, **others}


def ports(number: int, **policy: Any) -> dict[str, Any]:
    """A rule with the bound of the whole, and a policy of one port."""
    of_port = [{"port": {"number": number}, **policy}]
    return rule(None, trafficPolicy={**pool(BOUND), "portLevelSettings": of_port})


def clients(**labels: str) -> dict[str, Any]:
    """A rule for clients with these labels alone."""
    return rule(BOUND, workloadSelector={"matchLabels": labels})


HOST = "chat.{namespace}.svc.cluster.local"
BALANCED = {"loadBalancer": {"simple": "ROUND_ROBIN"}}
# Of each rule, or of several from the oldest on: what is in force at the ingress gateway. The
# operator refuses those without its own bound, and those that another one takes the place of.
IN_FORCE: dict[str, tuple[list[dict[str, Any]], int | None]] = {
    "short": ([rule(BOUND)], BOUND),
    "whole": ([rule(BOUND, host=HOST)], BOUND),
    "half": ([rule(BOUND, host="chat.{namespace}")], None),
    "none": ([rule(None)], None),
    "exported": ([rule(BOUND, exportTo=["."])], None),
    "exported-to-all": ([rule(BOUND, exportTo=["*"])], BOUND),
    "other-clients": ([clients(app="web")], None),
    # It selects among the pods of the rule's own namespace, where the gateway is not.
    "clients-elsewhere": ([clients(istio="ingressgateway")], None),
    "clients-beside-all": ([rule(RAISED), clients(istio="ingressgateway")], RAISED),
    "port": ([ports(ENGINE_PORT, **pool(RAISED))], RAISED),
    "port-without": ([ports(ENGINE_PORT, **BALANCED)], None),
    "other-port": ([ports(ENGINE_PORT + 1, **pool(RAISED))], BOUND),
    "older": ([rule(BOUND), rule(RAISED)], BOUND),
    "older-by-other-name": ([rule(BOUND), rule(RAISED, host=HOST)], BOUND),
    "newer-fills-in": ([rule(None), rule(BOUND)], BOUND),
    "older-of-other-matter": ([rule(None, trafficPolicy=BALANCED), rule(BOUND)], None),
    "whole-domain": ([rule(BOUND, host="*.{namespace}.svc.cluster.local")], BOUND),
    "before-whole-domain": (
        [rule(RAISED, host="*.{namespace}.svc.cluster.local"), rule(BOUND)],
        BOUND,
    ),
}


def test_what_rules_say_and_what_is_in_force(front: IstioFront) -> None:
    """As Envoy has it once istiod has sent every rule."""
    found = {}
    for case, (specs, _) in IN_FORCE.items():
        named = json.loads(json.dumps(specs).replace("{namespace}", front.namespace))
        # The newer one is the first by its name, so that age alone makes the order.
        names = [f"{'zyx'[number]}-rule" for number in range(len(named))]
        for name, spec in zip(names, named, strict=True):
            time.sleep(APART_SECONDS if name != names[0] else 0.0)
            front.put_rule(name, spec)
        front.settle()
        found[case] = front.bound()
        for name in names:
            front.delete_rule(name)
        front.settle()
        assert front.bound() is None, f"{case}: no rule, no bound"
    assert found == {case: limit for case, (_, limit) in IN_FORCE.items()}


# Of a rule in another namespace, beside the workload's own with its bound: what is in force.
BESIDE: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "gateway's": (GATEWAY_NAMESPACE, rule(RAISED, host=HOST), RAISED),
    "gateway's-without": (GATEWAY_NAMESPACE, rule(None, host=HOST), None),
    "gateway's-for-all": (GATEWAY_NAMESPACE, rule(None, host="*.local"), None),
    "root's": (ROOT_NAMESPACE, rule(RAISED, host=HOST), BOUND),
}


def test_a_rule_in_the_gateway_s_namespace_hides_the_workload_s(front: IstioFront) -> None:
    """Rules where the client is are looked at first, and the others not at all then."""
    front.put_rule("chat", rule(BOUND))
    found = {}
    for case, (namespace, spec, _) in BESIDE.items():
        host = spec["host"].replace("{namespace}", front.namespace)
        front.put_rule("beside", {**spec, "host": host}, namespace=namespace)
        front.settle()
        found[case] = front.bound()
        front.delete_rule("beside", namespace=namespace)
        front.settle()
        assert front.bound() == BOUND, f"{case}: the workload's own again"
    assert found == {case: limit for case, (_, _, limit) in BESIDE.items()}


def test_a_subset_has_slots_of_its_own(front: IstioFront) -> None:
    """What goes to the subset is counted apart: with the bound of the rule or with its own."""
    everyone = {"name": "all", "labels": {"app": "chat"}}
    front.put_rule("chat", rule(BOUND, subsets=[everyone]))
    front.settle()
    assert (front.bound(), front.bound(subset="all")) == (BOUND, BOUND)
    path = {"match": [{"uri": {"prefix": "/all/"}}], "rewrite": {"uri": "/"}}
    front.change_routes(front.route("all", **path), front.route())
    of_subset = f"{front.url}/all"
    wait_for_enforced(of_subset, BOUND)
    with ThreadPoolExecutor() as threads:
        both = threads.map(lambda url: statuses(url, BURST), (front.url, of_subset))
        assert list(both) == [enforced(BOUND)] * 2
    front.change_rule("chat", {"subsets": [{**everyone, "trafficPolicy": pool(RAISED)}]})
    front.settle()
    assert (front.bound(), front.bound(subset="all")) == (BOUND, RAISED)
    wait_for_enforced(of_subset, RAISED)
    assert front.counter("upstream_rq_active_overflow", subset="all") > 0


def test_the_operator_s_bound_reaches_envoy_and_holds(
    rig: Rig, tenant: Tenant, operator: Operator
) -> None:
    """Written into the rule, sent by istiod, verified under load, and told where it is hidden."""
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
            # What the operator cannot see: a rule where the client is hides the workload's.
            front.put_rule("beside", rule(None, host="*.local"), namespace=GATEWAY_NAMESPACE)
            tenant.wait(
                lambda: tenant.condition("AdmissionBound")[1] == "LimitNotHeld",
                what="more is in flight than the bound allows",
                timeout_seconds=240.0,
            )
            front.delete_rule("beside", namespace=GATEWAY_NAMESPACE)
        tenant.delete_slo()
        tenant.wait(lambda: front.bound() is None, what="no bound again")
        front.stop()
