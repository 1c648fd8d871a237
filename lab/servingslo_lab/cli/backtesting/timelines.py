"""The part of a backtest's page that runs over time."""

import html
from collections.abc import Callable, Iterator, Sequence

from servingslo.units import SECONDS_PER_MINUTE
from servingslo_lab.cli.backtesting.charts import Axis, Series, line_chart
from servingslo_lab.cli.backtesting.report import Report
from servingslo_lab.sim.outcome import PoolLine, Timeline
from servingslo_lab.sim.policies import is_ours
from servingslo_lab.sim.summary import PolicySummary

# Lines that are drawn at first; the others are a click away.
_SHOWN_AT_FIRST = 3
_SHORTEST_TTFT_SECONDS = 0.01


def timelines(report: Report, colors: dict[str, str]) -> Iterator[str]:
    """Demand, replicas, TTFT, queue and share of each policy, each a click away."""
    seed = report.inputs.seeds[0]
    lines = [
        (o.policy, o.timeline)
        for o in report.outcomes
        if o.seed == seed and o.timeline is not None and o.policy in colors
    ]
    if not lines:
        return
    shown = _shown(report.result.policies, report.result.target_share_ratio)
    yield f"<h2>Over time</h2><p class='note'>Seed {seed}. Choose policies:</p><fieldset>"
    for place, (policy, _) in enumerate(lines):
        checked = " checked" if policy in shown else ""
        yield (
            f'<label><input type="checkbox" data-line="p{place}"{checked}> '
            f"{dot(colors[policy])}{html.escape(policy)}</label>"
        )
    yield "</fieldset>"
    yield from _charts(report, lines, colors, shown)


def _charts(
    report: Report,
    lines: Sequence[tuple[str, Timeline]],
    colors: dict[str, str],
    shown: Sequence[str],
) -> Iterator[str]:
    first = lines[0][1]
    span = max(len(first.offered_per_second), 1)

    def minutes(line: Timeline) -> list[float]:
        return [place + 0.5 for place in range(len(line.offered_per_second))]

    def ticks(line: Timeline) -> list[float]:
        return [at / SECONDS_PER_MINUTE for at in line.tick_seconds]

    def chart(axis: Axis, series: list[Series]) -> str:
        return line_chart(series, axis, x_label="minutes", x_max=span)

    def each(xs: object, ys: object, *, stepped: bool = False) -> list[Series]:
        return [
            Series(
                name=policy, x=xs(line), y=ys(line), color=colors[policy],  # type: ignore[operator]
                group=f"p{place}", stepped=stepped, hidden=policy not in shown,
            )
            for place, (policy, line) in enumerate(lines)
        ]  # fmt: skip

    demand = Series(
        name="requests per second", x=minutes(first), y=first.offered_per_second, color="#374151"
    )
    yield chart(Axis(label="requests per second"), [demand])
    parts = _parts(first)
    for name, part in parts:
        yield chart(
            Axis(label=f"ready replicas{name}"),
            each(ticks, lambda t, part=part: part(t).ready, stepped=True),
        )
    threshold = report.result.ttft_seconds
    yield chart(
        Axis(
            label="TTFT p99, s",
            logarithmic=True,
            floor=_SHORTEST_TTFT_SECONDS,
            threshold=threshold,
        ),
        each(minutes, _slow),
    )
    for name, part in parts:
        yield chart(
            Axis(label=f"waiting requests{name}", logarithmic=True, floor=1.0),
            each(ticks, lambda t, part=part: part(t).waiting),
        )
    yield chart(
        Axis(label="in SLO, %", ceiling=100.0, threshold=100.0 * report.result.target_share_ratio),
        each(minutes, lambda t: [None if s is None else 100.0 * s for s in t.share_ratio]),
    )
    yield (
        '<p class="note">Per minute of arrival: TTFT and share; at each look of the autoscaler: '
        "replicas and queue. TTFT along the upper edge: more than 1 % of the minute's requests "
        "never had a first token. Dashed red: the objective.</p>"
    )


def _parts(line: Timeline) -> list[tuple[str, Callable[[Timeline], Timeline | PoolLine]]]:
    """The fleet, or each of its pools: how a label ends, and where its counts are."""
    if not line.pools:
        return [("", lambda t: t)]
    return [
        (f", {pool.name}", lambda t, place=place: t.pools[place])  # type: ignore[misc]
        for place, pool in enumerate(line.pools)
    ]


def _slow(line: Timeline) -> list[float | None]:
    return [
        (float("inf") if value is None else value) if offered > 0 else None
        for value, offered in zip(line.ttft_p99_seconds, line.offered_per_second, strict=True)
    ]


def _shown(policies: Sequence[PolicySummary], target: float) -> list[str]:
    """Ours, then the cheapest of the others that meet the target, then those with most in SLO."""

    def place(one: PolicySummary) -> tuple[bool, bool, bool, float]:
        met = one.share_ratio.mean >= target
        order = one.replica_hours.mean if met else -one.share_ratio.mean
        return not is_ours(one.policy), one.in_hindsight, not met, order

    return [one.policy for one in sorted(policies, key=place)[:_SHOWN_AT_FIRST]]


def dot(color: str) -> str:
    """A dot of this color, for legends."""
    return f'<span class="dot" style="background:{color}"></span>'
