"""What README and the summary of the benchmarks say is what was recorded and measured."""

import json
import re
from functools import cache
from pathlib import Path

from tests.benchmarks import matrix_summary
from tests.benchmarks.matrix_tables import table

from servingslo_lab.sim.policies import OURS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
HEAD = "| " + " | ".join(matrix_summary.HEAD) + " |"
SUDDEN = ("step", "flash", "mmpp")
LONGEST_README_LINES = 98


results = cache(matrix_summary.results)


def test_the_summary_is_that_of_the_results():
    """Each row that is shown is that of results.json, those that miss the target first.

    `python -m tests.benchmarks.matrix_page` writes them again.
    """
    shown = BENCHMARKS[BENCHMARKS.index(HEAD) :].split("\n\n", maxsplit=1)[0].splitlines()
    traces = {line.split("|")[1].strip() for line in shown[2:]}
    names = [name for name in results() if name in traces]
    assert len(names) == len(shown) - 2 > 0
    assert shown == list(table(matrix_summary.summary_rows(results(), names)))


def test_the_share_of_sudden_rises_is_that_of_the_results():
    """README's range holds ours, replicas only, on each card's sudden traces at 90 s cold start."""
    shares = [
        100 * one.share_ratio.mean
        for card in ("h100", "l4")
        for trace in SUDDEN
        for one in results()[f"{card} {trace}"]
        if one.policy == OURS
    ]
    assert len(shares) == 6
    low, high = re.search(r"(\d+) to (\d+) % of requests met", " ".join(README.split())).groups()
    assert (int(low), int(high)) == (int(min(shares)), int(max(shares)))


def test_the_decisions_shown_were_recorded():
    """Each line of README's log is a line of the picture's recording, shortened."""
    recording = json.loads((ROOT / "docs" / "pictures" / "surge.json").read_text(encoding="utf-8"))
    logged = [line.split() for _, line in recording["decisions"]]
    shown = re.findall(r"^(scale-(?:up|down) .*)$", README, re.MULTILINE)
    assert len(shown) == 3
    for line in shown:
        words = f"action={line}".split()
        assert any(all(word in one for word in words) for one in logged), line


def test_readme_is_one_screen():
    """What does not fit is a page under docs."""
    assert len(README.splitlines()) <= LONGEST_README_LINES
