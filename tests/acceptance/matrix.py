"""The operator on the API server and controller manager of each version of Kubernetes.

    python -m tests.acceptance.matrix [--versions 1.30,1.34]

Builds what is missing, runs the steps of `matrix_steps` on a cluster of its own for each version,
and writes the table of `docs/support.md`. Ends with 1 where a step failed.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import kubernetes
from tests.acceptance.matrix_steps import STEPS, ground
from tests.acceptance.run import FAILED, NOT_RUN, ROOT, head_commit

from servingslo_lab.errors import RigError
from servingslo_lab.rig.build import GO_ENVIRONMENT, resolve_tools
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.programs.commands import CommandRunner
from servingslo_lab.rig.programs.kubernetes_versions import PATCHES, kubernetes_tools
from servingslo_lab.rig.programs.versions import Tool

PAGE = ROOT / "docs" / "support.md"
BEGIN, END = "<!-- made by make matrix -->", "<!-- end -->"
PASSED, NOT_BUILT = "passed", "not built"
_LONGEST_REASON = 120
_FAILURES = (RigError, kubernetes.client.ApiException, OSError, LookupError, ValueError)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _reason(error: Exception) -> str:
    """The first line of an error, in the room of a cell."""
    text = f"{error.status} {error.body}" if hasattr(error, "body") else str(error)
    line = next(iter(text.splitlines()), "") or type(error).__name__
    return re.sub(r"\s+", " ", line).replace("|", "/")[:_LONGEST_REASON]


def tried(tools: Sequence[Tool]) -> dict[str, str]:
    """What came of each step on a cluster of these programs."""
    found: dict[str, str] = {}
    options = RigOptions(kubernetes=tools)
    with (
        tempfile.TemporaryDirectory() as folder,
        Rig.start(options) as rig,
        ground(rig, Path(folder)) as at,
    ):
        for name, step in STEPS.items():
            begin = time.monotonic()
            try:
                step(at)
                found[name] = PASSED
            except _FAILURES as error:
                found[name] = f"{FAILED}: {_reason(error)}"
                _say(str(error))
            _say(f"{name}: {found[name]} ({time.monotonic() - begin:.0f} s)")
    return found


def row(version: str, results: Mapping[str, str], date: str, at: str) -> str:
    """A version's line of the table."""
    cells = [results.get(name, NOT_RUN) for name in STEPS]
    return f"| {' | '.join((version, *cells, date, at))} |"


def rows_of(page: str) -> dict[str, str]:
    """The lines of the table by minor version."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    return {m[1]: m[0] for m in re.finditer(r"^\| (\d+\.\d+)[. ].*\|$", table, re.MULTILINE)}


def page_with(page: str, rows: Mapping[str, str]) -> str:
    """The page, with a row for each version, also for those that were not run."""
    lines = [rows.get(one) or row(PATCHES[one], {}, "", "") for one in PATCHES]
    titles = ("Kubernetes", *STEPS, "date", "commit")
    head = f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"
    before, _, rest = page.partition(BEGIN)
    table = "\n".join((head, *lines))
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def _results(minor: str) -> dict[str, str]:
    """What came of a version: nothing but a reason if it cannot be built or started."""
    try:
        tools = kubernetes_tools(minor, CommandRunner(GO_ENVIRONMENT))
        resolve_tools(tools)
    except RigError as error:
        _say(str(error))
        return dict.fromkeys(STEPS, NOT_BUILT)
    try:
        return tried(tools)
    except RigError as error:
        _say(str(error))
        return dict.fromkeys(STEPS, f"{FAILED}: {_reason(error)}")


def main() -> None:
    """Run the steps for each version, and write the page after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", default=",".join(PATCHES), help="With commas between.")
    chosen = parser.parse_args().versions.split(",")
    unknown = sorted(set(chosen) - set(PATCHES))
    if unknown:
        sys.exit(f"--versions: {unknown[0]} is not known; allowed: {', '.join(PATCHES)}")
    failed = []
    at = head_commit()
    for minor in chosen:
        _say(f"== Kubernetes {PATCHES[minor]}")
        results = _results(minor)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        page = PAGE.read_text(encoding="utf-8")
        rows = {**rows_of(page), minor: row(PATCHES[minor], results, date, at)}
        PAGE.write_text(page_with(page, rows), encoding="utf-8")
        if set(results.values()) != {PASSED}:
            failed.append(minor)
    sys.exit(f"not passed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
