"""The object with a canary: one patch that begins it, and the ways in which it ends."""

import asyncio
import copy
import json

import pytest
from tests.features.batch_limits.orders import canary_order
from tests.unit.workload_server import ROLLING, WorkloadServer

from servingslo.adapters.kubernetes.api.marked_objects import RELEASED_ANNOTATION
from servingslo.errors import WriteConflictError
from servingslo.features.batch_limits.pod_template import BatchCanaries
from servingslo.features.batch_limits.records import CANARY_ANNOTATION
from servingslo.features.batch_limits.release import PART
from servingslo.policy.inputs import ScaleTarget

ORDER = canary_order((8, 2048), (32, 1024), flags_added=("max_num_batched_tokens",))
PARTITION = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
DEPLOYMENT = {"replicas": 4, "strategy": ROLLING}
STATEFUL_SET = {
    "replicas": 4,
    "updateStrategy": PARTITION,
    "podManagementPolicy": "Parallel",
}


def world(spec, kind="Deployment", **settings):
    """A server, and what reads and does with its object."""
    server = WorkloadServer(spec, **settings)
    canaries = BatchCanaries(server)
    target = ScaleTarget(api_version="apps/v1", kind=kind, name="chat")

    def read():
        return asyncio.run(canaries.read("a", target))

    return server, canaries, read


@pytest.mark.parametrize(
    ("spec", "kind", "container"),
    [
        pytest.param(DEPLOYMENT, "Deployment", {}, id="deployment"),
        pytest.param({**DEPLOYMENT, "minReadySeconds": 5}, "Deployment", {}, id="min-ready"),
        pytest.param(STATEFUL_SET, "StatefulSet", {}, id="stateful-set"),
        pytest.param(DEPLOYMENT, "Deployment", {"args": [], "command": ["vllm"]}, id="command"),
        pytest.param(
            DEPLOYMENT,
            "Deployment",
            {
                "args": ["--max-num-seqs=$(SEQS)"],
                "env": [{"name": "A", "value": "8"}, {"name": "SEQS", "value": "8"}],
            },
            id="variable",
        ),
    ],
)
def test_a_way_back_is_to_the_letter(spec, kind, container) -> None:
    """Spec and template as they were, and what is remembered says which limits were refused."""
    server, canaries, read = world(spec, kind, container=container)
    before = copy.deepcopy(server.spec)
    assert asyncio.run(canaries.start(read(), *ORDER))
    assert server.spec != before
    assert read().canary.after == [32, 1024]
    if kind == "Deployment":
        assert server.spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert not read().held
        asyncio.run(canaries.hold(read()))
    assert read().held
    assert not read().edited
    asyncio.run(canaries.take_back(read(), "asked"))
    assert server.spec == before
    assert read().canary is None
    assert (read().refused.refused, read().refused.wanted) == ([32, 1024], "asked")
    assert read().refused.template == read().template


def test_a_finished_canary_leaves_the_limits_and_nothing_else() -> None:
    """The owner's strategy again, no pause, no annotation."""
    server, canaries, read = world(DEPLOYMENT)
    asyncio.run(canaries.start(read(), *ORDER))
    asyncio.run(canaries.hold(read()))
    asyncio.run(canaries.complete(read()))
    assert {key: server.spec[key] for key in server.spec if key != "template"} == DEPLOYMENT
    assert CANARY_ANNOTATION not in server.item["metadata"]["annotations"]
    (engine,) = server.spec["template"]["spec"]["containers"]
    assert engine["args"] == ["--model=m", "--max-num-seqs", "32", "--max-num-batched-tokens=1024"]


@pytest.mark.parametrize("verdict", ["worse", "no-worse"])
def test_a_partition_ends_where_the_api_server_adds_fields_to_it(verdict) -> None:
    """Kubernetes 1.37 gives each rollingUpdate of a StatefulSet a maxUnavailable."""
    rolling = {"partition": 0, "maxUnavailable": 1}
    before = {"type": "RollingUpdate", "rollingUpdate": rolling}
    server, canaries, read = world({**STATEFUL_SET, "updateStrategy": before}, "StatefulSet")
    asyncio.run(canaries.start(read(), *ORDER))
    server.spec["updateStrategy"]["rollingUpdate"].setdefault("maxUnavailable", 1)
    assert server.spec["updateStrategy"]["rollingUpdate"]["partition"] == 3
    worse = verdict == "worse"
    asyncio.run(canaries.take_back(read(), "") if worse else canaries.complete(read()))
    assert server.spec["updateStrategy"] == before


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda spec: spec.update(paused=False), id="resumed"),
        pytest.param(
            lambda spec: spec["template"]["spec"]["containers"][0].update(image="v2"), id="image"
        ),
    ],
)
def test_what_somebody_else_changed_stays(edit) -> None:
    """It is seen, nothing is taken back over it, and a strategy that he set stands."""
    server, canaries, read = world(DEPLOYMENT)
    asyncio.run(canaries.start(read(), *ORDER))
    asyncio.run(canaries.hold(read()))
    edit(server.spec)
    mine = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}
    server.spec["strategy"] = mine
    template = copy.deepcopy(server.spec["template"])
    assert read().edited
    with pytest.raises(WriteConflictError, match="changed meanwhile"):
        asyncio.run(canaries.take_back(read(), ""))
    asyncio.run(canaries.complete(read()))
    assert server.spec["template"] == template
    assert server.spec["strategy"] == mine
    assert not server.spec.get("paused")


def test_an_object_that_moved_on_is_not_written() -> None:
    """Every patch has the object as it was read for a condition."""
    server, canaries, read = world(DEPLOYMENT)
    old = read()
    server.item["metadata"]["resourceVersion"] = "8"
    with pytest.raises(WriteConflictError):
        asyncio.run(canaries.start(old, *ORDER))


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        pytest.param({**DEPLOYMENT, "paused": True}, "Deployment", "paused", id="paused"),
        pytest.param(
            {"replicas": 4, "strategy": {"type": "Recreate"}}, "Deployment", "Recreate",
            id="recreate",
        ),
        pytest.param(
            {"replicas": 1, "strategy": {"rollingUpdate": {"maxSurge": "0%"}}}, "Deployment",
            "no sibling", id="alone",
        ),
        pytest.param({**STATEFUL_SET, "replicas": 1}, "StatefulSet", "no sibling", id="one-of-set"),
        pytest.param(
            {**STATEFUL_SET, "updateStrategy": {"type": "OnDelete"}}, "StatefulSet", "OnDelete",
            id="on-delete",
        ),
        pytest.param(
            {
                **STATEFUL_SET,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}},
            },
            "StatefulSet", "in use", id="partition",
        ),
        pytest.param(
            {**STATEFUL_SET, "podManagementPolicy": "OrderedReady"}, "StatefulSet", "Parallel",
            id="in-order",
        ),
        pytest.param({**DEPLOYMENT, "replicas": 1}, "Deployment", "", id="one-with-surge"),
    ],
)  # fmt: skip
def test_where_no_pod_can_go_first_it_says_why(spec, kind, words) -> None:
    """And begins nothing."""
    _, canaries, read = world(spec, kind)
    assert words in read().not_possible
    assert bool(read().not_possible) == bool(words)
    if words:
        with pytest.raises(WriteConflictError):
            asyncio.run(canaries.start(read(), *ORDER))


def test_without_surge_one_pod_makes_room() -> None:
    """Where the owner allows no pod more than asked for, one fewer serves meanwhile."""
    spec = {"replicas": 4, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}}
    server, canaries, read = world(spec)
    asyncio.run(canaries.start(read(), *ORDER))
    assert server.spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"container": 7}, id="no-such-container"),
        pytest.param({"args": [1]}, id="args-of-numbers"),
        pytest.param({"before": [8]}, id="one-limit"),
        pytest.param({"variables": {"ABSENT": "8"}}, id="no-such-variable"),
        pytest.param({"variables": {"A": 8}}, id="variable-of-numbers"),
        pytest.param({"written": {"replicas": 0}}, id="another-field"),
        pytest.param({"since_seconds": True}, id="no-time"),
        pytest.param({"more": 1}, id="unknown-field"),
    ],
)
def test_an_annotation_that_is_not_ours_is_none(change) -> None:
    """Anybody who may edit the object may write one."""
    server, canaries, read = world(DEPLOYMENT)
    asyncio.run(canaries.start(read(), *ORDER))
    notes = server.item["metadata"]["annotations"]
    notes[CANARY_ANNOTATION] = json.dumps({**json.loads(notes[CANARY_ANNOTATION]), **change})
    assert read().canary is None


def test_release_ends_it_without_the_operator(capsys: pytest.CaptureFixture[str]) -> None:
    """As before a chart is uninstalled; what is no canary stays as it is."""
    server, canaries, read = world(DEPLOYMENT)
    before = copy.deepcopy(server.spec)
    assert asyncio.run(PART.put_back(server, ())) == []
    asyncio.run(canaries.start(read(), *ORDER))
    assert asyncio.run(PART.put_back(server, ())) == []
    assert server.spec == before
    assert capsys.readouterr().out == "Deployment a/chat: max_num_seqs 32 -> 8\n"
    # An operator that still runs begins no other for a while.
    with pytest.raises(WriteConflictError, match="put it back a moment ago"):
        asyncio.run(canaries.start(read(), *ORDER))
    server.item["metadata"]["annotations"][RELEASED_ANNOTATION] = "2026-01-01T00:00:00Z"
    assert asyncio.run(canaries.start(read(), *ORDER))
    assert RELEASED_ANNOTATION not in server.item["metadata"]["annotations"]
