"""A run leaves out only what a change cannot reach, and nothing where the change is not known."""

import subprocess
from pathlib import Path

import pytest
from tests.touched import RIG_FOLDERS, ROOT, changed_paths, is_changed, touched_modules

ALL = None
SIMULATOR = "lab/servingslo_lab/sim/replicas/engine.py"
FILES = {
    "lab/servingslo_lab/deep.py": "",
    "lab/servingslo_lab/near.py": "from servingslo_lab.deep import X",
    "lab/servingslo_lab/cli/command.py": "",
    "tests/helper.py": "from servingslo_lab import near",
    "tests/unit/test_near.py": "import tests.helper",
    "tests/unit/test_other.py": "from servingslo.policy.planner import plan",
    "tests/unit/test_tree.py": "FILES = ROOT.rglob('*')",
    "tests/unit/test_pages.py": "PAGE = ROOT / 'docs'",
    "tests/unit/test_command.py": "from servingslo.cli.main import app",
    "tests/integration/conftest.py": "def operator(): run('servingslo_lab.near')",
    "tests/integration/test_rig.py": "def test_it(operator): read('keda.md')",
    "tests/e2e/test_demo.py": "COMMAND = '-m', 'servingslo.cli', 'demo'; slow('servingslo.units')",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository with one commit."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> str:
    """What git prints."""
    names = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ("git", "-C", str(root), *names, *words)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(root: Path) -> None:
    """All that is there."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=a")


def names(found: frozenset[str] | None) -> set[str] | None:
    """The modules without folder and prefix."""
    return None if found is None else {Path(path).stem.removeprefix("test_") for path in found}


@pytest.mark.parametrize(
    ("changed", "modules"),
    [
        pytest.param(None, ALL, id="not known"),
        pytest.param((), ALL, id="nothing"),
        pytest.param(("operator/servingslo/units.py",), ALL, id="product"),
        pytest.param(("docs/a.md", "charts/a.yaml"), ALL, id="a page and more"),
        pytest.param(("lab/servingslo_lab/rig/stages.yaml",), ALL, id="data of the lab"),
        pytest.param(("tests/unit/test_near.py",), ALL, id="a test"),
        pytest.param(("docs/a.csv", "README.md"), {"tree", "pages"}, id="pages"),
        pytest.param(("docs/keda.md",), {"tree", "pages", "rig"}, id="a page that the rig reads"),
        pytest.param(("lab/servingslo_lab/deep.py",), {"near", "tree", "rig"}, id="imported deep"),
        pytest.param(("lab/servingslo_lab/gone.py",), {"tree"}, id="imported by none"),
        pytest.param(
            ("lab/servingslo_lab/cli/command.py",), {"tree", "command", "demo"}, id="a command"
        ),
        pytest.param(
            ("lab/servingslo_lab/__init__.py",),
            {"near", "tree", "command", "demo", "rig"},
            id="package",
        ),
    ],
)
def test_what_is_left_out_is_what_cannot_be_reached(
    checkout: Path, changed: tuple[str, ...] | None, modules: set[str] | None
) -> None:
    """Pages and the lab's Python alone leave something out; the rest, and doubt, nothing."""
    paths = None if changed is None else frozenset(changed)
    assert names(touched_modules(paths, checkout)) == modules


def test_what_changed_is_all_that_differs_from_the_merge_base(checkout: Path) -> None:
    """Committed, not committed, new and deleted; not what the other branch did meanwhile."""
    first = git(checkout, "rev-parse", "HEAD")
    git(checkout, "checkout", "--quiet", "-b", "theirs")
    (checkout / "theirs").touch()
    commit(checkout)
    git(checkout, "checkout", "--quiet", "-b", "ours", first)
    (checkout / "committed").touch()
    commit(checkout)
    (checkout / "untracked").touch()
    (checkout / "tests/helper.py").unlink()
    expected = {"committed", "untracked", "tests/helper.py"}
    assert changed_paths(checkout, "theirs") == expected
    assert changed_paths(checkout, "nowhere") is None


def test_a_slow_module_is_changed_with_what_it_imports_itself(checkout: Path) -> None:
    """And not with what lies behind that, or where nothing is known."""
    module = "tests/unit/test_other.py"
    assert is_changed(module, frozenset({module}), checkout)
    assert is_changed(module, frozenset({"operator/servingslo/policy/planner.py"}), checkout)
    assert is_changed(module, frozenset({"operator/servingslo/policy/planner/a.py"}), checkout)
    others = frozenset({"operator/servingslo/units.py", "a.md"})
    assert not is_changed(module, others, checkout)
    assert is_changed("tests/e2e/test_demo.py", others, checkout)
    assert not is_changed(module, None, checkout)


def test_this_tree_is_read_as_it_is() -> None:
    """The simulator's engine reaches its own tests and the rig's, and not the API's."""
    found = touched_modules(frozenset({SIMULATOR}))
    assert found is not None
    assert {"tests/unit/test_engine_host.py", "tests/integration/test_batch_canary.py"} <= found
    assert "tests/unit/test_api_validation.py" not in found
    pages = touched_modules(frozenset({"docs/glossary.md"}))
    assert pages is not None
    assert "tests/unit/test_docs.py" in pages
    assert not [path for path in pages if path.startswith(RIG_FOLDERS)]
    assert len(list(ROOT.glob("tests/unit/test_*.py"))) > 3 * len(pages)
