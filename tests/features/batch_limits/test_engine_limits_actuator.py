"""What the actuator of batch limits finds in a pod template: limits, and who set them."""

import copy
from typing import Any

import pytest

from servingslo.adapters.kubernetes.api.field_managers import arguments_set_by, replicas_set_by
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.features.batch_limits.actuator import EngineLimits
from servingslo.features.batch_limits.canary import TEMPLATE
from servingslo.features.batch_limits.pod_template import BatchCanaries
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    LIMIT_FIELDS,
    BatchingMode,
    BatchingTargets,
    InForce,
    ScaleTarget,
    Targets,
)
from servingslo.policy.knobs.in_flight.engines import QUEUE
from servingslo.policy.ports import WorkloadView
from servingslo.runtimes.recognition import Recognition

TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
TARGETS = Targets(
    target=TARGET,
    objectives=(Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),),
    batching=BatchingTargets(mode=BatchingMode.AUTO),
)
REF = ResourceRef(namespace="a", name="chat", uid="u-1")
PROXY = {"name": "front", "image": "proxy:1", "args": ["--listen=:8443"]}
CARD = {"limits": {"nvidia.com/gpu": 1}}


def _entry(manager: str, time: str, container: str = "engine", *owned: str) -> dict[str, Any]:
    fields = {f"f:{name}": {} for name in owned or ("args",)}
    line = {f'k:{{"name":"{container}"}}': fields}
    template = {"f:template": {"f:spec": {"f:containers": line}}}
    return {"manager": manager, "time": time, "fieldsV1": {"f:spec": template}}


class _Server:
    def __init__(self, args: list[str], managed: list[dict[str, Any]]) -> None:
        engine = {"name": "engine", "image": "vllm/vllm-openai:v0.11.0", "resources": CARD}
        self.item = {
            "metadata": {
                "name": "chat", "namespace": "a", "uid": "t", "resourceVersion": "7",
                "generation": 1, "managedFields": managed,
            },
            "spec": {
                "replicas": 4, "strategy": {"type": "RollingUpdate"},
                "template": {"spec": {"containers": [PROXY, {**engine, "args": args}]}},
            },
            "status": {"observedGeneration": 1},
        }  # fmt: skip

    async def get(self, _path: str, _query: object = None) -> dict[str, Any]:
        return copy.deepcopy(self.item)


async def _found(args: list[str], managed: list[dict[str, Any]] = []) -> InForce:  # noqa: B006
    client: Any = _Server(args, managed)
    view = WorkloadView(target=TARGET, read_as=Recognition(runtime="vllm"))
    found = await EngineLimits(BatchCanaries(client)).in_force(REF, TARGETS, view)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("args", "limits"),
    [
        pytest.param(["--model", "m"], (None, None), id="none"),
        pytest.param(["--max-num-seqs", "48"], (48, None), id="one"),
        pytest.param(["--max_num_seqs=48", "--max-num-batched-tokens=2k"], (48, 2000), id="both"),
    ],
)
async def test_the_templates_limits_are_those_of_the_engines_container(args, limits) -> None:
    """Beside a proxy that comes first, a flag that is not given is None."""
    found = await _found(args)
    assert tuple(found.values[f"{TEMPLATE}{name}"] for name in LIMIT_FIELDS) == limits
    assert QUEUE in found.values


async def test_a_template_that_cannot_be_read_tells_no_limits() -> None:
    """Nothing that was put back is concluded from a command line that is not understood."""
    client: Any = _Server([], [])
    line = client.item["spec"]["template"]["spec"]["containers"][1]
    line["command"] = ["sh", "-c", "vllm serve m --max-num-seqs 4"]
    view = WorkloadView(target=TARGET, read_as=Recognition(runtime="vllm"))
    found = await EngineLimits(BatchCanaries(client)).in_force(REF, TARGETS, view)
    assert found is not None
    assert not any(name.startswith(TEMPLATE) for name in found.values)


async def test_who_set_the_arguments_last_is_told() -> None:
    """The newest manager of that container's command line, whatever it did elsewhere."""
    managed = [
        _entry("helm", "2026-01-01T00:00:00Z"),
        _entry("argocd-controller", "2026-01-01T00:02:00Z"),
        _entry("injector", "2026-01-01T00:03:00Z", "front"),
        {"manager": "kube-controller-manager", "time": "2026-01-01T00:04:00Z",
         "fieldsV1": {"f:status": {"f:replicas": {}}}},
    ]  # fmt: skip
    assert (await _found(["--max-num-seqs", "48"], managed)).set_by == "argocd-controller"


@pytest.mark.parametrize(
    ("managed", "by"),
    [
        pytest.param([], None, id="nobody"),
        pytest.param([_entry("helm", "1", "engine", "image")], "helm", id="template-alone"),
        pytest.param(
            [_entry("helm", "1", "engine", "command"), _entry("flux", "2", "engine", "image")],
            "helm",
            id="line-before-template",
        ),
        pytest.param([_entry("", "1")], None, id="without-a-name"),
        pytest.param([{"manager": "x"}, {"fieldsV1": None}], None, id="without-fields"),
    ],
)
def test_the_manager_of_a_command_line(managed, by) -> None:
    """Who owns it; else who wrote the template last; None where nobody is told."""
    assert arguments_set_by({"managedFields": managed}, "engine") == by
    assert replicas_set_by({"managedFields": managed}) is None
