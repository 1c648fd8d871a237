"""Which test modules a change touches. Every one of them, wherever that is not certain.

What counts is the difference of the working tree to the merge base with `origin/main`, or with
what CHANGED_SINCE names. Two kinds of change touch less than everything:

- pages (`docs/`, any `*.md`): the modules without the rig that read pages or the tree, and the
  modules of the rig that name a changed page;
- the lab's own Python: the modules that import what changed, through the tests' helpers and the
  lab, or name it in a string as a program; and those that read the tree.

Tests marked `slow` run where their own module changed, one that it imports itself, or one that
the mark names: a test on the rig imports nothing of what it is about.

    python -m tests.touched

says how many modules that are, and ends with 1 where the rig is needed.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
RIG_FOLDERS = ("tests/integration/", "tests/e2e/")
_COMMAND_LINE = "servingslo.cli"
# Where the lab's commands are found by their entry points, and by no import.
_LOADS_THE_LAB = ("servingslo.cli.main", "servingslo.cli.lab")
_LAB = "servingslo_lab"
_OURS = re.compile(r"(?:tests|servingslo|servingslo_lab)(?:\.\w+)*")
_READS_PAGES = re.compile(r"docs|\.md\b|ls-files|r?glob\(")
_READS_THE_TREE = re.compile(r"ls-files|r?glob\(|\"lab\"|lab/")


def changed_paths(root: Path = ROOT, since: str | None = None) -> frozenset[str] | None:
    """Paths that differ from the merge base with `since`; None where git does not know it.

    since: a commit or branch, by default what CHANGED_SINCE names, or `origin/main`.
    """
    since = since or os.environ.get("CHANGED_SINCE") or "origin/main"
    base = _git(root, "merge-base", since, "HEAD")
    if base is None:
        return None
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", base.strip())
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if differing is None or untracked is None:
        return None
    return frozenset(path for path in (differing + untracked).split("\0") if path)


def touched_modules(changed: frozenset[str] | None, root: Path = ROOT) -> frozenset[str] | None:
    """The test modules that a change touches, as paths below the root; None for every one."""
    if not changed or not all(_is_page(path) or _is_lab(path) for path in changed):
        return None
    pages = [path for path in changed if _is_page(path)]
    lab = {_module_of(path) for path in changed if not _is_page(path)}
    return frozenset(
        path
        for path in _test_modules(root)
        if (pages and _reads_pages(root, path, pages)) or (lab and _reaches(root, path, lab))
    )


def is_changed(
    path: str, changed: frozenset[str] | None, subjects: Iterable[str] = (), root: Path = ROOT
) -> bool:
    """Whether a test module, one that it imports itself, or a subject of it is in what changed.

    subjects: modules and packages that it is about and does not import.
    """
    if not changed:
        return False
    modules = {_module_of(one) for one in changed if one.endswith(".py")}
    return path in changed or _meets({*_names(root, path), *subjects}, modules)


def _git(root: Path, *words: str) -> str | None:
    done = subprocess.run(
        ("git", "-C", str(root), *words), capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def _is_page(path: str) -> bool:
    return path.endswith(".md") or path.startswith("docs/")


def _is_lab(path: str) -> bool:
    return path.startswith(f"lab/{_LAB}/") and path.endswith(".py")


def _module_of(path: str) -> str:
    """`lab/servingslo_lab/rig/__init__.py` is servingslo_lab.rig; tests keep their folder."""
    inside = path.removeprefix("lab/").removeprefix("operator/").removesuffix(".py")
    return inside.removesuffix("/__init__").replace("/", ".")


def _test_modules(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.glob("tests/**/test_*.py")]


def _reads_pages(root: Path, path: str, pages: Iterable[str]) -> bool:
    texts = [_text(root, one) for one in _with_helpers(root, path, lab=False)]
    if path.startswith(RIG_FOLDERS):
        return any(Path(page).name in text for page in pages for text in texts)
    return any(_READS_PAGES.search(text) for text in texts)


def _reaches(root: Path, path: str, changed: set[str]) -> bool:
    if _READS_THE_TREE.search(_text(root, path)):
        return True
    return any(_meets(_names(root, one), changed) for one in _with_helpers(root, path))


def _meets(names: Iterable[str], modules: set[str]) -> bool:
    """Whether a name is one of these modules, of what they define, or a package around one."""
    return any(
        name == module or name.startswith(f"{module}.") or module.startswith(f"{name}.")
        for name in names
        for module in modules
        if name not in {"tests", "servingslo", _LAB} or name == module
    )


@cache
def _with_helpers(root: Path, path: str, *, lab: bool = True) -> frozenset[str]:
    """A test module, all of tests and of the lab that it reaches, and the conftest that it uses."""
    beside = f"{Path(path).parent.as_posix()}/conftest.py"
    waiting = [path, beside] if _uses_fixtures(root, path, beside) else [path]
    found = set[str]()
    while waiting:
        one = waiting.pop()
        if one in found or not (lab or one.startswith("tests/")) or not (root / one).is_file():
            continue
        found.add(one)
        waiting.extend(file for name in _names(root, one) for file in _files_of(root, name))
    return frozenset(found)


def _uses_fixtures(root: Path, path: str, conftest: str) -> bool:
    """Whether a module names a function of a conftest, as an argument or in a string."""
    if not (root / conftest).is_file():
        return False
    if "autouse" in _text(root, conftest):
        return True
    fixtures = re.findall(r"def (\w+)\(", _text(root, conftest))
    return any(
        (node.arg if isinstance(node, ast.arg) else getattr(node, "value", None)) in fixtures
        for node in ast.walk(ast.parse(_text(root, path)))
        if isinstance(node, ast.arg | ast.Constant)
    )


@cache
def _files_of(root: Path, name: str) -> tuple[str, ...]:
    """The files of tests and lab that a name stands for: of the module, or around the attribute."""
    inside = f"lab/{name}" if name.startswith(_LAB) else name
    stem = inside.replace(".", "/")
    parent = stem.rpartition("/")[0]
    ends = ("__init__.py", "__main__.py")
    files = (f"{stem}.py", f"{parent}.py", f"{parent}/__init__.py")
    return (*files, *(f"{stem}/{end}" for end in ends))


@cache
def _names(root: Path, path: str) -> frozenset[str]:
    """Dotted names of tests, product and lab that a file imports or has as a string."""
    found = set(_named_in(ast.parse(_text(root, path))))
    loads = any(name.startswith(_LOADS_THE_LAB) for name in found)
    # A test that starts the command line as a process; that of the operator loads no command.
    loads |= _COMMAND_LINE in found and Path(path).name.startswith("test_")
    return frozenset({*found, f"{_LAB}.cli"} if loads else found)


def _named_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module)):
                names = [f"{module}.{alias.name}" for alias in node.names]
                # All of a package; the tests' own folders are none.
                names += [] if module.startswith("tests") else [module]
            case ast.Constant(value=str(text)):
                names = [text]
            case _:
                continue
        yield from (name for name in names if _OURS.fullmatch(name))


@cache
def _text(root: Path, path: str) -> str:
    return (root / path).read_text(encoding="utf-8")


def main() -> None:
    """Say what the change touches."""
    touched = touched_modules(changed_paths())
    on_rig = [path for path in touched or () if path.startswith(RIG_FOLDERS)]
    of_these = f"{len(touched or ())} modules, {len(on_rig)} of them on the rig"
    sys.stdout.write(f"tests: {'all' if touched is None else of_these}\n")
    sys.exit(1 if touched is None or on_rig else 0)


if __name__ == "__main__":
    main()
