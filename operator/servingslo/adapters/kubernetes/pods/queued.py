"""Pods that a scheduling gate holds in a queue, and Kueue's messages about them.

The scheduler ignores a gated pod, so it never reports missing room for it. Still the pod does not
count as starting capacity: it starts only when the gate's owner removes the gate.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.errors import ClusterError, NotFoundError, PermissionDeniedError

# Kueue's gate and labels. Source: kueue, pkg/controller/jobs/pod/constants.
KUEUE_GATE = "kueue.x-k8s.io/admission"
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Of the pods of a StatefulSet or LeaderWorkerSet: an annotation since Kueue 0.18, a label before.
_GROUP = "kueue.x-k8s.io/pod-group-name"
_JOB_LABEL = "kueue.x-k8s.io/job-uid"
# Newest first; a cluster may serve only one of them.
_VERSIONS = ("v1beta2", "v1beta1")
# Conditions of a Workload on its way to admission, in their order.
_CONDITIONS = ("QuotaReserved", "Admitted")
# The wait after a refusal: the right to read Workloads is optional.
REFUSED_SECONDS = 600.0
_LONGEST_MESSAGE = 300


def queued_by(pod: KubeObject) -> str | None:
    """The gates that hold a pod, with Kueue's queue; None if there are none.

    Source: Kubernetes, PodSpec.schedulingGates; condition PodScheduled, reason SchedulingGated.
    """
    gates = _gates(pod)
    if gates:
        names = ", ".join(gates)
        queue = (pod["metadata"].get("labels") or {}).get(_QUEUE_LABEL)
        told = f", queue {queue}" if queue and KUEUE_GATE in gates else ""
        return f"scheduling {'gate' if len(gates) == 1 else 'gates'} {names}{told}"
    conditions: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("conditions") or ()
    scheduled = next((one for one in conditions if one.get("type") == "PodScheduled"), {})
    gated = scheduled.get("status") == "False" and scheduled.get("reason") == "SchedulingGated"
    return (scheduled.get("message") or "SchedulingGated") if gated else None


def queue_group(pod: KubeObject) -> str:
    """Kueue's group of a pod, which names its Workload; '' for a pod with a Workload of its own."""
    metadata: Mapping[str, Any] = pod["metadata"]
    by_annotation = (metadata.get("annotations") or {}).get(_GROUP)
    return by_annotation or (metadata.get("labels") or {}).get(_GROUP) or ""


class KueueMessages:
    """Messages of Kueue's Workloads about waiting pods, if the operator may read them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._refused: dict[str, float] = {}

    async def message(self, namespace: str, uid: str, group: str) -> str:
        """Why the pod of this uid is not admitted, in Kueue's words; '' if not known.

        group: of the pod, '' if it is in none.
        """
        now = SystemClock.elapsed_seconds()
        refused = self._refused.get(namespace)
        if refused is not None and now - refused < REFUSED_SECONDS:
            return ""
        try:
            found = await self._workloads(namespace, uid, group)
        except (PermissionDeniedError, NotFoundError):
            self._refused[namespace] = now
            return ""
        except ClusterError:
            return ""
        self._refused.pop(namespace, None)
        return next((said for one in found if (said := _said(one))), "")

    async def _workloads(self, namespace: str, uid: str, group: str) -> Sequence[KubeObject]:
        """The Workload of a pod, or of its group by name. Raises: ClusterError."""
        query = (
            {"fieldSelector": f"metadata.name={group}"}
            if group
            else {"labelSelector": f"{_JOB_LABEL}={uid}"}
        )
        for version in _VERSIONS:
            path = api_path(f"kueue.x-k8s.io/{version}", "workloads", namespace=namespace)
            try:
                answer = await self._client.get(path, query)
            except NotFoundError:
                continue
            items: Sequence[KubeObject] = answer.get("items") or ()
            return items
        raise NotFoundError("no version of Workload is served that is known here")


def _gates(pod: KubeObject) -> Sequence[str]:
    gates: Sequence[Mapping[str, str]] = (pod.get("spec") or {}).get("schedulingGates") or ()
    return [gate["name"] for gate in gates if gate.get("name")]


def _said(workload: KubeObject) -> str:
    """The message of the first condition that is not true; '' if there is none."""
    conditions = {
        one.get("type"): one for one in (workload.get("status") or {}).get("conditions") or ()
    }
    for name in _CONDITIONS:
        condition = conditions.get(name) or {}
        if condition.get("status") == "False" and condition.get("message"):
            return str(condition["message"])[:_LONGEST_MESSAGE]
    return ""
