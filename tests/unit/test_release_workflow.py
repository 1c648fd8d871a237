"""What the release workflow takes for granted of this repository holds."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from servingslo import __version__

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
TEXT = WORKFLOW.read_text(encoding="utf-8")
STEPS = yaml.safe_load(TEXT)["jobs"]["release"]["steps"]


def script(name: str) -> list[str]:
    """The lines of a step."""
    step = next(step for step in STEPS if step.get("name", "").startswith(name))
    return str(step["run"]).splitlines()


@pytest.mark.parametrize("action", re.findall(r"uses: (.+)", TEXT))
def test_actions_are_pinned_by_commit(action: str) -> None:
    """With the version beside it, for people."""
    assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


def test_the_versions_that_it_compares_are_one() -> None:
    """Its own lines, as run for a tag; the changelog gets its head when a release is cut."""
    lines = [line for line in script("The tag") if "CHANGELOG" not in line and "OUTPUT" not in line]
    assert len(lines) == 4
    for tag, ends in ((f"v{__version__}", 0), ("v99.0.0", 1)):
        done = subprocess.run(
            ["bash", "-euc", "\n".join(lines)],
            cwd=ROOT,
            env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"},
            check=False,
        )
        assert done.returncode == ends


def test_the_chart_gets_the_image_that_was_pushed(tmp_path: Path) -> None:
    """The line that it replaces is there, once."""
    values = ROOT / "charts" / "servingslo-operator" / "values.yaml"
    copy = tmp_path / "charts" / "servingslo-operator" / "values.yaml"
    copy.parent.mkdir(parents=True)
    copy.write_text(values.read_text(encoding="utf-8"), encoding="utf-8")
    command = next(line for line in script("Chart") if line.startswith("sed"))
    environment = {"IMAGE": "registry.example/operator", "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-euc", command], cwd=tmp_path, env=environment, check=True)
    assert yaml.safe_load(copy.read_text(encoding="utf-8"))["image"]["repository"] == (
        "registry.example/operator"
    )
