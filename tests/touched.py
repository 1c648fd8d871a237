"""Which test modules a change touches. Every one of them, wherever that is not certain.

What counts is the difference of the working tree to the merge base with `origin/main`, or with
what CHANGED_SINCE names. Two kinds of change touch less than everything:

- pages (`docs/`, any `*.md`): the modules without the rig that read pages or the tree, and the
  modules of the rig that name a changed page;
- the lab's own Python: the modules that import what changed, through the tests' helpers and the
  lab, or name it in a string as a program; and those that read the tree.

Tests marked `slow` run where their own module changed, or a module or package that its text names:
as an import, or with the mark where a test on the rig imports nothing of what it is about.

    python -m tests.touched

says how many modules that are, and ends with 1 where the rig is needed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
RIG_FOLDERS = ("tests/integration/", "tests/e2e/")
_COMMAND_LINE = "servingslo.cli"
# Where the lab's commands are found by their entry points, and by no import.
_LOADS_THE_LAB = ("servingslo.cli.main", "servingslo.cli.lab")
_LAB = "servingslo_lab"
_OURS = re.compile(r"\b(?:tests|servingslo|servingslo_lab)(?:\.\w+)+")
_FROM = re.compile(r"^from ((?:tests|servingslo)\S*) import (?:\(([^)]*)\)|(.+))", re.MULTILINE)
# Of tests, which are no package: a module in one is named behind them.
_FOLDERS = frozenset(f"tests.{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir())
_TREE = r"ls-files|rglob\(|ROOT.*\.glob\("
_READS_THE_TREE = re.compile(rf"{_TREE}|[\"']lab[\"'/]")
_READS_PAGES = re.compile(rf"{_TREE}|[\"']docs[\"'/]|\.md[\"']")


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
    pages = {Path(path).name for path in changed if _is_page(path)}
    lab = {_module_of(path) for path in changed if not _is_page(path)}
    files = _python_files(root)
    reached = set[str]()
    if lab:
        reached |= _reaching(files, lab, _READS_THE_TREE)
    if pages:
        these = re.compile("|".join(map(re.escape, sorted(pages))))
        found = _reaching(files, set(), _READS_PAGES)
        reached |= {path for path in found if not path.startswith(RIG_FOLDERS)}
        reached |= _reaching(files, set(), these)
    return frozenset(path for path in reached if Path(path).match("test_*.py"))


def is_changed(path: str, changed: frozenset[str] | None, root: Path = ROOT) -> bool:
    """Whether a test module, or a module or package that its own text names, is in what changed."""
    if not changed:
        return False
    modules = {_module_of(one) for one in changed if one.endswith(".py")}
    names = _names(path, (root / path).read_text(encoding="utf-8"))
    return path in changed or _meets(names, modules)


def _git(root: Path, *words: str) -> str | None:
    """What git prints; None where it fails, or where there is none."""
    command = ("git", "-C", str(root), *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def _is_page(path: str) -> bool:
    return path.endswith(".md") or path.startswith("docs/")


def _is_lab(path: str) -> bool:
    return path.startswith(f"lab/{_LAB}/") and path.endswith(".py")


def _module_of(path: str) -> str:
    """`lab/servingslo_lab/rig/__init__.py` is servingslo_lab.rig; tests keep their folder."""
    inside = path.removeprefix("lab/").removeprefix("operator/").removesuffix(".py")
    return inside.removesuffix("/__init__").replace("/", ".")


def _python_files(root: Path) -> dict[str, str]:
    """The text of each file of tests and lab, by its path."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for folder in ("tests", "lab")
        for path in (root / folder).rglob("*.py")
    }


def _reaching(files: Mapping[str, str], modules: set[str], reads: re.Pattern[str]) -> set[str]:
    """The files that name one of these modules, or one that does, and so on.

    reads: what is in the text of tests that come with them.
    """
    found = {path for path in files if path.startswith("tests/") and reads.search(files[path])}
    names = {path: _names(path, text) for path, text in files.items()}
    known, before = modules | {_module_of(path) for path in found}, -1
    while len(known) > before:
        before = len(known)
        found |= {
            path
            for path in names.keys() - found
            if _meets(names[path], known) or _uses_one(path, files, found)
        }
        known |= {_module_of(path) for path in found}
    return found


def _uses_one(path: str, files: Mapping[str, str], found: set[str]) -> bool:
    """Whether a test uses a fixture of the conftest beside it, where that was found."""
    conftest = f"{Path(path).parent.as_posix()}/conftest.py"
    if conftest not in found or not Path(path).name.startswith("test_"):
        return False
    fixtures = re.findall(r"def (\w+)\(", files[conftest])
    arguments = " ".join(re.findall(r"(?:def \w+|usefixtures)\([^)]*\)", files[path]))
    return "autouse" in files[conftest] or bool({*re.findall(r"\w+", arguments)} & {*fixtures})


def _meets(names: Iterable[str], modules: set[str]) -> bool:
    """Whether a name is one of these modules, of what they define, or a package around one."""
    around = {one for module in modules for one in _prefixes(module)[1:]}
    return any(name in around or not modules.isdisjoint(_prefixes(name)) for name in names)


def _prefixes(name: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    words = name.split(".")
    return [".".join(words[:count]) for count in range(1, len(words) + 1)]


@cache
def _names(path: str, text: str) -> frozenset[str]:
    """Dotted names of tests, product and lab in a file: what it imports, and what it starts."""
    found = {name for name in _OURS.findall(text) if name not in _FOLDERS}
    for module, several, one in _FROM.findall(text):
        words = (alias.split() for alias in (several or one).split(","))
        found.update(f"{module}.{alias[0]}" for alias in words if alias)
    loads = any(name.startswith(_LOADS_THE_LAB) for name in found)
    # A test that starts the command line as a process; that of the operator loads no command.
    loads |= _COMMAND_LINE in found and Path(path).name.startswith("test_")
    return frozenset({*found, f"{_LAB}.cli"} if loads else found)


def main() -> None:
    """Say what the change touches."""
    touched = touched_modules(changed_paths())
    on_rig = [path for path in touched or () if path.startswith(RIG_FOLDERS)]
    of_these = f"{len(touched or ())} modules, {len(on_rig)} of them on the rig"
    sys.stdout.write(f"tests: {'all' if touched is None else of_these}\n")
    sys.exit(1 if touched is None or on_rig else 0)


if __name__ == "__main__":
    main()
