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


def _steps(stage: str) -> list[str]:
    """Shell commands of the RUN instructions of one stage, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    body = next(s for s in stages if s.splitlines()[0].endswith(stage))
    return re.findall(r"^RUN (.+)$", body, flags=re.MULTILINE)


@pytest.mark.slow
def test_the_image_s_steps_give_a_command_that_runs_on_a_read_only_file_system(
    tmp_path: Path,
) -> None:
    """Hashed requirements and the wheel install into a bare environment that answers."""
    source = tmp_path / "src"
    source.mkdir()
    for name in ("requirements.lock", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(
        ROOT / "operator",
        source / "operator",
        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
    )
    environment = tmp_path / "opt"
    python_folder = str(Path(sys.executable).parent)
    for step in _steps("AS build"):
        command = step.replace(ENVIRONMENT, str(environment)).replace("/src", str(source))
        done = subprocess.run(
            ["sh", "-euc", command],
            cwd=source,
            env={**os.environ, "PATH": f"{python_folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, f"{shlex.quote(command)}\n{done.stdout}\n{done.stderr}"
    answer = subprocess.run(
        [environment / "bin" / "servingslo", "--version"],
        cwd="/",
        env={"PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert re.fullmatch(r"servingslo \d+\.\d+\.\d+\s*", answer.stdout)


def test_the_image_runs_as_an_unprivileged_user_from_a_pinned_base() -> None:
    """The last stage names a numeric user, and every base carries an exact version."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = re.split(r"^FROM ", text, flags=re.MULTILINE)[-1]
    assert re.search(r"^USER 65532:65532$", final, flags=re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+|@sha256:", base) for base in bases)
