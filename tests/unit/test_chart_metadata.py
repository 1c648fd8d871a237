"""What Artifact Hub shows of the chart is what values, CRDs and changelog say."""

import re
import subprocess
import sys

import pytest
import yaml
from tests.charts.metadata import PLACEHOLDER, changes, chart_yaml, images
from tests.charts.reference import CHART, ROOT

IMAGE = re.compile(r"^[ -]*image: (.+)$", re.MULTILINE)
CHANGELOG = """\
## [Unreleased]

- not yet

## [1.2.0] - 2026-12-01

### Added

- `one` does it ([how](docs/one.md), [why](docs/why.md)).

### Fixed

- A [second](docs/two.md) thing.

## [1.1.0] - 2026-11-01

- before
"""


def annotation(name: str, text: str) -> object:
    """The value of an annotation of Artifact Hub, read as it is read there."""
    return yaml.safe_load(yaml.safe_load(text)["annotations"][f"artifacthub.io/{name}"])


def test_chart_yaml_is_current() -> None:
    """`make chart-docs` writes it."""
    assert (CHART / "Chart.yaml").read_text(encoding="utf-8") == chart_yaml()


def test_a_release_gives_the_address_of_its_repository() -> None:
    """Everywhere: the placeholder is of the checkout alone."""
    text = chart_yaml("https://example.com/team/project")
    assert PLACEHOLDER not in text
    chart = yaml.safe_load(text)
    assert chart["home"] == chart["sources"][0] == "https://example.com/team/project"
    assert chart["icon"].startswith("https://example.com/team/project/raw/v")
    assert (ROOT / chart["icon"].partition(f"/v{chart['version']}/")[2]).exists()


@pytest.mark.parametrize("address", ["http://example.com", "example.com/x", "https://e.com/?a=b"])
def test_another_address_is_refused(address: str) -> None:
    """By name, and nothing is written."""
    command = (sys.executable, "-m", "tests.charts.metadata", "--repository", address)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no https address" in done.stderr


def test_every_image_of_the_templates_is_listed() -> None:
    """Each line `image:` names the operator's or the value of another."""
    templates = [*(CHART / "templates").rglob("*.yaml"), *(CHART / "templates").rglob("*.tpl")]
    lines = [
        line
        for path in templates
        for line in re.findall(
            r"^[ -]*image: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert len(lines) >= 4
    assert {line for line in lines if "servingslo.image" not in line} == {
        f"{{{{ .Values.{path} | quote }}}}" for path in images() if path != "image"
    }
    listed = annotation("images", chart_yaml())
    assert isinstance(listed, list)
    assert [one["image"] for one in listed] == [*images().values()]


def test_every_crd_is_listed() -> None:
    """By the names of its file."""
    listed = annotation("crds", chart_yaml())
    assert isinstance(listed, list)
    assert [one["name"] for one in listed] == [
        yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"]
        for path in sorted((ROOT / "crds").glob("*.yaml"))
    ]


def test_changes_are_those_of_the_version() -> None:
    """With the kinds that Artifact Hub knows, and without links into the repository."""
    assert changes(CHANGELOG, "1.2.0") == [
        {"kind": "added", "description": "`one` does it."},
        {"kind": "fixed", "description": "A second thing."},
    ]
    with pytest.raises(SystemExit, match=r"no section \[9\.9\.9\]"):
        changes(CHANGELOG, "9.9.9")
