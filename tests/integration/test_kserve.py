"""KServe's resources as targets, by KServe's own CRD; its controller is a stand-in.

The operator finds the workload that the controller made by its owner and labels, reads it, and
writes nothing that the controller would put back.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.keda_manifests import SCALED_OBJECTS, documented
from tests.integration.kserve_stand_in import (
    API_VERSION,
    KIND,
    SERVICES,
    SETS,
    install_crd,
    prefill,
    service,
    stand_in,
)
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import (
    INFERENCE_SERVICE,
    LEADER_WORKER_SET,
    install_crds,
)

TARGET = {"apiVersion": API_VERSION, "kind": KIND, "name": "llama"}
# The operator looks for a CRD that is not installed this often.
ABSENT_CRD_SECONDS = 60.0


@pytest.fixture
def user(rig: Rig, tenant: Tenant) -> Iterator[Tenant]:
    """A tenant whose LLMInferenceServices get their children."""
    install_crd(rig)
    install_crds(rig.api_client(), LEADER_WORKER_SET)
    with stand_in(rig, tenant.namespace):
        yield tenant


def create_service(user: Tenant, manifest: dict[str, Any]) -> None:
    """As a user applies it: unknown fields are refused."""
    user.custom.create_namespaced_custom_object(
        namespace=user.namespace, body=manifest, field_validation="Strict", **SERVICES
    )


def told(user: Tenant, name: str = "chat") -> tuple[int, int]:
    """The count and the ready replicas in the status."""
    found = user.status(name).get("replicas") or {}
    return found.get("current", -1), found.get("ready", -1)


def test_the_child_is_found_and_its_template_is_left_alone(
    user: Tenant, operator: Operator
) -> None:
    """Its count is set, which KServe keeps; limits are only recommended, and a rival is told.

    Until the child is there, the status says what is missing.
    """
    user.create_slo(targetRef=TARGET, batching={"mode": "Auto"})
    user.wait_condition("Ready", "False", "TargetNotFound")
    user.wait_message("Ready", "LLMInferenceService/llama")
    create_service(user, service("llama", app="chat"))
    user.wait(lambda: told(user) == (1, 1), what="the child's pod is found")
    user.patch_slo({"replicas": {"min": 2, "max": 4}})
    user.wait(lambda: user.replicas("llama-kserve") == 2, what="the child is scaled")
    user.wait(lambda: told(user) == (2, 2), what="both pods are found")
    ticks_pass(operator)
    assert user.replicas("llama-kserve") == 2
    user.wait_condition("Ready", "True", "Ready")
    assert user.arguments("llama-kserve")[1] == "--max-num-seqs=64"

    child = {"kind": "Deployment", "name": "llama-kserve"}
    user.create_slo("rival", targetRef=child, replicas={"min": 3, "max": 4})
    user.wait_condition("Ready", "False", "TargetConflict", name="rival")
    ticks_pass(operator)
    assert user.replicas("llama-kserve") == 2


def test_prefill_and_decode_are_found_by_their_part(user: Tenant, operator: Operator) -> None:
    """Two pools name one service: a Deployment of prefill, a LeaderWorkerSet whose groups count."""
    worker = workload("worker", replicas=1)["spec"]["template"]["spec"]
    create_service(
        user, service("llama", app="decode", worker=worker, prefill=prefill(app="prefill"))
    )
    groups = workload("decode", replicas=1)

    def set_of_groups() -> dict[str, Any]:
        found: dict[str, Any] = user.custom.get_namespaced_custom_object(
            namespace=user.namespace, name="llama-kserve-mn", **SETS
        )
        return found

    def is_made() -> bool:
        listed = user.custom.list_namespaced_custom_object(namespace=user.namespace, **SETS)
        return bool(listed["items"])

    user.wait(is_made, what="the LeaderWorkerSet is made")
    owner = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "llama-kserve-mn",
        "uid": set_of_groups()["metadata"]["uid"],
        "controller": True,
    }
    # The controller of LeaderWorkerSet does not run: its leaders are pods of this ReplicaSet.
    groups["metadata"]["ownerReferences"] = [owner]
    user.apps.create_namespaced_replica_set(user.namespace, groups)

    def follow(replicas: int) -> None:
        user.apps.patch_namespaced_replica_set_scale(
            "decode", user.namespace, {"spec": {"replicas": replicas}}
        )
        status = {"replicas": replicas, "readyReplicas": replicas, "hpaPodSelector": "app=decode"}
        user.custom.patch_namespaced_custom_object_status(
            namespace=user.namespace, name="llama-kserve-mn", body={"status": status}, **SETS
        )

    follow(1)
    bounds = {"replicas": {"min": 2, "max": 4}}
    user.create_slo(
        targetRef=None,
        replicas=None,
        coldStart=None,
        pools=[
            {"name": "prefill", "role": "Prefill", "targetRef": TARGET, **bounds},
            {"name": "decode", "role": "Decode", "targetRef": TARGET, **bounds},
        ],
    )
    user.wait(lambda: user.replicas("llama-kserve-prefill") == 2, what="prefill is scaled")
    user.wait(lambda: set_of_groups()["spec"]["replicas"] == 2, what="the groups are scaled")
    follow(2)
    user.wait(
        lambda: [one["replicas"]["ready"] for one in user.status().get("pools", ())] == [2, 2],
        what="pods of both are found",
    )
    ticks_pass(operator)
    assert set_of_groups()["spec"]["replicas"] == 2


@pytest.mark.usefixtures("keda_crds")
def test_a_scaled_object_counts_as_ours_only_if_it_asks_the_operator(
    user: Tenant, operator: Operator
) -> None:
    """KServe makes it of spec.scaling.keda: with triggers of its own it is a conflict."""
    own = {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "80"}}
    asking = documented("type: external-push", user.namespace, "chat")["spec"]["triggers"][0]
    create_service(
        user,
        service("llama", app="chat", scaling={"maxReplicas": 4, "keda": {"triggers": [own]}}),
    )
    user.create_slo(targetRef=TARGET, actuation="Keda", replicas={"min": 2, "max": 4})
    user.wait_condition("Ready", "False", "ScalerConflict", timeout_seconds=ABSENT_CRD_SECONDS)
    user.wait_message("Ready", "ScaledObject/llama-kserve-keda")
    user.wait_message("Ready", "external-push")
    user.custom.patch_namespaced_custom_object(
        namespace=user.namespace,
        name="llama-kserve-keda",
        body={"spec": {"triggers": [asking]}},
        **SCALED_OBJECTS,
    )
    user.wait_condition("Ready", "True", "Ready")
    ticks_pass(operator)
    assert user.replicas("llama-kserve") == 1


def test_an_inference_service_stands_for_its_predictor(
    rig: Rig, tenant: Tenant, operator: Operator
) -> None:
    """Its other components are no engines; what its controller would make, the test makes."""
    install_crds(rig.api_client(), INFERENCE_SERVICE)
    where = {"group": "serving.kserve.io", "version": "v1beta1", "plural": "inferenceservices"}
    target = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    containers = workload("chat", replicas=1)["spec"]["template"]["spec"]["containers"]
    made = tenant.custom.create_namespaced_custom_object(
        namespace=tenant.namespace,
        body={
            **target,
            "metadata": {"name": "llama"},
            "spec": {"predictor": {"containers": containers}},
        },
        field_validation="Strict",
        **where,
    )
    owner = {**target, "name": "llama", "uid": made["metadata"]["uid"], "controller": True}
    for component, app in (("predictor", "chat"), ("transformer", "words")):
        child = workload(app, replicas=1)
        child["metadata"] = {
            "name": f"llama-{component}",
            "labels": {"serving.kserve.io/inferenceservice": "llama", "component": component},
            "ownerReferences": [owner],
        }
        tenant.apps.create_namespaced_deployment(tenant.namespace, child)
    tenant.create_slo(targetRef={**target, "name": "llama"}, replicas={"min": 2, "max": 4})
    tenant.wait(lambda: tenant.replicas("llama-predictor") == 2, what="the predictor is scaled")
    tenant.wait(lambda: told(tenant) == (2, 2), what="its pods are found")
    assert tenant.replicas("llama-transformer") == 1
