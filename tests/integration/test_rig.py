"""The rig is a real cluster: it schedules, starts, fails, scales, authorizes, and goes away."""

from typing import Any

import kubernetes
import pytest

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.kubernetes import kwok

# Of the rig itself: what it runs is another matter.
pytestmark = pytest.mark.slow("servingslo_lab.rig")


def _pod_template(
    *, annotations: dict[str, str] | None = None, gpus: int = 1, node_labels: dict | None = None
) -> dict[str, Any]:
    container = {"name": "engine", "image": "vllm/vllm-openai:v0.32.0"}
    if gpus:
        container["resources"] = {"limits": {kwok.GPU_RESOURCE: str(gpus)}}
    return {
        "metadata": {"labels": {"app": "engine"}, "annotations": annotations or {}},
        "spec": {"containers": [container], "nodeSelector": node_labels or {}},
    }


def _deployment(name: str, *, replicas: int, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "engine"}},
            "template": template,
        },
    }


def _condition(pod: kubernetes.client.V1Pod, kind: str) -> kubernetes.client.V1PodCondition | None:
    return next((item for item in pod.status.conditions or [] if item.type == kind), None)


def _is_ready(pod: kubernetes.client.V1Pod) -> bool:
    condition = _condition(pod, "Ready")
    return condition is not None and condition.status == "True"


@pytest.fixture
def core(rig: Rig) -> kubernetes.client.CoreV1Api:
    """The core API as administrator."""
    return kubernetes.client.CoreV1Api(rig.api_client())


@pytest.fixture
def apps(rig: Rig) -> kubernetes.client.AppsV1Api:
    """The apps API as administrator."""
    return kubernetes.client.AppsV1Api(rig.api_client())


def _wait_pod(rig: Rig, core, namespace: str, name: str, check, what: str):
    """The pod as soon as ``check(pod)`` is true."""
    rig.wait_for(lambda: check(core.read_namespaced_pod(name, namespace)), what=what)
    return core.read_namespaced_pod(name, namespace)


def _create_pod(core, namespace: str, name: str, **template: Any) -> None:
    body = _pod_template(**template)
    body["metadata"]["name"] = name
    core.create_namespaced_pod(namespace, body)


def test_ninth_gpu_pod_stays_pending_until_a_gpu_is_free(rig, namespace, core):
    """A node with eight GPUs runs eight pods; the ninth is Unschedulable until one goes."""
    label = {"pool": namespace}
    nodes = rig.add_nodes(1, gpus_per_node=8, labels=label)
    try:
        for index in range(9):
            _create_pod(
                core,
                namespace,
                f"pod-{index}",
                node_labels=label,
                annotations={kwok.READY_DELAY_ANNOTATION: "100ms"},
            )

        def ready_pods() -> list[kubernetes.client.V1Pod]:
            return [pod for pod in core.list_namespaced_pod(namespace).items if _is_ready(pod)]

        rig.wait_for(lambda: len(ready_pods()) == 8, what="eight ready pods")
        names = {pod.metadata.name for pod in ready_pods()}
        (ninth,) = {f"pod-{index}" for index in range(9)} - names

        def refused(pod: kubernetes.client.V1Pod) -> bool:
            scheduled = _condition(pod, "PodScheduled")
            return scheduled is not None and scheduled.reason == "Unschedulable"

        pod = _wait_pod(rig, core, namespace, ninth, refused, "the ninth pod is refused")
        assert pod.status.phase == "Pending"
        assert kwok.GPU_RESOURCE in _condition(pod, "PodScheduled").message
        core.delete_namespaced_pod(names.pop(), namespace)
        _wait_pod(rig, core, namespace, ninth, _is_ready, "the ninth pod takes the freed GPU")
    finally:
        rig.remove_nodes(nodes)


@pytest.mark.parametrize(
    ("failure", "phase", "reason"),
    [
        pytest.param("hang", "Pending", "ContainerCreating", id="hang"),
        pytest.param("image-pull", "Pending", "ImagePullBackOff", id="image-pull"),
        pytest.param("crash-loop", "Running", "CrashLoopBackOff", id="crash-loop"),
    ],
)
def test_pod_that_fails_to_start_says_why_and_starts_when_repaired(
    rig, namespace, core, failure, phase, reason
):
    """A pod with a start failure shows the kubelet's own reason, and is Ready once it is lifted."""
    annotations = {kwok.FAILURE_ANNOTATION: failure, kwok.READY_DELAY_ANNOTATION: "200ms"}
    _create_pod(core, namespace, "one", annotations=annotations)

    def shows(pod: kubernetes.client.V1Pod) -> bool:
        statuses = pod.status.container_statuses or []
        waiting = [item.state.waiting.reason for item in statuses if item.state.waiting]
        return pod.status.phase == phase and waiting == [reason]

    pod = _wait_pod(rig, core, namespace, "one", shows, f"pod shows {reason}")
    assert not _is_ready(pod)
    repaired = {"metadata": {"annotations": {kwok.FAILURE_ANNOTATION: None}}}
    core.patch_namespaced_pod("one", namespace, repaired)
    _wait_pod(rig, core, namespace, "one", _is_ready, "the repaired pod is Ready")


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({kwok.LIFETIME_ANNOTATION: "500ms"}, id="lifetime-over"),
        pytest.param({}, id="told-to-exit"),
    ],
)
def test_failed_pod_is_replaced_by_its_deployment(rig, namespace, apps, core, annotations):
    """A running pod that fails turns Failed, and the ReplicaSet makes another."""
    template = _pod_template(annotations={kwok.READY_DELAY_ANNOTATION: "100ms", **annotations})
    apps.create_namespaced_deployment(
        namespace, _deployment("engine", replicas=1, template=template)
    )
    rig.wait_for(lambda: core.list_namespaced_pod(namespace).items, what="the first pod")
    first = core.list_namespaced_pod(namespace).items[0].metadata.name
    if not annotations:
        _wait_pod(rig, core, namespace, first, _is_ready, "pod Ready")
        told = {"metadata": {"annotations": {kwok.FAILURE_ANNOTATION: "exit"}}}
        core.patch_namespaced_pod(first, namespace, told)

    def failed(pod: kubernetes.client.V1Pod) -> bool:
        return pod.status.phase == "Failed"

    pod = _wait_pod(rig, core, namespace, first, failed, "the pod fails")
    assert pod.status.container_statuses[0].state.terminated.exit_code == 137
    rig.wait_for(
        lambda: any(p.metadata.name != first for p in core.list_namespaced_pod(namespace).items),
        what="a pod in its place",
    )


def test_cluster_works_on_after_an_api_server_outage(rig, namespace, core, apps):
    """Objects survive the outage, and controllers, scheduler and nodes carry on."""
    apps.create_namespaced_deployment(
        namespace,
        _deployment(
            "engine",
            replicas=1,
            template=_pod_template(annotations={kwok.READY_DELAY_ANNOTATION: "100ms"}),
        ),
    )
    rig.stop_api_server()
    try:
        with pytest.raises(Exception, match=r"(?i)refused|max retries"):
            core.list_namespaced_pod(namespace, _request_timeout=2)
    finally:
        rig.start_api_server()
    apps.patch_namespaced_deployment_scale("engine", namespace, {"spec": {"replicas": 2}})
    rig.wait_for(
        lambda: apps.read_namespaced_deployment("engine", namespace).status.ready_replicas == 2,
        what="two ready replicas after the outage",
        timeout_seconds=90,
    )
