"""The image from the Dockerfile's own steps, made without a builder or a registry."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

from servingslo_lab.rig.image.build import Image
from servingslo_lab.rig.image.container import Container

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "opt/servingslo"


@pytest.mark.acceptance
@pytest.mark.timeout(2400)
def test_the_image_runs_as_its_user_on_a_read_only_file_system(
    image: Image, tmp_path: Path
) -> None:
    """Hashed requirements and the wheel install into a bare Debian, and the command answers."""
    assert image.entrypoint == ("servingslo",)
    assert image.user == (65532, 65532)
    version = _answer(image, "servingslo", "--version")
    assert version.split() == ["servingslo", importlib.metadata.version("servingslo")]
    assert "Usage: servingslo" in _answer(image, "servingslo", "--help")
    absent = ("servingslo_lab", "numba", "matplotlib")
    found = f"import importlib.util as u; print([n for n in {absent} if u.find_spec(n)])"
    assert _answer(image, "python", "-c", found).strip() == "[]"
    rights = "import os; print(os.getuid(), os.getgid(), os.statvfs('/').f_flag & os.ST_RDONLY)"
    assert _answer(image, "python", "-c", rights).split() == ["65532", "65532", "1"]
    _check_sbom(_sbom(image, tmp_path), image)


def _answer(image: Image, *command: str) -> str:
    """What a command of the image prints, without anything to write to."""
    container = Container(
        root=image.root,
        command=command,
        environment=image.environment,
        user=image.user,
        read_only=True,
        capabilities=False,
        no_new_privileges=True,
    )
    container.make_mount_points()
    done = subprocess.run(
        container.start_command(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _sbom(image: Image, folder: Path) -> dict[str, Any]:
    """What the release's own step lists for the image's environment."""
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (packages,) = (image.root / ENVIRONMENT).glob("lib/python*/site-packages")
    (own,) = environment.glob("lib/python*/site-packages")
    shutil.rmtree(own)
    own.symlink_to(packages)
    made = folder / "sbom.json"
    command = ("make", "sbom", f"ENVIRONMENT={environment}", f"SBOM={made}")
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    listed: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
    return listed


def _check_sbom(listed: dict[str, Any], image: Image) -> None:
    """It names everything that is installed there, with its version, origin and licence."""
    answer = _answer(image, "pip", "list", "--format=json", "--disable-pip-version-check")
    installed = {canonicalize_name(e["name"]): e["version"] for e in json.loads(answer)}
    component = listed["metadata"]["component"]["name"]
    assert (listed["bomFormat"], component) == ("CycloneDX", "servingslo")
    found = {canonicalize_name(one["name"]): one for one in listed["components"]}
    own = {"servingslo"}
    assert {name: one["version"] for name, one in found.items() if name not in own} == {
        name: version for name, version in installed.items() if name not in own
    }
    assert [name for name, one in found.items() if not one.get("licenses")] == []
    assert [name for name, one in found.items() if not one.get("purl") and name not in own] == []


def test_the_release_lists_what_the_image_holds_by_the_step_that_is_tried_here() -> None:
    """And puts the file beside the others that it publishes."""
    text = (ROOT / ".github" / "workflows" / "release.yaml").read_text(encoding="utf-8")
    steps = yaml.safe_load(text)["jobs"]["release"]["steps"]
    (step,) = (one for one in steps if "make sbom" in one.get("run", ""))
    moved = step["run"].splitlines()[1].split()
    assert moved[:2] == ["mv", "dist/servingslo.cdx.json"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "SBOM ?= dist/servingslo.cdx.json" in makefile


def test_the_image_runs_as_an_unprivileged_user_from_a_pinned_base() -> None:
    """The last stage names a numeric user, and every base carries an exact version."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = re.split(r"^FROM ", text, flags=re.MULTILINE)[-1]
    assert re.search(r"^USER 65532:65532$", final, flags=re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+|@sha256:", base) for base in bases)
