"""A target and its pods as they are read from caches: which container is read, and written to."""

from typing import Any

import pytest

from servingslo.adapters.kubernetes.pods.config_maps import NoConfigMaps
from servingslo.adapters.kubernetes.pods.records import deployment_record, pod_record
from servingslo.adapters.kubernetes.workloads import KubernetesWorkloads
from servingslo.estimation.sample import EngineSample
from servingslo.policy.inputs import LIMIT_FIELDS, ScaleTarget
from servingslo.policy.ports import ClusterMetrics, PodMetrics, WorkloadView
from servingslo.reasons import Reason

TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
SERVICE = ScaleTarget(
    api_version="serving.kserve.io/v1alpha2", kind="LLMInferenceService", name="llama"
)
# Of a Deployment that KServe's controller made.
KEPT = {
    "ownerReferences": [
        {
            "apiVersion": "serving.kserve.io/v1alpha2",
            "kind": "LLMInferenceService",
            "name": "llama",
            "uid": "u",
            "controller": True,
        }
    ],
    "labels": {"app.kubernetes.io/component": "llminferenceservice-workload"},
}
ENGINE = {
    "name": "engine",
    "image": "vllm/vllm-openai:v0.11.0",
    "args": ["--model", "m", "--max-num-seqs", "48"],
    "resources": {"limits": {"nvidia.com/gpu": 1}},
}
PROXY = {"name": "front", "image": "proxy:1", "args": ["--upstream=http://127.0.0.1:8000/"]}
MESH = {"name": "istio-proxy", "image": "istio/proxyv2:1", "args": ["proxy", "sidecar"]}


class _Collection:
    def __init__(self, *records: Any) -> None:
        self.records = records

    def problem(self, _namespace: str) -> None:
        return None

    def get(self, _namespace: str, _name: str) -> Any:
        return self.records[0]


class _Inventory:
    """Caches with one Deployment and one pod of it."""

    def __init__(
        self, template: dict[str, Any], pod: dict[str, Any], metadata: dict[str, Any] | None = None
    ) -> None:
        own = {"namespace": "n", "name": "chat", "uid": "t", "resourceVersion": "3"}
        target = {
            "metadata": {**own, **(metadata or {})},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "chat"}},
                "template": {"spec": template},
            },
        }
        running = {
            "metadata": {"namespace": "n", "name": "chat-1", "uid": "p"},
            "spec": pod,
        }
        self.targets = _Collection(deployment_record(target, None))
        self.pods = _Collection(pod_record(running, None))
        self.replica_sets = self.autoscalers = _Collection()

    def target_collection(self, _target: ScaleTarget) -> _Collection:
        return self.targets

    def workload_pods(self, _namespace: str, **_of: Any) -> Any:
        return self.pods.records

    def rolls_out(self, _namespace: str, _uid: str) -> bool:
        return False

    def parts(self, _namespace: str, _wanted: Any) -> tuple[str, ...]:
        return ("chat",)

    def scalers_of(self, *_of: str) -> tuple[str, ...]:
        return ()

    def woken_by_keda(self, *_of: str) -> bool:
        return False


class _Discovery:
    async def resolve_scalable(self, _api_version: str, _kind: str) -> None:
        return None


async def _read(
    template: list[dict[str, Any]],
    pod: list[dict[str, Any]],
    container: str | None = None,
    *,
    native: tuple[dict[str, Any], ...] = (),
    metadata: dict[str, Any] | None = None,
    target: ScaleTarget = TARGET,
) -> WorkloadView:
    inits = [{**one, "restartPolicy": "Always"} for one in native]
    inventory: Any = _Inventory(
        {"containers": template, "initContainers": inits},
        {"containers": pod, "initContainers": inits},
        metadata,
    )
    client: Any = None
    discovery: Any = _Discovery()
    metrics = ClusterMetrics(
        pods={("n", "chat-1"): PodMetrics(engines=(EngineSample(engine="0", runtime="vllm"),))}
    )
    workloads = KubernetesWorkloads(client, discovery, inventory, NoConfigMaps())
    return await workloads.read("n", target, container, metrics.recognize("n", None))


@pytest.mark.parametrize(
    ("template", "pod"),
    [
        pytest.param([ENGINE], [ENGINE], id="alone"),
        pytest.param([PROXY, ENGINE], [PROXY, ENGINE], id="proxy-first"),
        pytest.param([ENGINE], [MESH, ENGINE], id="injected-first"),
        pytest.param([PROXY, ENGINE], [MESH, PROXY, ENGINE], id="both"),
        pytest.param([ENGINE, PROXY], [ENGINE, PROXY, MESH], id="behind"),
    ],
)
async def test_the_engines_limits_are_read_whatever_stands_beside_it(template, pod) -> None:
    """Limits, image and device are those of the engine's container, and it may be changed."""
    view = await _read(template, pod)
    assert view.arguments["chat-1"].max_num_seqs == 48
    assert view.pods[0].image == ENGINE["image"]
    assert view.pods[0].launch is not None
    assert view.pods[0].launch.accelerator
    assert view.batching_change_refused is None


async def test_where_the_engine_is_not_clear_nothing_is_read_and_no_change_allowed() -> None:
    """Both the limits and the refusal of a change name the field that settles it."""
    other = {**ENGINE, "name": "second"}
    view = await _read([ENGINE, other], [MESH, ENGINE, other])
    assert view.arguments["chat-1"].max_num_seqs is None
    launch, refused = view.pods[0].launch, view.batching_change_refused
    assert launch is not None
    assert refused is not None
    assert launch.unread_limits == ("max_num_seqs", "max_num_batched_tokens")
    assert refused.reason is Reason.ARGUMENTS_NOT_UNDERSTOOD
    for said in (launch.unread, refused.detail):
        assert "engine, second" in said
        assert "spec.batching.container" in said
    named = await _read([ENGINE, other], [MESH, ENGINE, other], "second")
    assert named.arguments["chat-1"].max_num_seqs == 48
    assert named.batching_change_refused is None


async def test_an_engine_that_is_a_native_sidecar_is_read_and_not_changed() -> None:
    """An init container that goes on running may be the engine; its arguments stay."""
    view = await _read([PROXY], [PROXY], native=(ENGINE,))
    assert view.arguments["chat-1"].max_num_seqs == 48
    assert view.batching_change_refused is not None
    assert "engine is an init container" in view.batching_change_refused.detail


@pytest.mark.parametrize("target", [SERVICE, TARGET], ids=["the-service", "its-child"])
async def test_a_template_that_kserve_keeps_is_read_and_not_changed(target) -> None:
    """Its controller would put the arguments back: the message names where they belong."""
    view = await _read([ENGINE], [ENGINE], metadata=KEPT, target=target)
    assert view.arguments["chat-1"].max_num_seqs == 48
    refused = view.batching_change_refused
    assert refused is not None
    assert refused.reason is Reason.KIND_NOT_SUPPORTED
    assert "LLMInferenceService/llama" in refused.detail
    assert "set the limits there" in refused.detail


async def test_a_pod_that_is_one_node_of_an_engine_is_no_replica() -> None:
    """Its limits are read; a count of such pods is not changed."""
    node = {**ENGINE, "args": ["--model", "m", "--nnodes=2", "--max-num-seqs", "48"]}
    view = await _read([node], [node])
    (problem,) = view.problems
    assert problem.reason is Reason.TARGET_NOT_SCALABLE
    assert "--nnodes '2'" in problem.detail
    assert view.arguments["chat-1"].max_num_seqs == 48
    assert not (await _read([ENGINE], [ENGINE])).problems


async def test_a_start_command_inside_the_image_is_not_read() -> None:
    """No default stands in, and nothing is written; of vLLM's own image it is known."""
    for image, unseen, args in (
        ("team/chat:2", True, []),
        ("vllm/vllm-openai:v0.20.0", False, []),
        ("registry.example/worker-vllm:v2.7.0", True, ["--port", "8000"]),
        ("team/vllm-chat:1.2", True, ["/etc/app/config.yaml"]),
        ("kserve/huggingfaceserver:v0.15.2", True, ["--max-model-len=4096"]),
    ):
        bare = {"name": "engine", "image": image, "resources": ENGINE["resources"], "args": args}
        view = await _read([bare], [bare])
        launch = view.pods[0].launch
        assert launch is not None
        told = f"the start command of image {image} is not seen"
        assert launch.unread == (told if unseen else "")
        assert launch.unread_limits == (LIMIT_FIELDS if unseen else ())
        refused = view.batching_change_refused
        assert refused is not None
        assert refused.reason is Reason.ARGUMENTS_NOT_UNDERSTOOD
