"""Targets of other projects, by their own CRDs: /scale is read and patched, their pods are found.

Their controllers do not run: what they would write, a status and pods, the test writes. Kinds whose
CRD is in no Go module have a CRD of the test's own, with the same names and paths of /scale.
Sources: LeaderWorkerSet KEP-849 (DisaggregatedSetRoleScaler); the operator of NVIDIA Dynamo,
api/v1alpha1 and api/v1beta1 (DynamoGraphDeploymentScalingAdapter).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kubernetes
import pytest
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import (
    ARGO_ROLLOUTS,
    LEADER_WORKER_SET,
    install_crds,
)

SELECTOR = "app=chat"
ALREADY_THERE = 409
CRDS = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind: where it is served, a spec around a pod template, and what its status tells.

    owns_pods: they are its descendants; of an adapter they are those of the workload behind it.
    """

    group: str
    version: str
    kind: str
    plural: str
    owns_pods: bool = True

    def spec(self, template: dict[str, Any]) -> dict[str, Any]:
        """One replica of this template."""
        if not self.owns_pods:
            return {"replicas": 1}
        if self.kind == "LeaderWorkerSet":
            return {
                "replicas": 1,
                "leaderWorkerTemplate": {"size": 1, "workerTemplate": template},
            }
        labels = {"matchLabels": template["metadata"]["labels"]}
        steps = {"canary": {"steps": [{"setWeight": 50}]}}
        return {"replicas": 1, "selector": labels, "template": template, "strategy": steps}

    def status(self, replicas: int) -> dict[str, Any]:
        """As its controller writes it."""
        if self.kind == "LeaderWorkerSet":
            return {"replicas": replicas, "readyReplicas": replicas, "hpaPodSelector": SELECTOR}
        return {"HPAReplicas": replicas, "replicas": replicas, "selector": SELECTOR}

    def crd(self, *versions: str) -> dict[str, Any]:
        """The least CRD with this kind's names and paths of /scale, served in all versions."""
        scale = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{self.group}"},
            "spec": {
                "group": self.group,
                "names": {"kind": self.kind, "plural": self.plural},
                "scope": "Namespaced",
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": version == versions[-1],
                        "subresources": {"status": {}, "scale": scale},
                        "schema": {"openAPIV3Schema": schema},
                    }
                    for version in versions
                ],
            },
        }


ROLE_SCALER = Kind(
    group="disaggregatedset.x-k8s.io",
    version="v1",
    kind="DisaggregatedSetRoleScaler",
    plural="disaggregatedsetrolescalers",
    owns_pods=False,
)
DYNAMO = Kind(
    group="nvidia.com",
    version="v1alpha1",
    kind="DynamoGraphDeploymentScalingAdapter",
    plural="dynamographdeploymentscalingadapters",
    owns_pods=False,
)
DYNAMO_BETA = replace(DYNAMO, version="v1beta1")
KINDS = (
    Kind(
        group="leaderworkerset.x-k8s.io",
        version="v1",
        kind="LeaderWorkerSet",
        plural="leaderworkersets",
    ),
    Kind(group="argoproj.io", version="v1alpha1", kind="Rollout", plural="rollouts"),
    ROLE_SCALER,
    DYNAMO,
    DYNAMO_BETA,
)


@pytest.fixture(scope="module")
def other_crds(rig: Rig) -> None:
    """The projects' own CRDs, and those of the test."""
    client = rig.api_client()
    install_crds(client, ARGO_ROLLOUTS, LEADER_WORKER_SET)
    custom = kubernetes.client.CustomObjectsApi(client)
    own = (ROLE_SCALER.crd("v1"), DYNAMO.crd(DYNAMO.version, DYNAMO_BETA.version))
    for crd in own:
        try:
            custom.create_cluster_custom_object(*CRDS, crd)
        except kubernetes.client.ApiException as error:
            if error.status != ALREADY_THERE:
                raise
    for kind in (ROLE_SCALER, DYNAMO, DYNAMO_BETA):
        rig.wait_for(partial(is_served, custom, kind), what=f"{kind.kind} is served")


def is_served(custom: kubernetes.client.CustomObjectsApi, kind: Kind) -> bool:
    """Whether objects of this kind can be listed."""
    try:
        custom.list_cluster_custom_object(kind.group, kind.version, kind.plural)
    except kubernetes.client.ApiException:
        return False
    return True


def behind(tenant: Tenant) -> dict[str, Any]:
    """The workload that an adapter scales: any object of a kind that is not watched."""
    made = tenant.core.create_namespaced_config_map(
        tenant.namespace, {"metadata": {"name": "behind"}}
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "behind",
        "uid": made.metadata.uid,
    }


@pytest.mark.usefixtures("other_crds")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.kind}-{kind.version}")
def test_a_kind_of_another_project_is_scaled(
    operator: Operator, tenant: Tenant, kind: Kind
) -> None:
    """Its count is set through /scale, and its pods are those that its status selects."""
    where = {"group": kind.group, "version": kind.version, "plural": kind.plural}
    where["namespace"] = tenant.namespace
    pods = workload("chat", replicas=1)
    target = {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind, "name": "chat"}
    made = tenant.custom.create_namespaced_custom_object(
        body={
            "apiVersion": target["apiVersion"],
            "kind": kind.kind,
            "metadata": {"name": "chat"},
            "spec": kind.spec(pods["spec"]["template"]),
        },
        **where,
    )
    owner = {**target, "uid": made["metadata"]["uid"], "controller": True}
    if not kind.owns_pods:
        owner = {**behind(tenant), "controller": True}
    pods["metadata"]["ownerReferences"] = [owner]
    tenant.apps.create_namespaced_replica_set(tenant.namespace, pods)

    def follow(replicas: int) -> None:
        """What its controller does."""
        tenant.apps.patch_namespaced_replica_set_scale(
            "chat", tenant.namespace, {"spec": {"replicas": replicas}}
        )
        tenant.custom.patch_namespaced_custom_object_status(
            name="chat", body={"status": kind.status(replicas)}, **where
        )

    def asked() -> int:
        found: dict[str, Any] = tenant.custom.get_namespaced_custom_object(name="chat", **where)
        return int(found["spec"]["replicas"])

    def told() -> tuple[int, int]:
        found = tenant.status().get("replicas") or {}
        return found.get("current", -1), found.get("ready", -1)

    follow(1)
    tenant.create_slo(targetRef=target, replicas={"min": 1, "max": 4})
    tenant.wait_condition("MetricsFresh", "True")
    tenant.wait(lambda: told() == (1, 1), what="its pod is found")
    tenant.patch_slo({"replicas": {"min": 2, "max": 4}})
    tenant.wait(lambda: asked() == 2, what="/scale is patched")
    follow(2)
    tenant.wait(lambda: told() == (2, 2), what="its pods are found")
    ticks_pass(operator)
    assert asked() == 2
    tenant.wait_condition("Ready", "True", "Ready")
