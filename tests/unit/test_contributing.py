"""What CONTRIBUTING.md says of new parts holds."""

import re
from pathlib import Path

from servingslo.controller.actuators import catalogue

ROOT = Path(__file__).parents[2]
ACTUATORS = "operator/servingslo/controller/actuators"
# What every actuator shares, and no actuator itself.
SHARED = {"__init__", "protocol", "catalogue"}


def section(title: str) -> str:
    """The text of one section of the page."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def test_the_files_named_for_an_actuator_exist():
    """Every path that the section names is there."""
    paths = re.findall(r"`((?:operator|tests)/[^`]+)`", section("An actuator"))
    assert f"{ACTUATORS}/catalogue.py" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_an_actuator_is_one_file_and_one_row():
    """Each file of the folder is one row of the catalogue; no other code names an actuator."""
    files = {path.stem for path in (ROOT / ACTUATORS).glob("*.py")} - SHARED
    assert len(catalogue.ACTUATORS) == len(files)
    named = re.compile(r"actuators\.(\w+) import")
    for path in (ROOT / "operator" / "servingslo").rglob("*.py"):
        if path.parent.name != "actuators":
            found = set(named.findall(path.read_text(encoding="utf-8")))
            assert not found & files, f"{path} names an actuator"
    rows = (ROOT / ACTUATORS / "catalogue.py").read_text(encoding="utf-8")
    assert set(named.findall(rows)) - SHARED == files
