"""A stand-in for KServe's controller: the children of an LLMInferenceService, and nothing else.

KServe's own controller is not run. Names, labels, owners, and what is kept or put back are those of
its sources: github.com/kserve/kserve v0.20.0, pkg/controller/v1alpha2/llmisvc
(workload_single_node.go, workload_multi_node.go, PreserveDeploymentReplicas), and for
`spec.scaling.keda` expectedDirectScaledObject of its pull request 5839.
"""

import copy
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import kubernetes
from tests.integration.keda_manifests import SCALED_OBJECTS
from tests.integration.manifests import workload

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import (
    KEDA,
    LLM_INFERENCE_SERVICE,
    LLM_PRESET,
    manifests,
)
from servingslo_lab.rig.waiting import wait_until

SERVICES = {"group": "serving.kserve.io", "version": "v1alpha2", "plural": "llminferenceservices"}
SETS = {"group": "leaderworkerset.x-k8s.io", "version": "v1", "plural": "leaderworkersets"}
API_VERSION = "serving.kserve.io/v1alpha2"
KIND = "LLMInferenceService"
COMPONENT = "app.kubernetes.io/component"
_CRDS = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_SERVED_SECONDS = 120.0
_TURN_SECONDS = 0.3
_NOT_FOUND, _CONFLICT = 404, 409
_GO_TEMPLATE = re.compile(r"\{\{.*?}}")


def crd() -> dict[str, Any]:
    """KServe's CRD of v0.20.0, with the field `scaling.keda` that came after it.

    That field is its own `scaling.wva.keda` without the rules of WVA, and KEDA's own triggers. Only
    the stored version is served: both take an API server on a busy machine a minute.
    """
    found = copy.deepcopy(manifests(LLM_INFERENCE_SERVICE)[0])
    found["spec"]["versions"] = [one for one in found["spec"]["versions"] if one["storage"]]
    scaled_object = next(
        one for one in manifests(KEDA) if one["spec"]["names"]["kind"] == "ScaledObject"
    )
    triggers = _schema(scaled_object)["spec"]["properties"]["triggers"]
    spec = _schema(found)["spec"]["properties"]
    for workload_spec in (spec, spec["prefill"]["properties"]):
        scaling = workload_spec["scaling"]
        keda = copy.deepcopy(scaling["properties"]["wva"]["properties"]["keda"])
        keda.pop("x-kubernetes-validations")
        keda["properties"]["triggers"] = {**triggers, "minItems": 1}
        keda["required"] = ["triggers"]
        scaling["properties"]["keda"] = keda
        scaling["x-kubernetes-validations"] = [
            {
                "rule": "has(self.wva) != has(self.keda)",
                "message": "exactly one of wva and keda is required",
            }
        ]
    return found


def install_crd(rig: Rig) -> None:
    """Have the API server serve it."""
    custom = kubernetes.client.CustomObjectsApi(rig.api_client())
    try:
        custom.create_cluster_custom_object(*_CRDS, crd())
    except kubernetes.client.ApiException as error:
        if error.status != _CONFLICT:
            raise

    def served() -> bool:
        try:
            custom.list_cluster_custom_object(**SERVICES)
        except kubernetes.client.ApiException:
            return False
        return True

    wait_until(served, what=f"{KIND} is served", timeout_seconds=_SERVED_SECONDS)


def service(name: str, *, app: str, **spec: Any) -> dict[str, Any]:
    """An LLMInferenceService of simulated engines, whose pods have the label app."""
    template = workload(app, replicas=1)["spec"]["template"]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {"model": {"uri": "hf://tiny/tiny"}, **_workload_spec(template), **spec},
    }


def prefill(*, app: str, **spec: Any) -> dict[str, Any]:
    """Its field `prefill`, of simulated engines whose pods have the label app."""
    return {**_workload_spec(workload(app, replicas=1)["spec"]["template"]), **spec}


def merged(template: Mapping[str, Any]) -> dict[str, Any]:
    """A service's pod template over KServe's preset, of which an engine here reads the command.

    Source: mergeSpecs: containers by name, and command and args each as a whole.
    """
    (preset,) = manifests(LLM_PRESET)
    presets = {one["name"]: one for one in preset["spec"]["template"]["containers"]}
    found: dict[str, Any] = copy.deepcopy(dict(template))
    for entry in found["containers"]:
        known = presets.get(entry["name"], {})
        for key in {"command", "args"} & known.keys() - entry.keys():
            # Of its Go template only names and paths depend, and no limit.
            entry[key] = [_GO_TEMPLATE.sub("", word) for word in known[key]]
    return found


def _workload_spec(template: Mapping[str, Any]) -> dict[str, Any]:
    metadata = template["metadata"]
    return {
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "template": template["spec"],
    }


@contextmanager
def stand_in(rig: Rig, namespace: str) -> Iterator[None]:
    """Make and keep the children of this namespace's LLMInferenceServices meanwhile."""
    ends, controller = threading.Event(), _Controller(rig, namespace)

    def run() -> None:
        while not ends.wait(_TURN_SECONDS):
            controller.turn()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(timeout=30)


class _Controller:
    """What is made of each service: a workload for the main part, and one for prefill."""

    def __init__(self, rig: Rig, namespace: str) -> None:
        self._namespace = namespace
        client = rig.api_client()
        self._apps = kubernetes.client.AppsV1Api(client)
        self._custom = kubernetes.client.CustomObjectsApi(client)

    def turn(self) -> None:
        """Look at every service once."""
        found = self._custom.list_namespaced_custom_object(namespace=self._namespace, **SERVICES)
        for one in found["items"]:
            self._keep(one, one["spec"], "")
            if "prefill" in one["spec"]:
                self._keep(one, one["spec"]["prefill"], "-prefill")

    def _keep(self, one: Mapping[str, Any], spec: Mapping[str, Any], part: str) -> None:
        if "worker" in spec:
            name = f"{one['metadata']['name']}-kserve-mn{part}"
            self._keep_set(one, spec, name, part)
            reference = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        else:
            name = f"{one['metadata']['name']}-kserve{part}"
            self._keep_deployment(one, spec, name, part)
            reference = {"apiVersion": "apps/v1", "kind": "Deployment"}
        if "scaling" in spec:
            self._keep_scaled_object(one, spec["scaling"], {**reference, "name": name}, part)

    def _keep_deployment(
        self, one: Mapping[str, Any], spec: Mapping[str, Any], name: str, part: str
    ) -> None:
        labels = _labels(one, f"llminferenceservice-workload{part}")
        template = {
            "metadata": {
                "labels": {**labels, **spec.get("labels", {})},
                "annotations": spec.get("annotations", {}),
            },
            "spec": merged(spec["template"]),
        }
        manifest = {
            "metadata": _metadata(one, name, labels),
            "spec": {
                **({"replicas": spec["replicas"]} if "replicas" in spec else {}),
                "selector": {"matchLabels": labels},
                "template": template,
            },
        }
        try:
            now = self._apps.read_namespaced_deployment(name, self._namespace)
        except kubernetes.client.ApiException as error:
            if error.status != _NOT_FOUND:
                raise
            self._apps.create_namespaced_deployment(self._namespace, manifest)
            return
        # The template is put back; a count that the service does not state is left as it is.
        arguments = [list(entry.args or []) for entry in now.spec.template.spec.containers]
        wanted = [list(entry.get("args") or []) for entry in template["spec"]["containers"]]
        if arguments != wanted or spec.get("replicas", now.spec.replicas) != now.spec.replicas:
            manifest["spec"].setdefault("replicas", now.spec.replicas)
            self._apps.replace_namespaced_deployment(name, self._namespace, manifest)

    def _keep_set(
        self, one: Mapping[str, Any], spec: Mapping[str, Any], name: str, part: str
    ) -> None:
        labels = _labels(one, f"llminferenceservice-workload-worker{part}")
        leader = _labels(one, f"llminferenceservice-workload-leader{part}")
        manifest = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": _metadata(one, name, labels),
            "spec": {
                "leaderWorkerTemplate": {
                    "size": 2,
                    "leaderTemplate": {
                        "metadata": {"labels": {**leader, **spec.get("labels", {})}},
                        "spec": spec["template"],
                    },
                    "workerTemplate": {"metadata": {"labels": labels}, "spec": spec["worker"]},
                }
            },
        }
        self._create_custom(manifest, SETS)

    def _keep_scaled_object(
        self,
        one: Mapping[str, Any],
        scaling: Mapping[str, Any],
        reference: Mapping[str, str],
        part: str,
    ) -> None:
        name = f"{one['metadata']['name']}-kserve{part}-keda"
        manifest = {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": _metadata(one, name, _labels(one, "llminferenceservice-workload")),
            "spec": {
                "scaleTargetRef": dict(reference),
                "minReplicaCount": scaling.get("minReplicas", 1),
                "maxReplicaCount": scaling["maxReplicas"],
                **scaling["keda"],
            },
        }
        self._create_custom(manifest, SCALED_OBJECTS)

    def _create_custom(self, manifest: Mapping[str, Any], where: Mapping[str, str]) -> None:
        try:
            self._custom.create_namespaced_custom_object(
                namespace=self._namespace, body=manifest, field_validation="Strict", **where
            )
        except kubernetes.client.ApiException as error:
            if error.status != _CONFLICT:
                raise


def _labels(one: Mapping[str, Any], component: str) -> dict[str, str]:
    return {
        COMPONENT: component,
        "app.kubernetes.io/name": one["metadata"]["name"],
        "app.kubernetes.io/part-of": "llminferenceservice",
    }


def _metadata(one: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": one["metadata"]["name"],
        "uid": one["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": name, "labels": dict(labels), "ownerReferences": [owner]}


def _schema(manifest: Mapping[str, Any]) -> dict[str, Any]:
    version = next(one for one in manifest["spec"]["versions"] if one["storage"])
    properties: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return properties
