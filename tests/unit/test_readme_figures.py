"""README's figures are those of the committed benchmark, word for word."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from tests.benchmarks.matrix_findings import strongest
from tests.benchmarks.matrix_tables import brief

from servingslo.sim.policies import FORESIGHT, ORACLE, OURS, RULES, STATIC
from servingslo.sim.standard import SHARE_TARGET, TPOT_SECONDS, TTFT_SECONDS
from servingslo.sim.summary import PolicySummary

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
RESULTS = ROOT / "docs" / "benchmarks" / "results.json"
HEAD = (
    "| trace | oracle, replica-hours | servingslo | servingslo+knobs | strongest other "
    "| static | foresight |"
)
_SUMMARIES = TypeAdapter(dict[str, tuple[PolicySummary, ...]])
_IN_WORDS = {17: "seventeen"}


@cache
def results() -> dict[str, tuple[PolicySummary, ...]]:
    """Every policy's summary by scenario."""
    return _SUMMARIES.validate_python(json.loads(RESULTS.read_text(encoding="utf-8")))


def _rows(page: str) -> dict[str, str]:
    """The rows of a page's table of shares and costs, by trace."""
    lines = page[page.index(HEAD) :].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    return {line.split("|")[1].strip(): line for line in lines}


def _row(trace: str) -> str:
    """The row as the results say it."""
    found = {one.policy: one for one in results()[trace]}
    best = strongest(results()[trace])
    oracle = found.get(ORACLE)
    cells = (
        trace,
        "-" if oracle is None else f"{oracle.replica_hours.mean:.2f}",
        *(brief(found.get(name)) for name in (OURS, f"{OURS}+knobs")),
        "-" if best is None else f"{brief(best)} {best.policy}",
        *(brief(found.get(name)) for name in (STATIC, FORESIGHT)),
    )
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize(
    "page", [pytest.param(README, id="README"), pytest.param(BENCHMARKS, id="benchmarks.md")]
)
def test_tables_are_those_of_the_results(page):
    """Each row that is shown is that of results.json, and no row is of an unknown trace."""
    rows = _rows(page)
    assert rows
    assert rows == {trace: _row(trace) for trace in rows}


def test_the_objectives_of_the_table_are_those_measured_by():
    """Thresholds and target in README are those by which the benchmark counts."""
    said = re.search(
        r"\(TTFT within ([\d.]+) s, TPOT within (\d+) ms; target (\d+) %\)", README
    ).groups()
    measured = (
        f"{TTFT_SECONDS:g}",
        f"{1000 * TPOT_SECONDS:g}",
        f"{100 * SHARE_TARGET:g}",
    )
    assert said == measured


def test_the_number_of_rules_is_that_of_the_benchmark():
    """README counts the published rules that were run."""
    assert f"the cheapest of {_IN_WORDS[len(RULES)]} published rules" in " ".join(README.split())
