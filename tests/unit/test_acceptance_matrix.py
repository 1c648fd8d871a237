"""The table of versions keeps what was run, and Kubernetes is built from what is served."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.acceptance import matrix
from tests.acceptance.matrix_steps import STEPS

from servingslo_lab.errors import RigError
from servingslo_lab.rig.programs import kubernetes_versions, versions
from servingslo_lab.rig.programs.commands import CommandRunner

_EMPTY = f"# Support\n\n{matrix.BEGIN}\n{matrix.END}\n\n## More\n"


def test_a_row_of_a_former_run_stays_and_every_version_has_one() -> None:
    """What was not run says so, and the rest of the page is as it was."""
    passed = matrix.row("1.30.1", dict.fromkeys(STEPS, matrix.PASSED), "2026-01-02", "abc")
    page = matrix.page_with(_EMPTY, {"1.30": passed})
    rows = matrix.rows_of(page)
    assert list(rows) == list(kubernetes_versions.PATCHES)
    assert rows["1.30"] == passed
    assert matrix.NOT_RUN in rows["1.31"]
    assert page.startswith("# Support\n")
    assert page.endswith(f"{matrix.END}\n\n## More\n")
    assert matrix.page_with(page, rows) == page


def test_the_page_has_a_row_for_each_version() -> None:
    """As the program writes it."""
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.page_with(page, matrix.rows_of(page)) == page


class Served(CommandRunner):
    """A `go` for which one patch of a part is not served; asked: all that it was asked."""

    def __init__(self, folder: Path, listed: str) -> None:
        super().__init__({})
        self.asked: list[tuple[str, ...]] = []
        self._folder, self._listed = folder, listed

    def run(self, what: str, command: Sequence[str], **_: object) -> list[str]:
        """Answer as go does."""
        self.asked.append(tuple(command[1:]))
        if command[1:3] == ["mod", "download"]:
            path = self._folder / "kubernetes.mod"
            path.write_text(
                "module k8s.io/kubernetes\n\ngo 1.22.0\n\nreplace (\n"
                "\tk8s.io/api => ./staging/src/k8s.io/api\n"
                "\tk8s.io/kms => ./staging/src/k8s.io/kms\n"
                "\tk8s.io/sample-controller => ./staging/src/k8s.io/sample-controller\n)\n"
            )
            return [f'"GoMod": "{path}",']
        if command[2] == "-m":
            return [f"k8s.io/kms {self._listed}"]
        module = next(iter(self._folder.rglob("go.mod"))).read_text()
        if "k8s.io/kms v0.31.14" in module:
            raise RigError("go: k8s.io/kms@v0.31.14: reading <address>: 403 Forbidden")
        return []


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of its own, and a Go that is there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kubernetes_versions, "find_go", lambda *_, **__: Path("go"))
    return tmp_path


def test_a_part_that_is_not_served_is_of_the_patch_before(go: Path) -> None:
    """The rest is of the version; a second call asks nothing."""
    runner = Served(go, "v0.30.9 v0.31.11 v0.31.13 v0.31.14")
    tools = kubernetes_versions.kubernetes_tools("1.31", runner)
    assert [tool.version for tool in tools] == ["1.31.14"] * len(versions.KUBERNETES_TOOLS)
    module = (tools[0].source_directory / "go.mod").read_text()
    assert "k8s.io/kms => k8s.io/kms v0.31.13\n" in module
    assert "k8s.io/api => k8s.io/api v0.31.14\n" in module
    assert "sample-controller =>" not in module
    asked = len(runner.asked)
    assert kubernetes_versions.kubernetes_tools("1.31", runner) == tools
    assert len(runner.asked) == asked


def test_what_cannot_be_had_is_named(go: Path) -> None:
    """A part of which no patch is served, and a version that does not exist."""
    with pytest.raises(RigError, match=r"k8s.io/kms@v0.31.14"):
        kubernetes_versions.kubernetes_tools("1.31", Served(go, "v0.31.14"))
    with pytest.raises(RigError, match=r"'1.29' is not known; allowed: 1\.30, 1\.31"):
        kubernetes_versions.kubernetes_tools("1.29", Served(go, ""))


def test_the_rig_s_own_version_needs_no_module(go: Path) -> None:
    """It is built by `make rig`."""
    minor = versions.KUBE_APISERVER.version.rpartition(".")[0]
    tools = kubernetes_versions.kubernetes_tools(minor, Served(go, ""))
    assert tools == versions.KUBERNETES_TOOLS
