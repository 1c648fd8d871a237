"""`servingslo migrate`: nothing of a whole HPA or ScaledObject is dropped in silence."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.cli_calls import CLI
from tests.unit.test_migrate import TTFT, called, comments, prometheus

_BEHAVIOR = {
    "scaleUp": {
        "stabilizationWindowSeconds": 11,
        "selectPolicy": "Min",
        "tolerance": "12m",
        "policies": [{"type": "Percent", "value": 13, "periodSeconds": 14}],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 15,
        "selectPolicy": "Disabled",
        "tolerance": "16m",
        "policies": [{"type": "Pods", "value": 17, "periodSeconds": 18}],
    },
}
_SELECTED = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["of-selector"]}]}
# Source: Kubernetes v1.36, staging/src/k8s.io/api/autoscaling/v2/types.go.
HPA: dict[str, Any] = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "chat"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "example.com/v3", "kind": "Engine", "name": "target"},
        "minReplicas": 2,
        "maxReplicas": 19,
        "metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "target": {
                "type": "Utilization", "averageUtilization": 21}}},
            {"type": "ContainerResource", "containerResource": {
                "name": "memory", "container": "sidecar",
                "target": {"type": "AverageValue", "averageValue": "22Mi"}}},
            {"type": "Pods", "pods": {
                "metric": {"name": "of_pods", "selector": _SELECTED},
                "target": {"type": "AverageValue", "averageValue": "23"}}},
            {"type": "Object", "object": {
                "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "described"},
                "metric": {"name": "of_object", "selector": {"matchLabels": {"a": "of-object"}}},
                "target": {"type": "Value", "value": "24"}}},
            {"type": "External", "external": {
                "metric": {"name": "of_outside", "selector": {"matchLabels": {"b": "of-queue"}}},
                "target": {"type": "Value", "value": "25"}}},
        ],
        "behavior": _BEHAVIOR,
    },
}  # fmt: skip
# Source: KEDA v2.21 apis/keda/v1alpha1/scaledobject_types.go, scaletriggers_types.go.
SCALED_OBJECT: dict[str, Any] = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "ScaledObject",
    "metadata": {
        "name": "chat",
        "annotations": {
            "scaledobject.keda.sh/transfer-hpa-ownership": "transferred",
            "validations.keda.sh/hpa-ownership": "validated",
            "autoscaling.keda.sh/paused-replicas": "31",
        },
    },
    "spec": {
        "scaleTargetRef": {
            "apiVersion": "example.com/v3", "kind": "Engine", "name": "target",
            "envSourceContainerName": "of-environment",
        },
        "pollingInterval": 32,
        "cooldownPeriod": 33,
        "initialCooldownPeriod": 34,
        "idleReplicaCount": 0,
        "minReplicaCount": 2,
        "maxReplicaCount": 35,
        "fallback": {"failureThreshold": 4, "replicas": 6, "behavior": "currentReplicasIfLower"},
        "advanced": {
            "restoreToOriginalReplicaCount": True,
            "horizontalPodAutoscalerConfig": {"name": "of-hpa", "behavior": _BEHAVIOR},
            "scalingModifiers": {
                "target": "36", "activationTarget": "37", "metricType": "AverageValue",
            },
        },
        "triggers": [
            prometheus("sum(queue)", "38", name="of-trigger", metricType="Value",
                       useCachedMetrics=True,
                       authenticationRef={"name": "of-secret", "kind": "OfKind"}),
            {"type": "cron", "name": "of-cron", "metricType": "AverageValue", "metadata": {
                "start": "0 6 * * *", "end": "0 20 * * *", "desiredReplicas": "1",
                "timezone": "Asia/Kolkata"}},
        ],
    },
}  # fmt: skip


def _leaves(part: Any) -> Iterator[str]:
    """Each value, as text."""
    if isinstance(part, dict):
        part = [*part.values()]
    if isinstance(part, list):
        for one in part:
            yield from _leaves(one)
    else:
        yield "true" if part is True else str(part)


@pytest.mark.parametrize("document", [HPA, SCALED_OBJECT], ids=["HPA", "ScaledObject"])
def test_every_value_of_a_spec_is_in_the_output(cli: CLI, document: Any) -> None:
    """In the spec that is written, or in a comment."""
    done = called(cli, document, flags=("--objective", "ttft:p99:1s"))
    assert done.exit_code == 0, done.err
    values = {*_leaves(document["spec"]), *_leaves(document["metadata"])}
    lower = done.out.lower()
    assert not {one for one in values if one.lower() not in lower}, done.out


@pytest.mark.parametrize(
    "trigger",
    [
        pytest.param(prometheus(TTFT, "1", metricType="Value"), id="an objective"),
        pytest.param(prometheus("sum(queue)", "5"), id="a threshold"),
        pytest.param({"type": "cron", "metadata": {"start": "0 6 * * *", "end": "0 20 * * *",
                                                   "desiredReplicas": "4"}}, id="a window"),
    ],
)  # fmt: skip
def test_every_setting_of_a_trigger_is_named(cli: CLI, trigger: Any) -> None:
    """Those of an activation with their values; an address may have credentials in it."""
    more = {"activationThreshold": "7", "serverAddress": "http://me:secret@prom", "mode": "m"}
    changed = {**trigger, "metadata": {**trigger["metadata"], **more}}
    spec = {**SCALED_OBJECT["spec"], "advanced": {}, "triggers": [changed]}
    said = comments(cli, {**SCALED_OBJECT, "spec": spec})
    where = "spec.triggers[0].metadata"
    assert f"{where}.activationThreshold 7: the first replica follows from requests" in said
    assert f"{where}.serverAddress: where and how KEDA reads the trigger" in said
    assert f"{where}.mode: where and how" in said
    assert "secret" not in said.replace("of-secret", "")


def test_a_threshold_is_shown_before_a_long_query(cli: CLI) -> None:
    """What is cut off at the end is part of the query."""
    triggers = [prometheus(f"sum({'a' * 500})", "41")]
    said = comments(cli, {**SCALED_OBJECT, "spec": {**SCALED_OBJECT["spec"], "triggers": triggers}})
    assert "prometheus threshold 41, query sum(aaa" in said
