"""The parts of the image in a folder that need no machine: the Dockerfile, and a pod's words."""

from pathlib import Path, PurePosixPath

import pytest

from servingslo_lab.errors import RigError
from servingslo_lab.rig.image.base import make_base
from servingslo_lab.rig.image.container import Container, Mount
from servingslo_lab.rig.image.dockerfile import (
    ignore_patterns,
    ignored,
    stages,
)

ROOT = Path(__file__).parents[2]


def test_a_dockerfile_becomes_stages_of_whole_instructions() -> None:
    """Comments go, also between continued lines; a line that is continued is one with the next."""
    text = (
        "# first\nFROM a:1 AS build\nRUN one \\\n# why\n && two\nFROM b@sha256:0\nUSER 7:7\n"
        'ENTRYPOINT ["x"]\n'
    )
    build, last = stages(text)
    assert (build.base, build.name) == ("a:1", "build")
    assert [(one.word, one.text.split()) for one in build.instructions] == [
        ("RUN", ["one", "&&", "two"])
    ]
    assert (last.base, last.name) == ("b@sha256:0", "")
    assert [one.word for one in last.instructions] == ["USER", "ENTRYPOINT"]


def test_the_repository_s_dockerfile_is_read_whole() -> None:
    """Two stages of the same base, and the words that the image's settings come from."""
    build, last = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert build.base == last.base
    assert {"ENV", "COPY", "USER", "WORKDIR", "ENTRYPOINT", "CMD"} <= {
        one.word for one in last.instructions
    }


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("tests/unit/test_x.py", True),
        ("lab", True),
        ("operator/servingslo/__pycache__", True),
        ("operator/servingslo/cli/__pycache__/a.pyc", True),
        ("operator/servingslo/cli/main.py", False),
        ("operator/lab.py", False),
    ],
)
def test_the_repository_s_dockerignore_leaves_out(path: str, left_out: bool) -> None:
    """Whole folders, by name at the top or anywhere."""
    assert ignored(PurePosixPath(path), ignore_patterns(ROOT)) is left_out


def test_another_base_than_python_s_slim_image_is_refused(tmp_path: Path) -> None:
    """It cannot be made without a registry."""
    with pytest.raises(RigError, match="alpine"):
        make_base("python:3.13.9-alpine", tmp_path / "root")


def test_mount_points_stay_within_the_root(tmp_path: Path) -> None:
    """A link to an absolute path leads within the image, not to this machine's folder."""
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("/run")
    container = Container(
        root=tmp_path, command=("x",), environment={}, mounts=[Mount(target="/var/run/secrets/one")]
    )
    container.make_mount_points()
    assert (tmp_path / "run" / "secrets" / "one").is_dir()
