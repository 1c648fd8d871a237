"""The rig is a real cluster: it schedules, starts, fails, scales, authorizes, and goes away."""

from datetime import timedelta
from typing import Any

import kubernetes
import pytest

from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.kubernetes import kwok
from servingslo_lab.rig.programs import versions

# Of the rig itself: what it runs is another matter.
pytestmark = pytest.mark.slow("servingslo_lab.rig")

_CLOCK_GRAIN = timedelta(seconds=1)  # the API stores whole seconds


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


def test_api_server_is_of_the_pinned_version(rig):
    """The API server reports the version that go.mod pins."""
    code = kubernetes.client.VersionApi(rig.api_client()).get_code()
    assert code.git_version == f"v{versions.KUBE_APISERVER.version}"
    assert (code.major, code.minor) == tuple(versions.KUBE_APISERVER.version.split(".")[:2])


def test_scaled_deployment_has_ready_pods_after_the_stated_delay(rig, namespace, apps, core):
    """Pods of a scaled Deployment become Ready, none before its cold start is over."""
    template = _pod_template(annotations={kwok.READY_DELAY_ANNOTATION: "2500ms"})
    apps.create_namespaced_deployment(
        namespace, _deployment("engine", replicas=1, template=template)
    )
    apps.patch_namespaced_deployment_scale("engine", namespace, {"spec": {"replicas": 3}})
    rig.wait_for(
        lambda: apps.read_namespaced_deployment("engine", namespace).status.ready_replicas == 3,
        what="three ready replicas",
    )
    pods = core.list_namespaced_pod(namespace).items
    assert len({pod.status.pod_ip for pod in pods}) == 3
    for pod in pods:
        started = pod.status.start_time
        ready = _condition(pod, "Ready").last_transition_time
        assert ready - started >= timedelta(seconds=2.5) - _CLOCK_GRAIN
        status = pod.status.container_statuses[0]
        assert (status.name, status.ready, status.started) == ("engine", True, True)
        assert status.state.running.started_at >= started


def test_update_of_a_starting_pod_does_not_restart_its_delay(rig, namespace, core):
    """The moment of readiness is fixed when the pod starts, whatever happens to it meanwhile."""
    _create_pod(core, namespace, "one", annotations={kwok.READY_DELAY_ANNOTATION: "3s"})
    pod = _wait_pod(rig, core, namespace, "one", lambda p: p.status.pod_ip, "pod has an address")
    planned = _condition(pod, "rig.servingslo.dev/ReadyAt").message
    core.patch_namespaced_pod("one", namespace, {"metadata": {"labels": {"touched": "yes"}}})
    pod = _wait_pod(rig, core, namespace, "one", _is_ready, "pod Ready")
    assert _condition(pod, "rig.servingslo.dev/ReadyAt").message == planned
    assert pod.metadata.labels["touched"] == "yes"


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


def test_ready_pod_turns_unready_and_recovers(rig, namespace, core):
    """A failed readiness probe takes Ready away, and its end gives it back."""
    _create_pod(core, namespace, "one", annotations={kwok.READY_DELAY_ANNOTATION: "100ms"})
    _wait_pod(rig, core, namespace, "one", _is_ready, "pod Ready")
    unready = {"metadata": {"annotations": {kwok.FAILURE_ANNOTATION: "unready"}}}
    core.patch_namespaced_pod("one", namespace, unready)
    pod = _wait_pod(rig, core, namespace, "one", lambda p: not _is_ready(p), "pod not Ready")
    assert pod.status.phase == "Running"
    unready["metadata"]["annotations"][kwok.FAILURE_ANNOTATION] = None
    core.patch_namespaced_pod("one", namespace, unready)
    _wait_pod(rig, core, namespace, "one", _is_ready, "pod Ready again")


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


def test_deleted_pod_stays_until_it_has_stopped(rig, namespace, core):
    """Deletion is graceful: the pod is terminating for its stop delay, then gone."""
    annotations = {kwok.READY_DELAY_ANNOTATION: "100ms", kwok.STOP_DELAY_ANNOTATION: "2s"}
    _create_pod(core, namespace, "one", annotations=annotations)
    _wait_pod(rig, core, namespace, "one", _is_ready, "pod Ready")
    core.delete_namespaced_pod("one", namespace)
    pod = core.read_namespaced_pod("one", namespace)
    assert pod.metadata.deletion_timestamp is not None
    assert _is_ready(pod)
    rig.wait_for(lambda: not core.list_namespaced_pod(namespace).items, what="the pod is gone")


def test_grace_period_ends_a_pod_that_would_not_stop(rig, namespace, core):
    """A stop delay longer than the grace period is cut short."""
    annotations = {kwok.READY_DELAY_ANNOTATION: "100ms", kwok.STOP_DELAY_ANNOTATION: "1h"}
    _create_pod(core, namespace, "one", annotations=annotations)
    _wait_pod(rig, core, namespace, "one", _is_ready, "pod Ready")
    core.delete_namespaced_pod("one", namespace, grace_period_seconds=1)
    rig.wait_for(lambda: not core.list_namespaced_pod(namespace).items, what="the pod is gone")


def test_horizontal_pod_autoscaler_acts(rig, namespace, apps):
    """The HPA controller of the real controller manager raises replicas to its minimum."""
    apps.create_namespaced_deployment(
        namespace, _deployment("engine", replicas=1, template=_pod_template())
    )
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    autoscaling = kubernetes.client.AutoscalingV2Api(rig.api_client())
    autoscaling.create_namespaced_horizontal_pod_autoscaler(
        namespace,
        {
            "metadata": {"name": "engine"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "engine"},
                "minReplicas": 2,
                "maxReplicas": 4,
                "metrics": [metric],
            },
        },
    )
    rig.wait_for(
        lambda: apps.read_namespaced_deployment("engine", namespace).spec.replicas == 2,
        what="the HPA raises replicas to two",
    )


def test_rollout_replaces_every_pod(rig, namespace, apps, core):
    """A changed pod template rolls through the Deployment controller to new Ready pods."""
    annotations = {kwok.READY_DELAY_ANNOTATION: "100ms"}
    template = _pod_template(annotations=annotations)
    apps.create_namespaced_deployment(
        namespace, _deployment("engine", replicas=2, template=template)
    )

    def rolled_out() -> bool:
        found = apps.read_namespaced_deployment("engine", namespace)
        status = found.status
        counts = (status.updated_replicas, status.ready_replicas, status.replicas)
        return status.observed_generation == found.metadata.generation and counts == (2, 2, 2)

    rig.wait_for(rolled_out, what="first rollout")
    before = {pod.metadata.name for pod in core.list_namespaced_pod(namespace).items}
    template["spec"]["containers"][0]["args"] = ["--max-num-seqs=64"]
    apps.patch_namespaced_deployment("engine", namespace, {"spec": {"template": template}})
    rig.wait_for(rolled_out, what="second rollout")
    rig.wait_for(
        lambda: before.isdisjoint(
            pod.metadata.name for pod in core.list_namespaced_pod(namespace).items
        ),
        what="old pods gone",
    )


def test_service_account_token_is_limited_by_rbac(rig, namespace, core):
    """A ServiceAccount's token does what its Role allows, and nothing else."""
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "reader"}})
    rbac = kubernetes.client.RbacAuthorizationV1Api(rig.api_client())
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    rbac.create_namespaced_role(namespace, {"metadata": {"name": "reader"}, "rules": [rule]})
    rbac.create_namespaced_role_binding(
        namespace,
        {
            "metadata": {"name": "reader"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "reader",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
        },
    )
    kubeconfig = rig.kubeconfig_for_service_account(namespace, "reader")
    as_reader = kubernetes.client.CoreV1Api(rig.api_client(kubeconfig))
    assert as_reader.list_namespaced_pod(namespace).items == []
    for forbidden in (
        lambda: as_reader.list_namespaced_secret(namespace),
        lambda: as_reader.list_namespaced_pod("default"),
        lambda: as_reader.delete_collection_namespaced_pod(namespace),
    ):
        with pytest.raises(kubernetes.client.ApiException) as refused:
            forbidden()
        assert refused.value.status == 403


def test_token_of_an_unknown_service_account_is_refused(rig, namespace):
    """There is no kubeconfig for a ServiceAccount that does not exist."""
    with pytest.raises(RigError, match="nobody"):
        rig.kubeconfig_for_service_account(namespace, "nobody")


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


def test_helm_talks_to_the_cluster(rig, namespace):
    """Helm installs a chart into the cluster, and its own message comes back when it cannot."""
    chart = rig.work_dir / f"chart-{namespace}"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: tiny\nversion: 0.1.0\n")
    (chart / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-chart}\n"
    )
    rig.helm("install", "tiny", str(chart), "--namespace", namespace)
    core = kubernetes.client.CoreV1Api(rig.api_client())
    assert core.read_namespaced_config_map("from-chart", namespace)
    with pytest.raises(RigError, match="cannot reuse a name"):
        rig.helm("install", "tiny", str(chart), "--namespace", namespace)
