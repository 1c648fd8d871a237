"""What stands on the cluster of batch limits in mid-change: for tests/unit/test_switches.py."""

from typing import Any

from tests.features.batch_limits.orders import canary_order

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.features.batch_limits.pod_template import BatchCanaries
from servingslo.policy.inputs import ScaleTarget


def _deployment(name: str) -> dict[str, Any]:
    engine = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": ["--max-num-seqs=8"]}
    return {
        "replicas": 4,
        "strategy": {"type": "RollingUpdate"},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [engine]}},
    }


def specs(namespace: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Path and spec of each workload that has a trial, by what is on trial."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    return {
        "trial": (f"{path}/chat", _deployment("chat")),
        "bound on trial": (f"{path}/queued", _deployment("queued")),
    }


async def written(api: Any, owner: ResourceRef) -> None:
    """Limits of one workload, and limits with a bound of another, are on trial and held."""
    canaries = BatchCanaries(api)
    for name, queue in (("chat", ()), ("queued", (None, 64))):
        _, *order = canary_order((8, 2048), (32, 2048), queue=queue)
        target = ScaleTarget(api_version="apps/v1", kind="Deployment", name=name)
        found = await canaries.read(owner.namespace, target)
        assert found is not None
        assert await canaries.start(found, owner, *order)
        found = await canaries.read(owner.namespace, target)
        assert found is not None
        assert await canaries.hold(found)
