"""The replicas of a CapacityBuffer: which is used, what is written, and each way back."""

import asyncio
import copy
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cli_calls import CLI
from tests.unit.test_switches import NAMESPACE, REF, Api

from servingslo.cli.running import operate as operating
from servingslo.cli.running.run_options import RunOptions
from servingslo.controller.actuators.protocol import Assignment
from servingslo.errors import WriteConflictError
from servingslo.features.node_buffer.actuator import PART, NodeBuffer, standing_buffer
from servingslo.features.node_buffer.buffers import (
    BUFFER_ANNOTATION,
    BufferOwner,
    capacity_buffers,
)
from servingslo.features.node_buffer.decision import (
    MOST,
    NODE_BUFFER,
    OURS,
    OWN,
    REPLICAS,
    TARGETS,
    BufferDecision,
    NodeTargets,
)
from servingslo.policy.inputs import InForce, Mode, ScaleTarget, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.reasons import Reason

ON = ("--prometheus-url=http://p", "--node-buffer-max-replicas=8")
BUFFER = "buffer"
PATH = f"/apis/autoscaling.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/capacitybuffers/chat"
SPEC = {"scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "chat"}, "replicas": 1}
CHAT = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat"),
    objectives=(),
    features={TARGETS.name: NodeTargets(buffer="chat")},
)
VIEW = WorkloadView(target=CHAT.target)
RAISED = BufferOwner(name=REF.name, uid=REF.uid, replicas=5, former=1)
ITEM = {
    "metadata": {
        "name": "chat",
        "namespace": NAMESPACE,
        "uid": "b1",
        "resourceVersion": "7",
        "labels": {"servingslo.dev/managed": "true"},
    },
    "spec": SPEC,
}


def api_of(raised: bool = True) -> Any:
    """The API server; raised: with replicas that the operator wrote."""
    api: Any = Api({BUFFER: (PATH, SPEC)})
    if raised:
        asyncio.run(_write(api, RAISED))
    return api


async def _write(api: Any, owner: BufferOwner) -> None:
    buffers = capacity_buffers(api)
    await buffers.write(await buffers.read(NAMESPACE, "chat"), owner)


def spec_of(api: Any) -> Any:
    """The spec that stands."""
    return api.items[PATH]["spec"]


def standing(spec: dict[str, Any], owner: dict[str, Any] | None = None, **metadata: Any) -> InForce:
    """What is read of a buffer."""
    item = copy.deepcopy(ITEM)
    item["spec"] = spec
    item["metadata"].update(metadata)
    if owner is not None:
        item["metadata"]["annotations"] = {BUFFER_ANNOTATION: json.dumps(owner)}
    return standing_buffer(REF, capacity_buffers(None).seen(item), CHAT.target)  # type: ignore[arg-type]


def test_the_owner_s_and_the_operator_s_replicas_are_told_apart() -> None:
    """By the annotation."""
    assert standing(SPEC).values == {REPLICAS: 1, OWN: 1}
    owner = {"name": REF.name, "uid": "u", "replicas": 5, "former": 1}
    assert standing({**SPEC, "replicas": 5}, owner).values == {REPLICAS: 5, OWN: 1, OURS: 1}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            {**SPEC, "scalableRef": {"kind": "Deployment", "name": "chat"}}, id="no group"
        ),
        pytest.param({"podTemplateRef": {"name": "chat"}, "replicas": 0}, id="pod template"),
    ],
)
def test_other_forms_for_the_target_are_used(spec: dict[str, Any]) -> None:
    """Karpenter reads an empty group as apps; a template is the owner's word."""
    assert standing(spec).refused is None


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({**SPEC, "scalableRef": {**SPEC["scalableRef"], "name": "x"}}, "for Deployment/x, not"),
        ({**SPEC, "scalableRef": {**SPEC["scalableRef"], "kind": "ReplicaSet"}}, "ReplicaSet/chat"),
        ({"scalableRef": SPEC["scalableRef"], "limits": {"cpu": "8"}}, "states no replicas"),
        ({**SPEC, "percentage": 10}, "a percentage"),
    ],
)
def test_a_buffer_of_another_form_is_not_used(spec: dict[str, Any], says: str) -> None:
    """With what is wrong about it."""
    problem = standing(spec).refused
    assert problem is not None
    assert problem.reason is Reason.BUFFER_NOT_USABLE
    assert says in problem.detail


def test_only_a_labelled_buffer_of_nobody_else_is_written() -> None:
    """The label is the owner's word; other clients' replicas are left alone."""
    problem = standing(SPEC, labels={}).refused
    assert problem is not None
    assert problem.reason is Reason.NOT_PERMITTED
    owner = {"name": REF.name, "uid": "u", "replicas": 5, "former": 1}
    changed = standing({**SPEC, "replicas": 3}, owner)
    assert changed.refused is not None
    assert changed.refused.reason is Reason.BUFFER_SET_BY_ANOTHER
    assert OURS not in changed.values
    other = standing({**SPEC, "replicas": 5}, {**owner, "name": "other"}).refused
    assert other is not None
    assert "ServingSLO other" in other.detail


def assigned(before: int, after: int, *, puts_back: bool = False, ours: bool = False) -> Assignment:
    """A change to carry out."""
    values = {REPLICAS: before, OWN: 1, MOST: 8, **({OURS: 1} if ours else {})}
    decided = BufferDecision(
        reason=Reason.NODES_BUFFERED,
        buffer="chat",
        before=before,
        after=after,
        own=1,
        puts_back=puts_back,
    )
    return Assignment(
        ref=REF,
        targets=CHAT,
        decision=SimpleNamespace(knobs={NODE_BUFFER: decided}),  # type: ignore[arg-type]
        in_force={NODE_BUFFER: InForce(values=values)},
    )


async def test_replicas_are_written_and_the_owner_s_come_back() -> None:
    """With who set them; nothing of it is left at the end."""
    api: Any = Api({BUFFER: (PATH, SPEC)})
    actuator = NodeBuffer(capacity_buffers(api), most=8)
    assert await actuator.change(assigned(1, 5))
    assert spec_of(api) == {**SPEC, "replicas": 5}
    found = await actuator.in_force(REF, CHAT, VIEW)
    assert found is not None
    assert found.values == {REPLICAS: 5, OWN: 1, OURS: 1, MOST: 8}
    assert await actuator.change(assigned(5, 3, ours=True))
    assert await actuator.change(assigned(3, 1, puts_back=True, ours=True))
    assert spec_of(api) == SPEC
    assert not api.items[PATH]["metadata"]["annotations"]


async def test_a_buffer_that_changed_since_the_plan_is_not_written() -> None:
    """It is planned again."""
    api: Any = Api({BUFFER: (PATH, {**SPEC, "replicas": 2})})
    with pytest.raises(WriteConflictError):
        await NodeBuffer(capacity_buffers(api), most=8).change(assigned(1, 5))
    assert spec_of(api)["replicas"] == 2


async def test_what_cannot_be_read_is_said() -> None:
    """No buffer, no right, and no administrator's word."""
    api: Any = Api({BUFFER: (PATH, SPEC)})
    elsewhere = replace(CHAT, features={TARGETS.name: NodeTargets(buffer="x")})
    actuator = NodeBuffer(capacity_buffers(api), most=8)
    api.items.pop(PATH)
    api.items[PATH.replace("/chat", "/y")] = ITEM

    async def refused(targets: Targets, most: int = 8) -> Any:
        found = await NodeBuffer(capacity_buffers(api), most=most).in_force(REF, targets, VIEW)
        assert found is not None
        return found

    api.refused = "capacitybuffers"
    unread = await refused(elsewhere)
    assert unread.refused.reason is Reason.NOT_PERMITTED
    assert REPLICAS not in unread.values
    off = await refused(CHAT, 0)
    assert off.refused.reason is Reason.NOT_PERMITTED
    assert "administrator" in off.refused.detail
    assert await actuator.in_force(REF, replace(CHAT, features={}), VIEW) is None


@pytest.mark.parametrize(
    ("arguments", "pools", "put_back"),
    [
        pytest.param(ON, (CHAT,), False, id="nothing"),
        pytest.param((ON[0], "--node-buffer-max-replicas=2"), (CHAT,), False, id="fewer"),
        pytest.param((*ON, "--mode=Recommend"), (CHAT,), True, id="mode"),
        pytest.param(ON[:1], (CHAT,), True, id="nodeBuffer"),
        pytest.param(ON, (replace(CHAT, mode=Mode.PAUSED),), True, id="mode Paused"),
        pytest.param(ON, (replace(CHAT, mode=Mode.RECOMMEND),), True, id="mode Recommend"),
        pytest.param(ON, (), True, id="resource gone"),
        pytest.param(ON, (replace(CHAT, features={}),), True, id="spec.nodes"),
        pytest.param(
            ON,
            (replace(CHAT, features={TARGETS.name: NodeTargets(buffer="x")}),),
            True,
            id="another buffer",
        ),
        pytest.param(ON[:1], None, False, id="another process decides"),
    ],
)
def test_replicas_are_put_back_when_a_switch_ends_them(
    arguments: tuple[str, ...],
    pools: tuple[Targets, ...] | None,
    put_back: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By an operator that starts with these options after they were written; told once."""
    found: list[RunOptions] = []

    async def operate(options: RunOptions) -> None:
        found.append(options)

    monkeypatch.setattr(operating, "operate", operate)
    called = CLI(capsys, monkeypatch)("run", *arguments)
    assert called.exit_code == 0, called.err
    (options,) = found
    api = api_of()

    async def story() -> None:
        means, _ = operating.means_of(options, api, SimpleNamespace(pods=None))  # type: ignore[arg-type]
        acting = None
        if pools is not None:
            acting = tuple(one for one in pools if acting_limit(one, options.limits) is None)
        told = await PART(means).undo(lambda ref: acting)
        assert [(change.refusal, str(change.settings[0])) for change in told] == [
            (None, "5->1")
        ] * put_back

    asyncio.run(story())
    assert api.own() == ({BUFFER} if put_back else set())
