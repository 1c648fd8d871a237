"""Flags of engines beside their limits, and what of a command line is reported as not read.

Invariants:
1. A switch has the meaning that its value has in the version that takes one.
2. A flag that is not understood is reported with its word.
3. A version is known from vLLM's own images alone.
4. A pod has the API servers that its commands start.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.engines.vllm_images import vllm_version
from servingslo.runtimes.launch.arguments import (
    batch_arguments,
    change_refused,
    parse_batch_arguments,
)
from servingslo.runtimes.launch.command_line import command_line
from servingslo.runtimes.launch.settings import launch_arguments, parse_launch_arguments
from servingslo.runtimes.shell.words import Environment

VLLM = profile("vllm")
_ON, _OFF = "--enable-chunked-prefill", "--no-enable-chunked-prefill"


@pytest.mark.parametrize(
    ("words", "chunked"),
    [
        pytest.param([f"{_ON}=False"], False, id="joined-false"),
        pytest.param([_ON, "false"], False, id="apart-false"),
        pytest.param([_ON, "FALSE"], False, id="upper-case"),
        pytest.param(["--enable_chunked_prefill=false"], False, id="underscores"),
        pytest.param([f"{_ON}=True"], True, id="joined-true"),
        pytest.param([_ON, "True"], True, id="apart-true"),
        pytest.param([_ON], True, id="switch"),
        pytest.param([_ON, "--port=1"], True, id="before-another-flag"),
        pytest.param([_OFF], False, id="switch-off"),
        pytest.param([_OFF, _ON], True, id="last-wins"),
        pytest.param([_ON, f"{_ON}=false"], False, id="last-value-wins"),
        pytest.param(["--port=1"], None, id="absent"),
    ],
)
@pytest.mark.parametrize("shell", [pytest.param(True, id="shell"), pytest.param(False, id="plain")])
def test_a_switch_with_a_value_has_the_meaning_of_the_value(words, chunked, shell):
    """1: vLLM up to 0.8 takes one; later ones refuse to start with it."""
    argv = ["vllm", "serve", "m", *words]
    command = ["bash", "-c", " ".join(argv)] if shell else argv
    found = parse_launch_arguments(command, None, VLLM)
    assert (found.chunked_prefill, found.unread) == (chunked, ())


@pytest.mark.parametrize("word", [f"{_ON}=0", f"{_ON}=off", "--enable-chunked", f"{_OFF}=maybe"])
def test_a_switch_that_is_not_understood_is_reported(word):
    """2: neither on nor off is taken for it."""
    found = parse_launch_arguments(None, ["m", word], VLLM)
    assert found.chunked_prefill is None
    assert any(word in told for told in found.unread)


@pytest.mark.parametrize(
    ("args", "tokens", "told"),
    [
        pytest.param(["--chunked-prefill-size", "4096"], 4096, "", id="a-size"),
        pytest.param(["--chunked-prefill-size", "-1"], None, "--context-length", id="off"),
        pytest.param(["--chunked-prefill-size=0", "--context-length=99"], 16384, "", id="zero"),
        pytest.param(
            ["--chunked-prefill-size=-1", "--context-length=9000", "--max-prefill-tokens=4096"],
            9000,
            "",
            id="the-longest-sequence",
        ),
        pytest.param(
            ["--chunked-prefill-size=-1", "--context-length=900", "--max-prefill-tokens", "many"],
            None,
            "--max-prefill-tokens",
            id="bound-unreadable",
        ),
        pytest.param(["--chunked-prefill-size=-2"], None, "'-2' is not allowed", id="negative"),
        pytest.param(["--max_running_requests=4"], None, "--max_running_requests", id="misspelt"),
        pytest.param(["--config", "x.yaml"], None, "the file of --config is not read", id="file"),
        pytest.param(
            ["--chunked-prefill-size=32768", "--enable-dp-attention", "--dp-size=8"],
            None,
            "--chunked-prefill-size: --enable-dp-attention divides it",
            id="divided-by-ranks",
        ),
    ],
)
def test_chunks_of_sglang_may_be_turned_off(args, tokens, told):
    """1, 2: -1 is no limit; what bounds a batch of prompts then has to be known."""
    found = parse_batch_arguments(
        ["python3", "-m", "sglang.launch_server"], args, profile("sglang")
    )
    assert found.max_num_batched_tokens == tokens
    assert told in "; ".join(found.unread)
    assert bool(found.unread) == bool(told)
    off = any(word.endswith(("-1", "=0")) for word in args)
    launch = parse_launch_arguments(None, args, profile("sglang"))
    assert launch.chunked_prefill is (False if off else None)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        pytest.param(["--dp-size", "8"], False, id="full"),
        pytest.param(["--dp=8"], False, id="short"),
        pytest.param(["--data-parallel-size", "$(N)"], False, id="not-known"),
        pytest.param(["--dp", "1", "--tp", "8"], True, id="one-rank"),
        pytest.param(["--dp-size", "8", "--dp-size=1"], True, id="last-wins"),
    ],
)
def test_ranks_of_sglang_may_divide_its_sequences(words, known):
    """2: by its version; the tokens of a chunk are of each rank."""
    args = ["--max-running-requests", "64", "--chunked-prefill-size=4096", *words]
    start = ["python3", "-m", "sglang.launch_server"]
    found = parse_batch_arguments(start, args, profile("sglang"))
    assert found.max_num_batched_tokens == 4096
    assert found.max_num_seqs == (64 if known else None)
    assert found.unread_limits == (() if known else ("max_num_seqs",))
    told = "--max-running-requests: --dp-size may divide it by its ranks"
    assert (told in found.unread) != known


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        pytest.param(["--max-num-seqs", "$N"], "--max-num-seqs: '$N'", id="no-shell-fills-it-in"),
        pytest.param(["--max-num-seqs=$(N)"], "--max-num-seqs: '$(N)' is not known", id="secret"),
        pytest.param(["m", "$(FLAGS)"], "'$(FLAGS)' is not known and may hold flags", id="flags"),
        pytest.param(["--max-num-seq=4"], "'--max-num-seq' may abbreviate", id="abbreviated"),
        pytest.param(["--max-num", "4"], "'--max-num' may abbreviate", id="ambiguous"),
        pytest.param(["--max-num-seqs 4"], "is one word", id="one-word"),
        pytest.param(["serve m --max-num-seqs 4"], "stands inside of", id="all-in-one"),
        pytest.param(["sh", "-c", "vllm --max-num-seqs 'x"], "a quote is not closed", id="quote"),
        pytest.param(["sh", "-c", "vllm $(x"], "'(' is not closed", id="bracket"),
        pytest.param(["sh", "-c", "$START m"], "'$START' is not known", id="program"),
        pytest.param(
            ["sh", "-c", "vllm serve m $FLAGS"], "'$FLAGS' is not known", id="of-the-image"
        ),
        pytest.param(["sh", "-c", "ls; sleep 1"], "no command in it starts", id="no-engine"),
        pytest.param(["sh", "-c", ". f; vllm serve m $N"], "'$N' is not known", id="sourced"),
        pytest.param(["bash", "/run.sh"], "the script '/run.sh' may give flags", id="script"),
        pytest.param(
            ["sh", "-c", "vllm serve m || vllm serve m --max-num-seqs 4"], "differs", id="differs"
        ),
        pytest.param(
            ["sh", "-c", "echo '--max-num-seqs 4' > f; vllm serve m; cat f"],
            "",
            id="echo-starts-nothing",
        ),
        pytest.param(["sh", "-c", "python3 serve.py"], "program 'serve.py'", id="other-program"),
        pytest.param(["ray", "serve", "run", "app:app"], "program 'ray'", id="ray-serve"),
        pytest.param(["python3", "-m", "dynamo.vllm"], "", id="dynamo-takes-the-same-flags"),
        pytest.param(
            ["python3", "/app/vllm/entrypoints/openai/api_server.py"], "", id="file-of-the-module"
        ),
        pytest.param(["sh", "-c", "source ./run.sh"], "script './run.sh'", id="sourced-script"),
        pytest.param(["sh", "-c", "cat f | bash"], "script from its input", id="piped-script"),
        pytest.param(
            ["sh", "-c", "vllm serve m --nnodes 2 --node-rank $RANK"], "--nnodes '2'", id="a-node"
        ),
        pytest.param(["vllm", "serve", "m", "--nnodes", "1"], "", id="the-only-node"),
        pytest.param(
            ["vllm", "serve", "m", "--nnode", "2"], "a pod is one node", id="an-abbreviated-node"
        ),
        pytest.param(
            ["sh", "-c", "if a; then vllm serve m; else ray start --address=h --block; fi"],
            "ray start --address",
            id="a-node-of-ray",
        ),
        pytest.param(
            ["sh", "-c", "bash /w/multi-node-serving.sh leader --ray_cluster_size=2; vllm serve m"],
            "multi-node-serving.sh: a pod is one node",
            id="the-head-of-ray",
        ),
        pytest.param(
            ["sh", "-c", "bash multi-node-serving.sh leader --ray_cluster_size=1; vllm serve m"],
            "",
            id="a-head-alone",
        ),
        pytest.param(["vllm", "run-batch"], "'vllm run-batch' is not known", id="no-server"),
        pytest.param(
            ["vllm", "serve", "m", "-dp", "16", "-dpl", "8"],
            "--data-parallel-size-local",
            id="some-of-the-ranks",
        ),
        pytest.param(
            ["vllm", "serve", "m", "--data-parallel-size=16", "-dpr", "8", "-dpl", "8"],
            "--data-parallel-start-rank",
            id="a-rank",
        ),
        pytest.param(
            ["vllm", "serve", "m", "--data-parallel-size=8", "-dpr", "0", "-dpl", "8"],
            "",
            id="all-ranks",
        ),
        pytest.param(["sh", "-c", "cat > f <<E\n-q\nE\nvllm m"], "a here-document", id="here"),
        pytest.param(["sh", "-c", "f() { vllm serve m; }; f"], "a function", id="function"),
        pytest.param(["bash", "-c", "A=(m); vllm serve ${A[@]}"], "or an array", id="array"),
        pytest.param(["sh", "-c", "bash -c 'vllm serve m'"], "another shell", id="inner-shell"),
        pytest.param(["sh", "-c", "eval $X; vllm serve m"], "what its 'eval' runs", id="eval"),
        pytest.param(["sh", "-c", "IFS=,; vllm serve m"], "it sets IFS", id="separators"),
        pytest.param(["sh", "-c", "if x; then vllm serve m"], "is not closed", id="not-closed"),
        pytest.param(["m", "--max-model-len", "long"], "--max-model-len: 'long'", id="length"),
        pytest.param(["m", "-dp", "$(N)"], "--data-parallel-size: '$(N)'", id="data-parallel"),
    ],
)
def test_what_is_not_understood_is_reported_with_its_word(argv, told):
    """2: as the pod has it; a limit is never the one of an absent flag in silence."""
    limits, launch = (
        parse_batch_arguments(argv, None, VLLM),
        parse_launch_arguments(argv, None, VLLM),
    )
    unread = "; ".join(filter(None, [*limits.unread, launch.node, *launch.unread]))
    assert told in unread
    assert bool(unread) == bool(told)
    assert limits.max_num_seqs is None


@pytest.mark.parametrize(
    ("options", "is_node"),
    [
        (["--host", "a,b"], True),
        (["-H", "a:8,b:8"], True),
        (["--hostfile=/etc/hosts.mpi"], True),
        (["--host", "localhost"], False),
        (["-n", "8"], False),
    ],
)
def test_an_engine_that_mpi_starts_on_several_hosts_is_told(options, is_node):
    """The options before the engine are mpirun's; its own --host is an address."""
    argv = ["mpirun", *options, "trtllm-llmapi-launch", "trtllm-serve", "m", "--host", "0.0.0.0,"]
    assert bool(parse_launch_arguments(argv, None, profile("trtllm")).node) is is_node


@pytest.mark.parametrize(
    ("options", "is_node"),
    [
        (["--nnodes", "2"], True),
        (["--nnodes=1:4"], True),
        (["--nnodes=1", "--nproc-per-node=8"], False),
        (["--nproc-per-node=8"], False),
    ],
)
def test_an_engine_that_torchrun_starts_on_several_hosts_is_told(options, is_node):
    """The options before the module are torchrun's."""
    argv = ["torchrun", *options, "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
    assert bool(parse_launch_arguments(argv, None, VLLM).node) is is_node


@pytest.mark.parametrize("spelt", ["--extra_llm_api_options", "--extra-llm-api-options"])
def test_a_file_is_told_once(spelt):
    """2: in the spelling of the runtime, also where the pod has another one."""
    found = parse_batch_arguments(["trtllm-serve", "m", spelt, "f"], None, profile("trtllm"))
    assert found.unread == ("the file of --extra_llm_api_options is not read",)


@pytest.mark.parametrize(
    ("argv", "runtime", "servers"),
    [
        pytest.param(["vllm", "serve", "m", "--headless"], "vllm", 0, id="headless"),
        pytest.param(["vllm", "serve", "m", "-asc", "0"], "vllm", 0, id="no-servers"),
        pytest.param(["vllm", "serve", "m", "--nnodes", "2", "-r", "1"], "vllm", 0, id="rank-1"),
        pytest.param(["vllm", "serve", "m", "--nnodes", "2", "-r", "0"], "vllm", None, id="rank-0"),
        pytest.param(
            ["sh", "-c", "ray start --address=$HEAD:6379 --block"], "vllm", 0, id="ray-worker"
        ),
        pytest.param(
            ["sh", "-c", "ray start --head; vllm serve m"], "vllm", None, id="ray-head"
        ),
        pytest.param(
            ["bash", "/vllm-workspace/multi-node-serving.sh", "worker"], "vllm", 0, id="lws-worker"
        ),
        pytest.param(["bash", "-c", ". ./run.sh"], "vllm", None, id="sourced-script"),
        pytest.param(["sglang", "serve", "--node-rank=1"], "sglang", 0, id="sglang-rank"),
        pytest.param(["/usr/sbin/sshd", "-D"], "trtllm", 0, id="mpi-worker"),
        pytest.param(
            ["mpirun", "-n", "16", "trtllm-llmapi-launch", "trtllm-serve", "m"], "trtllm", None,
            id="mpi-leader",
        ),
    ],
)  # fmt: skip
def test_a_pod_that_starts_no_server_has_none(argv, runtime, servers):
    """4: a node that only joins an engine has no requests that could be missing."""
    found = parse_launch_arguments(argv, None, profile(runtime))
    assert found.api_server_count == servers
    assert "-asc" not in argv or not found.unread


def test_a_value_that_was_filled_in_is_not_shown():
    """2: it may be from a ConfigMap, of which no content is told."""
    known = Environment(known={"N": "secret", "ALL": "--max-num-seqs=secret"})
    for script in ("vllm serve m --max-num-seqs $N", "vllm serve m $ALL"):
        line = command_line(["sh", "-c"], [script], VLLM.starts, known)
        found = batch_arguments(line, VLLM)
        assert found.unread_limits == ("max_num_seqs",)
        assert "secret" not in "; ".join(found.unread)
        assert "$" in "; ".join(found.unread)


def test_places_that_differ_in_what_defaults_depend_on_say_nothing_of_it():
    """2: two lengths, one of which is in force."""
    script = "vllm serve m --max-model-len 4k || vllm serve m --max-model-len 2k"
    found = launch_arguments(command_line(["sh", "-c"], [script], VLLM.starts), VLLM)
    assert found.max_model_len is None
    assert found.unread == ("max_model_len differs between places of a shell command",)


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["/run.sh", "--max-num-seqs=4"], id="script"),
        pytest.param(["vllm", "serve", "m", "$(FLAGS)"], id="unknown-flags"),
        pytest.param(["vllm", "serve", "m", "--max-num-seqs 4"], id="one-word"),
    ],
)
def test_a_line_that_is_not_clear_is_not_changed(argv):
    """A flag that is appended may meet another one."""
    assert change_refused(argv, None, VLLM, {}) != ""


_OWN = st.sampled_from(
    [
        "vllm/vllm-openai",
        "docker.io/vllm/vllm-openai",
        "mirror.example.com:5000/hub/vllm/vllm-openai",
        "vllm/vllm-openai-rocm",
        "public.ecr.aws/q9t5s3a7/vllm-release-repo",
        "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo",
    ]
)
_OTHERS = st.sampled_from(
    [
        "ghcr.io/llm-d/llm-d-cuda",
        "lmcache/vllm-openai",
        "nvcr.io/nvidia/vllm",
        "rocm/vllm",
        "registry.redhat.io/rhaiis/vllm-cuda-rhel9",
        "quay.io/vllm/vllm-openai-fork",
        "example.com/team/vllm",
        "myvllm/vllm-openai",
        "vllm-openai",
        "localhost:0.32/vllm",
    ]
)
_SUFFIX = st.sampled_from(["", ".0", ".1.post1", ".0rc1", ".0-x86_64", ".2-cu129"])
_DIGEST = st.sampled_from(["", "@sha256:" + "0" * 64])


@given(
    image=_OWN, major=st.integers(0, 9), minor=st.integers(0, 99), suffix=_SUFFIX, digest=_DIGEST,
    letter=st.sampled_from(["", "v"]),
)  # fmt: skip
def test_the_tag_of_vllms_own_image_is_its_version(image, major, minor, suffix, digest, letter):
    """3: from any mirror, with or without a digest."""
    tag = f"{letter}{major}.{minor}{suffix}"
    found = vllm_version(f"{image}:{tag}{digest}")
    assert found is not None
    assert found[:2] == (major, minor)


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("v0.8.5.post1", (0, 8, 5)),
        ("0.6.4-x86_64", (0, 6, 4)),
        ("v0.12.0rc1", (0, 12)),
        ("v0.9", (0, 9)),
    ],
)
def test_a_version_has_its_patch(tag, version):
    """3: defaults differ between patches."""
    assert vllm_version(f"vllm/vllm-openai:{tag}") == version


@given(image=_OTHERS, minor=st.integers(0, 99), digest=_DIGEST)
@example(image="ghcr.io/llm-d/llm-d-cuda", minor=3, digest="")
def test_the_tag_of_another_image_is_no_version_of_vllm(image, minor, digest):
    """3: its maker counts by himself."""
    assert vllm_version(f"{image}:v0.{minor}.0{digest}") is None


@given(image=_OWN, tag=st.sampled_from(["latest", "nightly", "nightly-0.11", "gptoss", "0", "v1"]))
def test_a_tag_without_a_release_is_no_version(image, tag):
    """3: neither is an image by its digest alone."""
    assert vllm_version(f"{image}:{tag}") is None
    assert vllm_version(f"{image}@sha256:{'0' * 64}") is None
    assert vllm_version(image) is None
    assert vllm_version(None) is None


_STARTED_BY_PYTHON = "python3 - <<'END'\nos.execvp('vllm', ['vllm', '--max-num-seqs', '48'])\nEND"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        pytest.param(["bash", "-c", _STARTED_BY_PYTHON], "has a here-document", id="program"),
        pytest.param(
            ["bash", "-c", "vllm serve m --max-num-{seqs=48,batched-tokens=4096}"],
            "'--max-num-{seqs=48,batched-tokens=4096}' is not known",
            id="braces",
        ),
        pytest.param(["tritonserver", "--model-store=/m"], "in the model repository", id="backend"),
    ],
)
def test_limits_that_stand_elsewhere_are_no_absent_ones(command, told):
    """2: nor are they written beside what was not understood."""
    found = parse_batch_arguments(command, None, VLLM)
    assert found.max_num_seqs is None
    assert told in "; ".join(found.unread)
    assert found.change_refused


def test_what_is_brought_as_json_is_no_flag() -> None:
    """A brace in a value is not read as one in a flag's name."""
    args = ["m", "--limit-mm-per-prompt", '{"image": 2}', '--override-generation-config={"a": 1}']
    assert parse_batch_arguments(None, args, VLLM).unread == ()
