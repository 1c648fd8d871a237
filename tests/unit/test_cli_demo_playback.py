"""While the rig is built for the first time, the planner is shown on the demo's traffic."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from servingslo_lab.cli.demo import playback
from servingslo_lab.cli.demo.command import SURGE_FACTOR, TICK_SECONDS
from servingslo_lab.cli.demo.system import EXAMPLE, TRACE
from servingslo_lab.errors import RigError
from servingslo_lab.rig import build
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.programs.progress import BuildProgress

ROOT = Path(__file__).parents[2]
PLAN = {
    "trace": str(ROOT / TRACE),
    "scale": 1.2,
    "start_seconds": 900.0,
    "duration_seconds": 240.0,
    "surges": [{"factor": SURGE_FACTOR, "start_seconds": 60.0, "end_seconds": 120.0}],
}
PATIENCE_SECONDS = 120
INTERRUPTED_EXIT_CODE = 130
DECISION = re.compile(r"^\[simulated\] \d\d:\d\d decided namespace=inference name=llama-chat ")


@pytest.fixture
def slow_go(monkeypatch, tmp_path):
    """A compiler that compiles until the file `seen` exists; `fails` makes it fail then."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        'version) echo "go version go1.99.0 linux/amd64" ;;\n'
        "build) echo $$ >> $FOLDER/compilers\n"
        '  while [ "$1" != -o ]; do shift; done\n'
        "  until [ -e $FOLDER/seen ]; do sleep 0.1; done\n"
        '  [ -e $FOLDER/fails ] && { echo "etcd.go:7: undefined: x"; exit 2; }\n'
        f'  printf "#!/bin/sh\\necho {versions.ETCD.version}\\n" > "$2"; chmod +x "$2" ;;\n'
        "esac\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def _told(folder: Path, lines: list[str]):
    """The playback; the first decision that it shows ends the compiler."""

    @contextmanager
    def meanwhile(say):
        def heard(line: str) -> None:
            lines.append(line)
            say(line)
            if DECISION.match(line):
                (folder / "seen").touch()

        with playback.played(ROOT / EXAMPLE, TICK_SECONDS, PLAN, heard):
            yield

    return meanwhile


def test_decisions_are_played_while_a_program_is_built_and_end_with_it(slow_go, capfd):
    """Marked lines next to the progress of the build; then the real thing is announced."""
    lines: list[str] = []
    build.resolve_tools([versions.ETCD], meanwhile=_told(slow_go, lines))
    assert lines[0] == playback.BEGIN
    assert DECISION.match(lines[1])
    assert lines[-1] == playback.END
    written = capfd.readouterr().err.splitlines()
    assert [line for line in written if not line.startswith("rig: ")] == lines
    label = f"etcd {versions.ETCD.version}"
    assert f"rig: 0 of 1 built, 0 % of the packages ({label}: fetching)" in written
    assert written.index("rig: 1 of 1 built") < written.index(playback.END)


def test_nothing_is_played_where_everything_is_built(slow_go):
    """The second demo begins at once."""
    (slow_go / "seen").touch()
    build.resolve_tools([versions.ETCD])
    lines: list[str] = []
    build.resolve_tools([versions.ETCD], meanwhile=_told(slow_go, lines))
    assert lines == []


def test_a_build_that_fails_ends_the_playback_and_is_the_error(slow_go):
    """The end of the compiler's log is told, and no beginning of the demo."""
    (slow_go / "fails").touch()
    lines: list[str] = []
    with pytest.raises(RigError, match="undefined: x"):
        build.resolve_tools([versions.ETCD], meanwhile=_told(slow_go, lines))
    assert lines[0] == playback.BEGIN
    assert playback.END not in lines


def _demo(folder: Path) -> "subprocess.Popen[str]":
    """`servingslo demo` without a rig, with everything that it starts in one session."""
    return subprocess.Popen(
        [sys.executable, "-m", "servingslo.cli", "demo", "--out", str(folder / "out")],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _processes_with(folder: Path) -> list[str]:
    """Command lines of processes that inherited this folder's variable, this one aside."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
                if f"FOLDER={folder}".encode() in variables:
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


def test_an_interrupt_ends_the_build_and_the_playback(slow_go):
    """Ctrl-C while the first decisions are shown leaves no process."""
    read = []
    with _demo(slow_go) as demo:
        for line in demo.stdout:
            read.append(line)
            if DECISION.match(line):
                break
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does it
        rest, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == INTERRUPTED_EXIT_CODE, "".join(read) + rest
    assert "interrupted; what was compiled is kept" in rest
    assert playback.END not in rest
    assert _processes_with(slow_go) == []


def test_a_failed_build_is_the_demo_s_error_and_exit_code(slow_go):
    """The command shows the compiler's message in full, as `make rig` does."""
    (slow_go / "fails").touch()
    with _demo(slow_go) as demo:
        for line in demo.stdout:
            if DECISION.match(line):
                (slow_go / "seen").touch()
                break
        rest, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 1
    assert "ended with status 2; end of" in rest
    assert "etcd.go:7: undefined: x" in rest
    assert _processes_with(slow_go) == []


def test_a_playback_ends_with_the_program_that_began_it():
    """A demo that is killed leaves no simulation: the kernel closes the pipe to it."""
    given = {"example": str(ROOT / EXAMPLE), "tick_seconds": TICK_SECONDS, "plan": PLAN}
    with subprocess.Popen(
        [sys.executable, "-m", playback.__name__, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as playing:
        assert DECISION.match(playing.stdout.readline())
        assert playing.poll() is None
        playing.stdin.close()
        assert playing.wait(timeout=PATIENCE_SECONDS) == 0


def test_the_surge_is_answered_in_the_playback():
    """What is shown is the planner's own: it orders replicas in each repeated surge."""
    lines: list[str] = []
    played = []

    def pause(seconds: float) -> None:
        played.append(seconds)
        if sum(played) >= 2 * PLAN["duration_seconds"]:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        playback.play(ROOT / EXAMPLE, TICK_SECONDS, PLAN, say=lines.append, pause=pause)
    assert all(DECISION.match(line) for line in lines)
    ups = [int(line[12:14]) for line in lines if "action=scale-up" in line]
    assert {minute // 4 for minute in ups} == {0, 1}
    assert any("action=scale-down" in line for line in lines)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_progress_stays_the_last_line():
    """A line of the playback is written above it, and the progress again below."""
    stream = _Terminal()
    with BuildProgress(["etcd 3.6.8"], stream=stream) as progress:
        progress.begin("etcd 3.6.8")
        progress.say("[simulated] hello")
        last = progress.line()
    first, second = stream.getvalue().removesuffix("\n").split("\n")
    assert first.endswith("\r\x1b[K[simulated] hello")
    assert second == f"\r\x1b[K{last}"
