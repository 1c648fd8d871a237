"""The image's own steps, run without a builder: what the Dockerfile says is what is run here."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "/opt/servingslo"
# Of the image; the last stage names it.
USER_ID = "65532"
AS_USER = ("setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups")
# The mounts below keep their own state; the environment is owned by another user there.
READ_ONLY = 'mount -o remount,bind,ro / && exec "$@"'
# The image's own Python first.
PYTHONS = ("python3.13", "python3.12", "python3.11", "/usr/bin/python3", sys.executable)


def _stage(ending: str) -> str:
    """The instructions of one stage, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    return next(s for s in stages if s.splitlines()[0].endswith(ending))


def _succeeds(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, check=False, cwd="/", timeout=60)
    except OSError:
        return False
    return done.returncode == 0


def _confinement() -> tuple[str, ...]:
    """What comes before a command to run it as the image's user on a read-only root.

    Nothing where this machine does not let us: only root may, and not in every container.
    """
    read_only = ("unshare", "--mount", "sh", "-euc", READ_ONLY, "sh", *AS_USER)
    return next((way for way in (read_only, AS_USER) if _succeeds(*way, "true")), ())


def _python(confinement: tuple[str, ...]) -> str:
    """The folder of a Python 3.11 or newer that this machine's other users may start, too."""
    new_enough = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"
    return next(
        str(Path(found).parent)
        for found in map(shutil.which, PYTHONS)
        if found is not None and _succeeds(*confinement, found, "-c", new_enough)
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder that the image's user may look into."""
    with tempfile.TemporaryDirectory(prefix="servingslo-image-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.acceptance
@pytest.mark.timeout(1200)
def test_the_image_s_steps_give_a_command_that_runs_on_a_read_only_file_system(
    folder: Path,
) -> None:
    """Hashed requirements and the wheel install into a bare environment that answers."""
    source = folder / "src"
    source.mkdir()
    build = _stage("AS build")
    for names in re.findall(r"^COPY (.+) \./$", build, flags=re.MULTILINE):
        for name in names.split():
            shutil.copy(ROOT / name, source / name)
    shutil.copytree(
        ROOT / "operator",
        source / "operator",
        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
    )
    environment = folder / "opt"
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", build, flags=re.MULTILINE))
    confinement = _confinement()
    # The Dockerfile says python; where that name is another's here, its folder has it as python3.x.
    tools = folder / "tools"
    tools.mkdir()
    python = next(Path(_python(confinement)).glob("python3.[0-9][0-9]"))
    (tools / "python").symlink_to(python)
    for step in re.findall(r"^RUN (.+)$", build, flags=re.MULTILINE):
        command = step.replace(ENVIRONMENT, str(environment)).replace("/src", str(source))
        done = subprocess.run(
            ["sh", "-euc", command],
            cwd=source,
            env={**os.environ, **defaults, "PATH": f"{tools}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, f"{shlex.quote(command)}\n{done.stdout}\n{done.stderr}"
    if confinement:
        assert not _succeeds(*confinement, "touch", str(environment / "written"))
    command = environment / "bin" / "servingslo"
    version = _answer(*confinement, command, "--version")
    assert re.fullmatch(r"servingslo \d+\.\d+\.\d+\s*", version)
    assert "Usage: servingslo" in _answer(*confinement, command, "--help")
    absent = ("servingslo_lab", "numba", "matplotlib")
    found = f"import importlib.util as u; print([n for n in {absent} if u.find_spec(n)])"
    answer = _answer(*confinement, environment / "bin" / "python", "-c", found)
    assert answer.strip() == "[]"
    _check_sbom(_sbom(environment, folder), environment)


def _sbom(environment: Path, folder: Path) -> dict[str, Any]:
    """What the release's own step tells of an environment."""
    made = folder / "sbom.json"
    command = ("make", "sbom", f"ENVIRONMENT={environment}", f"SBOM={made}")
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
    return told


def _check_sbom(told: dict[str, Any], environment: Path) -> None:
    """It names everything that is installed there, with its version, origin and licence."""
    command = (environment / "bin" / "pip", "list", "--format=json", "--disable-pip-version-check")
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    installed = {canonicalize_name(e["name"]): e["version"] for e in json.loads(listed.stdout)}
    assert (told["bomFormat"], told["metadata"]["component"]["name"]) == ("CycloneDX", "servingslo")
    found = {canonicalize_name(one["name"]): one for one in told["components"]}
    own = {"servingslo"}
    assert {name: one["version"] for name, one in found.items() if name not in own} == {
        name: version for name, version in installed.items() if name not in own
    }
    assert [name for name, one in found.items() if not one.get("licenses")] == []
    assert [name for name, one in found.items() if not one.get("purl") and name not in own] == []


def test_the_release_tells_what_the_image_holds_by_the_step_that_is_tried_here() -> None:
    """And puts the file beside the others that it publishes."""
    text = (ROOT / ".github" / "workflows" / "release.yaml").read_text(encoding="utf-8")
    steps = yaml.safe_load(text)["jobs"]["release"]["steps"]
    (step,) = (one for one in steps if "make sbom" in one.get("run", ""))
    moved = step["run"].splitlines()[1].split()
    assert moved[:2] == ["mv", "dist/servingslo.cdx.json"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "SBOM ?= dist/servingslo.cdx.json" in makefile


def _answer(*command: str | Path) -> str:
    """What a command of the image prints, without a home or anything to write to."""
    return subprocess.run(
        command,
        cwd="/",
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/nonexistent",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_the_image_runs_as_an_unprivileged_user_from_a_pinned_base() -> None:
    """The last stage names a numeric user, and every base carries an exact version."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = re.split(r"^FROM ", text, flags=re.MULTILINE)[-1]
    assert re.search(rf"^USER {USER_ID}:{USER_ID}$", final, flags=re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+|@sha256:", base) for base in bases)
