"""Fields of a Deployment or StatefulSet that make one pod get a new template first."""

from collections.abc import Mapping
from typing import Any

# Fields of the spec that hold a rollout, by kind; only these are restored.
ROLLOUT_FIELDS = {
    "Deployment": ("strategy", "minReadySeconds", "paused"),
    "StatefulSet": ("updateStrategy",),
}
# A rollout can be paused only after it has begun. Until then, no second pod may be replaced.
_PAUSED_WITHIN_SECONDS = 60
# Source: apps/v1 DeploymentSpec, default of progressDeadlineSeconds; minReadySeconds is below it.
_PROGRESS_DEADLINE_SECONDS = 600


def one_pod(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The rollout fields that let only a single pod be replaced."""
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
    """Why a single pod cannot get the template first; '' if it can."""
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
    """Whether a pod that never gets ready blocks the rollout, even of a corrected template.

    Source: kubernetes#67250; processReplica in stateful_set_control.go of 1.36.
    """
    return kind == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel"


def _surges(strategy: Mapping[str, Any]) -> bool:
    """Whether maxSurge allows at least one extra pod; the default is a quarter more."""
    surge = (strategy.get("rollingUpdate") or {}).get("maxSurge", "25%")
    return str(surge).removesuffix("%") != "0"


def _no_partition(strategy: Mapping[str, Any], count: int) -> str:
    if strategy.get("type") == "OnDelete":
        return "updateStrategy OnDelete replaces no pod by itself"
    if (strategy.get("rollingUpdate") or {}).get("partition"):
        return "the StatefulSet's partition is in use"
    return "one replica has no sibling" if count < 2 else ""
