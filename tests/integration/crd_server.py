"""An API server by plain HTTP, and a ServingSLO with its status, for the tests of the CRD."""

from typing import Any

import requests

from servingslo.api.crd import custom_resource_definition
from servingslo.api.v1alpha1 import API_VERSION, KIND, PLURAL
from servingslo_lab.rig.cluster import Rig

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD_NAME = custom_resource_definition()["metadata"]["name"]
TIMEOUT_SECONDS = 30
MINIMAL = {
    "targetRef": {"kind": "Deployment", "name": "llama-chat"},
    "objectives": [{"metric": "ttft", "percentile": 99, "threshold": "500ms"}],
    "replicas": {"max": 8},
}
TIME = "2026-01-02T03:04:05Z"
STATUS = {
    "observedGeneration": 3,
    "reason": "KVCacheBound",
    "summary": "ttft p99 ≤ 0.5s: met. 5 replicas: KV cache memory binds",
    "target": "llama-prefill + 1 more",
    "replicas": {"current": 3, "ready": 2, "desired": 5},
    "poolsSummary": "prefill 2/decode 1",
    "pools": [
        {
            "name": name,
            "role": role,
            "target": f"Deployment/llama-{name}",
            "replicas": {"current": count, "ready": count, "desired": count + 1},
            "reason": "TTFTBound",
            "bindingConstraint": "ttft",
            "utilization": 0.6,
            "coldStartSeconds": 90.5,
            "cost": {"currency": "USD", "perHour": 2.5},
            "model": {"fitError": 0.02, "source": "fit", "runtime": "vllm"},
            "batching": {"current": {"maxNumSeqs": 256}},
        }
        for name, role, count in (("prefill", "Prefill", 2), ("decode", "Decode", 1))
    ],
    "bindingConstraint": "kv-cache",
    "observed": {
        "arrivalsPerSecond": 41.2,
        "objectives": [
            {"metric": "ttft", "percentile": 99, "observedSeconds": 0.5, "shareLow": 0.9}
        ],
    },
    "predicted": {"utilization": 0.71},
    "model": {"fitError": 0.02, "source": "fit", "runtime": "vllm"},
    "batching": {"current": {"maxNumSeqs": 256}, "lastChange": TIME},
    "admission": {"admittedPerSecond": 52.5, "queueLimit": 12, "shedFraction": 0},
    "conditions": [
        {
            "type": "SLOMet",
            "status": "True",
            "reason": "WithinObjectives",
            "message": "All objectives are met.",
            "lastTransitionTime": TIME,
            "observedGeneration": 3,
        },
        {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "the target is watched and decided for",
            "lastTransitionTime": TIME,
            "observedGeneration": 3,
        },
    ],
    "lastDecision": {
        "time": TIME,
        "action": "scale-up",
        "reason": "KVCacheBound",
        "replicasBefore": 3,
        "replicasAfter": 5,
        "steps": [
            {"stage": "bounds", "before": 9, "after": 5, "inputs": {"max": 5}},
            {"stage": "batching", "before": None, "after": "recommended", "inputs": {}},
        ],
    },
    "decisions": ["2026-01-02T03:03:50Z hold replicas=3 reason=DemandMet"],
    "learned": {
        "data": "eJyrBQAAewB7",
        "schemaVersion": 1,
        "savedAt": TIME,
        "state": {"fit": [1.5, [2, 3]], "events": [[12.5, 2]]},
    },
}


class Server:
    """The API server by plain HTTP: messages and headers arrive as they are sent."""

    def __init__(self, rig: Rig) -> None:
        configuration = rig.api_client().configuration
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = configuration.ssl_ca_cert
        authentication = configuration.auth_settings()["BearerToken"]
        self._session.headers[authentication["key"]] = authentication["value"]
        self._url = configuration.host

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """The answer, whatever its status."""
        return self._session.request(
            method, f"{self._url}{path}", timeout=TIMEOUT_SECONDS, **options
        )

    def create(
        self,
        namespace: str,
        spec: object,
        *,
        validation: str = "Strict",
        dry_run: bool = True,
        name: str = "llama-chat",
    ) -> requests.Response:
        """The answer to creating a ServingSLO with this spec."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        params = {"fieldValidation": validation} | ({"dryRun": "All"} if dry_run else {})
        return self.call("POST", resources(namespace), json=body, params=params)


def resources(namespace: str) -> str:
    """The path of the ServingSLOs of a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"
