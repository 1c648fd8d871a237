"""The demo as a user starts it: from nothing to a summary and pictures, and away at Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servingslo_lab.cli.demo import dashboard
from servingslo_lab.rig.cluster import Rig

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0
# A terminal sends the interrupt to the whole foreground group.
INTERRUPTED_EXIT_CODE = 130
# Between a first Ctrl-C and an impatient second one, while the first is being followed.
IMPATIENCE_SECONDS = 0.02
LOOK_SECONDS = 0.001


def start_demo(temporary: Path, out: Path) -> subprocess.Popen[str]:
    """`servingslo demo` for a minute in a group of its own, everything temporary in one place."""
    return subprocess.Popen(
        [sys.executable, "-m", "servingslo.cli", "demo", "--minutes", "1", "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_behind(temporary: Path) -> list[str]:
    """Command lines of the processes that inherited this temporary folder."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if f"TMPDIR={temporary}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


def test_a_minute_of_demo_decides_and_leaves_pictures(rig: Rig, tmp_path: Path) -> None:
    """Decisions are printed as they are logged; summary, PNG and HTML are written."""
    temporary, out = tmp_path / "t", tmp_path / "out"
    temporary.mkdir()
    with start_demo(temporary, out) as demo:
        printed, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0, printed
    assert "decided namespace=inference name=llama-chat" in printed, printed
    assert "action=scale-up" in printed
    for word in ("in SLO", "replica-hours", "TTFT", "operator"):
        assert word in printed, printed
    written = {path.suffix: path.stat().st_size for path in out.iterdir()}
    assert {".png", ".html"} <= set(written)
    assert all(size > 0 for size in written.values())
    panels = {panel.title: panel for panel in dashboard.loads((out / "panels.json").read_text())}
    for title in ("Replicas", "Arrivals and what is expected of them", "A round of decisions"):
        assert panels[title].lines
        assert all(line.points for line in panels[title].lines)
    assert (left_behind(temporary), list(temporary.iterdir())) == ([], [])


def test_an_interrupt_as_its_folder_appears_leaves_nothing_behind(rig: Rig, tmp_path: Path) -> None:
    """Ctrl-C when the first temporary file is there and no process yet, and again right after."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    with start_demo(temporary, tmp_path / "out") as demo:
        while not any(temporary.iterdir()):
            assert demo.poll() is None
            time.sleep(LOOK_SECONDS)
        for _ in range(2):
            os.killpg(demo.pid, signal.SIGINT)
            # Two that wait for delivery together are one.
            time.sleep(IMPATIENCE_SECONDS)
        printed, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    # An interpreter that has nothing more to do than to end is ended by the second one.
    assert demo.returncode in {INTERRUPTED_EXIT_CODE, -signal.SIGINT}, printed
    assert (left_behind(temporary), list(temporary.iterdir())) == ([], [])


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("starting etcd", id="while the control plane starts"),
        pytest.param(
            "helm install", id="while the chart is installed", marks=pytest.mark.acceptance
        ),
        pytest.param("decided ", id="while traffic flows", marks=pytest.mark.acceptance),
    ],
)
def test_an_interrupt_leaves_nothing_behind(rig: Rig, tmp_path: Path, moment: str) -> None:
    """Ctrl-C at any moment ends every process and removes every temporary file."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    printed = []
    with start_demo(temporary, tmp_path / "out") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            printed.append(line)
            if moment in line:
                break
        os.killpg(demo.pid, signal.SIGINT)
        rest, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == INTERRUPTED_EXIT_CODE, "".join(printed) + rest
    assert (left_behind(temporary), list(temporary.iterdir())) == ([], [])
