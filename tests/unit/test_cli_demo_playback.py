"""While the rig is built for the first time, the planner is shown on the demo's traffic."""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from servingslo_lab.cli.demo import playback
from servingslo_lab.cli.demo.command import SURGE_FACTOR, TICK_SECONDS
from servingslo_lab.cli.demo.system import EXAMPLE, TRACE
from servingslo_lab.errors import RigError
from servingslo_lab.rig import build
from servingslo_lab.rig.programs import versions

ROOT = Path(__file__).parents[2]
PLAN = {
    "trace": str(ROOT / TRACE),
    "scale": 1.2,
    "start_seconds": 900.0,
    "duration_seconds": 240.0,
    "surges": [{"factor": SURGE_FACTOR, "start_seconds": 60.0, "end_seconds": 120.0}],
}
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
