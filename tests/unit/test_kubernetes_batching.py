"""The patch of a pod template that sets batch limits, and the one that takes it back."""

import copy

import pytest

from servingslo.adapters.kubernetes.batch_limits.writer import KubernetesBatching
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.ports import EngineArguments

TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")


class _Resource:
    def path(self, namespace, name):
        return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"


class _Cluster:
    """An API server with one Deployment, which carries JSON Patches out."""

    def __init__(self, container):
        self.item = {
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }

    async def resolve(self, _api_version, _kind):
        return _Resource()

    async def get(self, _path):
        return copy.deepcopy(self.item)

    async def patch(self, _path, patch, _kind, **_):
        for change in patch:
            *parents, key = change["path"].strip("/").split("/")
            place = self.item
            for part in parents:
                place = place[int(part)] if isinstance(place, list) else place[part]
            if change["op"] == "test":
                assert place[key] == change["value"]
            elif change["op"] == "remove":
                del place[key]
            else:
                assert change["op"] == "add"
                place[key] = change["value"]

    @property
    def container(self):
        return self.item["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("container", "former"),
    [
        pytest.param({"args": ["--model", "m"]}, EngineArguments(), id="no-flag"),
        pytest.param({"command": ["vllm", "serve", "m"]}, EngineArguments(), id="no-args"),
        pytest.param(
            {"command": ["vllm"], "args": ["--max_num_seqs", "8", "--model=m"]},
            EngineArguments(max_num_seqs=8),
            id="one-flag-apart",
        ),
        pytest.param(
            {"args": ["--max-num-batched-tokens=512", "m", "--max-num-seqs=8"]},
            EngineArguments(max_num_seqs=8, max_num_batched_tokens=512),
            id="both",
        ),
    ],
)
async def test_a_change_is_taken_back_to_the_very_container_that_it_was_made_on(container, former):
    """A limit of None has its flag removed, so the pod template is the one from before."""
    container = {"name": "engine", "image": "vllm/vllm-openai:v0.20.0", **container}
    cluster = _Cluster(copy.deepcopy(container))
    batching = KubernetesBatching(cluster, cluster)
    limits = EngineArguments(max_num_seqs=32, max_num_batched_tokens=1024)
    assert await batching.apply("team", TARGET, None, limits, "vllm")
    assert cluster.container != container
    assert await batching.apply("team", TARGET, None, former, "vllm")
    assert cluster.container == container
    assert not await batching.apply("team", TARGET, None, former, "vllm")
