"""The fields of a Deployment or StatefulSet with which one pod gets a new template first."""

from collections.abc import Mapping
from typing import Any

# Fields of the spec that hold a rollout, by kind; no others are put back.
ROLLOUT_FIELDS = {
    "Deployment": ("strategy", "minReadySeconds", "paused"),
    "StatefulSet": ("updateStrategy",),
}
# Until the rollout is paused, which cannot be before it has begun, no second pod is replaced.
_PAUSED_WITHIN_SECONDS = 60
# Source: apps/v1 DeploymentSpec, default of progressDeadlineSeconds; minReadySeconds is below it.
_PROGRESS_DEADLINE_SECONDS = 600


def one_pod(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the rollout with which a single pod is replaced."""
    if kind == "StatefulSet":
        last = max((1 if spec.get("replicas") is None else spec["replicas"]) - 1, 0)
        return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": last}}}
    surge = int(_surges(spec.get("strategy") or {}))
    deadline = spec.get("progressDeadlineSeconds") or _PROGRESS_DEADLINE_SECONDS
    least = max(spec.get("minReadySeconds") or 0, min(_PAUSED_WITHIN_SECONDS, deadline - 1))
    return {
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1 - surge},
        },
        "minReadySeconds": least,
    }


def not_possible(kind: str, spec: Mapping[str, Any]) -> str:
    """Why no single pod can go first; '' where one can."""
    count = 1 if spec.get("replicas") is None else spec["replicas"]
    if kind == "StatefulSet":
        return _no_partition(spec.get("updateStrategy") or {}, count)
    if spec.get("paused"):
        return "the Deployment is paused"
    strategy: Mapping[str, Any] = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return "strategy Recreate stops all pods at once"
    if count < 2 and not _surges(strategy):
        return "one replica without maxSurge has no sibling"
    return ""


def waits_for_each_pod(kind: str, spec: Mapping[str, Any]) -> bool:
    """Whether a pod that does not get ready is never replaced, whatever the template says by now.

    Source: kubernetes#67250; processReplica in stateful_set_control.go of 1.36.
    """
    return kind == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel"


def _surges(strategy: Mapping[str, Any]) -> bool:
    """Whether its owner lets a pod more than asked for run; the default is a quarter more."""
    surge = (strategy.get("rollingUpdate") or {}).get("maxSurge", "25%")
    return str(surge).removesuffix("%") != "0"


def _no_partition(strategy: Mapping[str, Any], count: int) -> str:
    if strategy.get("type") == "OnDelete":
        return "updateStrategy OnDelete replaces no pod by itself"
    if (strategy.get("rollingUpdate") or {}).get("partition"):
        return "the StatefulSet's partition is in use"
    return "one replica has no sibling" if count < 2 else ""
