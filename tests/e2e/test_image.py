"""The image's own steps, run without a builder: what the Dockerfile says is what is run here."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "/opt/servingslo"


def _stage(ending: str) -> str:
    """The instructions of one stage, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    return next(s for s in stages if s.splitlines()[0].endswith(ending))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "compiles"),
    [({}, False), ({"REQUIREMENTS": "requirements-compiled.lock"}, True)],
    ids=["plain", "with-numba"],
)
def test_the_image_s_steps_give_a_command_that_runs_on_a_read_only_file_system(
    tmp_path: Path, arguments: dict[str, str], compiles: bool
) -> None:
    """Hashed requirements and the wheel install into a bare environment that answers."""
    source = tmp_path / "src"
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
    environment = tmp_path / "opt"
    python_folder = str(Path(sys.executable).parent)
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", build, flags=re.MULTILINE))
    assert arguments.keys() <= defaults.keys()
    path = f"{python_folder}:{os.environ['PATH']}"
    for step in re.findall(r"^RUN (.+)$", build, flags=re.MULTILINE):
        command = step.replace(ENVIRONMENT, str(environment)).replace("/src", str(source))
        done = subprocess.run(
            ["sh", "-euc", command],
            cwd=source,
            env={**os.environ, **defaults, **arguments, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, f"{shlex.quote(command)}\n{done.stdout}\n{done.stderr}"
    version = _answer(environment / "bin" / "servingslo", "--version")
    assert re.fullmatch(r"servingslo \d+\.\d+\.\d+\s*", version)
    found = "import servingslo.compiling as c; print(c.compiler_installed())"
    assert _answer(environment / "bin" / "python", "-c", found).strip() == str(compiles)


def _answer(*command: str | Path) -> str:
    """What a command of the image prints, without a home or anything to write to."""
    return subprocess.run(
        command,
        cwd="/",
        env={"PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_the_image_runs_as_an_unprivileged_user_from_a_pinned_base() -> None:
    """The last stage names a numeric user, and every base carries an exact version."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = re.split(r"^FROM ", text, flags=re.MULTILINE)[-1]
    assert re.search(r"^USER 65532:65532$", final, flags=re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+|@sha256:", base) for base in bases)
