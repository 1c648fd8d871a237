"""The development environment as `make setup` makes it, with the oldest and the newest pip."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# That of Python 3.11.0, the oldest Python that is served. Later Pythons have none so old.
OLDEST_PIP = "pip==22.3"


def _steps() -> list[str]:
    """What the Makefile's rule of the environment does with pip in it."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = text.split("\n$(VENV)/.installed:")[1].split("\n\n")[0]
    return [line.strip() for line in rule.splitlines() if "$(BIN)/python -m pip" in line]


@pytest.mark.acceptance
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "pip",
    [
        pytest.param(
            OLDEST_PIP,
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="needs Python 3.11"),
        ),
        "pip",
    ],
)
def test_the_development_environment_installs(tmp_path: Path, pip: str) -> None:
    """A checkout without an environment gets one, by hashes, that pip finds complete."""
    for name in ("requirements-dev.lock", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    leftout = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("operator", "lab"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leftout)
    steps = [step.replace("$(BIN)", ".venv/bin") for step in _steps()]
    assert len(steps) == 3
    for step in (
        f"{shlex.quote(sys.executable)} -m venv .venv",
        f".venv/bin/python -m pip install --quiet --upgrade {pip}",
        *steps,
        ".venv/bin/servingslo --version",
        ".venv/bin/servingslo backtest --help",
    ):
        done = subprocess.run(
            ["sh", "-euc", step], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{step}\n{done.stdout}\n{done.stderr}"
