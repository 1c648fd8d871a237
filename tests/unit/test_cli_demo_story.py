"""What the demo replays, and its one picture: what it names, and what it is drawn from."""

from pathlib import Path

import pytest

from servingslo_lab.cli.demo.command import trace_run
from servingslo_lab.cli.demo.story import draw, loads, milestones
from servingslo_lab.cli.demo.system import EXAMPLE
from servingslo_lab.cli.demo.timeline import Timeline

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture(scope="module")
def recorded() -> Timeline:
    """The recording in the repository, of a whole `make demo`."""
    return loads((PICTURES / "surge.json").read_text(encoding="utf-8"))


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
        "surge begins", "ordered", "all 10 ready", "released",
    ]  # fmt: skip
    assert [at for at, _ in moments] == sorted(at for at, _ in moments)


def csv(folder: Path, *, rate: float, seconds: float, prompt: int = 800) -> Path:
    """A trace of equal requests at a constant rate."""
    count = int(rate * seconds) + 1
    lines = [f"{place / rate:.3f},{prompt},200" for place in range(count)]
    path = folder / "my.csv"
    path.write_text("\n".join(["arrival_seconds,prompt_tokens,output_tokens", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("seconds", "run_seconds", "traffic_seconds", "note"),
    [
        pytest.param(20.0, 60.0, 20.0, "my.csv lasts 20s: the demo ends after 1m", id="short"),
        pytest.param(360.0, 360.0, 360.0, None, id="as-asked"),
        pytest.param(
            400.0, 360.0, 360.0, "my.csv lasts 6m40s: only its first 6m are replayed", id="longer"
        ),
    ],
)
def test_what_is_replayed_of_a_trace_of_another_length_is_said(
    tmp_path: Path, seconds: float, run_seconds: float, traffic_seconds: float, note: str | None
) -> None:
    """A run of less than a minute would show nothing: silence follows a shorter trace."""
    run = trace_run(csv(tmp_path, rate=2.0, seconds=seconds), 360.0, ROOT / EXAMPLE)
    assert (run.seconds, run.traffic["duration_seconds"]) == (run_seconds, traffic_seconds)
    assert list(run.notes[1:]) == ([note] if note else [])


@pytest.mark.parametrize(
    ("rate", "prompt", "note"),
    [
        pytest.param(
            80.0, 800, "its busiest minute (80 requests/s) needs 21 replicas, the demo has 16 at "
            "most: objectives will be missed", id="rate",
        ),
        pytest.param(
            1.0, 30_000, "no number of the demo's replicas can keep the objectives of its busiest "
            "minute (1 requests/s): objectives will be missed", id="prompts",
        ),
        pytest.param(
            1.0, 90_000, "its requests are too long for the demo's engines: objectives will be "
            "missed", id="memory",
        ),
    ],
)  # fmt: skip
def test_a_trace_that_the_demo_cannot_serve_is_named(
    tmp_path: Path, rate: float, prompt: int, note: str
) -> None:
    """By the planner's own sizing, before the demo starts."""
    path = csv(tmp_path, rate=rate, seconds=120.0, prompt=prompt)
    assert trace_run(path, 120.0, ROOT / EXAMPLE).notes[-1] == note
