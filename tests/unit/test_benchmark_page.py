"""docs/benchmarks.md is what its data says, and its folder holds only what it shows."""

import json
import re

from tests.benchmarks.matrix_page import DATA, MADE, PAGE, csv_text, page, results_rows
from tests.benchmarks.matrix_report import TABLES
from tests.benchmarks.matrix_summary import results

LONGEST_WORDS = 3_500


def test_the_page_is_made_from_the_data_alone():
    """`python -m tests.benchmarks.matrix_page` writes it again, to the letter."""
    made = json.loads(MADE.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(results(), made)
    stored = (DATA / "results.csv").read_text(encoding="utf-8")
    assert stored == csv_text(results_rows(results()))


def test_the_page_is_short_and_names_every_file():
    """Each file of the folder is linked or shown."""
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.split()) <= LONGEST_WORDS
    linked = set(re.findall(r"\]\(benchmarks/([^)]+)\)", text))
    assert linked == {path.name for path in DATA.iterdir()} - {MADE.name}


def test_every_table_that_a_run_writes_is_stored():
    """A head, and rows as long as it."""
    for name in TABLES:
        lines = (DATA / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        assert len(lines) > 3, name


def test_a_loss_is_listed_and_a_win_is_not():
    """With ours as cheap as the strongest rule and less met, the trace is among the losses."""
    found = results()
    made = json.loads(MADE.read_text(encoding="utf-8"))
    losses = page(found, made).partition("## Where ours is beaten")[2].partition("\n## ")[0]
    for name, policies in found.items():
        (ours,) = (one for one in policies if one.policy == "servingslo")
        rules = [p for p in ours.beaten_by if not p.startswith("servingslo")]
        listed = f"| {name} | servingslo |" in losses
        assert listed or not rules, name
        assert all(rule in losses for rule in rules), name
