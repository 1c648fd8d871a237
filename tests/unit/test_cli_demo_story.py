"""What the demo replays, and its one picture: what it names, and what it is drawn from."""

from dataclasses import replace
from pathlib import Path

import pytest

from servingslo_lab.cli.demo.command import interrupted, surge_run, trace_run
from servingslo_lab.cli.demo.story import draw, dumps, loads, milestones, write
from servingslo_lab.cli.demo.system import EXAMPLE, TRACE
from servingslo_lab.cli.demo.timeline import Timeline
from servingslo_lab.rig.simulated.traffic import TrafficPlan

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


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


def test_without_a_surge_the_picture_names_none(recorded: Timeline, tmp_path: Path) -> None:
    """Of a user's trace: the first order, all ready, the first release."""
    own = replace(recorded, surge_start_seconds=None, surge_end_seconds=None)
    assert next(words for _, words in milestones(own)) == "ordered"
    written = write(tmp_path, own)
    assert [path.name for path in written] == ["trace.json", "trace.svg"]
    assert "surge" not in written[1].read_text(encoding="utf-8").lower()
    assert loads(written[0].read_text(encoding="utf-8")) == own


def csv(folder: Path, *, rate: float, seconds: float, prompt: int = 800) -> Path:
    """A trace of equal requests at a constant rate."""
    count = int(rate * seconds) + 1
    lines = [f"{place / rate:.3f},{prompt},200" for place in range(count)]
    path = folder / "my.csv"
    path.write_text("\n".join(["arrival_seconds,prompt_tokens,output_tokens", *lines]) + "\n")
    return path


def test_a_user_s_trace_is_replayed_as_it_is(tmp_path: Path) -> None:
    """Neither scaled nor surged nor repeated; its last request arrives as the traffic ends."""
    path = csv(tmp_path, rate=2.0, seconds=130.0)
    run = trace_run(path, 360.0, ROOT / EXAMPLE)
    plan = TrafficPlan(name="", namespace="", selector={}, **{**run.traffic, "trace": path})
    assert plan.arrivals().arrival_seconds.tolist() == [place / 2.0 for place in range(260)]
    assert (run.seconds, run.surge) == (130.0, None)
    assert run.notes == [
        "my.csv is replayed as it is: no surge, no change of its rate",
        "my.csv lasts 2m10s: the demo ends after 2m10s",
    ]


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


def test_the_demo_s_own_traffic_has_its_surge() -> None:
    """A quarter of the time, after the first quarter."""
    run = surge_run(ROOT / TRACE, 360.0)
    assert run.surge == run.timeline(()).surge == (90.0, 180.0)
    assert [surge["factor"] for surge in run.traffic["surges"]] == [2.5]


def test_an_interruption_says_what_the_folder_holds(tmp_path: Path) -> None:
    """Nothing, an earlier run, or a part of this one."""
    assert interrupted(tmp_path / "none", 0.0) == "interrupted; nothing was written"
    summary = tmp_path / "summary.txt"
    summary.write_text("")
    written = summary.stat().st_mtime
    assert interrupted(tmp_path, written + 1.0).endswith(f"{tmp_path}/ is of an earlier run")
    assert interrupted(tmp_path, written - 1.0).endswith("has only summary.txt")
