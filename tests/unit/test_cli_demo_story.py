"""The demo's one picture: what it names, and that it is drawn from the recording beside it."""

from dataclasses import replace
from pathlib import Path

import pytest

from servingslo_lab.cli.demo.story import draw, dumps, loads, milestones
from servingslo_lab.cli.demo.timeline import Timeline

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


@pytest.fixture(scope="module")
def recorded() -> Timeline:
    """The recording in the repository, of a whole `make demo`."""
    return loads((PICTURES / "surge.json").read_text(encoding="utf-8"))


def test_a_recording_is_read_back_as_it_was_written(recorded: Timeline) -> None:
    """Samples, decisions and objectives."""
    assert len(recorded.samples) > 100
    assert loads(dumps(recorded)) == recorded


def test_the_committed_picture_is_of_the_committed_recording(
    recorded: Timeline, tmp_path: Path
) -> None:
    """Its words, and the points of its lines: drawing it again gives the same file."""
    assert draw(recorded, tmp_path / "surge.svg")
    again = (tmp_path / "surge.svg").read_text(encoding="utf-8")
    assert again == (PICTURES / "surge.svg").read_text(encoding="utf-8")


def test_milestones_are_those_of_the_recording(recorded: Timeline) -> None:
    """Surge, order, ready and release, in this order."""
    moments = milestones(recorded)
    assert [words.split(",")[0] for _, words in moments] == [
        "surge begins", "ordered", "all 16 ready", "released",
    ]  # fmt: skip
    assert [at for at, _ in moments] == sorted(at for at, _ in moments)


def test_what_did_not_happen_is_not_named(recorded: Timeline) -> None:
    """Without a scale-up after the surge began there is nothing to be ready or released."""
    quiet = replace(recorded, decisions=[])
    assert [words for _, words in milestones(quiet)] == ["surge begins"]
    short = replace(recorded, samples=[s for s in recorded.samples if s.elapsed_seconds < 120])
    assert [words.split(",")[0] for _, words in milestones(short)][:2] == [
        "surge begins",
        "ordered",
    ]
