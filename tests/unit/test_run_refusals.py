"""What ends `servingslo run` at its start, and what it never writes to."""

import asyncio
import logging
import os
import signal
from contextlib import asynccontextmanager

import kopf
import pytest

from servingslo.cli.running.json_log import keep_once
from servingslo.controller.recordings.recording import Recorder
from servingslo.controller.registry import Registry
from servingslo.errors import ClusterError, InvalidInputError
from servingslo.handlers.lifecycle import Operator, handlers_of

# Nothing answers there.
NO_CLUSTER = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: none, user: {}}]
"""


def operator_that_fails(error):
    """An operator whose outside world cannot be opened."""

    @asynccontextmanager
    async def controller():
        raise error
        yield

    return Operator(registry=Registry(), controller=controller, stop=asyncio.Event())


async def test_an_input_that_is_invalid_ends_the_operator():
    """Kopf would try it again every minute, without end."""
    error = InvalidInputError("--health-port", 8080, "a free port")
    operator = operator_that_fails(error)
    await operator.start()
    assert operator.stop.is_set()
    assert operator.failure is error
    await operator.end()


async def test_two_signals_at_once_end_the_operator_and_one_line_says_so(
    caplog, monkeypatch, tmp_path
):
    """Neither is an error of the event loop."""
    caplog.set_level(logging.INFO)
    (tmp_path / "config").write_text(NO_CLUSTER)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    class Loop:
        async def run(self):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    @asynccontextmanager
    async def controller():
        await asyncio.sleep(0.1)
        yield Loop()

    operator = Operator(registry=Registry(), controller=controller, stop=asyncio.Event())
    async with asyncio.timeout(20.0):
        await kopf.operator(
            registry=handlers_of(operator),
            namespaces=["inference"],
            standalone=True,
            identity="test",
            stop_flag=operator.stop,
        )
    assert [one for one in caplog.messages if "Exception in callback" in one] == []
    assert [one for one in caplog.messages if one == "stopped"] == ["stopped"]


async def test_a_cluster_that_is_away_is_waited_for():
    """What kopf is to try again it must be told."""
    operator = operator_that_fails(ClusterError("no answer"))
    with pytest.raises(ClusterError):
        await operator.start()
    assert not operator.stop.is_set()


@pytest.mark.parametrize("text", ["# A page\n\nof text\n", "[1, 2]\n"])
def test_nothing_is_appended_to_a_file_that_is_no_recording(tmp_path, text):
    """Its lines would be lost among those of the operator, and it among them."""
    path = tmp_path / "README.md"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError, match="a new file, or a recording"):
        Recorder(path)
    assert path.read_text(encoding="utf-8") == text


def test_a_recording_is_continued_and_a_new_or_empty_file_begun(tmp_path):
    """As after a restart of the pod."""
    path = tmp_path / "recording.jsonl"
    for line in ('{"header":{}}\n', ""):
        path.write_text(line, encoding="utf-8")
        Recorder(path).close()
    Recorder(tmp_path / "other.jsonl").close()
    assert (tmp_path / "other.jsonl").exists()


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        pytest.param(kopf.LoginError("no"), False, id="credentials"),
        pytest.param(ValueError("no"), True, id="another-fault"),
        pytest.param(None, True, id="no-fault"),
    ],
)
def test_only_lost_credentials_are_left_out_of_the_log(error, kept):
    """The process ends with them as its error, and each of its watches would say it before."""
    exc_info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("kopf", logging.ERROR, "", 0, "a watch has failed", (), exc_info)
    assert keep_once(record) is kept
