"""The page of what a release waits for is what was run."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.acceptance import gate
from tests.acceptance import run as acceptance

ROOT = Path(__file__).parents[2]


def test_a_row_is_what_the_command_said_and_how_it_ended() -> None:
    """The closing line is the last one printed; an exit code other than 0 has failed."""
    good = acceptance.run((sys.executable, "-c", "print('first'); print('== 3 passed ==')"))
    bad = acceptance.run((sys.executable, "-c", "print('1 failed'); raise SystemExit(1)"))
    assert (good.succeeded, good.closing) == (True, "3 passed")
    assert (bad.succeeded, bad.closing) == (False, "1 failed")
    check = acceptance.CHECKS[0]
    line = acceptance.row(check, bad, "2026-01-02", "abc")
    assert "| failed | 1 failed |" in line
    assert line.endswith("| 2026-01-02 | abc |")


def test_a_check_that_is_not_run_again_keeps_its_row() -> None:
    """A page read back and written again is the same; what was not run says so."""
    first, second = acceptance.CHECKS[:2]
    outcome = acceptance.Outcome(succeeded=True, closing="3 passed", minutes=1.0)
    page = acceptance.page_with({first.name: acceptance.row(first, outcome, "2026-01-02", "abc")})
    rows = acceptance.rows_of(page)
    assert acceptance.page_with(rows) == page
    assert "3 passed" in rows[first.name]
    assert "not run" in rows[second.name]


def test_the_page_says_first_what_failed_and_what_was_not_run() -> None:
    """By name; where every check passed it says nothing else."""
    good = acceptance.Outcome(succeeded=True, closing="ok", minutes=1.0)
    bad = acceptance.Outcome(succeeded=False, closing="no", minutes=1.0)
    rows = {c.name: acceptance.row(c, good, "2026-01-02", "abc") for c in acceptance.CHECKS}
    count = len(rows)
    assert f"**Of {count} checks {count} passed.**" in acceptance.page_with(rows)
    first, second, third = (check.name for check in acceptance.CHECKS[:3])
    rows[first] = acceptance.row(acceptance.CHECKS[0], bad, "2026-01-02", "abc")
    del rows[second], rows[third]
    told = f"{count - 3} passed; 1 failed ({first}); 2 were not run ({second}, {third})"
    assert told in acceptance.page_with(rows)


def test_the_committed_page_sums_up_its_own_rows() -> None:
    """Head and rows are what the program writes for these rows."""
    page = (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8")
    assert acceptance.page_with(acceptance.rows_of(page)) == page


def test_the_committed_page_has_every_check() -> None:
    """Each check has its row, as it is described now."""
    rows = acceptance.rows_of((ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8"))
    assert {c.name: c.shows for c in acceptance.CHECKS} == {
        name: line.split(" | ")[1] for name, line in rows.items()
    }


def test_every_module_that_is_marked_is_run_by_a_check(tmp_path: Path) -> None:
    """A test that only `--acceptance` is sure to run is in no release otherwise."""
    assert gate.in_no_check() == []
    (tmp_path / "tests" / "e2e").mkdir(parents=True)
    for name in ("test_image.py", "test_forgotten.py"):
        marked = f"@pytest.mark.{'acceptance'}\ndef test_it(): ...\n"
        (tmp_path / "tests" / "e2e" / name).write_text(marked)
    assert gate.in_no_check(tmp_path) == ["tests/e2e/test_forgotten.py"]


def test_a_release_waits_for_what_was_not_run_at_nearly_this_code(tmp_path: Path) -> None:
    """A row of a commit that is not there, or with more than 50 commits of operator/ since."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ("git", "-C", str(tmp_path), *who, *words)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(folder: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        with (tmp_path / folder / "file").open("a") as file:
            file.write("line\n")
        git("add", ".")
        git("commit", "-qm", "a line")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    first = commit("operator")
    second = commit("operator")
    for _ in range(gate.MOST_COMMITS):
        commit("operator")
    commit("docs")
    checks = acceptance.CHECKS[:5]
    outcomes = [(True, first), (True, second), (True, "0123456789"), (False, second)]
    rows = {
        check.name: acceptance.row(
            check, acceptance.Outcome(succeeded=passed, closing="", minutes=1.0), "2026-01-02", at
        )
        for check, (passed, at) in zip(checks, outcomes, strict=False)
    }
    found = dict(one.split(": ") for one in gate.refusals(acceptance.page_with(rows), tmp_path))
    old, new, missing, failed, never = (check.name for check in checks)
    assert "51 commits of operator/" in found[old]
    assert new not in found
    assert "no commit of this history" in found[missing]
    assert (found[failed], found[never]) == ("failed", "not run")


def test_what_a_slow_test_names_is_there() -> None:
    """A subject that was moved would never be seen to change."""
    subjects = {
        argument.value
        for path in ROOT.glob("tests/*/test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.slow"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert len(subjects) > 10
    places = [
        ROOT / ("lab" if "_lab" in str(subject) else "operator") / str(subject).replace(".", "/")
        for subject in subjects
    ]
    assert [at for at in places if not (at.is_dir() or Path(f"{at}.py").exists())] == []


def test_every_commit_of_the_page_is_in_the_history() -> None:
    """A run of a commit that no reader has cannot be checked. Without a history: skipped."""
    shallow = git("rev-parse", "--is-shallow-repository")
    if shallow.stdout.strip() != "false":
        pytest.skip("no whole history here")
    page = (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8")
    commits = re.findall(r"\| ([0-9a-f]{7,40})\+? \|$", page, re.MULTILINE)
    assert len(commits) > 10
    assert [one for one in commits if git("cat-file", "-e", f"{one}^{{commit}}").returncode] == []


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """A command of git in the repository."""
    command = ("git", "-C", str(ROOT), *words)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("check", acceptance.CHECKS, ids=lambda check: check.name)
def test_what_a_check_runs_exists(check: acceptance.Check) -> None:
    """Its module, or the folder or file of its tests, is in the repository."""
    module = check.command[1]
    targets = [one for one in check.command if "tests/" in one]
    for target in targets if module == "pytest" else [f"{module.replace('.', '/')}.py"]:
        assert (ROOT / target).exists()
