"""One pod out of the traffic, asleep, awake and back: its label, and its engine's own paths."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.features.warm_replicas.warm_engine import SleepingEngine, serving

from servingslo.adapters.engines.channel import EngineChannel, engine_options
from servingslo.adapters.kubernetes.api.selectors import parse_selector
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.protocol import Assignment
from servingslo.errors import (
    EngineRefusedError,
    InvalidObjectError,
    NotFoundError,
    WriteConflictError,
)
from servingslo.estimation.sample import PodSample
from servingslo.explain.changes import ChangeOutcome, change_line
from servingslo.features.warm_replicas.actuator import WarmReplicas
from servingslo.features.warm_replicas.call import TARGETS, WARM_REPLICAS, WarmDecision, WarmTargets
from servingslo.features.warm_replicas.pods import LABEL, SleepingPods
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.decision_parts import RuntimeUse
from servingslo.policy.inputs import Limits, Observation, ScaleTarget, Targets
from servingslo.policy.planner import plan
from servingslo.policy.ports import WorkloadView
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason
from servingslo.runtimes.recognition import Recognition

REF = ResourceRef(namespace="team-a", name="chat", uid="u-1")
TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
STATED = Targets(
    target=TARGET, objectives=(), features={TARGETS.name: WarmTargets(most=2, cost_ratio=0.1)}
)
VIEW = WorkloadView(
    target=TARGET,
    pods=(PodSample(name="chat-0", ready=True),),
    read_as=Recognition(runtime="vllm"),
)
ELSEWHERE = replace(STATED, target=replace(TARGET, name="other"))
Story = Callable[[WarmReplicas, "Api", SleepingEngine], Awaitable[None]]


class Api:
    """The API server as far as one pod is read and patched, with the tests of a JSON Patch."""

    def __init__(self, label: str | None = "true") -> None:
        labels = {"app": "chat"} | ({} if label is None else {LABEL: label})
        self.item: dict[str, Any] = {
            "metadata": {
                "namespace": "team-a", "name": "chat-0", "uid": "p-1", "resourceVersion": "1",
                "labels": labels,
            },
            "spec": {"containers": []},
            "status": {
                "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}],
            },
        }  # fmt: skip

    @property
    def label(self) -> str:
        """Whether it takes requests."""
        return str(self.item["metadata"]["labels"][LABEL])

    async def get(self, _path: str) -> dict[str, Any]:
        """The pod as it is now."""
        return copy.deepcopy(self.item)

    async def patch(self, _path: str, changes: Any, _kind: object, **_: object) -> None:
        """All of it, or nothing."""
        item = copy.deepcopy(self.item)
        for change in changes:
            *parts, last = (p.replace("~1", "/") for p in change["path"].strip("/").split("/"))
            place: Any = item
            for part in parts:
                place = place[part]
            if change["op"] == "test" and place[last] != change["value"]:
                raise InvalidObjectError("test failed")
            if change["op"] == "remove":
                del place[last]
            elif change["op"] != "test":
                place[last] = change["value"]
        item["metadata"]["resourceVersion"] += "1"
        self.item = item

    def permitted(self, _namespace: str) -> Any:
        """So many seconds."""
        return nullcontext(5.0)


def played(
    story: Story, *, engine: SleepingEngine | None = None, api: Api | None = None,
    sleeps: bool = True, selector: str = "app=chat",
) -> None:  # fmt: skip
    """A story with one pod at loopback and its engine."""
    engine, api = engine or SleepingEngine(), api or Api()

    async def run() -> None:
        async with serving(engine) as port:
            channel = EngineChannel(engine_options("--warm-range", ["127.0.0.0/8"]))
            cache = SimpleNamespace(items=_Items(api))
            inventory: Any = SimpleNamespace(
                pods=SimpleNamespace(
                    get=lambda _, name: pod_record(api.item, None) if name == "chat-0" else None,
                    caches={"": cache},
                ),
                deployments=SimpleNamespace(
                    get=lambda _, name: SimpleNamespace(
                        uid=f"uid-of-{name}", selector=parse_selector(selector)
                    )
                ),
                workload_pods=lambda _, target_uid, **__: (
                    [pod_record(api.item, None)] if target_uid == "uid-of-chat" else []
                ),
            )
            client: Any = api
            await story(
                WarmReplicas(inventory, SleepingPods(client, channel, port), sleeps), api, engine
            )

    asyncio.run(run())


class _Items:
    """The cached pods: as the API server has them."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def values(self) -> list[Any]:
        """The one pod."""
        return [pod_record(self.api.item, None)]


def ordering(**orders: Any) -> Assignment:
    """A decision that orders this of pods, and nothing else."""
    seen = Observation(time_seconds=1000.0, namespace="team-a", name="chat", desired_replicas=1)
    decision: Decision = plan(seen, STATED, Limits(), PlannerState(), 1000.0)[0]
    warm = WarmDecision(reason=Reason.ENGINES_WOKEN, awake=1, wake_seconds=10.0, **orders)
    decision = replace(replace_knob(decision, WARM_REPLICAS, warm), runtime=RuntimeUse(name="vllm"))
    return Assignment(ref=REF, targets=STATED, decision=decision)


OUT, SLEEP, WAKE = ({one: ("chat-0",)} for one in ("takes_out", "sleeps", "wakes"))


def test_a_pod_goes_out_asleep_awake_and_back() -> None:
    """Each step by itself; in the end nothing is left on the pod."""

    async def story(actuator: WarmReplicas, api: Api, engine: SleepingEngine) -> None:
        before = copy.deepcopy(api.item["metadata"]["labels"])
        standing = await actuator.in_force(REF, STATED, VIEW)
        assert standing is not None
        assert (standing.values, standing.refused) == ({"chat-0": 0}, None)
        change = actuator.wanted(ordering(**OUT))
        assert change is not None
        assert "knob=warm-replicas take_out=1 outcome=written" in change_line(change)
        assert await actuator.change(ordering(**OUT))
        assert api.label == "false"
        assert api.item["metadata"]["annotations"] == {
            "servingslo.dev/on-call": "chat/u-1/vllm",
            "controller.kubernetes.io/pod-deletion-cost": "-1",
        }
        standing = await actuator.in_force(REF, STATED, VIEW)
        assert standing is not None
        assert standing.values == {"chat-0": 1}
        assert await actuator.change(ordering(**SLEEP))
        assert (engine.asleep, engine.asked) == (True, ["/sleep?level=1&mode=wait"])
        assert await actuator.undo(lambda _: (STATED,)) == []
        assert await actuator.change(ordering(**WAKE))
        assert (engine.asleep, api.label) == (False, "true")
        assert api.item["metadata"]["labels"] == before
        assert api.item["metadata"]["annotations"] == {}

    played(story)


def test_nothing_is_put_to_sleep_that_this_resource_did_not_take_out() -> None:
    """Neither a pod that serves, nor one that another resource took out."""

    async def story(actuator: WarmReplicas, api: Api, engine: SleepingEngine) -> None:
        with pytest.raises(WriteConflictError):
            await actuator.change(ordering(**SLEEP))
        await actuator.change(ordering(**OUT))
        other = replace(ordering(**SLEEP), ref=replace(REF, uid="u-2"))
        with pytest.raises(WriteConflictError):
            await actuator.change(other)
        with pytest.raises(WriteConflictError):
            await actuator.change(replace(other, decision=ordering(**WAKE).decision))
        assert engine.asked == []
        assert api.label == "false"

    played(story)


@pytest.mark.parametrize(
    ("pools", "sleeps"),
    [
        pytest.param((), True, id="resource gone, or mode Recommend"),
        pytest.param((replace(STATED, features={}),), True, id="field removed"),
        pytest.param((ELSEWHERE,), True, id="another target"),
        pytest.param((ELSEWHERE, replace(STATED, features={})), True, id="removed from its pool"),
        pytest.param((STATED,), False, id="switched off"),
    ],
)
def test_sleepers_are_woken_when_nobody_asks_for_them(pools, sleeps) -> None:
    """Also by an operator that starts after all was done; told once."""

    async def story(actuator: WarmReplicas, api: Api, engine: SleepingEngine) -> None:
        await actuator.change(ordering(**OUT))
        await actuator.change(ordering(**SLEEP))
        actuator.sleeps = sleeps
        (undone,) = await actuator.undo(lambda _: pools)
        assert undone.outcome is ChangeOutcome.ROLLED_BACK
        assert (engine.asleep, api.label) == (False, "true")
        assert await actuator.undo(lambda _: pools) == []

    played(story)


@pytest.mark.parametrize("ended", ["phase", "deletionTimestamp"])
def test_the_address_of_a_pod_that_has_ended_is_not_asked(ended) -> None:
    """Kubernetes keeps it in the status, and may have given it to another tenant's pod."""

    async def story(actuator: WarmReplicas, api: Api, engine: SleepingEngine) -> None:
        await actuator.change(ordering(**OUT))
        if ended == "phase":
            api.item["status"]["phase"] = "Failed"
        else:
            api.item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        for order in (SLEEP, WAKE):
            with pytest.raises(NotFoundError, match="has ended"):
                await actuator.change(ordering(**order))
        assert await actuator.undo(lambda _: ()) == []
        assert engine.asked == []

    played(story)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(
            replace(VIEW, pods=(*VIEW.pods, PodSample(name="chat-9", ready=True))),
            id="a pod that has gone since",
        ),
        pytest.param(replace(VIEW, read_as=Recognition()), id="metrics failed, so no runtime"),
    ],
)
def test_a_moment_without_an_answer_refuses_nothing(view) -> None:
    """Else all sleepers would be woken by it."""

    async def story(actuator: WarmReplicas, _api: Api, _engine: SleepingEngine) -> None:
        standing = await actuator.in_force(REF, STATED, view)
        assert standing is not None
        assert standing.refused is None

    played(story)


def test_an_engine_that_does_not_wake_gets_no_requests() -> None:
    """The label stays, and the refusal is told; the next sweep tries again."""

    async def story(actuator: WarmReplicas, api: Api, engine: SleepingEngine) -> None:
        await actuator.change(ordering(**OUT))
        await actuator.change(ordering(**SLEEP))
        engine.answers = 500
        with pytest.raises(EngineRefusedError, match="500"):
            await actuator.change(ordering(**WAKE))
        (told,) = await actuator.undo(lambda _: ())
        assert told.refusal is Reason.WRITE_FAILED
        assert api.label == "false"
        engine.answers = 200
        assert len(await actuator.undo(lambda _: ())) == 1
        assert (engine.asleep, api.label) == (False, "true")

    played(story)


def test_an_engine_without_sleep_mode_is_refused_once_and_serves_again() -> None:
    """Started without it, it has no such path: it cannot sleep, so it needs no waking."""

    async def story(actuator: WarmReplicas, api: Api, engine: SleepingEngine) -> None:
        engine.answers = 404
        await actuator.change(ordering(**OUT))
        with pytest.raises(EngineRefusedError, match="404"):
            await actuator.change(ordering(**SLEEP))
        standing = await actuator.in_force(REF, STATED, VIEW)
        assert standing is not None
        assert standing.refused is not None
        assert "404" in standing.refused.detail
        assert await actuator.change(ordering(**WAKE))
        assert api.label == "true"

    played(story)


@pytest.mark.parametrize(
    ("how", "view", "said"),
    [
        pytest.param({"sleeps": False}, VIEW, "the administrator", id="switched off"),
        pytest.param({"api": Api(None)}, VIEW, "has no label", id="no label"),
        pytest.param(
            {"selector": f"app=chat,{LABEL}=true"}, VIEW, "its selector", id="a selected label"
        ),
        pytest.param(
            {}, replace(VIEW, read_as=Recognition(runtime="triton")), "engines of vLLM",
            id="another runtime",
        ),
        pytest.param(
            {}, replace(VIEW, target=replace(TARGET, kind="StatefulSet")), "of Deployments",
            id="another kind",
        ),
    ],
)  # fmt: skip
def test_why_no_engine_may_sleep_is_said(how, view, said) -> None:
    """And nothing at all is read for a resource without the field."""

    async def story(actuator: WarmReplicas, _api: Api, _engine: SleepingEngine) -> None:
        standing = await actuator.in_force(REF, STATED, view)
        assert standing is not None
        assert standing.refused is not None
        assert said in standing.refused.detail
        assert await actuator.in_force(REF, replace(STATED, features={}), view) is None

    played(story, **how)
