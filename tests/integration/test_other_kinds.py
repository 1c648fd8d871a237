"""Targets of other projects, by their own CRDs: /scale is read and patched, their pods are found.

Their controllers do not run: what they would write, a status and pods, the test writes.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.upstream_crds import ARGO_ROLLOUTS, LEADER_WORKER_SET, install_crds

SELECTOR = "app=chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind: where it is served, a spec around a pod template, and what its status tells."""

    group: str
    version: str
    kind: str
    plural: str

    def spec(self, template: dict[str, Any]) -> dict[str, Any]:
        """One replica of this template."""
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


KINDS = (
    Kind(
        group="leaderworkerset.x-k8s.io",
        version="v1",
        kind="LeaderWorkerSet",
        plural="leaderworkersets",
    ),
    Kind(group="argoproj.io", version="v1alpha1", kind="Rollout", plural="rollouts"),
)


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator allows both."""
    return tuple(
        setting
        for place, kind in enumerate(KINDS)
        for setting in (
            f"extraScalableKinds[{place}].apiGroup={kind.group}",
            f"extraScalableKinds[{place}].resource={kind.plural}",
        )
    )


@pytest.fixture(scope="module")
def other_crds(rig: Rig) -> None:
    """The projects' own CRDs."""
    install_crds(rig.api_client(), ARGO_ROLLOUTS, LEADER_WORKER_SET)


@pytest.mark.usefixtures("other_crds")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
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
    pods["metadata"]["ownerReferences"] = [
        {**target, "uid": made["metadata"]["uid"], "controller": True}
    ]
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
