"""README's figures are those of the committed benchmark, word for word."""

import re
from functools import cache
from pathlib import Path

import pytest
from tests.benchmarks import matrix_summary
from tests.benchmarks.matrix_tables import table

from servingslo_lab.sim.policies import RULES
from servingslo_lab.sim.standard import SHARE_TARGET, TPOT_SECONDS, TTFT_SECONDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
HEAD = "| " + " | ".join(matrix_summary.HEAD) + " |"
_IN_WORDS = {17: "seventeen"}


results = cache(matrix_summary.results)


def _table(page: str) -> list[str]:
    """The lines of a page's table of shares and costs."""
    return page[page.index(HEAD) :].split("\n\n", maxsplit=1)[0].splitlines()


@pytest.mark.parametrize(
    "page", [pytest.param(README, id="README"), pytest.param(BENCHMARKS, id="benchmarks.md")]
)
def test_tables_are_those_of_the_results(page):
    """Each row that is shown is that of results.json, those that miss the target first.

    `python -m tests.benchmarks.matrix_summary` writes them anew.
    """
    shown = _table(page)
    traces = {line.split("|")[1].strip() for line in shown[2:]}
    names = [name for name in results() if name in traces]
    assert len(names) == len(shown) - 2 > 0
    assert shown == list(table(matrix_summary.summary_rows(results(), names)))


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
