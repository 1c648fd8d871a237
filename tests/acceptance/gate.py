"""What keeps a release: checks that have not passed at nearly this code, and tests in no check.

python -m tests.acceptance.gate

Prints each in a line, and ends with 1 if there is one. Needs git and the whole history, no package.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.acceptance.run import CHECKS, PAGE, ROOT, rows_of

# A check may run for hours, and all of them for a day or two: about as long as 50 commits take.
MOST_COMMITS = 50


def refusals(page: str, root: Path = ROOT) -> list[str]:
    """Each check of the page that did not pass, or not at nearly this code, and why."""
    found = []
    for name, line in rows_of(page).items():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[2] != "passed":
            found.append(f"{name}: {cells[2]}")
            continue
        commit = cells[-1].rstrip("+")
        if _git(root, "merge-base", "--is-ancestor", commit, "HEAD").returncode:
            found.append(f"{name}: {commit} is no commit of this history")
            continue
        since = int(_git(root, "rev-list", "--count", f"{commit}..HEAD", "--", "operator").stdout)
        if since > MOST_COMMITS:
            found.append(
                f"{name}: {since} commits of operator/ since {commit}, at most {MOST_COMMITS}"
            )
    return found


def in_no_check(root: Path = ROOT) -> list[str]:
    """The modules with tests marked acceptance or slow that no check runs."""
    targets = tuple(
        one
        for check in CHECKS
        if "--acceptance" in check.command
        for one in check.command
        if "tests/" in one
    )
    return [
        name
        for path in sorted(root.glob("tests/*/test_*.py"))
        if re.search(r"pytest\.mark\.(acceptance|slow)\b", path.read_text(encoding="utf-8"))
        and not (name := path.relative_to(root).as_posix()).startswith(targets)
    ]


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ("git", "-C", str(root), *words)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> None:
    """Print what a release waits for."""
    page = PAGE.read_text(encoding="utf-8")
    found = [*refusals(page), *(f"{name}: no check runs it" for name in in_no_check())]
    sys.stdout.write("".join(f"{one}\n" for one in found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
