"""Batch limits in the pod template of KServe's LLMInferenceService, and the way back."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from servingslo.adapters.kubernetes.api.discovery import ApiResource
from servingslo.adapters.kubernetes.api.marked_objects import RELEASED_ANNOTATION
from servingslo.adapters.kubernetes.batch_limits.canary_records import CANARY_ANNOTATION
from servingslo.adapters.kubernetes.batch_limits.parent_templates import ParentTemplates
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.cli.cluster.release import put_back_templates
from servingslo.controller.actuators.engine_limits import EngineLimits
from servingslo.errors import (
    ArgumentsNotUnderstoodError,
    InvalidObjectError,
    NotFoundError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.explain.changes import ChangeOutcome
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    LIMIT_FIELDS,
    BatchingMode,
    BatchingRollout,
    BatchingTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.knobs.engine_limits.canary import TEMPLATE
from servingslo.policy.ports import EngineArguments, WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes.recognition import Recognition

KSERVE = "serving.kserve.io/v1alpha2"
SERVICE = ScaleTarget(api_version=KSERVE, kind="LLMInferenceService", name="llama")
PREFILL = ScaleTarget(api_version=KSERVE, kind="LLMInferenceService", name="llama", part="prefill")
CHILD = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama-kserve")
REF = ResourceRef(namespace="n", name="chat", uid="u-1")
LABEL = {"servingslo.dev/managed": "true"}
LIMITS = EngineArguments(max_num_seqs=32, max_num_batched_tokens=1024)
IMAGE = "ghcr.io/llm-d/llm-d-cuda:v0.8.0"
# As KServe's presets begin vLLM: args are passed on by a script.
PRESET = ["/bin/bash", "-c", 'eval "exec vllm serve /mnt/models ${VLLM_ADDITIONAL_ARGS} $@"', "--"]
DEAF = ["/bin/bash", "-c", "exec vllm serve /mnt/models", "--"]


class _Server:
    """An API server with one service and its child, whose controller is played by hand."""

    def __init__(
        self,
        own: dict[str, Any],
        preset: dict[str, Any] | None = None,
        *,
        part: str = "",
        labels: dict[str, str] | None = LABEL,
        annotations: dict[str, str] | None = None,
    ) -> None:
        template = {"containers": [{"name": "front"}, {"name": "main", **own}]}
        self.preset = {"name": "main", "image": IMAGE, **(preset or {})}
        self.item: dict[str, Any] = {
            "metadata": {
                "name": "llama", "namespace": "n", "uid": "s", "resourceVersion": "7",
                "labels": dict(labels or {}), "annotations": dict(annotations or {}),
            },
            "spec": {"prefill": {"template": template}} if part else {"template": template},
        }  # fmt: skip
        self.forbidden = False
        self.part = part

    @property
    def own(self) -> dict[str, Any]:
        """The service's own container."""
        spec = self.item["spec"]
        found: dict[str, Any] = (spec.get(self.part) or spec)["template"]["containers"][1]
        return found

    async def resolve(self, api_version: str, kind: str) -> ApiResource:
        plural = {"Deployment": "deployments", "LLMInferenceService": "llminferenceservices"}
        if kind == "LLMInferenceService" and api_version != KSERVE:
            raise NotFoundError(api_version)
        return ApiResource(api_version=api_version, plural=plural[kind], scalable=False)

    async def get(self, path: str, _query: object = None) -> dict[str, Any]:
        if path == "/apis":
            versions = ("serving.kserve.io/v1beta1", KSERVE)
            served = [{"groupVersion": one} for one in versions]
            return {"groups": [{"name": "serving.kserve.io", "versions": served}]}
        if path == f"/apis/{KSERVE}":
            return {"resources": [{"kind": "LLMInferenceService", "name": "llminferenceservices"}]}
        if path == "/apis/serving.kserve.io/v1beta1":
            return {"resources": [{"kind": "InferenceService", "name": "inferenceservices"}]}
        if path.endswith("/deployments/llama-kserve"):
            merged = {**self.preset, **self.own}
            template = {"spec": {"containers": [{"name": "istio-proxy"}, merged]}}
            return copy.deepcopy({"spec": {"template": template}})
        if self.forbidden:
            raise PermissionDeniedError(f"GET {path}: 403")
        if path.endswith("/llminferenceservices/llama"):
            return copy.deepcopy(self.item)
        assert path == f"/apis/{KSERVE}/llminferenceservices"
        return {"items": [copy.deepcopy(self.item)]}

    async def patch(self, path: str, patch: Any, _kind: object, *, field_manager: str) -> None:
        assert path == f"/apis/{KSERVE}/namespaces/n/llminferenceservices/llama"
        assert field_manager == "servingslo-operator"
        item = copy.deepcopy(self.item)
        for change in patch:
            parts = [p.replace("~1", "/") for p in change["path"].strip("/").split("/")]
            place = item
            for part in parts[:-1]:
                place = place[int(part)] if isinstance(place, list) else place[part]
            key: Any = int(parts[-1]) if isinstance(place, list) else parts[-1]
            if change["op"] == "test" and place[key] != change["value"]:
                raise InvalidObjectError("test failed")
            if change["op"] == "remove":
                del place[key]
            elif change["op"] != "test":
                place[key] = change["value"]
        item["metadata"]["resourceVersion"] += "1"
        self.item = item


def _parents(server: Any) -> ParentTemplates:
    return ParentTemplates(server, server)


async def _write(
    server: _Server, target: ScaleTarget = SERVICE, limits: EngineArguments = LIMITS
) -> bool:
    parents = _parents(server)
    engine = await parents.engine("n", CHILD, None, "vllm")
    return await parents.apply(REF, target, engine, limits, "vllm")


async def _refusal(server: _Server, target: ScaleTarget = SERVICE) -> Any:
    parents = _parents(server)
    engine = await parents.engine("n", CHILD, None, "vllm")
    return await parents.refusal("n", target, engine, "vllm")


@pytest.mark.parametrize(
    ("own", "preset", "written"),
    [
        pytest.param(
            {"args": ["--max-num-seqs", "8", "--x"]},
            {"command": PRESET},
            {"args": ["--max-num-seqs", "32", "--x", "--max-num-batched-tokens=1024"]},
            id="own-args-of-a-preset",
        ),
        pytest.param(
            {"resources": {}},
            {"command": PRESET},
            {"args": ["--max-num-seqs=32", "--max-num-batched-tokens=1024"]},
            id="no-args-of-a-preset",
        ),
        pytest.param(
            {"command": ["vllm", "serve", "m"], "args": []},
            {},
            {"args": ["--max-num-seqs=32", "--max-num-batched-tokens=1024"]},
            id="own-command",
        ),
        pytest.param(
            {
                "args": ["--max-num-seqs=$(SEQS)", "--max-num-batched-tokens=1024"],
                "env": [{"name": "A", "value": "8"}, {"name": "SEQS", "value": "8"}],
            },
            {"command": PRESET},
            {"env": [{"name": "A", "value": "8"}, {"name": "SEQS", "value": "32"}]},
            id="a-variable",
        ),
    ],
)
@pytest.mark.parametrize("target", [SERVICE, PREFILL], ids=["main", "prefill"])
async def test_the_way_back_is_to_the_letter(own, preset, written, target) -> None:
    """The service's own line gets the limits, and is the former one again, with no trace."""
    server = _Server(own, preset, part=target.part)
    before = copy.deepcopy({**server.item, "metadata": {}})
    assert await _refusal(server, target) is None
    assert await _write(server, target)
    assert server.own == {"name": "main", **own, **written}
    assert not await _write(server, target)
    (standing,) = await _parents(server).standing()
    assert (standing.part, standing.edited) == (target.part, False)
    assert await _parents(server).take_back(standing)
    assert {**server.item, "metadata": {}} == before
    assert server.item["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("own", "preset", "reason", "said"),
    [
        pytest.param(
            {},
            {"command": PRESET, "args": ["--max-num-seqs=8"]},
            Reason.ARGUMENTS_NOT_UNDERSTOOD,
            "baseRef",
            id="args-of-a-preset",
        ),
        pytest.param(
            {"args": ["--max-num-seqs=8"]},
            {"command": DEAF},
            Reason.ARGUMENTS_NOT_UNDERSTOOD,
            "does not pass args on",
            id="a-command-that-ignores-args",
        ),
        pytest.param({}, {}, Reason.ARGUMENTS_NOT_UNDERSTOOD, "neither command", id="image-alone"),
        pytest.param(
            {"command": ["sh", "-c", "vllm serve m --max-num-seqs 4"]},
            {},
            Reason.ARGUMENTS_NOT_UNDERSTOOD,
            "shell command",
            id="a-script-of-its-own",
        ),
    ],
)
async def test_a_line_that_would_not_reach_the_engine_is_left(own, preset, reason, said) -> None:
    """The condition says which, and the writer refuses as well."""
    server = _Server(own, preset)
    found = await _refusal(server)
    assert found.reason is reason
    assert said in found.detail
    assert "LLMInferenceService/llama" in found.detail
    with pytest.raises(ArgumentsNotUnderstoodError):
        await _write(server)


async def test_only_a_labelled_service_is_written_into() -> None:
    """The label is its owner's word; a container that the service does not state is not made."""
    server = _Server({"args": ["--max-num-seqs=8"]}, {"command": PRESET}, labels=None)
    found = await _refusal(server)
    assert found.reason is Reason.NOT_PERMITTED
    assert 'servingslo.dev/managed: "true"' in found.detail
    with pytest.raises(WriteConflictError):
        await _write(server)
    server.item["metadata"]["labels"] = LABEL
    server.forbidden = True
    assert (await _refusal(server)).reason is Reason.NOT_PERMITTED
    server.forbidden = False
    server.item["spec"]["template"]["containers"] = [{"name": "front"}, {"name": "other"}]
    parents = _parents(server)
    engine = await parents.engine("n", CHILD, "other", "vllm")
    server.item["spec"]["template"]["containers"] = [{"name": "front"}]
    refused = await parents.refusal("n", SERVICE, engine, "vllm")
    assert refused is not None
    assert refused.reason is Reason.CONTAINER_NOT_FOUND


async def test_the_record_keeps_the_line_from_before_the_first_write() -> None:
    """However often limits are written; written back by the plan itself, nothing is left."""
    server = _Server({"args": ["--max-num-seqs=8"]}, {"command": PRESET})
    await _write(server)
    await _write(server, limits=EngineArguments(max_num_seqs=64, max_num_batched_tokens=512))
    (standing,) = await _parents(server).standing()
    assert standing.record is not None
    assert standing.record.args == ["--max-num-seqs=8"]
    assert (standing.record.before, standing.record.after) == ([8, None], [64, 512])
    assert await _write(server, limits=EngineArguments(max_num_seqs=8))
    assert server.own["args"] == ["--max-num-seqs=8"]
    assert await _parents(server).standing() == ()


async def test_a_line_that_another_client_changed_stays() -> None:
    """Only the record goes; the next write of ours begins a new one."""
    server = _Server({"args": ["--max-num-seqs=8"]}, {"command": PRESET})
    await _write(server)
    server.own["args"] = ["--max-num-seqs=100"]
    (standing,) = await _parents(server).standing()
    assert standing.edited
    assert await _parents(server).take_back(standing)
    assert server.own["args"] == ["--max-num-seqs=100"]
    assert server.item["metadata"]["annotations"] == {}
    await _write(server)
    (standing,) = await _parents(server).standing()
    assert standing.record is not None
    assert standing.record.args == ["--max-num-seqs=100"]


async def test_a_record_that_somebody_made_up_ends_nothing() -> None:
    """It names a variable that is not there, or is no record at all."""
    server = _Server({"args": ["--max-num-seqs=8"]}, {"command": PRESET})
    await _write(server)
    record = json.loads(server.item["metadata"]["annotations"][CANARY_ANNOTATION])
    made_up = json.dumps({**record, "variables": {"NONE": "1"}})
    server.item["metadata"]["annotations"][CANARY_ANNOTATION] = made_up
    (standing,) = await _parents(server).standing()
    assert standing.edited
    assert await _parents(server).take_back(standing)
    server.item["metadata"]["annotations"][CANARY_ANNOTATION] = '{"owner": 1}'
    assert await _parents(server).standing() == ()


async def test_a_cluster_without_kserve_has_none() -> None:
    """Nothing is listed there."""

    class _Bare(_Server):
        async def get(self, path: str, _query: object = None) -> dict[str, Any]:
            return {"groups": [{"name": "apps", "versions": [{"groupVersion": "apps/v1"}]}]}

    assert await _parents(_Bare({})).standing() == ()


def _targets(mode: BatchingMode = BatchingMode.AUTO, **batching: Any) -> Targets:
    return Targets(
        target=SERVICE,
        objectives=(Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),),
        batching=BatchingTargets(mode=mode, **batching),
    )


def _actuator(server: _Server) -> EngineLimits:
    anything: Any = _NoCanaries()
    return EngineLimits(anything, anything, _parents(server))


class _NoCanaries:
    async def standing(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize(
    ("acting", "back"),
    [
        pytest.param((_targets(),), False, id="wanted"),
        pytest.param(None, False, id="of-another-shard"),
        pytest.param((), True, id="gone-or-paused"),
        pytest.param((_targets(BatchingMode.RECOMMEND),), True, id="recommend"),
    ],
)
async def test_the_former_line_comes_back_once_nobody_asks(acting, back) -> None:
    """The change that is told has the values from before, and which flags went."""
    server = _Server({"args": ["--max-num-seqs=8"]}, {"command": PRESET})
    await _write(server)
    asked: list[ResourceRef] = []

    def acting_on(ref: ResourceRef) -> Any:
        asked.append(ref)
        return acting

    changes = await _actuator(server).undo(acting_on)
    assert asked == [REF]
    assert (server.own["args"] == ["--max-num-seqs=8"]) is back
    assert len(changes) == back
    for change in changes:
        assert (change.target, change.name) == ("LLMInferenceService/llama", "chat")
        assert [(s.name, s.before, s.after) for s in change.settings] == [
            ("max_num_seqs", 32, 8),
            ("max_num_batched_tokens", 1024, None),
        ]
        assert change.flags_removed == ("max_num_batched_tokens",)
        assert change.outcome is ChangeOutcome.ROLLED_BACK


async def test_a_service_that_lost_its_label_gets_its_line_back() -> None:
    """Its owner does not want it any more, whatever the resource asks for."""
    server = _Server({"args": ["--max-num-seqs=8"]}, {"command": PRESET})
    await _write(server)
    server.item["metadata"]["labels"] = {}
    (change,) = await _actuator(server).undo(lambda _: (_targets(),))
    assert change.refusal is None
    assert server.own["args"] == ["--max-num-seqs=8"]


async def test_what_stands_in_the_service_is_read_and_no_pod_goes_first() -> None:
    """The limits of its own line, so that a client that reverts them is noticed."""
    server = _Server({"args": ["--max-num-seqs=8"]}, {"command": PRESET})
    view = WorkloadView(target=CHILD, read_as=Recognition(runtime="vllm"))
    found = await _actuator(server).in_force(REF, _targets(), view)
    assert found is not None
    assert tuple(found.values[f"{TEMPLATE}{name}"] for name in LIMIT_FIELDS) == (8, None)
    assert found.refused is not None
    assert found.refused.reason is Reason.BATCHING_CANARY_NOT_POSSIBLE
    at_once = _targets(rollout=BatchingRollout.ALL_AT_ONCE)
    found = await _actuator(server).in_force(REF, at_once, view)
    assert found is not None
    assert found.refused is None
    groups = ScaleTarget(
        api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", name="x"
    )
    found = await _actuator(server).in_force(REF, at_once, replace(view, target=groups))
    assert found is not None
    assert found.values == {}


async def test_a_release_puts_every_service_back(capsys) -> None:
    """Without an operator; an edit of another client stays, and that is said."""
    server: Any = _Server({"args": ["--max-num-seqs=8"]}, {"command": PRESET})
    await _write(server)
    server.forbidden = True
    (failed,) = await put_back_templates(server, ())
    assert failed.startswith("LLMInferenceService: GET")
    server.forbidden = False
    assert await put_back_templates(server, ()) == []
    assert server.own["args"] == ["--max-num-seqs=8"]
    assert "LLMInferenceService n/llama: the former line is put back" in capsys.readouterr().out
    refused = await _refusal(server)
    assert "put it back a moment ago" in refused.detail
    with pytest.raises(WriteConflictError):
        await _write(server)
    del server.item["metadata"]["annotations"][RELEASED_ANNOTATION]
    await _write(server)
    server.own["args"] = ["--max-num-seqs=9"]
    assert await put_back_templates(server, ()) == []
    assert server.own["args"] == ["--max-num-seqs=9"]
    assert "which stays" in capsys.readouterr().out
