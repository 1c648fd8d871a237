"""The table of the summary: the promise of each row, who keeps it, and at what cost.

From `docs/benchmarks/results.json`. Recorded traffic comes first, then the rows in which ours does
not reach the target. `matrix_page` writes it into docs/benchmarks.md.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter
from tests.benchmarks.matrix_findings import strongest
from tests.benchmarks.matrix_tables import brief

from servingslo_lab.sim.policies import ORACLE, OURS, STATIC
from servingslo_lab.sim.standard import SHARE_TARGET
from servingslo_lab.sim.summary import PolicySummary

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "benchmarks" / "results.json"
KNOBS, RECORDED = f"{OURS}+knobs", "azure-conv"
HEAD = (
    "trace", "oracle, replica-hours", OURS, KNOBS, "cheapest other that reaches it",
    STATIC,
)  # fmt: skip
_SUMMARIES = TypeAdapter(dict[str, tuple[PolicySummary, ...]])
Summaries = Mapping[str, Sequence[PolicySummary]]


def results() -> dict[str, tuple[PolicySummary, ...]]:
    """Every policy's summary by scenario, as committed."""
    return _SUMMARIES.validate_python(json.loads(RESULTS.read_text(encoding="utf-8")))


def summary_rows(by_scenario: Summaries, names: Sequence[str]) -> list[list[str]]:
    """The rows of these traces under their head: recorded ones, then those that ours misses."""

    def place(name: str) -> tuple[bool, bool]:
        found = by_scenario[name]
        reached = any(o.policy == OURS and o.share_ratio.mean >= SHARE_TARGET for o in found)
        return RECORDED not in name, reached

    return [list(HEAD), *(_row(name, by_scenario[name]) for name in sorted(names, key=place))]


def _row(name: str, found: Sequence[PolicySummary]) -> list[str]:
    known = {one.policy: one for one in found}
    oracle, best = known.get(ORACLE), strongest(found)
    other = "-"
    if best is not None:
        none = "" if best.share_ratio.mean >= SHARE_TARGET else "none; most share: "
        other = f"{none}{brief(best)} {best.policy}"
    return [
        name,
        "-" if oracle is None else f"{oracle.replica_hours.mean:.2f}",
        _with_interval(known.get(OURS)),
        brief(known.get(KNOBS)),
        other,
        brief(known.get(STATIC)),
    ]


def _with_interval(one: PolicySummary | None) -> str:
    """'99.0 ± 1.3 @ 1.16': share with half its interval over seeds, and cost."""
    text = brief(one)
    if one is None or one.share_ratio.half_width is None:
        return text
    share, cost = text.split(" @ ")
    return f"{share} ± {100 * one.share_ratio.half_width:.1f} @ {cost}"
