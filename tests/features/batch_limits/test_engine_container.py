"""Which container of a pod is the engine, and into which one batch limits are written.

1. The order of containers, and those that run beside the engine, make no difference.
2. One that asks for a card, or says that it runs an engine, is the engine where it is the only one.
3. Where several may be the engine, it is reported with `spec.batching.container`.
4. Limits are written into the engine's arguments or nowhere; every other container stays.
"""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.fuzzing import fuzzed, unhurried

from servingslo.adapters.kubernetes.pods.engine_container import FIELD, engine_container
from servingslo.adapters.kubernetes.pods.records import ContainerRecord, container_records
from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.features.batch_limits.pod_template import changed_container, container_at

pytestmark = unhurried

# Containers as they are injected or put in front: none of them asks for a card, most come first.
BESIDE: tuple[dict[str, Any], ...] = (
    {"name": "istio-proxy", "image": "docker.io/istio/proxyv2:1.27.0", "args": ["proxy", "sidecar"],
     "ports": [{"containerPort": 15090}]},
    {"name": "linkerd-proxy", "image": "cr.l5d.io/linkerd/proxy:edge-25.9.1",
     "ports": [{"containerPort": 4143}, {"containerPort": 4191}]},
    {"name": "queue-proxy", "image": "gcr.io/knative-releases/queue:v1.19",
     "ports": [{"containerPort": 8012}, {"containerPort": 8000}]},
    {"name": "oauth2-proxy", "image": "quay.io/oauth2-proxy/oauth2-proxy:v7",
     "args": ["--upstream=http://127.0.0.1:8000/", "--http-address=:4180"]},
    {"name": "front", "image": "proxy:v0.18.0",
     "args": ["--listen=:8443", "--upstream=http://vllm:8000", "--backend", "vllm"]},
    {"name": "router", "image": "ghcr.io/vllm-project/vllm-router:v0.1",
     "args": ["--routing-logic", "session", "--static-models", "m"]},
    {"name": "cache", "image": "lmcache/vllm-openai:v0.3",
     "command": ["lmcache_server", "localhost", "65432"]},
    {"name": "adapters", "image": "vllm/vllm-openai:v0.11.0",
     "command": ["python3", "/app/sidecar.py", "--watch"]},
    {"name": "fuse", "image": "fuse:1", "resources": {"limits": {"smarter-devices/fuse": 1}}},
    {"name": "io", "image": "agent:1", "resources": {"limits": {"example.com/input-output": 1}}},
    {"name": "rdma", "image": "rdma:1", "resources": {"requests": {"rdma/hca": "1"}}},
    {"name": "no-card", "image": "exporter:1", "resources": {"limits": {"nvidia.com/gpu": "0"}}},
)  # fmt: skip
CARDS: tuple[dict[str, Any], ...] = (
    {"limits": {"nvidia.com/gpu": 1}},
    {"limits": {"nvidia.com/gpu": "8", "cpu": "16"}, "requests": {"memory": "64Gi"}},
    {"limits": {"nvidia.com/mig-3g.40gb": "1"}},
    {"requests": {"amd.com/gpu": 1}},
    {"limits": {"gpu.intel.com/i915": 1}},
    {"limits": {"gpu.intel.com/xe": "1"}},
    {"limits": {"google.com/tpu": 4}},
    {"limits": {"aws.amazon.com/neuron": 1}},
    {"limits": {"aws.amazon.com/neuroncore": 2}},
    {"limits": {"habana.ai/gaudi": 8}},
    {"limits": {"huawei.com/Ascend910": 1}},
    {"limits": {"nvidia.com/gpu.shared": 1}},
    {"limits": {"furiosa.ai/rngd": 1}},
    {"claims": [{"name": "gpu"}]},
)
# How the engine says what it is; an image or a command line that says nothing is the last.
STARTED: tuple[dict[str, Any], ...] = (
    {"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "m"]},
    {"image": "registry.example:5000/ml/vllm@sha256:0", "args": ["m"]},
    {"image": "ours:1", "command": ["vllm", "serve", "m"]},
    {"image": "ours:1", "command": ["/opt/venv/bin/vllm"], "args": ["serve", "m"]},
    {"image": "ours:1", "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]},
    {"image": "ours:1", "command": ["tini", "--", "vllm", "serve", "m"]},
    {"image": "ours:1", "args": ["--model=m", "--max_num_seqs=8"]},
    {"image": "ours:1", "args": ["--model=m", "--gpu-memory-utilization", "0.9"]},
)
SILENT: dict[str, Any] = {"image": "ours:1", "args": ["--model", "m"]}


@st.composite
def _pods(draw: st.DrawFn, *, engines: int) -> tuple[dict[str, Any], list[str]]:
    """A pod's spec with so many engines between other containers, and the engines' names."""
    beside = [
        copy.deepcopy(one)
        for one in draw(
            st.lists(st.sampled_from(BESIDE), unique_by=lambda c: c["name"], max_size=4)
        )
    ]
    servers = []
    for number in range(engines):
        card = draw(st.sampled_from([None, *CARDS]))
        started = draw(st.sampled_from([*STARTED, SILENT] if card else STARTED))
        server = {"name": draw(st.sampled_from(["engine", "zz", "a"])) + str(number), **started}
        server["ports"] = [{"containerPort": draw(st.sampled_from([8000, 8080, 8200]))}]
        servers.append(copy.deepcopy(server | ({"resources": card} if card else {})))
    if engines > 1:
        # Either both ask for a card, or neither does: nothing tells them apart.
        card = draw(st.sampled_from([{}, {"resources": CARDS[0]}]))
        servers = [
            {"name": one["name"], "ports": one["ports"], **draw(st.sampled_from(STARTED)), **card}
            for one in servers
        ]
    native = {one["name"] for one in beside if draw(st.booleans())}
    main = draw(st.permutations([one for one in beside if one["name"] not in native] + servers))
    inits = [{**one, "restartPolicy": "Always"} for one in beside if one["name"] in native]
    inits.insert(0, {"name": "storage-initializer", "image": "vllm/vllm-openai:v0.11.0"})
    return {"containers": main, "initContainers": inits}, [one["name"] for one in servers]


def _item(spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "spec": {"template": {"spec": spec}}}


def _read(spec: dict[str, Any], **more: Any) -> ContainerRecord:
    found = engine_container(container_records({"spec": spec}), None, runtime="vllm", **more)
    assert found is not None
    return found


def changes_of(spec):
    """The engine's container with a limit written into it."""
    place = container_at(_item(spec), None, "vllm")
    return place, changed_container(spec["containers"][place], (64, None), "vllm")


@fuzzed
@given(pod=_pods(engines=1))
def test_the_engine_is_found_wherever_it_stands(pod) -> None:
    """Of one engine between any proxies and agents, in any order, it is the engine that is read."""
    spec, (engine,) = pod
    assert _read(spec).name == engine
    unknown = engine_container(container_records({"spec": spec}), None)
    assert unknown is not None
    assert unknown.name == engine


@fuzzed
@given(pod=_pods(engines=1))
def test_limits_are_written_into_the_engine_alone(pod) -> None:
    """Its command line alone changes; an unknown program's is refused."""
    spec, (engine,) = pod
    at = [one["name"] for one in spec["containers"]].index(engine)
    container = spec["containers"][at]
    if not container.get("command") and not container["image"].startswith("vllm/vllm-openai:"):
        with pytest.raises(ArgumentsNotUnderstoodError, match="start command of image"):
            changes_of(spec)
        return
    place, changed = changes_of(spec)
    assert place == at
    written = str(changed)
    assert "--max-num-seqs=64" in written or "--max_num_seqs=64" in written
    kept = {key: value for key, value in container.items() if key not in {"command", "args", "env"}}
    assert kept.items() <= changed.items()


@fuzzed
@given(pod=_pods(engines=2))
def test_two_engines_are_reported_and_nothing_is_written(pod) -> None:
    """Without a name of the container nothing is read of either, and a write is refused."""
    spec, engines = pod
    found = _read(spec)
    assert found.name == ""
    assert (found.command, found.args, found.image) == ((), (), None)
    assert FIELD in found.unread
    assert all(name in found.unread for name in engines)
    with pytest.raises(ArgumentsNotUnderstoodError, match=FIELD):
        changes_of(spec)


@fuzzed
@given(pod=_pods(engines=2), at=st.integers(0, 1))
def test_a_container_that_is_named_is_taken(pod, at) -> None:
    """spec.batching.container decides, whatever the containers say."""
    spec, engines = pod
    records = container_records({"spec": spec})
    found = engine_container(records, engines[at])
    assert found is not None
    assert found.name == engines[at]
    place = container_at(_item(spec), engines[at])
    assert spec["containers"][place]["name"] == engines[at]


@fuzzed
@given(pod=_pods(engines=1), injected=st.sampled_from(STARTED))
def test_an_injected_container_is_no_engine(pod, injected) -> None:
    """What a template does not have was injected, even where it looks like an engine."""
    spec, (engine,) = pod
    template = frozenset(one["name"] for one in spec["containers"])
    spec["containers"].insert(0, {"name": "injected", **injected, "resources": CARDS[0]})
    assert _read(spec, among=template).name == engine


@fuzzed
@given(pod=_pods(engines=2), data=st.data())
def test_of_two_engines_the_scraped_one_is_read(pod, data) -> None:
    """Where nothing else tells them apart, the port that metrics are read from does."""
    spec, engines = pod
    wanted = data.draw(st.sampled_from(engines))
    for one in spec["containers"]:
        if one["name"] in engines:
            one["ports"] = [{"containerPort": 9001 if one["name"] == wanted else 9002}]
    assert _read(spec, scraped_ports={9001}).name == wanted
    annotated = {"spec": spec, "metadata": {"annotations": {"prometheus.io/port": "9001"}}}
    found = engine_container(container_records(annotated), None)
    assert found is not None
    assert found.name == wanted


@fuzzed
@given(
    beside=st.lists(st.sampled_from(("metrics-proxy", "log-agent", "istio-proxy", "envoy")),
                    unique=True, min_size=1, max_size=3),
    data=st.data(),
)  # fmt: skip
def test_of_what_says_nothing_the_one_that_is_no_proxy_is_the_engine(beside, data) -> None:
    """An image of one's own without a card or a flag is the engine beside containers named so."""
    names = data.draw(st.permutations([*beside, "server"]))
    containers = [{"name": name, "image": f"{name}:1"} for name in names]
    assert _read({"containers": containers}).name == "server"
    other = [*containers, {"name": "second", "image": "second:1"}]
    assert FIELD in _read({"containers": other}).unread
