"""The page of a backtest: one HTML file with its pictures inside, for a meeting."""

import html
from collections.abc import Iterator, Sequence

from servingslo.units import format_duration
from servingslo_lab.cli.backtesting.charts import Point, frontier_chart
from servingslo_lab.cli.backtesting.report import Report, WorstMinute
from servingslo_lab.cli.backtesting.text import (
    gap_text,
    headers,
    objectives_text,
    parts_of_cost,
    past_text,
    seconds_text,
    spread,
    title,
)
from servingslo_lab.cli.backtesting.timelines import dot, timelines
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import OTHERS, is_ours, summary_of
from servingslo_lab.sim.scoring import Interval
from servingslo_lab.sim.summary import PolicySummary

_OUR_COLORS = ("#1d4ed8", "#0891b2")
_HINDSIGHT_COLOR = "#4b5563"
_COLORS = (
    "#d97706", "#16a34a", "#c026d3", "#dc2626", "#65a30d", "#7c3aed", "#0d9488", "#9f1239",
    "#a16207", "#475569",
)  # fmt: skip
_MOST_DECISIONS = 300
_STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff;
  max-width: 1160px; margin: 2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.6rem; margin: 0 0 .2rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem }
p.sub, p.note { color: #6b7280; margin: .1rem 0 } p.head { font-size: 1.1rem; margin: 1rem 0 }
table { border-collapse: collapse; width: 100%; font-size: 13px;
  font-variant-numeric: tabular-nums }
th, td { padding: .3rem .4rem; text-align: right; border-bottom: 1px solid #e5e7eb;
  white-space: nowrap }
th { color: #6b7280; font-weight: 600; font-size: 12px } td.l, th.l { text-align: left }
td.w { white-space: normal } tr.ours td { background: #eff6ff } tr.best td.l { font-weight: 600 }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em }
.scroll { overflow-x: auto } svg { width: 100%; height: auto; display: block }
fieldset { border: 0; padding: 0; margin: .4rem 0; position: sticky; top: 0; background: #fff }
label { margin-right: 1.1rem; white-space: nowrap; cursor: pointer }
small { color: #6b7280 }
.bar { height: .8em; border-radius: 2px; display: inline-block; vertical-align: middle;
  margin-right: .5em }
details { margin: .5rem 0 } summary { cursor: pointer; color: #1d4ed8 }
@media print { fieldset { position: static } body { margin: 0 } }
"""
_SCRIPT = """
for (const box of document.querySelectorAll('input[data-line]')) {
  const show = () => document.querySelectorAll('path.' + box.dataset.line)
    .forEach(line => { line.style.display = box.checked ? '' : 'none' });
  box.addEventListener('change', show);
  show();
}
"""


def page(report: Report) -> str:
    """The report as a page that needs nothing else."""
    result = report.result
    colors = _colors([one.policy for one in result.policies])
    sections = [
        f"<h1>Backtest of {html.escape(report.inputs.scenario.name)}</h1>",
        f'<p class="sub">{html.escape(title(result))}</p>',
        f'<p class="sub">{html.escape(objectives_text(result))}</p>',
        *(f'<p class="sub">{html.escape(text)}</p>' for text in past_text(result)),
        *(f'<p class="head">{html.escape(text)}</p>' for text in result.verdict),
        *_frontier(report, colors),
        *_table(result.policies, colors),
        *(f'<p class="note">{html.escape(text)}</p>' for text in gap_text(result)),
        *_costs(result.policies, colors),
        *timelines(report, colors),
        *_worst(result.worst_minutes, colors),
        *_decisions(report.outcomes),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Backtest of {html.escape(report.inputs.scenario.name)}</title>"
        f"<style>{_STYLE}</style></head><body>\n"
        + "\n".join(sections)
        + f"\n<script>{_SCRIPT}</script></body></html>\n"
    )


def _colors(policies: Sequence[str]) -> dict[str, str]:
    ours, others = iter(_OUR_COLORS * len(policies)), iter(_COLORS * len(policies))
    found = {}
    for name in policies:
        known = OTHERS.get(name)
        if is_ours(name):
            found[name] = next(ours)
        else:
            found[name] = next(others) if known is None else _HINDSIGHT_COLOR
    return found


def _frontier(report: Report, colors: dict[str, str]) -> Iterator[str]:
    policies = report.result.policies
    if not policies:
        return
    points = [
        Point(
            name=one.policy,
            cost=one.replica_hours.mean,
            share_ratio=one.share_ratio.mean,
            color=colors[one.policy],
            cost_half_width=one.replica_hours.half_width or 0.0,
            share_half_width=one.share_ratio.half_width or 0.0,
            hollow=one.in_hindsight,
        )
        for one in policies
    ]
    best = [p for p in points if p.name in report.result.frontier]
    yield "<h2>Share in SLO against cost</h2>"
    yield (
        '<p class="note">Up and to the left is better. The grey line joins policies that nobody '
        "beats in both; hollow dots were made from the trace itself, in hindsight. The upper axis "
        "is stretched: misses count on a logarithmic scale. Bars: 95 % confidence over seeds.</p>"
    )
    yield frontier_chart(
        points, best, x_label="replica-hours",
        target_share_ratio=report.result.target_share_ratio,
    )  # fmt: skip


def _table(policies: Sequence[PolicySummary], colors: dict[str, str]) -> Iterator[str]:
    yield '<h2>Policies</h2><div class="scroll"><table><tr>'
    heads = (*headers(policies), "REJECTED %", "TTFT p99", "TPOT p99")
    yield "".join(f"<th{_left(place)}>{html.escape(head)}</th>" for place, head in enumerate(heads))
    yield "</tr>"
    for one in policies:
        kinds = ["ours"] * is_ours(one.policy)
        kinds += ["best"] * (one.surely_on_frontier and not one.in_hindsight)
        cells = [
            (
                f'<span title="{html.escape(_what(one.policy))}">{dot(colors[one.policy])}'
                f"{html.escape(one.policy)}</span>"
            ),
            _spread(one.share_ratio, 100.0, 2),
            _spread(one.replica_hours, 1.0, 2),
            *(_spread(value, 1.0, 2) for value in parts_of_cost(one)),
            _spread(one.dollars, 1.0, 2),
            _spread(one.dollars_per_million_tokens, 1.0, 2),
            _spread(one.actions_per_hour, 1.0, 0),
            f"{100 * one.worst_minute_ratio:.1f}",
            format_duration(one.recovery_seconds),
            f"{100 * one.rejected_ratio:.1f}",
            _seconds(one.ttft_p99_seconds),
            _seconds(one.tpot_p99_seconds),
        ]
        yield _tr(cells, " ".join(kinds))
    yield "</table></div>"
    yield (
        '<p class="note">Bold: no other is both cheaper and better, wherever in the intervals '
        "both are. Recovery: the longest time on end in which minutes stayed below the target. "
        "Rejected, lost and unfinished requests miss.</p>"
    )


def _what(policy: str) -> str:
    return summary_of(policy) or policy


def _costs(policies: Sequence[PolicySummary], colors: dict[str, str]) -> Iterator[str]:
    most = max((one.dollars.mean for one in policies), default=0.0)
    if most <= 0:
        return
    yield "<h2>Cost of this trace</h2><table>"
    for one in sorted(policies, key=lambda p: p.dollars.mean):
        bar = (
            f'<span class="bar" style="width:{max(600 * one.dollars.mean / most, 1):.0f}px;'
            f'background:{colors[one.policy]}"></span>'
        )
        yield (
            f'<tr><td class="l">{html.escape(one.policy)}</td><td class="l" style="width:75%">'
            f"{bar}${one.dollars.mean:.2f}</td></tr>"
        )
    yield "</table>"


def _worst(minutes: Sequence[WorstMinute], colors: dict[str, str]) -> Iterator[str]:
    if not minutes:
        return
    yield '<h2>Worst minutes</h2><div class="scroll"><table><tr>'
    heads = ("POLICY", "SEED", "MINUTE", "IN SLO %", "REQUESTS/S", "READY REPLICAS")
    yield "".join(f"<th{_left(place)}>{head}</th>" for place, head in enumerate(heads))
    yield "</tr>"
    last = ""
    for worst in minutes:
        name = "" if worst.policy == last else worst.policy
        yield _tr(
            [
                f"{dot(colors[worst.policy])}{html.escape(name)}" if name else "",
                str(worst.seed),
                str(worst.minute),
                f"{100 * worst.share_ratio:.1f}",
                f"{worst.offered_per_second:.1f}",
                "-" if worst.ready_replicas is None else str(worst.ready_replicas),
            ]
        )
        last = worst.policy
    yield "</table></div>"


def _decisions(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.timeline is None or not outcome.timeline.decisions:
            continue
        lines = outcome.timeline.decisions
        if outcome.seed != min(o.seed for o in outcomes):
            continue
        yield f"<h2>Decisions of {html.escape(outcome.policy)}</h2>"
        left = max(len(lines) - _MOST_DECISIONS, 0)
        yield (
            f'<p class="note">Seed {outcome.seed}: {len(lines)} that changed something or had a '
            f"new reason{f'; the last {left} are left out' if left else ''}.</p>"
        )
        yield '<details open><summary>Show</summary><div class="scroll"><table><tr>'
        pooled = any(line.pool for line in lines)
        heads = ["TIME", "REPLICAS", "REASON", "BINDING", "ARRIVALS/S", "PLANNED FOR/S"]
        heads += ["POOL"] * pooled
        left_ones = {0, 2, 3, 6}
        yield "".join(
            f"<th{_left(0 if place in left_ones else 1)}>{head}</th>"
            for place, head in enumerate(heads)
        )
        yield "</tr>"
        for line in lines[:_MOST_DECISIONS]:
            change = _count(line.after)
            if line.before != line.after:
                change = f"{_count(line.before)} → <b>{_count(line.after)}</b>"
            yield (
                f'<tr title="{html.escape(line.text)}"><td class="l">'
                f"{format_duration(round(line.time_seconds))}</td><td>{change}</td>"
                f'<td class="l">{html.escape(line.reason)}</td>'
                f'<td class="l">{html.escape(line.binding or "-")}</td>'
                f"<td>{_rate(line.rate_per_second)}</td>"
                f"<td>{_rate(line.planned_rate_per_second)}</td>"
                + (f'<td class="l">{line.pool}</td></tr>' if pooled else "</tr>")
            )
        yield "</table></div></details>"


def _tr(cells: Sequence[str], kind: str = "") -> str:
    tds = "".join(f"<td{_left(place)}>{cell}</td>" for place, cell in enumerate(cells))
    return f'<tr class="{kind}">{tds}</tr>' if kind else f"<tr>{tds}</tr>"


def _left(place: int) -> str:
    return ' class="l"' if place == 0 else ""


def _spread(value: Interval | None, factor: float, digits: int) -> str:
    mean, sign, width = spread(value, factor, digits).partition("±")
    return f"{mean} <small>{sign}{width}</small>" if sign else mean


def _seconds(value: float | None) -> str:
    return "∞" if value is None else seconds_text(value)


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
