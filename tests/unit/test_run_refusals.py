"""What ends `servingslo run` at its start, and what it never writes to."""

import asyncio
import logging
from contextlib import asynccontextmanager

import kopf
import pytest

from servingslo.cli.running.json_log import keep_once
from servingslo.controller.recordings.recording import Recorder
from servingslo.controller.registry import Registry
from servingslo.errors import ClusterError, InvalidInputError
from servingslo.handlers.lifecycle import Operator


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
