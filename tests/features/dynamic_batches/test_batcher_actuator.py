"""The actuator of dynamic batches: what it reads, sets, tells, and puts back when nobody asks."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.features.dynamic_batches.test_engine_channel import (
    REF,
    WANTED,
    Cluster,
    Server,
    opened,
    pod,
    serving,
)

from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.controller.actuators.protocol import Assignment
from servingslo.errors import EngineRefusedError
from servingslo.estimation.sample import PodSample
from servingslo.explain.changes import ChangeOutcome, change_line
from servingslo.features.dynamic_batches import actuator as module
from servingslo.features.dynamic_batches.actuator import DynamicBatching
from servingslo.features.dynamic_batches.model_repository import OWNER_PARAMETER, ModelRepository
from servingslo.features.dynamic_batches.servers import (
    DYNAMIC_BATCHING,
    BatcherDecision,
    BatcherLimits,
    Owner,
    batcher_of,
    batchers_of,
)
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.decision_parts import RuntimeUse
from servingslo.policy.inputs import (
    BatchingMode,
    BatchingTargets,
    InForce,
    Limits,
    Observation,
    ScaleTarget,
    Targets,
)
from servingslo.policy.planner import plan
from servingslo.policy.ports import WorkloadView
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.recognition import Recognition

FILE = BatcherLimits(4, 20000, 16)
TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="rank")
TARGETS = Targets(
    target=TARGET,
    objectives=(),
    model="rank",
    batching=BatchingTargets(mode=BatchingMode.AUTO),
)
VIEW = WorkloadView(
    target=TARGET,
    pods=(PodSample(name="rank-0", ready=True), PodSample(name="rank-1", ready=False)),
    read_as=Recognition(runtime="triton"),
)
Story = Callable[[DynamicBatching, Server], Awaitable[None]]
UNREADY = [{"type": "Ready", "status": "False"}]


def played(monkeypatch: Any, story: Story, item: dict[str, Any] | None = None) -> None:
    """A story with one Ready pod at loopback, whose server is at a port of its own.

    item: the pod as the API server has it, which a story may change.
    """

    async def run() -> None:
        server = Server()
        async with serving(server) as port:
            at = replace(profile("triton"), model_repository_port=port)
            monkeypatch.setattr(module, "profile", lambda _: at)
            client: Any = Cluster(pod() if item is None else item)
            record = pod_record(pod(), None)
            models = ModelRepository(opened(), client, lambda *_: record)
            await story(DynamicBatching(models, writes=True), server)

    asyncio.run(run())


def assignment(decision: Decision) -> Assignment:
    """Of the workload's ServingSLO."""
    return Assignment(ref=REF, targets=TARGETS, decision=decision)


def ordering(batcher: BatcherDecision) -> Decision:
    """A decision that orders this and nothing else."""
    seen = Observation(time_seconds=1000.0, namespace="team-a", name="rank", desired_replicas=1)
    decision, _ = plan(seen, TARGETS, Limits(), PlannerState(), 1000.0)
    return replace(
        replace_knob(decision, DYNAMIC_BATCHING, batcher), runtime=RuntimeUse(name="triton")
    )


def found(standing: InForce | None) -> dict[str, tuple[BatcherLimits, Owner]]:
    """Limits and whose they are, by pod."""
    return {name: (one.limits, one.owner) for name, one in batchers_of(standing).items()}


SET = BatcherDecision(
    reason=Reason.BATCHING_CANARY_STARTED, before=FILE, after=WANTED, pods=("rank-0",)
)


def test_limits_are_read_set_told_and_put_back(monkeypatch) -> None:
    """Of Ready pods alone; put back when the resource acts no more, and then no more."""

    async def story(actuator: DynamicBatching, server: Server) -> None:
        before = server.config
        assert found(await actuator.in_force(REF, TARGETS, VIEW)) == {
            "rank-0": (FILE, Owner.NOBODY)
        }
        asked = assignment(ordering(SET))
        change = actuator.wanted(asked)
        assert change is not None
        line = change_line(change)
        assert "knob=dynamic-batching max_batch_size=4->8" in line
        assert "pods=1 outcome=written reason=BatchingCanaryStarted" in line
        assert await actuator.change(asked)
        assert not await actuator.change(asked)
        assert found(await actuator.in_force(REF, TARGETS, VIEW)) == {
            "rank-0": (WANTED, Owner.OURS)
        }
        assert await actuator.undo(lambda _: (TARGETS,)) == []
        (undone,) = await actuator.undo(lambda _: ())
        assert undone.outcome is ChangeOutcome.ROLLED_BACK
        assert server.config == before
        assert await actuator.undo(lambda _: ()) == []

    played(monkeypatch, story)


def test_an_operator_that_starts_anew_puts_back_what_it_finds(monkeypatch) -> None:
    """What is ours stands on the pod; the mode was turned off meanwhile."""

    async def story(actuator: DynamicBatching, server: Server) -> None:
        before = server.config
        await actuator.change(assignment(ordering(SET)))
        anew = DynamicBatching(actuator.models, writes=True)
        off = replace(TARGETS, batching=BatchingTargets(mode=BatchingMode.OFF))
        await anew.in_force(REF, off, VIEW)
        (undone,) = await anew.undo(lambda _: (off,))
        assert undone.knob == DYNAMIC_BATCHING
        assert server.config == before

    played(monkeypatch, story)


def test_what_a_resource_left_that_went_while_nobody_looked_is_put_back(monkeypatch) -> None:
    """Its namesake finds it, and is told of it; of one that is there the limits are left alone."""
    heir = replace(REF, uid="u-2")

    async def story(actuator: DynamicBatching, server: Server) -> None:
        before = server.config
        await actuator.change(assignment(ordering(SET)))
        anew = DynamicBatching(actuator.models, writes=True)
        seen = found(await anew.in_force(heir, TARGETS, VIEW))
        assert seen == {"rank-0": (WANTED, Owner.ANOTHER)}
        assert await anew.undo(lambda _: (TARGETS,)) == []
        (undone,) = await anew.undo(lambda ref: (TARGETS,) if ref == heir else ())
        assert undone.outcome is ChangeOutcome.ROLLED_BACK
        assert (undone.namespace, undone.name) == (heir.namespace, heir.name)
        assert server.config == before
        seen = found(await anew.in_force(heir, TARGETS, VIEW))
        assert seen == {"rank-0": (FILE, Owner.NOBODY)}
        assert await anew.undo(lambda _: ()) == []

    played(monkeypatch, story)


@pytest.mark.parametrize(
    "told",
    ["team-b/rank/u-1", "team-a/Rank/u-1", "team-a/rank", "team-a/rank/u-1/x", "team-a/r/u\n"],
)
def test_what_a_server_says_of_other_namespaces_counts_nothing(monkeypatch, told) -> None:
    """Or of what can be no resource: nothing is put back at its word."""

    async def story(actuator: DynamicBatching, server: Server) -> None:
        await actuator.change(assignment(ordering(SET)))
        server.config["parameters"][OWNER_PARAMETER]["string_value"] = told
        left = copy.deepcopy(server.config)
        anew = DynamicBatching(actuator.models, writes=True)
        seen = found(await anew.in_force(replace(REF, uid="u-2"), TARGETS, VIEW))
        assert seen == {"rank-0": (WANTED, Owner.ANOTHER)}
        assert await anew.undo(lambda _: ()) == []
        assert server.config == left

    played(monkeypatch, story)


def test_a_server_that_refuses_is_told_and_what_is_put_back_is_tried_again(monkeypatch) -> None:
    """The decision says that the limits stay."""

    async def story(actuator: DynamicBatching, server: Server) -> None:
        await actuator.change(assignment(ordering(SET)))
        server.config = [server.config]
        try:
            await actuator.change(assignment(ordering(replace(SET, after=FILE))))
        except EngineRefusedError as error:
            decision = actuator.not_made(ordering(SET), Reason.WRITE_FAILED, str(error))
        assert batcher_of(decision) is not None
        assert batcher_of(decision).pods == ()
        assert decision.batching.reason is Reason.WRITE_FAILED
        (undone,) = await actuator.undo(lambda _: ())
        assert undone.outcome is ChangeOutcome.REFUSED
        (server.config,) = server.config
        (undone,) = await actuator.undo(lambda _: ())
        assert undone.outcome is ChangeOutcome.ROLLED_BACK

    played(monkeypatch, story)


def test_a_pod_that_cannot_be_read_keeps_what_was_set(monkeypatch) -> None:
    """It answers nothing at one tick, or is not ready: the limits are put back none the less."""

    async def story(actuator: DynamicBatching, server: Server) -> None:
        before = server.config
        await actuator.change(assignment(ordering(SET)))
        ours, server.config = server.config, []
        await actuator.in_force(REF, TARGETS, VIEW)
        server.config = ours
        await actuator.in_force(
            REF, TARGETS, replace(VIEW, pods=(PodSample(name="rank-0", ready=False),))
        )
        (undone,) = await actuator.undo(lambda _: ())
        assert undone.outcome is ChangeOutcome.ROLLED_BACK
        assert server.config == before

    played(monkeypatch, story)


def test_limits_of_a_pod_that_is_not_ready_are_put_back_later(monkeypatch) -> None:
    """One that is another pod by now has lost them with its memory."""
    item = pod()
    status = item["status"]

    async def story(actuator: DynamicBatching, server: Server) -> None:
        before = server.config
        await actuator.change(assignment(ordering(SET)))
        ready, status["conditions"] = status["conditions"], UNREADY
        (undone,) = await actuator.undo(lambda _: ())
        assert undone.outcome is ChangeOutcome.REFUSED
        assert "rank-0 is not ready" in change_line(undone)
        status["conditions"] = ready
        (undone,) = await actuator.undo(lambda _: ())
        assert undone.outcome is ChangeOutcome.ROLLED_BACK
        assert server.config == before
        await actuator.change(assignment(ordering(SET)))
        item["metadata"]["uid"] = "p-2"
        assert await actuator.undo(lambda _: ()) == []
        item["metadata"]["uid"] = "p-1"
        assert await actuator.undo(lambda _: ()) == []

    played(monkeypatch, story, item)


def test_where_the_way_is_not_open_or_leads_nowhere_nothing_is_read(monkeypatch) -> None:
    """No range, another engine, no model: the first two say nothing, the last why."""

    async def story(actuator: DynamicBatching, server: Server) -> None:
        assert await DynamicBatching(None, writes=True).in_force(REF, TARGETS, VIEW) is None
        unknown = replace(VIEW, read_as=Recognition())
        assert await actuator.in_force(REF, TARGETS, unknown) is None
        nameless = await actuator.in_force(REF, replace(TARGETS, model=None), VIEW)
        assert nameless is not None
        assert nameless.refused is not None
        assert "spec.model" in nameless.refused.detail
        assert server.requests == []
        server.config = []
        unread = await actuator.in_force(REF, TARGETS, VIEW)
        assert unread is not None
        assert unread.refused is not None
        assert unread.refused.reason is Reason.LIMITS_UNKNOWN

    played(monkeypatch, story)


def test_where_batch_limits_may_not_be_changed_servers_are_read_and_put_back(
    monkeypatch,
) -> None:
    """Nothing is set, and what an operator that was allowed to left on them is put back."""

    async def story(actuator: DynamicBatching, server: Server) -> None:
        forbidden = DynamicBatching(actuator.models, writes=False)
        assert not await forbidden.change(assignment(ordering(SET)))
        assert found(await forbidden.in_force(REF, TARGETS, VIEW)) == {
            "rank-0": (FILE, Owner.NOBODY)
        }
        left = copy.deepcopy(server.config)
        await actuator.change(assignment(ordering(SET)))
        assert found(await forbidden.in_force(REF, TARGETS, VIEW)) == {
            "rank-0": (WANTED, Owner.OURS)
        }
        assert [one.refusal for one in await forbidden.undo(lambda _: (TARGETS,))] == [None]
        assert server.config == left

    played(monkeypatch, story)
