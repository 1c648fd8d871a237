"""Limits of SGLang, TensorRT-LLM and vLLM are written, read back by the engine's parser, undone.

Neither server runs here: parsers with every flag that was read out of the published sources stand
for theirs, so that a flag that is no such flag, or could be another one's short form, shows.
"""

import argparse
import copy
import json
from dataclasses import replace
from typing import Any

import click
import pytest
from tests.contracts.read import contract_file
from tests.features.batch_limits.orders import canary_order
from tests.unit.workload_server import ROLLING, WorkloadServer

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.features.batch_limits.pod_template import BatchCanaries
from servingslo.policy.inputs import ScaleTarget
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.launch.arguments import parse_batch_arguments
from servingslo.runtimes.launch.programs import start_unseen
from servingslo.runtimes.profile import RuntimeProfile

TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
PROXY = {"name": "front", "image": "proxy:1", "args": ["--listen=:8443"]}
CARD = {"limits": {"nvidia.com/gpu": 1}}
SGLANG = ["python3", "-m", "sglang.launch_server"]
TRTLLM = ["trtllm-serve", "m"]
# A runtime, its container's command and args, and the limits that stand there before.
CASES = [
    pytest.param("sglang", SGLANG, ["--model-path", "m"], (None, None), id="sglang-none"),
    pytest.param("sglang", [*SGLANG, "--model-path=m"], None, (None, None), id="sglang-no-args"),
    pytest.param("sglang", SGLANG, ["--model-path=m", "--max-running-requests", "48"],
                 (48, None), id="sglang-one"),
    pytest.param("sglang", None, [*SGLANG, "--max-running-requests=48", "--chunked-prefill-size",
                                  "8192", "--page-size", "64"], (48, 8192), id="sglang-both"),
    pytest.param("sglang", SGLANG, ["--chunked-prefill-size=4096", "--context-length", "8192",
                                    "--max-prefill-tokens", "16384", "--prefill-max-requests=8"],
                 (None, 4096), id="sglang-neighbours"),
    pytest.param("sglang", ["sglang", "serve"], ["--max-running-requests", "1",
                                                 "--max-running-requests", "48"],
                 (48, None), id="sglang-twice"),
    pytest.param("trtllm", TRTLLM, None, (None, None), id="trtllm-none"),
    pytest.param("trtllm", TRTLLM, ["--max_batch_size", "48"], (48, None), id="trtllm-one"),
    pytest.param("trtllm", ["trtllm-serve"], ["serve", "m", "--max_batch_size=48",
                                              "--max_num_tokens=8192", "--max_seq_len", "8192"],
                 (48, 8192), id="trtllm-both"),
    pytest.param("vllm", ["vllm", "serve", "m"], ["--max_num_seqs=48"], (48, None), id="vllm"),
]  # fmt: skip


def _server(container: dict[str, Any]) -> Any:
    """An API server whose Deployment has a proxy in front of this container."""
    server = WorkloadServer({"replicas": 4, "strategy": ROLLING})
    server.spec["template"]["spec"]["containers"] = [copy.deepcopy(PROXY), container]
    return server


def _container(command: list[str] | None, args: list[str] | None) -> dict[str, Any]:
    lines = {"command": command, "args": args}
    return {
        "name": "engine",
        "image": "ours:1",
        "resources": CARD,
        **{key: list(value) for key, value in lines.items() if value is not None},
    }


def _containers(server: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.spec["template"]["spec"]["containers"]
    return found


def _read(container: dict[str, Any], runtime: RuntimeProfile) -> tuple[int | None, int | None]:
    found = parse_batch_arguments(container.get("command"), container.get("args"), runtime)
    assert not found.change_refused
    return found.max_num_seqs, found.max_num_batched_tokens


def _read_by_its_own_parser(
    container: dict[str, Any], runtime: RuntimeProfile
) -> tuple[int | None, ...]:
    """Both limits as a parser with every published flag of the runtime takes them."""
    words = [*container.get("command", ()), *container.get("args", ())]
    flags = sorted(json.loads(contract_file(runtime.name).read_text(encoding="utf-8"))["flags"])
    known = [flag for flag in flags if not flag.startswith("---")]
    fields = [knob.flag.lstrip("-").replace("-", "_") for knob in runtime.knobs]
    if runtime.name == "trtllm":
        options = [click.Option([flag]) for flag in known]
        command = click.Command("serve", params=[*options, click.Argument(["words"], nargs=-1)])
        values: dict[str, Any] = command.make_context("serve", words[1:]).params
    else:
        parser = argparse.ArgumentParser(add_help=False)
        for flag in known:
            parser.add_argument(flag)
        if runtime.underscores_in_flags:
            words = [w.replace("_", "-") if w.startswith("--") else w for w in words]
        own, rest = parser.parse_known_args([word for word in words if word != "-m"])
        values = vars(own)
        assert not [word for word in rest if word.startswith("--max") or "chunked" in word]
    return tuple(None if values[name] is None else int(values[name]) for name in fields)


async def _started(server: Any, before: tuple[int | None, int | None], runtime: str) -> Any:
    """The canaries of a server, after one was begun."""
    canaries = BatchCanaries(server)
    names = ("max_num_seqs", "max_num_batched_tokens")
    order = canary_order(
        (before[0] or 256, before[1] or 8192),
        (96, 1216),
        runtime,
        flags_added=tuple(n for n, had in zip(names, before, strict=True) if had is None),
    )
    found = await canaries.read("a", TARGET)
    assert found is not None
    assert await canaries.start(found, *order)
    return canaries


@pytest.mark.parametrize(("runtime", "command", "args", "before"), CASES)
async def test_a_canary_is_taken_back_to_the_letter(runtime, command, args, before) -> None:
    """One pod first: what the canary writes is read by both parsers, and its end leaves nothing."""
    container, kind = _container(command, args), profile(runtime)
    server = _server(copy.deepcopy(container))
    spec = copy.deepcopy(server.item["spec"])
    canaries = await _started(server, before, runtime)
    assert _containers(server)[0] == PROXY
    assert _read(_containers(server)[1], kind) == (96, 1216)
    assert _read_by_its_own_parser(_containers(server)[1], kind) == (96, 1216)
    standing = await canaries.read("a", TARGET)
    assert standing is not None
    assert await canaries.take_back(standing, "wanted")
    assert server.item["spec"] == spec


@pytest.mark.parametrize(
    ("runtime", "command", "args", "said"),
    [
        pytest.param("sglang", SGLANG, ["--enable-dp-attention", "--dp-size", "2"],
                     "--enable-dp-attention divides the limits", id="sglang-ranks"),
        pytest.param("sglang", SGLANG, ["--dp", "2"],
                     "--dp-size may divide the limits", id="sglang-copies"),
        pytest.param("sglang", SGLANG, ["--page-size", "128"],
                     "--page-size 128 does not divide 64", id="sglang-page"),
        pytest.param("sglang", SGLANG, ["--page-size=auto"],
                     "--page-size auto does not divide 64", id="sglang-page-unknown"),
        pytest.param("sglang", SGLANG, ["--chunked-prefill-size", "-1"],
                     "turns chunked prefill off", id="sglang-off"),
        pytest.param("sglang", ["sh", "-c", "python3 -m sglang.launch_server"], None,
                     "shell command", id="sglang-shell"),
        pytest.param("trtllm", TRTLLM, ["--config", "/etc/llm.yaml"],
                     "the file of --config comes before the flags", id="trtllm-file"),
        pytest.param("trtllm", TRTLLM, ["--extra_llm_api_options=/etc/llm.yaml"],
                     "the file of --extra_llm_api_options", id="trtllm-old-file"),
        pytest.param("trtllm", TRTLLM, ["--backend", "tensorrt"],
                     "--backend tensorrt has its limits from", id="trtllm-built"),
        pytest.param("trtllm", ["python3", "-m", "dynamo.trtllm"], ["--model-path", "m"],
                     "dynamo.trtllm is not known to take", id="dynamo"),
        pytest.param("vllm", ["python3", "serve.py"], ["--port", "8000"],
                     "the program 'serve.py' may set limits", id="own-program"),
        pytest.param("vllm", ["ray", "serve", "run"], ["app:app"],
                     "the program 'ray' may set limits", id="ray-serve"),
        pytest.param("trtllm", ["python3", "-m", "dynamo.trtllm.main"], ["--model-path", "m"],
                     "dynamo.trtllm is not known to take", id="dynamo-submodule"),
        pytest.param("trtllm", ["python3", "/w/dynamo/trtllm/main.py"], ["--model-path", "m"],
                     "dynamo.trtllm is not known to take", id="dynamo-file"),
        pytest.param("trtllm", ["trtllm-serve"], ["disaggregated", "-c", "d.yaml"],
                     "disaggregated does not take the limits", id="trtllm-router"),
        pytest.param("trtllm", ["trtllm-serve", "mm_embedding_serve", "m"], None,
                     "mm_embedding_serve does not take the limits", id="trtllm-encoder"),
        pytest.param("sglang", ["sglang", "generate"], ["--model-path", "m"],
                     "'sglang generate' is not known to start a server", id="no-server"),
        pytest.param("vllm", ["/opt/wrap", "vllm", "serve", "m"], ["--port", "8000"],
                     "/opt/wrap is not known to pass", id="wrapper"),
        pytest.param("vllm", ["tini", "--", "wrap", "vllm", "serve"], ["m"],
                     "wrap is not known to pass", id="wrapper-behind-another"),
        pytest.param("vllm", ["python3", "wrap.py", "vllm", "serve"], ["m"],
                     "wrap.py is not known to pass", id="wrapper-in-python"),
        pytest.param("vllm", ["vllm", "serve", "--port", "8000", "--"], ["m"],
                     "behind '--' a flag is not read", id="no-flag-behind-dashes"),
        pytest.param("vllm", None, ["--model", "m"],
                     "the start command of image ours:1 is not seen", id="own-image"),
        pytest.param("vllm", None, ["--max-model-len=4096"],
                     "the start command of image ours:1 is not seen", id="own-parser"),
    ],
)  # fmt: skip
async def test_where_a_flag_would_not_do_what_is_meant_nothing_is_written(
    runtime, command, args, said
) -> None:
    """The server would divide the limit, end at its start, or take it from elsewhere."""
    server = _server(_container(command, args))
    before = copy.deepcopy(server.item)
    with pytest.raises(ArgumentsNotUnderstoodError, match=said):
        await _started(server, (None, None), runtime)
    assert server.item == before


def test_the_args_of_an_own_image_are_those_of_an_engine_only_if_they_start_it() -> None:
    """The flags alone say nothing of its parser; of an added engine they are all that is known."""
    args = ["--model", "m", "--max-num-seqs=48"]
    own = replace(profile("vllm"), name="own", starts=(), starts_in_image=None)
    assert start_unseen((), args, "ours:1", profile("vllm"))
    assert not start_unseen((), ["vllm", "serve", *args], "ours:1", profile("vllm"))
    assert not start_unseen((), args, "vllm/vllm-openai:v0.20.0", profile("vllm"))
    assert not start_unseen((), args, "ours:1", own)
    assert start_unseen((), ["m"], "ours:1", own)
