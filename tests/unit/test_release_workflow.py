"""What the release workflow takes for granted of this repository holds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.acceptance import gate

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


@pytest.mark.parametrize(
    ("head", "ends"),
    [
        pytest.param("## [0.9.0] - 2026-12-01", 0, id="dated"),
        pytest.param("## [0.9.0] - unreleased", 1, id="unreleased"),
        pytest.param("## [0.9.0]", 1, id="without a date"),
        pytest.param("## [0.8.0] - 2026-12-01", 1, id="another version"),
    ],
)
def test_a_release_needs_its_date_in_the_changelog(tmp_path: Path, head: str, ends: int) -> None:
    """And nothing but a release gets one: the workflow's own line says what it takes."""
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{head}\n\n- text\n", encoding="utf-8")
    (line,) = [line for line in script("The tag") if "CHANGELOG" in line]
    environment = {"version": "0.9.0", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-euc", line], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == ends


def test_a_release_waits_for_every_check() -> None:
    """By the gate, which needs no package: it says of each row what is wrong with it."""
    (line,) = script("Every check")
    done = subprocess.run(
        [*line.split(), f"PYTHON={sys.executable} -S"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    page = (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8")
    waits = [*gate.refusals(page), *gate.in_no_check()]
    assert [one.split(": ")[0] for one in done.stdout.splitlines() if "make" not in one] == [
        one.split(": ")[0] for one in waits
    ]
    assert bool(done.returncode) is bool(waits)


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


def test_the_notes_say_how_it_is_installed_verified_and_mirrored(tmp_path: Path) -> None:
    """After the entries of the version alone, with nothing left to fill in but the mirror."""
    text = "# Changelog\n\n## [0.9.0] - 2026-12-01\n\n- ours\n\n## [0.8.0] - 2026-11-01\n\n- old\n"
    (tmp_path / "CHANGELOG.md").write_text(text, encoding="utf-8")
    environment = {
        "VERSION": "0.9.0",
        "IMAGE": "ghcr.io/team/project/operator",
        "IMAGE_DIGEST": "sha256:ab",
        "CHARTS": "oci://ghcr.io/team/project/charts",
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_WORKFLOW_REF": "team/project/.github/workflows/release.yaml@refs/tags/v0.9.0",
        "PATH": "/usr/bin:/bin",
    }
    command = ["bash", "-euc", "\n".join(script("Notes"))]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    notes = (tmp_path / "notes.md").read_text(encoding="utf-8")
    assert "- ours" in notes
    assert "- old" not in notes
    assert "    helm push servingslo-operator-0.9.0.tgz oci://REGISTRY/charts\n" in notes
    assert "helm install servingslo oci://ghcr.io/team/project/charts/servingslo-operator" in notes
    assert "cosign verify ghcr.io/team/project/operator@sha256:ab --certificate-identity" in notes
    assert "$" not in notes


def test_all_files_are_signed_by_one_list_of_sums(tmp_path: Path) -> None:
    """The list does not name itself, and cosign signs it."""
    (tmp_path / "chart.tgz").write_text("chart", encoding="utf-8")
    sums, signed = script("One signature")
    subprocess.run(["bash", "-euc", sums], cwd=tmp_path, check=True)
    written = (tmp_path / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in written] == ["chart.tgz"]
    assert signed.split()[-1] == "SHA256SUMS"
