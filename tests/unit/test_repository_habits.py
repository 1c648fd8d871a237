"""Templates, owners and the workflow: what GitHub reads of this repository holds."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yaml"))
CI = ROOT / ".github" / "workflows" / "ci.yaml"
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize(
    "path", [one for one in FORMS if one.name != "config.yaml"], ids=lambda path: path.name
)
def test_an_issue_form_asks_for_something_each_field_once(path: Path) -> None:
    """Name, description, and fields with labels of their own; one at least has to be filled in."""
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    fields = [one for one in form["body"] if one["type"] != "markdown"]
    assert form["name"]
    assert form["description"]
    assert len({one["id"] for one in fields}) == len(fields)
    assert all(one["type"] in {"textarea", "input", "dropdown"} for one in fields)
    assert all(one["attributes"]["label"] for one in fields)
    assert any(one.get("validations", {}).get("required") for one in fields)


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


def test_owned_paths_exist() -> None:
    """Each line of CODEOWNERS names a path of the tree and an owner."""
    lines = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    assert rows[0][0] == "*"
    assert all(owner.startswith("@") for _, owner in rows)
    assert [path for path, _ in rows[1:] if not (ROOT / path.strip("/")).exists()] == []
