"""What the chart's ServiceAccount may do is enough for the operator, and nothing beyond."""

from collections.abc import Iterator

import kubernetes
import pytest
from tests.integration.operator_under_test import (
    RELEASE_NAMESPACE,
    Engines,
    Operator,
    Tenant,
    install_chart,
    ticks_pass,
)

from servingslo.api.v1alpha1 import GROUP, PLURAL, VERSION
from servingslo_lab.rig.cluster import Rig

# Every rule, as the API server resolves it: (group, resource), and names where it is limited to
# some; and its verbs.
_READ = frozenset({"get", "list", "watch"})
_SCALE = frozenset({"get", "patch"})
EXPECTED = {
    ("servingslo.dev", "servingslos"): _READ,
    ("servingslo.dev", "servingslos/status"): frozenset({"get", "patch"}),
    ("", "pods"): _READ,
    ("apps", "deployments"): _READ,
    ("apps", "statefulsets"): _READ,
    ("apps", "replicasets"): _READ,
    ("apps", "deployments/scale"): _SCALE,
    ("apps", "statefulsets/scale"): _SCALE,
    ("autoscaling", "horizontalpodautoscalers"): _READ,
    ("keda.sh", "scaledobjects"): _READ,
    ("events.k8s.io", "events"): frozenset({"create", "patch"}),
    ("", "events"): frozenset({"list"}),
    ("coordination.k8s.io", "leases", "servingslo-acting-operator"): frozenset(
        {"create", "get", "patch", "update"}
    ),
}
# What every authenticated user has (system:basic-user), without which nobody can ask for rules.
_EVERYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """Every switch is off."""
    return ()


def test_the_permissions_are_exactly_these(rig: Rig, tenant: Tenant, operator: Operator) -> None:
    """The API server knows of no permission of the ServiceAccount beyond the list."""
    review = kubernetes.client.AuthorizationV1Api(rig.api_client(operator.kubeconfig))
    answer = review.create_self_subject_rules_review({"spec": {"namespace": tenant.namespace}})
    found: dict[tuple[str, ...], frozenset[str]] = {}
    for rule in answer.status.resource_rules:
        for group in rule.api_groups or ():
            for resource in rule.resources or ():
                if resource not in _EVERYBODY:
                    key = group, resource, *(rule.resource_names or ())
                    found[key] = found.get(key, frozenset()) | frozenset(rule.verbs)
    assert found == EXPECTED


def test_a_whole_life_needs_no_more(tenant: Tenant, operator: Operator) -> None:
    """Creation, scaling, a conflict check and deletion, with nothing refused on the way."""
    # As RBAC words a refusal. An API server that has just started, in a test before this one,
    # refuses what it allows until it has read its roles again.
    refused_before = operator.log_lines("forbidden: User")
    tenant.create_deployment(replicas=1)
    tenant.create_slo(replicas={"min": 2, "max": 4})
    tenant.wait(lambda: tenant.replicas() == 2, what="a scale-up")
    tenant.wait_event("Scaled")
    tenant.wait_condition("MetricsFresh", "True")
    tenant.delete_slo()
    ticks_pass(operator, 2)
    tenant.wait_line(operator, "decided")
    assert operator.log_lines("forbidden: User") == refused_before


@pytest.mark.parametrize(
    ("what", "call"),
    [
        pytest.param(
            "secrets",
            lambda client, namespace: kubernetes.client.CoreV1Api(client).list_namespaced_secret(
                namespace
            ),
            id="read-secrets",
        ),
        pytest.param(
            "pod templates",
            lambda client, namespace: kubernetes.client.AppsV1Api(
                client
            ).patch_namespaced_deployment(
                "chat", namespace, {"metadata": {"labels": {"changed": "yes"}}}
            ),
            id="patch-a-pod-template",
        ),
        pytest.param(
            "pods",
            lambda client, namespace: kubernetes.client.CoreV1Api(client).delete_namespaced_pod(
                "chat", namespace
            ),
            id="delete-a-pod",
        ),
        pytest.param(
            "specs",
            lambda client, namespace: kubernetes.client.CustomObjectsApi(
                client
            ).patch_namespaced_custom_object(
                GROUP, VERSION, namespace, PLURAL, "chat", {"spec": {"mode": "Auto"}}
            ),
            id="change-a-spec",
        ),
        pytest.param(
            "other leases",
            lambda client, namespace: kubernetes.client.CoordinationV1Api(
                client
            ).create_namespaced_lease(namespace, {"metadata": {"name": "another"}}),
            id="create-a-lease-of-another-name",
        ),
        pytest.param(
            "namespaces",
            lambda client, _: kubernetes.client.CoreV1Api(client).list_namespace(),
            id="namespaces-without-budgets",
        ),
        pytest.param(
            "nodes", lambda client, _: kubernetes.client.CoreV1Api(client).list_node(), id="nodes"
        ),
    ],
)
def test_everything_else_is_forbidden(
    rig: Rig, tenant: Tenant, operator: Operator, what: str, call
) -> None:
    """With the operator's own token, what it does not need is refused by the API server."""
    client = rig.api_client(operator.kubeconfig)
    with pytest.raises(kubernetes.client.ApiException) as refusal:
        call(client, tenant.namespace)
    assert refusal.value.status == 403, what


@pytest.fixture(params=["true", "false"], ids=["cluster-role", "no-cluster-role"])
def confined(
    rig: Rig, engines: Engines, operator: Operator, request: pytest.FixtureRequest
) -> Iterator[tuple[Tenant, Tenant]]:
    """An operator that watches one of two namespaces, with permissions in that one alone."""
    operator.stop()
    # Names of their own: a namespace of the case before may still be going.
    prefix = f"{RELEASE_NAMESPACE}-{request.param}"
    inside, outside = (rig.create_namespace(f"{prefix}-{name}") for name in "ab")
    install_chart(rig, f"watchNamespaces[0]={inside}", f"rbac.clusterRoles={request.param}")
    running = Operator(rig, f"--namespace={inside}")
    running.start()
    yield Tenant(rig, inside, engines), Tenant(rig, outside, engines)
    running.stop()
    install_chart(rig)
    for name in (inside, outside):
        rig.delete_namespace(name)
    operator.start()


def test_a_confined_operator_serves_its_namespaces_alone(
    rig: Rig, confined: tuple[Tenant, Tenant]
) -> None:
    """With watchNamespaces it scales there, with permissions there, and nowhere else."""
    inside, outside = confined
    for user in (inside, outside):
        user.create_deployment(replicas=1)
        user.create_slo(replicas={"min": 2, "max": 4})
    inside.wait(lambda: inside.replicas() == 2, what="a scale-up")
    inside.wait_condition("MetricsFresh", "True")
    assert outside.replicas() == 1
    assert outside.status()["observedGeneration"] == -1
