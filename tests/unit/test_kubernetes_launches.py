"""Command lines are read once, and again when something in them changes."""

from typing import Any

import pytest

from servingslo.adapters.kubernetes.pods.config_maps import NoConfigMaps
from servingslo.adapters.kubernetes.pods.launches import Launches
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.runtimes.catalogue import profile

VLLM = profile("vllm")


class _Maps:
    """One ConfigMap, whose content changes."""

    def __init__(self) -> None:
        self.seqs = "48"

    async def data(self, _namespace, _name, _at_seconds):
        return {"N": self.seqs}


def _pod(name: str, seqs: str, **container):
    engine = {"name": "vllm", "args": ["vllm", "serve", "m", f"--max-num-seqs={seqs}"]}
    metadata = {"namespace": "n", "name": name, "uid": name}
    return pod_record({"metadata": metadata, "spec": {"containers": [engine | container]}}, None)


async def test_pods_of_one_template_are_read_once() -> None:
    """Also what they keep in memory is one record; another template's is another."""
    launches, (a, b, c) = Launches(NoConfigMaps()), [_pod("a", "8"), _pod("b", "8"), _pod("c", "9")]
    assert a.containers is b.containers
    read = [
        await launches.of(launches.engine(pod.containers, None, "vllm"), "n", None, VLLM)
        for pod in (a, b, c)
    ]
    assert read[0] is read[1]
    assert [one.arguments.max_num_seqs for one in read] == [8, 8, 9]


async def test_a_value_of_a_config_map_is_followed() -> None:
    """The words of the pod are the same, and what they stand for is not."""
    maps = _Maps()
    launches = Launches(maps)
    source = {"configMapKeyRef": {"name": "m", "key": "N"}}
    (engine,) = _pod("a", "$(N)", env=[{"name": "N", "valueFrom": source}]).containers
    before = await launches.of(engine, "n", None, VLLM)
    maps.seqs = "64"
    after = await launches.of(engine, "n", None, VLLM)
    assert [one.arguments.max_num_seqs for one in (before, after)] == [48, 64]


async def test_the_leader_of_a_group_stands_for_all_nodes() -> None:
    """What is said of one node is not said of it; other doubts stay."""
    (engine,) = _pod("a", "8", command=["sh", "-c", "vllm serve m --nnodes 2 $X"]).containers
    found = (await Launches(NoConfigMaps()).of(engine, "n", None, VLLM)).launch
    assert found is not None
    assert found.unread.startswith("--nnodes '2': a pod is one node")
    whole = (await Launches(NoConfigMaps()).of(engine, "n", None, VLLM)).of_replica.launch
    assert whole is not None
    assert (whole.node, whole.unread) == ("", "'$X' is not known and may hold flags")


async def test_a_script_that_is_not_read_names_its_engine_and_no_default_is_assumed() -> None:
    """Also beside another container; each limit is unread until the engine or the user tells it."""
    script = "run() { vllm serve m --max-num-seqs 4; }; run"
    engine = {"name": "main", "command": ["sh", "-c", script], "image": "ours:1"}
    metadata = {"namespace": "n", "name": "p", "uid": "u"}
    spec = {"containers": [{"name": "helper", "image": "helper:1", "args": ["serve"]}, engine]}
    pod = pod_record({"metadata": metadata, "spec": spec}, None)
    launches = Launches(NoConfigMaps())
    found = launches.engine(pod.containers, None, "vllm")
    assert found is not None
    assert found.name == "main"
    launch = (await launches.of(found, "n", None, VLLM)).launch
    assert launch is not None
    assert set(launch.unread_limits) == {"max_num_seqs", "max_num_batched_tokens"}
    assert "a function" in launch.unread


@pytest.mark.parametrize(
    ("version", "value", "more", "told"),
    [
        pytest.param("v0.8.5", "0", (), True, id="the-old-one"),
        pytest.param("v0.10.0", "0", ("--max-num-seqs=8",), True, id="one-limit"),
        pytest.param("nightly", "0", (), True, id="version-unknown"),
        pytest.param("v0.7.3", "1", (), True, id="the-new-one"),
        pytest.param("v0.8.5", "1", (), False, id="its-default"),
        pytest.param("v0.7.3", "0", (), False, id="the-default-before"),
        pytest.param("v0.30.0", "0", (), False, id="no-variable-any-more"),
        pytest.param(
            "v0.8.5", "0", ("--max-num-seqs=8", "--max-num-batched-tokens=8"), False, id="limits"
        ),
    ],
)
@pytest.mark.parametrize("shell", [False, True])
async def test_no_default_is_assumed_of_another_engine(version, value, more, told, shell) -> None:
    """A variable chooses it; what the command line gives is read all the same."""
    words = ["vllm", "serve", "m", *more]
    chosen: dict[str, Any] = {"env": [{"name": "VLLM_USE_V1", "value": value}], "args": words}
    if shell:
        chosen = {"args": ["sh", "-c", f"export VLLM_USE_V1={value}; {' '.join(words)}"]}
    (engine,) = _pod("a", "8", image=f"vllm/vllm-openai:{version}", **chosen).containers
    found = await Launches(NoConfigMaps()).of(engine, "n", None, VLLM)
    assert found.launch is not None
    assert found.arguments is not None
    assert (f"VLLM_USE_V1={value}" in found.launch.unread) == told
    assert bool(found.launch.unread_limits) == told
    assert found.arguments.max_num_seqs == (8 if more else None)
