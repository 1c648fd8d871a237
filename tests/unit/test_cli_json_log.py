"""The log as JSON: the line's own keys are fields."""

import json
import logging
import sys

from tests.golden.decisions import BLIND, SCALE_UP

from servingslo.cli.running.json_log import JSONFormatter
from servingslo.explain.log_line import log_line


def _written(message: str, *arguments: object, trouble: bool = False) -> dict[str, str]:
    record = logging.LogRecord(
        "servingslo", logging.INFO, "x.py", 1, message, arguments, None, "f", None
    )
    if trouble:
        try:
            int("broken")
        except ValueError:
            record.exc_info = sys.exc_info()
    line = JSONFormatter(datefmt="%Y-%m-%dT%H:%M:%SZ").format(record)
    assert "\n" not in line
    return dict(json.loads(line))


def test_a_decision_s_pairs_are_fields() -> None:
    """Event, keys and values as the text has them, quoted ones whole."""
    told = _written("%s", log_line(SCALE_UP))
    assert told["event"] == "decided"
    assert (told["namespace"], told["name"]) == ("inference", "llama-chat")
    assert told["reason"] == "KVCacheBound"
    assert " " in told["need"]
    assert told["level"] == "INFO"
    assert _written("%s", log_line(BLIND))["action"] == "hold"


def test_what_is_no_pair_stays_the_message() -> None:
    """A sentence has no fields; a broken quote is no end of the line."""
    assert set(_written("laws are evaluated by numpy")) == {"time", "level", "message"}
    assert _written("refused detail=%r", 'a "b" c')["detail"] == 'a "b" c'
    assert _written('x key="open')["message"] == 'x key="open'


def test_a_pair_never_replaces_the_line_s_own_fields() -> None:
    """What a tenant writes into a name cannot forge the level."""
    assert _written("decided level=ERROR name=x")["level"] == "INFO"


def test_an_exception_is_one_field() -> None:
    """The traceback keeps its line breaks inside the string."""
    assert "ValueError: invalid literal" in _written("failed", trouble=True)["exception"]
