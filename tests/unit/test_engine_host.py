"""The engine host: engines follow pods, traffic reaches them, faults break what they should."""

import dataclasses
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from kubernetes.client import ApiClient
from prometheus_client.parser import text_string_to_metric_families

from servingslo.errors import InvalidInputError
from servingslo_lab.rig.simulated.engine_host import EngineHost, FaultKind
from servingslo_lab.rig.simulated.engine_pods import EnginePod, engine_pod
from servingslo_lab.rig.simulated.engines import traffic_plan, web_application
from servingslo_lab.rig.simulated.gateway_metrics import RouteReading, envoy_page
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
ENVOY_CAPTURE = Path(__file__).parents[1] / "golden" / "data" / "envoy_1.40.0_metrics.txt"
KIND = engine_kind("l4-small")


class Clock:
    """A clock that tests turn by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def pod(name: str = "chat-0", **changes: object) -> EnginePod:
    """A ready pod of the workload `chat`."""
    base = EnginePod(
        namespace="llm",
        name=name,
        incarnation=f"{name}/0",
        labels={"app": "chat"},
        container="vllm",
        node="node-1",
        model_name="m",
        kind=KIND,
        limits=KIND.limits,
        max_queued=None,
        max_model_len=4096,
        drain=False,
        ready=True,
    )
    return dataclasses.replace(base, **changes)


def plan_document(**changes: object) -> dict[str, object]:
    """Traffic on `chat` from the carried trace."""
    return {
        "name": "t",
        "namespace": "llm",
        "selector": {"app": "chat"},
        "trace": str(TRACE),
        "start_seconds": 600,
        **changes,
    }


def host_with(*pods: EnginePod, **plan: object) -> tuple[EngineHost, Clock]:
    """A host with these pods and traffic on them."""
    clock = Clock()
    host = EngineHost(clock=clock)
    host.set_pods(pods)
    host.begin_traffic(traffic_plan(plan_document(**plan)))
    return host, clock


def test_requests_of_the_trace_are_served_and_judged():
    """After a minute at six requests a second on three engines nearly all are good."""
    host, clock = host_with(pod("a"), pod("b"), pod("c"))
    clock.now += 60
    stats = host.stats()["traffic"]["t"]

    assert stats["offered"] == pytest.approx(330, rel=0.25)
    assert stats["offered"] == stats["over"] + stats["in_flight"]
    assert stats["share_in_slo"] > 0.95
    assert stats["replica_seconds"] == pytest.approx(180)
    assert sum(minute["offered"] for minute in stats["minutes"]) == stats["offered"]
    assert stats["recent"]["ttft_seconds"]["p99"] < 1.0
    assert [engine["pod"] for engine in stats["engines"]] == ["llm/a", "llm/b", "llm/c"]


def test_the_gateway_s_page_has_the_names_types_and_labels_of_a_real_envoy():
    """Each family of ours is in the capture, alike."""

    def shape(text: str) -> dict[str, tuple[str, frozenset[str]]]:
        return {
            family.name: (family.type, frozenset(family.samples[0].labels))
            for family in text_string_to_metric_families(text)
        }

    real = shape(ENVOY_CAPTURE.read_text(encoding="utf-8"))
    ours = shape(envoy_page([RouteReading(namespace="inference", route="chat", offered=3)]))
    assert len(ours) == 6
    assert ours.items() <= real.items()


@pytest.mark.parametrize(
    ("drain", "failed"),
    [pytest.param(False, True, id="killed"), pytest.param(True, False, id="drained")],
)
def test_requests_of_a_deleted_pod_are_lost_unless_it_drains(drain, failed):
    """VLLM's default, and with a shutdown timeout."""
    host, clock = host_with(pod("a", drain=drain), pod("b"), pod("c"))
    clock.now += 30
    host.set_pods([pod("b"), pod("c")])
    clock.now += 30
    outcomes = host.stats()["traffic"]["t"]["outcomes"]

    assert (outcomes["failed"] > 0) is failed


def test_a_pod_out_of_the_traffic_comes_back_into_another():
    """It finishes what it has, sleeps, and serves what the traffic of that time sends."""
    serving = {"app": "chat", "serving": "true"}
    host, clock = host_with(pod("a", labels=serving), pod("b", labels=serving), selector=serving)
    clock.now += 30
    host.set_pods([pod("a", labels=serving), pod("b", labels={**serving, "serving": "false"})])
    clock.now += 30
    host.put_to_sleep("llm/b", asleep=True)
    first = host.stats()["traffic"]["t"]
    assert first["outcomes"].get("failed", 0) == 0
    assert [engine["pod"] for engine in first["engines"]] == ["llm/a"]
    host.end_traffic("t")
    host.begin_traffic(traffic_plan(plan_document(selector=serving)))
    host.set_pods([pod("a", labels=serving), pod("b", labels=serving)])
    assert host.sleeps("llm/b")
    host.put_to_sleep("llm/b", asleep=False)
    clock.now += 60
    stats = host.stats()["traffic"]["t"]
    assert [engine["pod"] for engine in stats["engines"]] == ["llm/a", "llm/b"]
    assert stats["over"] > 200


def test_restarted_container_starts_with_empty_counters():
    """A new incarnation of the same pod is a new engine."""
    host, clock = host_with(pod("a"))
    clock.now += 30
    host.stats()
    first = host.stats()["traffic"]["t"]["engines"][0]["running"]
    host.set_pods([pod("a", incarnation="a/1")])
    second = host.stats()["traffic"]["t"]["engines"][0]["running"]

    assert first > 0
    assert second == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param({"trace": "none.csv"}, "none.csv", id="no-file"),
        pytest.param({"scale": 0}, "scale", id="scale"),
        pytest.param({"routing": "fastest"}, "routing", id="routing"),
    ],
)
def test_bad_plan_is_refused_by_field(changes, named):
    """The message names the field."""
    with pytest.raises(InvalidInputError, match=named):
        host_with(pod(), **changes)


async def pages(host: EngineHost) -> TestClient:
    """A client of the host's real HTTP server on loopback."""
    client = TestClient(TestServer(web_application(host)))
    await client.start_server()
    return client


@pytest.mark.parametrize(
    ("kind", "status", "content"),
    [
        pytest.param(FaultKind.NAN, 200, "vllm:num_requests_running{%s} NaN", id="nan"),
        pytest.param(FaultKind.EMPTY, 200, "", id="empty"),
        pytest.param(FaultKind.ERROR, 500, "broken on purpose\n", id="error"),
    ],
)
async def test_faults_break_the_page_of_one_pod(kind, status, content):
    """The other pods are as before, and so is this one when it is repaired."""
    host, _ = host_with(pod("a"), pod("b"))
    client = await pages(host)
    fault = {"namespace": "llm", "pod": "a", "kind": kind.value}
    await client.post("/faults", json=fault)
    broken = await client.get("/metrics/llm/a")
    text = await broken.text()
    other = await (await client.get("/metrics/llm/b")).text()
    await client.post("/faults", json={**fault, "kind": "none"})
    repaired = await (await client.get("/metrics/llm/a")).text()
    await client.close()

    expected = content.replace("%s", 'engine="0",model_name="m"')
    assert broken.status == status
    assert expected in text
    assert bool(text) is bool(expected)
    assert "NaN" not in other
    assert "NaN" not in repaired
    assert repaired.startswith("# HELP vllm:")


async def test_bad_requests_are_answered_with_what_is_wrong():
    """Status 400 with a message, for unknown pods, fields and files."""
    host, _ = host_with(pod("a"))
    client = await pages(host)
    answers = [
        await client.post("/faults", json={"namespace": "llm", "pod": "x", "kind": "nan"}),
        await client.post("/faults", json={"namespace": "llm", "pod": "a", "kind": "odd"}),
        await client.post("/traffic", json=plan_document()),
        await client.post("/traffic", data="{"),
        await client.delete("/traffic/none"),
    ]
    statuses = [answer.status for answer in answers]
    missing = (await client.get("/metrics/llm/x")).status
    await client.close()

    assert statuses == [400] * 5
    assert missing == 404


def from_manifest(args: list[str], annotations: dict[str, str] | None = None) -> EnginePod | None:
    """The engine of a pod as the API server would return it."""
    document = {
        "metadata": {
            "name": "chat-0",
            "namespace": "llm",
            "uid": "u",
            "labels": {"rig.servingslo.dev/engine": "vllm", "app": "chat"},
            "annotations": annotations or {},
        },
        "spec": {"containers": [{"name": "vllm", "image": "vllm", "args": args}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    return engine_pod(ApiClient()._ApiClient__deserialize(document, "V1Pod"))


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(
            ["--max-num-seqs=32", "--max-num-batched-tokens=1024", "--max-num-queued-reqs=48"],
            id="joined",
        ),
        pytest.param(
            ["--max-num-seqs", "32", "--max-num-batched-tokens", "1024",
             "--max-num-queued-reqs", "48"],
            id="apart",
        ),
        pytest.param(
            ["--max_num_seqs=32", "--max_num_batched_tokens", "1024", "--max_num_queued_reqs=48"],
            id="underscores",
        ),
    ],
)  # fmt: skip
def test_limits_come_from_the_container_arguments(args):
    """Both forms of a flag, as vLLM reads them."""
    read = from_manifest([*args, "--served-model-name", "llama"])

    assert read is not None
    assert (read.limits.max_num_seqs, read.limits.max_num_batched_tokens) == (32, 1024)
    assert (read.max_queued, read.model_name, read.ready) == (48, "llama", True)


@pytest.mark.parametrize(
    ("args", "annotations"),
    [
        pytest.param([], {"rig.servingslo.dev/fleet": "abacus"}, id="unknown-kind"),
        pytest.param(["--max-num-seqs=4096"], {}, id="more-sequences-than-budget"),
    ],
)
def test_pod_that_could_not_start_has_no_engine(args, annotations):
    """Such a pod never serves."""
    assert from_manifest(args, annotations) is None
