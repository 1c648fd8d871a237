"""Without the operator: a canary is taken back, and the pod that hangs in it is replaced."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import kubernetes
import pytest
from tests.features.batch_limits.orders import canary_order
from tests.integration.manifests import workload

from servingslo.adapters.kubernetes.api.client import connect
from servingslo.features.batch_limits.pod_template import BatchCanaries
from servingslo.features.batch_limits.records import CANARY_ANNOTATION
from servingslo.policy.inputs import ScaleTarget
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import wait_until

pytestmark = pytest.mark.slow("servingslo.features.batch_limits", "servingslo.cli")

FAILURE = "rig.servingslo.dev/failure"
FEW, MANY, REPLICAS = 8, 16, 2
TARGET = ScaleTarget(api_version="apps/v1", kind="StatefulSet", name="chat")
ORDER = canary_order((FEW, 2048), (MANY, 2048))
PATIENCE_SECONDS = 60.0


def _begin(rig: Rig, namespace: str) -> None:
    async def start() -> None:
        client = await connect(kubeconfig=str(rig.admin_kubeconfig))
        try:
            canaries = BatchCanaries(client)
            target = await canaries.read(namespace, TARGET)
            assert target is not None
            assert await canaries.start(target, *ORDER)
        finally:
            await client.close()

    asyncio.run(start())


def _limits(pod: Any) -> str:
    """The last flag counts."""
    return [one for one in pod.spec.containers[0].args if "max-num-seqs" in one][-1]


def _crashes(pod: Any) -> bool:
    waiting = [one.state.waiting for one in pod.status.container_statuses or () if one.state]
    return any(one is not None and one.reason == "CrashLoopBackOff" for one in waiting)


def test_a_stateful_set_replaces_the_pod_that_crashes(rig: Rig, namespace: str) -> None:
    """With the new limits it never gets ready; with Parallel its controller waits for none."""
    api = rig.api_client()
    apps, core = kubernetes.client.AppsV1Api(api), kubernetes.client.CoreV1Api(api)
    manifest = workload(
        "chat", replicas=REPLICAS, args=[f"--max-num-seqs={FEW}"], ready_delay="500ms"
    )
    manifest["spec"] |= {"serviceName": "chat", "podManagementPolicy": "Parallel"}
    apps.create_namespaced_stateful_set(namespace, manifest)

    def read() -> Mapping[str, Any]:
        found = apps.read_namespaced_stateful_set("chat", namespace)
        plain: Mapping[str, Any] = api.sanitize_for_serialization(found)
        return plain

    def all_ready_with(limit: int) -> bool:
        pods = core.list_namespaced_pod(namespace).items
        ready = (read().get("status") or {}).get("readyReplicas") == REPLICAS
        return ready and {_limits(pod) for pod in pods} == {f"--max-num-seqs={limit}"}

    wait_until(lambda: all_ready_with(FEW), what="two pods", timeout_seconds=PATIENCE_SECONDS)
    first = read()["spec"]
    _begin(rig, namespace)

    def unready() -> bool:
        ready: int = read()["status"].get("readyReplicas", 0)
        return ready < REPLICAS

    def crashes() -> bool:
        new = [
            pod
            for pod in core.list_namespaced_pod(namespace).items
            if _limits(pod).endswith(f"={MANY}")
        ]
        for pod in new:
            note = {"metadata": {"uid": pod.metadata.uid, "annotations": {FAILURE: "crash-loop"}}}
            # Its controller may replace it meanwhile.
            with contextlib.suppress(kubernetes.client.exceptions.NotFoundException):
                core.patch_namespaced_pod(pod.metadata.name, namespace, note)
        # Its start may still be under way: a pod that was ready once is replaced in any case.
        return bool(new) and all(_crashes(pod) for pod in new) and unready()

    wait_until(crashes, what="the new pod crashes", timeout_seconds=PATIENCE_SECONDS)

    done = subprocess.run(
        [
            *(sys.executable, "-m", "servingslo.cli", "release", "--all"),
            *(f"--namespace={namespace}", f"--kubeconfig={rig.admin_kubeconfig}"),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"max_num_seqs {MANY} -> {FEW}" in done.stdout
    wait_until(
        lambda: all_ready_with(FEW), what="all are as before", timeout_seconds=PATIENCE_SECONDS
    )
    assert read()["spec"] == first
    assert "since_seconds" not in read()["metadata"]["annotations"][CANARY_ANNOTATION]
