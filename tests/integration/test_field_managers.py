"""Two field managers, and a patch of one objective, at a real API server."""

from typing import Any

import yaml
from tests.integration.crd_server import MINIMAL, Server, resources

from servingslo.api.v1alpha1 import API_VERSION, KIND


def applied(server: Server, namespace: str, manager: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The resource after a manager applied these fields, without force."""
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "llama-chat", "namespace": namespace},
        "spec": spec,
    }
    answer = server.call(
        "PATCH",
        f"{resources(namespace)}/llama-chat",
        data=yaml.safe_dump(body),
        headers={"Content-Type": "application/apply-patch+yaml"},
        params={"fieldManager": manager, "fieldValidation": "Strict"},
    )
    assert answer.ok, answer.text
    return answer.json()


def thresholds(resource: dict[str, Any]) -> dict[tuple[str, float], str]:
    """The thresholds by metric and percentile."""
    return {
        (each["metric"], each["percentile"]): each["threshold"]
        for each in resource["spec"]["objectives"]
    }


def objective(metric: str, percentile: float, threshold: str) -> dict[str, Any]:
    """One objective, as it is written."""
    return {"metric": metric, "percentile": percentile, "threshold": threshold}


def test_a_manager_of_one_objective_leaves_those_of_another(server: Server, namespace: str) -> None:
    """It adds, changes and withdraws its own; a percentile with a fraction is a key, too."""
    first, second = objective("tpot", 99.9, "80ms"), objective("tpot", 99.9, "90ms")
    applied(server, namespace, "platform", MINIMAL)
    applied(server, namespace, "team", {"objectives": [first]})
    both = applied(server, namespace, "team", {"objectives": [second]})
    assert thresholds(both) == {("ttft", 99): "500ms", ("tpot", 99.9): "90ms"}
    again = applied(server, namespace, "platform", MINIMAL)
    assert thresholds(again) == thresholds(both)
    other = {"objectives": [objective("latency", 95, "30s")]}
    changed = applied(server, namespace, "team", other)
    assert thresholds(changed) == {("ttft", 99): "500ms", ("latency", 95): "30s"}
