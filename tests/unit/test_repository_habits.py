"""Templates, owners and the workflow: what GitHub reads of this repository holds."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CI = ROOT / ".github" / "workflows" / "ci.yaml"
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_the_workflow_calls_what_this_repository_has() -> None:
    """Targets of the Makefile or scripts that exist, floors and tests among them."""
    jobs = yaml.safe_load(CI.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    made = {command.removeprefix("make ") for command in commands if command.startswith("make ")}
    scripts = {command for command in commands if not command.startswith("make ")}
    assert made == {"floors", "unit"} & TARGETS
    assert scripts == {".ci/run"}
    assert (ROOT / ".ci" / "run").is_file()


def test_the_workflow_may_only_read_and_pins_its_actions() -> None:
    """By commit, with the version for people."""
    text = CI.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    assert all(job["permissions"] == {"contents": "read"} for job in workflow["jobs"].values())
    actions = re.findall(r"uses: (.+)", text)
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)
