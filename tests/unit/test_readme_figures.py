"""What README and the summary of the benchmarks say is what was recorded and measured."""

import json
import re
from functools import cache
from pathlib import Path

from tests.benchmarks import matrix_summary, peers_page
from tests.benchmarks.matrix_tables import table

from servingslo_lab.sim.policies import OURS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PEERS = (ROOT / "docs" / "benchmarks-peers.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
HEAD = "| " + " | ".join(matrix_summary.HEAD) + " |"
LONGEST_README_LINES = 100


results = cache(matrix_summary.results)


def test_the_summary_is_that_of_the_results():
    """Each row that is shown is that of results.json, recorded traffic first.

    `python -m tests.benchmarks.matrix_page` writes them again.
    """
    shown = BENCHMARKS[BENCHMARKS.index(HEAD) :].split("\n\n", maxsplit=1)[0].splitlines()
    traces = {line.split("|")[1].strip() for line in shown[2:]}
    names = [name for name in results() if name in traces]
    assert len(names) == len(shown) - 2 > 0
    assert shown == list(table(matrix_summary.summary_rows(results(), names)))


def missed(shares: list[float]) -> tuple[int, int, str, str]:
    """Of how many, how many are below the target of 99 %, and from which to which; in %."""
    below = [share for share in shares if round(share, 1) < 99.0]
    return len(below), len(shares), f"{min(below):.0f}", f"{max(below):.1f}".removesuffix(".0")


def test_the_rows_that_ours_misses_are_counted():
    """README says how many of the summary's traces and of the page's rows, and how far."""
    summary = [
        100 * one.share_ratio.mean
        for name, policies in results().items()
        for one in policies
        if one.policy == OURS and f"\n| {name} |" in BENCHMARKS
    ]
    rows = [row.ours.in_slo_percent for row in peers_page.results(peers_page.stored())]
    text = re.sub(r"\]\([^)]*\)|\[", "", " ".join(README.split()))
    found = re.findall(r"on (\d+) of (\d+) [a-z ]+, with (\d+) to ([\d.]+) %", text)
    said = [(int(below), int(all_), low, high) for below, all_, low, high in found]
    assert said == [missed(summary), missed(rows)]


def test_the_tables_of_peers_are_those_of_their_data():
    """Both, and how many rows a peer wins; `python -m tests.benchmarks.peers_page` writes them."""
    rows = peers_page.results(peers_page.stored())
    assert "\n".join(peers_page.page_tables(rows)) in PEERS
    assert "\n".join(peers_page.readme_table(rows)) in README
    assert f"on {sum(row.is_won_by_a_peer for row in rows)} of these" in README


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
