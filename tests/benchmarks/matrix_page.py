"""`docs/benchmarks.md`: the summary, and the cases that ours loses.

    python -m tests.benchmarks.matrix_page    write it and results.csv; runs nothing

From the data in `docs/benchmarks` alone: results.json, the tables that `make benchmark` writes
beside it, and made.json, which says what they are of.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence

from tests.benchmarks.matrix import MINE, ROOT
from tests.benchmarks.matrix_day import BUDGET_FACTOR, DAY_SEEDS
from tests.benchmarks.matrix_offices import OFFICE_SEEDS
from tests.benchmarks.matrix_pictures import PICTURED, slug
from tests.benchmarks.matrix_search import SEED
from tests.benchmarks.matrix_summary import Summaries, results, summary_rows
from tests.benchmarks.matrix_tables import Table, brief, table

from servingslo_lab.sim.policies import FORESIGHT, ORACLE, OURS, STATIC
from servingslo_lab.sim.summary import PolicySummary, beats

PAGE = ROOT / "docs" / "benchmarks.md"
DATA = ROOT / "docs" / "benchmarks"
MADE = DATA / "made.json"
KNOBS = f"{OURS}+knobs"
_BEATEN = re.compile(r"(?:^|; )\d")

_HEAD = """\
# Benchmarks

Share of requests in SLO against replica-hours, next to the rules of other autoscalers, in a
simulator.

- A request is in SLO if its TTFT is at most 1 s and its TPOT at most 50 ms. Rejected, lost and
  unfinished requests miss. The target is 99 %.
- Costs are relative to a clairvoyant oracle: the cheapest schedule found that meets the target on
  the same trace. It was run; a cheaper one may exist.
- The cold start is 90 s unless the trace says otherwise. A fleet may grow to twice the oracle's
  peak.
- `{ours}` is the production planner at its defaults, replicas only. `{knobs}` also sets batch
  limits and enforces bounds on the queue and on requests in flight. Nothing is set per trace.
- `:tuned` is the best setting of a rule on each card, searched on another seed
  (`make benchmark-search`).
- `{static}`: the smallest constant count that meets the target, in hindsight, on the trace itself.
- {count} traces, seeds {seeds}; intervals are 95 % by Student's t. Made by `{command}` at commit
  `{commit}`, {date}.
{notes}
How the figures are made and what they can carry: [design note 9](designs/0009-benchmark.md).
Findings: [lab](lab/findings.md#benchmark).

## Summary

Share in SLO in %, with its interval over seeds, @ replica-hours over the oracle's. Cheapest other:
the cheapest rule that meets the target, at defaults or tuned; if none does, the one with the
largest share. h: replica-hours, if no schedule meets the target at any cost.
"""

_FILES = {
    "results.csv": "every policy on every trace, with $/Mtok, actions, worst minute, recovery",
    "results.json": "the same with intervals, percentiles and who beats whom",
    "settings.csv": "every trace against all searched settings of all rules",
    "another-simulator.csv": "the same rows by an independent simulator, here / there",
    "bound.csv": "costs over a proven lower bound (`sim/bounds/bound.py`)",
    "gap.csv": "what the gap between oracle and bound consists of",
    "parts.csv": "the planner without each of its parts, share in SLO @ cost over the oracle's",
    "days.csv": "error budgets over a day",
    "offices.csv": "days with office hours",
    "peers.csv": "[other autoscalers' own code](benchmarks-peers.md)",
}


def stored(name: str) -> Table:
    """The rows of a table in `docs/benchmarks`, its head first."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def csv_text(rows: Sequence[Sequence[str]]) -> str:
    """Rows as the text of a file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def results_rows(found: Summaries) -> Table:
    """One row for each policy on each trace, under their head."""
    head = ["trace", "policy", "in SLO, %", "over oracle", "replica-hours", "$/Mtok", "actions/h",
            "worst minute, %", "recovery, s", "rejected, %", "on frontier"]  # fmt: skip
    rows = [
        [
            name,
            one.policy,
            f"{100 * one.share_ratio.mean:.2f}",
            "" if one.relative_cost is None else f"{one.relative_cost.mean:.3f}",
            f"{one.replica_hours.mean:.2f}",
            "" if (price := one.dollars_per_million_tokens) is None else f"{price.mean:.3f}",
            f"{one.actions_per_hour.mean:.0f}",
            f"{100 * one.worst_minute_ratio:.1f}",
            f"{one.recovery_seconds:.0f}",
            f"{100 * one.rejected_ratio:.1f}",
            "yes" if one.on_frontier else "no",
        ]
        for name, policies in found.items()
        for one in policies
    ]
    return [head, *rows]


def page(found: Summaries, made: Mapping[str, str]) -> str:
    """The page in Markdown. made: of made.json."""
    notes = "".join(f"- {note}\n" for note in made["notes"].splitlines())
    lines = [
        _HEAD.format(
            ours=OURS, knobs=KNOBS, static=STATIC, count=len(found),
            seeds=made["seeds"], command=made["command"], commit=made["commit"],
            date=made["date"], notes=notes,
        ),
        "<!-- made by make benchmark -->\n",
        *table(summary_rows(found, list(found))),
        "\n<!-- end -->\n",
        *_losses(found),
        *_pictures(found),
        *_days(),
        *_offices(),
        *_files(),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _losses(found: Summaries) -> Iterator[str]:
    """The traces on which a rule, a searched setting or a constant count beats ours."""
    yield "## Where ours is beaten"
    yield ""
    yield "Beaten: another has as high a share at as low a cost, and is better in one of them."
    yield f"Settings are those of every rule's grid, on seed {SEED} of the search. The constant is"
    yield f"`{STATIC}`. On all other traces nothing beats ours, but the target is missed on some"
    yield "rows of the summary: a rise that nothing announces costs one cold start."
    yield ""
    by_settings = {(row[0], row[1]): row[2] for row in stored("settings")[1:]}
    rows = [["trace", "ours", "", "beaten by"]]
    for name, policies in found.items():
        known = {one.policy: one for one in policies}
        for mine in MINE:
            one = known.get(mine)
            if one is None:
                continue
            better = [
                f"{other.policy} {brief(other)}"
                for other in policies
                if _may_beat(other) and _beats(other, one)
            ]
            searched = by_settings.get((name, mine), "")
            if _BEATEN.search(searched):
                better.append(f"settings: {searched}")
            if better:
                rows.append([name, mine, brief(one), "; ".join(better)])
    yield from table(rows)
    yield ""


def _may_beat(other: PolicySummary) -> bool:
    """Rules, and the constant count; the oracle and foresight know the trace."""
    return not other.policy.startswith(OURS) and other.policy not in {ORACLE, FORESIGHT}


def _beats(other: PolicySummary, one: PolicySummary) -> bool:
    return beats(
        other.share_ratio.mean, other.replica_hours.mean,
        one.share_ratio.mean, one.replica_hours.mean,
    )  # fmt: skip


def _pictures(found: Summaries) -> Iterator[str]:
    shown = [name for name in PICTURED if name in found]
    if not shown:
        return
    yield "## Two traces in pictures"
    yield ""
    yield "Blue: ours; orange: the cheapest other that meets the target; dashed: the oracle; grey"
    yield "dots: every searched setting of every rule."
    yield ""
    for name in shown:
        yield f"![share in SLO against cost, {name}](benchmarks/{slug(name)}.svg)"
        yield ""
        yield f"![ready replicas over time, {name}](benchmarks/{slug(name)}-replicas.svg)"
        yield ""


def _days() -> Iterator[str]:
    yield "## Error budgets over a day"
    yield ""
    yield "A day of the Azure conversation trace with a day's wave on the small card, 5 to 22"
    yield f"requests a second, 1.2 million in all, seeds {', '.join(map(str, DAY_SEEDS))}. Spent:"
    yield f"misses over the budget; at most {BUDGET_FACTOR:g} is promised. Each target has its own"
    yield "oracle."
    yield ""
    yield from table(stored("days"))
    yield ""


def _offices() -> Iterator[str]:
    yield "## Days with office hours"
    yield ""
    yield "What past rates are worth. Sunday evening to Tuesday noon on the small card: one request"
    yield "a second at night, 16 in office hours, which begin around nine. With history, the"
    yield "planner gets two weeks of past rates. Mornings: requests from 8:54 to 9:30. Seeds"
    yield f"{', '.join(map(str, OFFICE_SEEDS))}."
    yield ""
    shown = ("policy", OURS, ORACLE, STATIC, "keda-guide", "hpa-busy")
    yield from table([row for row in stored("offices") if row[0].startswith(shown)])
    yield ""


def _files() -> Iterator[str]:
    yield "## All figures"
    yield ""
    yield from table(
        [["file", "holds"], *([f"[{n}](benchmarks/{n})", t] for n, t in _FILES.items())]
    )


def write_page() -> None:
    """Write the page and results.csv from the data."""
    found = results()
    made: dict[str, str] = json.loads(MADE.read_text(encoding="utf-8"))
    PAGE.write_text(page(found, made), encoding="utf-8")
    (DATA / "results.csv").write_text(csv_text(results_rows(found)), encoding="utf-8")


if __name__ == "__main__":
    write_page()
