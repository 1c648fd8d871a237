"""A real Envoy before engines that answer HTTP: what a policy says is what it enforces."""

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import kubernetes
import pytest
from tests.integration.bursts import statuses, wait_for_answer
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Engines

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.envoy_front import EnvoyFront, policy_manifest
from servingslo_lab.rig.waiting import http_get, wait_until

BOUND = 5
RAISED = 9
BURST = 24


@pytest.fixture
def front(rig: Rig, namespace: str, engines: Engines) -> Iterator[EnvoyFront]:
    """Envoy before two engines that bound nothing themselves."""
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    apps.create_namespaced_deployment(namespace, workload("chat", replicas=2))
    found = EnvoyFront(rig, namespace)
    found.create("chat")
    found.put_policy(policy_manifest("bound", route="chat", max_parallel_requests=BOUND))
    with rig.scrape_plan_kept():
        found.start()
        wait_for_answer(found.url)
        yield found
        found.stop()


def _scraped(rig: Rig, expression: str) -> float:
    found = http_get(f"{rig.prometheus_url}/api/v1/query?query={urllib.parse.quote(expression)}")
    result: list[dict[str, Any]] = [] if found is None else json.loads(found)["data"]["result"]
    return sum(float(one["value"][1]) for one in result)


def test_the_bound_of_a_policy_is_enforced_by_envoy(
    rig: Rig, namespace: str, front: EnvoyFront
) -> None:
    """So many of a burst as the policy on the API server says succeed, then as it says anew."""
    first = statuses(front.url, BURST)
    assert first == {200: BOUND, 503: BURST - BOUND}
    assert front.counter("upstream_rq_active_overflow", "chat") == BURST - BOUND
    assert front.counter("upstream_rq_pending_overflow", "chat") == 0
    refused = (
        "sum(envoy_cluster_upstream_rq_active_overflow"
        f'{{envoy_cluster_name="httproute/{namespace}/chat/rule/0"}})'
    )
    wait_until(
        lambda: _scraped(rig, refused) == BURST - BOUND, what="Prometheus has what was refused"
    )
    accepted = front.policy("bound")["status"]["ancestors"][0]["conditions"][0]
    assert (accepted["type"], accepted["status"]) == ("Accepted", "True")

    front.change_policy("bound", RAISED)
    wait_until(
        lambda: statuses(front.url, BURST)[200] == RAISED, what="the raised bound is in force"
    )
