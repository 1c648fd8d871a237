"""The builder finds or builds exactly the pinned programs, and says what went wrong."""

import dataclasses
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from servingslo_lab.errors import RigError
from servingslo_lab.rig import build
from servingslo_lab.rig.programs import toolchain, versions
from servingslo_lab.rig.programs.commands import without_addresses
from servingslo_lab.rig.waiting import wait_until


@pytest.fixture(autouse=True)
def _no_other_programs(monkeypatch, tmp_path):
    """Neither this machine's cache nor its ready-made programs take part."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)


def _program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


_COMPILED = [
    one
    for one in (*versions.ALL_TOOLS, *versions.INTEROP_TOOLS)
    if not isinstance(one, versions.WheelTool)
]


@pytest.mark.parametrize("tool", [pytest.param(tool, id=tool.name) for tool in _COMPILED])
def test_every_tool_is_pinned_with_checksums(tool):
    """go.mod names one version of the tool's module, go.sum has its checksum, and both ship.

    Istio's tags are no versions of Go modules: its version stands for a commit.
    """
    commit = r"-\d{14}-[0-9a-f]{12}" if tool is versions.ISTIOD else ""
    assert re.fullmatch(rf"\d+\.\d+\.\d+{commit}", tool.version)
    sums = (tool.source_directory / "go.sum").read_text()
    assert f"{tool.pin} {tool.module_version} h1:" in sums
    assert toolchain.required_version(tool.source_directory / "go.mod") >= (1, 26)


def test_envoy_is_pinned_with_the_hashes_of_its_wheels():
    """One version, and a hash for each of the two machines that there are wheels for."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", versions.ENVOY.version)
    lock = (versions.ENVOY.source_directory / versions.LOCK).read_text(encoding="utf-8")
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", lock)) == 2


def test_cache_key_changes_with_the_pins(tmp_path):
    """Another go.sum gives another cache folder, so that an old program is never taken."""
    shutil.copytree(versions.TOOLS_DIRECTORY / "etcd", tmp_path / "etcd")
    copy = dataclasses.replace(versions.ETCD, root=tmp_path)
    assert copy.key == versions.ETCD.key
    with (tmp_path / "etcd" / "go.sum").open("a") as file:
        file.write("example.com/other v1.0.0 h1:0=\n")
    assert copy.key != versions.ETCD.key


def test_missing_pin_is_explained(tmp_path):
    """A go.mod without the tool's module is an error that names both."""
    (tmp_path / "etcd").mkdir()
    (tmp_path / "etcd" / "go.mod").write_text("module example.com/empty\n")
    with pytest.raises(RigError, match=r"etcd/go\.mod does not require go\.etcd\.io"):
        _ = dataclasses.replace(versions.ETCD, root=tmp_path).version
    with pytest.raises(RigError, match="no go line"):
        toolchain.required_version(tmp_path / "etcd" / "go.mod")


@pytest.mark.parametrize("variable", ["KUBEBUILDER_ASSETS", "PATH"])
def test_ready_made_program_of_the_pinned_version_is_taken(monkeypatch, tmp_path, variable):
    """A program that reports exactly the pinned version needs no build."""
    path = _program(
        tmp_path / "bin" / "etcd", f'echo "etcd Version: {versions.ETCD.version}"; echo Go 1.26.0'
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv(variable, f"{path.parent}:/usr/bin:/bin")
    assert build.ensure_tools([versions.ETCD]) == {"etcd": path}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param('echo "etcd Version: 3.5.0"', id="another-version"),
        pytest.param(f'echo "{versions.ETCD.version}"; exit 1', id="fails"),
        pytest.param("echo development build", id="no-version"),
        pytest.param(f'echo "etcd Version: {versions.ETCD.version}-rc.1"', id="pre-release"),
    ],
)
def test_program_of_another_version_is_not_taken(tmp_path, script):
    """A program that does not report the pinned version does not count."""
    assert not build.reports_version(_program(tmp_path / "etcd", script), versions.ETCD)


def _go(tmp_path: Path, *, version: str, build_script: str) -> None:
    """A `go` on PATH that says a version and runs a script for `go build`."""
    _program(
        tmp_path / "bin" / "go",
        'case "$1" in\n'
        f'version) echo "go version go{version} linux/amd64" ;;\n'
        f"build) {build_script} ;;\n"
        "esac",
    )


def test_failed_build_names_tool_command_and_the_end_of_its_log(monkeypatch, tmp_path, capsys):
    """A build that fails is one error with all that is needed to understand it."""
    _go(tmp_path, version="1.99.0", build_script='echo "etcd.go:7: undefined: x"; exit 2')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert build.main(["etcd"]) == 1
    message = capsys.readouterr().err
    assert "error: etcd: `" in message
    assert "go build" in message
    assert "status 2" in message
    assert "undefined: x" in message
    assert {path.name for path in build.cache_directory().iterdir()} == {"lock", "logs"}


def test_build_puts_the_program_into_the_cache_once(monkeypatch, tmp_path, capsys):
    """A built program lands in the cache with its progress told, and is found the next time."""
    # The value of -o follows it; the fake compiler writes a program that knows its version.
    script = (
        'while [ "$1" != -o ]; do shift; done; '
        f'printf "#!/bin/sh\\necho {versions.ETCD.version}\\n" > "$2"; chmod +x "$2"; '
        "echo compiled >> $COUNT"
    )
    _go(tmp_path, version="1.99.0", build_script=script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    assert build.main(["etcd"]) == 0
    first = capsys.readouterr()
    assert "built in" in first.out
    label = f"etcd {versions.ETCD.version}"
    assert f"rig: 0 of 1 built, 0 % of the packages ({label}: fetching)" in first.err
    assert first.err.splitlines()[-1] == "rig: 1 of 1 built"
    assert build.main(["etcd"]) == 0
    assert "found" in capsys.readouterr().out
    assert (tmp_path / "count").read_text().splitlines() == ["compiled"]
    assert build.ensure_tools([versions.ETCD])["etcd"].is_relative_to(build.cache_directory())


def test_concurrent_builds_build_once(monkeypatch, tmp_path):
    """The second builder waits for the first and takes what it built."""
    script = (
        'while [ "$1" != -o ]; do shift; done; echo compiled >> $COUNT; sleep 0.5; '
        f'printf "#!/bin/sh\\necho {versions.ETCD.version}\\n" > "$2"; chmod +x "$2"'
    )
    _go(tmp_path, version="1.99.0", build_script=script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    command = [sys.executable, "-m", "servingslo_lab.rig.build", "etcd"]
    builders = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [builder.wait(timeout=60) for builder in builders] == [0, 0]
    assert (tmp_path / "count").read_text().splitlines() == ["compiled"]


def test_interrupted_build_ends_what_it_started_and_leaves_no_scratch(monkeypatch, tmp_path):
    """Ctrl-C kills the compiler and removes unfinished work; the exit status says so."""
    _go(tmp_path, version="1.99.0", build_script="echo $$ > $PID_FILE; exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
    builder = subprocess.Popen(
        [sys.executable, "-m", "servingslo_lab.rig.build", "etcd"],
        stderr=subprocess.PIPE,
        text=True,
    )
    pid_file = tmp_path / "pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "", what="a running compiler")
    builder.send_signal(signal.SIGINT)
    _, messages = builder.communicate(timeout=120)
    assert builder.returncode == 130
    assert "interrupted" in messages
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert {path.name for path in build.cache_directory().iterdir()} == {"lock", "logs"}


def test_logs_carry_no_addresses_of_proxies(monkeypatch):
    """URLs and the hosts of configured proxies are removed from what is logged or shown."""
    monkeypatch.setenv("GOPROXY", "https://user:secret@proxy.example.org/go,direct")
    line = "Get https://user:secret@proxy.example.org/go/x: lookup proxy.example.org: no such host"
    cleaned = without_addresses(line)
    assert "example.org" not in cleaned
    assert "secret" not in cleaned
    assert cleaned.endswith("no such host")
