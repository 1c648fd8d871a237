"""Fixtures of the tests of the command line."""

import pytest
from tests.unit.cli_calls import CLI


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    """The command."""
    return CLI(capsys, monkeypatch)
