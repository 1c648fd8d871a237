"""Fixtures of the tests of the command line."""

import pytest
from tests.unit.cli_calls import CLI, MANIFEST
from tests.unit.cli_recordings import begun
from tests.unit.policy_world import World

from servingslo.controller.recordings.recording import observation_line

TICK_COUNT = 50


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    """The command."""
    return CLI(capsys, monkeypatch)


@pytest.fixture(scope="session")
def seen():
    """Observations of two engines under a load that doubles, as nobody acts on them."""
    world = World(rate=lambda t: 4.0 if t < 450 else 8.0, replicas=2)
    return [world.observe(15.0 * (tick + 1)) for tick in range(TICK_COUNT)]


@pytest.fixture
def plain(seen, tmp_path):
    """A file of observations without a header."""
    path = tmp_path / "observations.jsonl"
    path.write_text("".join(observation_line(o) + "\n" for o in seen))
    return path


@pytest.fixture
def manifest(tmp_path):
    """A manifest with the spec."""
    path = tmp_path / "slo.yaml"
    path.write_text(MANIFEST)
    return path


@pytest.fixture
def header(tmp_path):
    """The header of a recording, as its first line."""
    path = tmp_path / "header.jsonl"
    begun(path).close()
    return path.read_text()
