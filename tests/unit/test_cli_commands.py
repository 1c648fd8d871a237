"""What all commands share: help, start-up, schemas, and bad input of those that read clusters."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import kubernetes.aio.config
import pytest
from tests.golden.decisions import BLIND, SCALE_UP

from servingslo.cli.decision_document import decision_of
from servingslo.cli.lazy import COMMANDS
from servingslo.explain.document import as_dict
from servingslo.explain.text import text

KUBECONFIG_WITHOUT_CLUSTER = {"KUBECONFIG": "/nonexistent/kubeconfig"}
# Nothing listens on the port of discard.
GOOD_KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {}}]
"""


@pytest.fixture
def cli(cli, monkeypatch):
    """The command, without a cluster."""
    for name, value in KUBECONFIG_WITHOUT_CLUSTER.items():
        monkeypatch.setenv(name, value)
    return cli


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(cli, command):
    """The example begins with the command itself."""
    called = cli(command, "--help")
    assert called.exit_code == 0
    assert f"Example: servingslo {command}" in called.out


def test_the_list_of_commands_is_complete(cli):
    """Help names each."""
    called = cli("--help")
    assert all(f" {command} " in called.out for command in COMMANDS)


def test_help_imports_nothing_heavy():
    """What takes long to import waits for the command that needs it."""
    heavy = ("kubernetes", "kopf", "matplotlib", "scipy", "numpy", "requests", "pydantic")
    code = (
        "import sys, servingslo.cli.main as m\n"
        "sys.argv = ['servingslo', '--help']\n"
        "try: m.main()\n"
        "except SystemExit: pass\n"
        f"print([n for n in {heavy!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_sizing_needs_no_cluster_library():
    """`size` imports models, not Kubernetes."""
    code = (
        "import sys, servingslo_lab.cli.size\n"
        "print([n for n in ('kubernetes', 'kopf', 'matplotlib', 'requests') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("decision", [SCALE_UP, BLIND], ids=["scale-up", "blind"])
def test_a_status_document_explains_as_the_decision_did(decision):
    """What was left out of the status is unknown, and nothing else is lost."""
    restored = decision_of(as_dict(decision), decision.namespace, decision.name)
    assert text(restored) == text(decision)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("explain", "llama"), ("NAMESPACE/NAME", "'llama'"), id="explain form"),
        pytest.param(("explain", "a/b/c"), ("NAMESPACE/NAME", "'a/b/c'"), id="explain slashes"),
        pytest.param(
            ("explain", "a/b", "--sweep", "--prometheus-url", "nonsense"),
            ("--prometheus-url", "'nonsense'", "http://"),
            id="explain url",
        ),
        pytest.param(
            ("explain", "a/b", "--sweep", "--prometheus-url", "http://p", "--gpu-hourly", "-1"),
            ("--gpu-hourly: -1.0", "0 to 10000"),
            id="explain price",
        ),
        pytest.param(
            ("explain", "a/b", "-o", "yaml"),
            ("--output: 'yaml'", "'text', 'json'"),
            id="explain as",
        ),
        pytest.param(
            ("record", "llama", "--out", "o", "--prometheus-url", "http://p"),
            ("NAMESPACE/NAME", "'llama'"),
            id="record form",
        ),
        pytest.param(
            ("record", "--out", "o", "--prometheus-url", "p"),
            ("--prometheus-url", "'p'"),
            id="record url",
        ),
        pytest.param(
            ("record", "--out", "o", "--prometheus-url", "http://p", "--for", "long"),
            ("--for", "'long'", "duration"),
            id="record for",
        ),
        pytest.param(
            ("record", "--out", "o", "--prometheus-url", "http://p", "--every", "1ms"),
            ("--every", "'1ms'", "500ms"),
            id="record every",
        ),
        pytest.param(
            ("record", "--out", "/", "--prometheus-url", "http://p"),
            ("--out", "'/'", "does not exist"),
            id="record out",
        ),
    ],
)
def test_bad_input_is_named_before_a_cluster_is_asked(cli, arguments, words):
    """Exit code 2 and one line."""
    called = cli(*arguments)
    assert called.refuses(*words), called.err


def test_without_a_cluster_explain_says_so(cli, monkeypatch, tmp_path):
    """Exit code 1: the input was good."""
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    default = str(tmp_path / "none")
    monkeypatch.setattr(kubernetes.aio.config, "KUBE_CONFIG_DEFAULT_LOCATION", default)
    called = cli("explain", "inference/llama")
    assert called.exit_code == 1
    assert called.err == f"error: no Kubernetes configuration: {default} does not exist\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(("--kubeconfig", "/none"), ("--kubeconfig: '/none'", "exists"), id="flag"),
        pytest.param((), ("KUBECONFIG: '/nonexistent/kubeconfig'", "exists"), id="environment"),
    ],
)
def test_a_kubeconfig_that_is_not_there_is_named(cli, flags, words):
    """Whoever named it is told."""
    called = cli("explain", "inference/llama", *flags)
    assert called.refuses(*words), called.err


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("* no YAML", id="no-yaml"),
        pytest.param('{"a": 1}', id="no-kubeconfig"),
        pytest.param("[1, 2]", id="a-list"),
        pytest.param("current-context: x\ncontexts: 3\n", id="broken"),
        pytest.param("", id="empty"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(cli, tmp_path, text):
    """One line with the file, whatever the library makes of it."""
    file = tmp_path / "config"
    file.write_text(text)
    called = cli("explain", "inference/llama", "--kubeconfig", file)
    assert called.refuses(f"--kubeconfig: {str(file)!r}", "allowed: a usable kubeconfig")
    assert called.err.count("\n") == 1
    assert "NoneType" not in called.err


def test_a_schema_of_nothing_known_is_refused(cli):
    """Exit code 2 with the documents that have one."""
    called = cli("schema", "nope")
    assert called.refuses(
        "document: 'nope'", "'observation', 'decision', 'pools-decision', 'recording'"
    )
    assert called.out == ""


@pytest.mark.parametrize(
    "document", ["observation", "decision", "pools-decision", "recording", "fleet"]
)
def test_schemas_describe_their_documents(cli, document):
    """Objects with named properties and no others, each kind described in words."""
    described = json.loads(cli("schema", document).out)
    assert described["$schema"].startswith("https://json-schema.org/")
    kinds = [*described["$defs"].values(), described]
    objects = [kind for kind in kinds if "properties" in kind]
    assert objects
    assert all(kind["additionalProperties"] is False for kind in objects)
    assert all(kind["description"] for kind in objects)


@pytest.mark.parametrize("misspelt", [("podz",), ("pods", "engine"), ("pods", "engines", "run")])
def test_the_schema_refuses_what_the_reader_refuses(cli, misspelt):
    """A field that is not known, at any depth."""
    described = json.loads(cli("schema", "observation").out)
    for name in misspelt[:-1]:
        items = described["properties"][name]["items"]
        described = {**described, **described["$defs"][items["$ref"].rpartition("/")[2]]}
    assert misspelt[-1] not in described["properties"]
    assert described["additionalProperties"] is False


def test_a_full_disk_behind_the_output_is_one_line():
    """No traceback where what is printed cannot be kept."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "servingslo.cli", "crd"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"


def test_a_terminal_without_the_signs_is_written_to():
    """A stream that is not UTF-8 has no ≤; the answer comes all the same."""
    done = subprocess.run(
        [
            sys.executable, "-m", "servingslo.cli", "size", "--fleet", "h100-8b", "--arrival-rate",
            "1", "--prompt-tokens", "100", "--output-tokens", "10", "--objective", "ttft:p99:1s",
        ],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert b"ttft p99 ? 1s" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "a/b"),
        ("top", "--once"),
        ("release", "--all"),
        ("record", "a/b", "--out", "{folder}/x.jsonl", "--prometheus-url", "http://127.0.0.1:9"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_cluster_that_nobody_serves_is_told_at_once(cli, tmp_path, monkeypatch, arguments):
    """Address and cause in plain words; `record` waited for two minutes without one."""
    file = tmp_path / "config"
    file.write_text(GOOD_KUBECONFIG)
    waited, sleep = [], asyncio.sleep

    async def noted(seconds, *result):
        waited.append(seconds)
        return await sleep(seconds, *result)

    monkeypatch.setattr(asyncio, "sleep", noted)
    called = cli(*(one.format(folder=tmp_path) for one in arguments), "--kubeconfig", file)
    assert called.exit_code == 1
    assert called.err.endswith(": no connection to 127.0.0.1:9: Connection refused\n")
    assert sum(waited) == 0.0
    assert not (tmp_path / "x.jsonl").exists()


def test_a_recording_of_no_time_is_refused(cli, tmp_path):
    """It waited for the cluster, and wrote a file with nothing in it."""
    typed = ("--out", tmp_path / "x", "--prometheus-url", "http://127.0.0.1:9", "--for", "0s")
    assert cli("record", *typed).refuses("--for: '0s'", "above 0")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--health-port", "-1", "from 0 to 65535"),
        ("--prometheus-timeout-seconds", "1e300", "from 0.1 to 60"),
        ("--prometheus-username-file", "{file}", "--prometheus-password-file"),
    ],
)
def test_run_refuses_what_nothing_can_be_made_of(cli, tmp_path, flag, value, words):
    """And never tells what a file for credentials holds."""
    file = tmp_path / "name"
    file.write_text("hunter2")
    called = cli("run", "--prometheus-url", "http://127.0.0.1:9", flag, value.format(file=file))
    assert called.refuses(flag, words), called.err
    assert "hunter2" not in called.err


@pytest.mark.parametrize("command", ["fit", "backtest"])
def test_an_address_is_told_by_the_flag_that_was_typed(cli, command):
    """Here it is --prometheus; --prometheus-url is the operator's."""
    typed = ("--prometheus", "foo", "--namespace", "a", "--target", "Deployment/a")
    more = ("--objective", "ttft:p99:1s") if command == "backtest" else ()
    called = cli(command, *typed, *more)
    assert called.refuses("error: --prometheus: 'foo'", "http://"), called.err


def test_a_file_of_runtimes_that_is_none_is_told_by_its_place(cli, tmp_path):
    """What is wrong and where, as with a manifest."""
    path = tmp_path / "runtimes.yaml"
    path.write_text("a: 1\nb: [1\n")
    called = cli("--runtime-profiles", path, "crd")
    assert called.refuses("--runtime-profiles", "line 2"), called.err
    path.write_bytes(b"\xff")
    assert cli("--runtime-profiles", path, "crd").refuses("--runtime-profiles", "UTF-8")
