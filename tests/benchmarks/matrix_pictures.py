"""Pictures of the benchmark: for each scenario its frontier, and the fleets over time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.matrix_search import Setting

from servingslo.units import SECONDS_PER_MINUTE
from servingslo_lab.cli.backtesting.charts import Axis, Point, Series, frontier_chart, line_chart
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import ORACLE, OURS
from servingslo_lab.sim.standard import SHARE_TARGET
from servingslo_lab.sim.summary import PolicySummary, beats

_OURS, _PEER, _KNOWN, _SETTING = "#1d4ed8", "#d97706", "#4b5563", "#d1d5db"
_KNOBS = "#0891b2"
# Costs beyond this are drawn at the edge: they are far from any frontier.
_X_LIMIT = 4.0


def slug(scenario: str) -> str:
    """The name of a scenario's files."""
    return "".join(c if c.isalnum() else "-" for c in scenario).replace("--", "-")


def frontier(found: Sequence[PolicySummary], settings: Sequence[Setting]) -> str:
    """Share in SLO against cost over the oracle; settings: every setting that was searched."""
    cloud = [
        Point(
            name=s.policy,
            cost=s.relative_cost,
            share_ratio=s.share_ratio,
            color=_SETTING,
            named=False,
        )
        for s in settings
    ]
    points = [_point(one) for one in found if one.relative_cost is not None]
    rivals = [p for p in (*cloud, *points) if not p.hollow]
    best = [
        p
        for p in rivals
        if not any(beats(o.share_ratio, o.cost, p.share_ratio, p.cost) for o in rivals)
    ]
    named = {p.name for p in best}
    kept = [p for p in points if p.named or p.name in named]
    quiet = [_quiet(p) for p in points if p not in kept]
    return frontier_chart(
        [*cloud, *quiet, *[_loud(p) for p in kept]],
        best,
        x_label="replica-hours over the oracle's",
        target_share_ratio=SHARE_TARGET,
        x_limit=_X_LIMIT,
    )


def _point(one: PolicySummary) -> Point:
    assert one.relative_cost is not None
    ours = one.policy.partition("+")[0] == OURS
    color = _KNOBS if one.policy != OURS else _OURS
    if not ours:
        color = _KNOWN if one.in_hindsight else _PEER
    return Point(
        name=one.policy,
        cost=one.relative_cost.mean,
        share_ratio=one.share_ratio.mean,
        color=color,
        cost_half_width=one.relative_cost.half_width or 0.0,
        share_half_width=one.share_ratio.half_width or 0.0,
        named=ours or one.in_hindsight,
        hollow=one.in_hindsight,
    )


def _quiet(p: Point) -> Point:
    """A dot without name and bars."""
    return Point(name=p.name, cost=p.cost, share_ratio=p.share_ratio, color=p.color, named=False)


def _loud(p: Point) -> Point:
    return Point(
        name=p.name, cost=p.cost, share_ratio=p.share_ratio, color=p.color, hollow=p.hollow,
        cost_half_width=p.cost_half_width, share_half_width=p.share_half_width,
    )  # fmt: skip


def timeline(outcomes: Sequence[Outcome], rival: str | None) -> str:
    """Ready replicas of ours, of the oracle and of one rival, on one seed."""
    wanted = {ORACLE: _KNOWN, OURS: _OURS}
    if rival is not None:
        wanted[rival] = _PEER
    series = list(_lines(outcomes, wanted))
    span = max((s.x[-1] for s in series), default=1.0)
    return line_chart(series, Axis(label="ready replicas"), x_label="minutes", x_max=span)


def _lines(outcomes: Sequence[Outcome], wanted: dict[str, str]) -> Iterator[Series]:
    seed = min(o.seed for o in outcomes)
    for o in outcomes:
        if o.seed == seed and o.policy in wanted and o.timeline is not None:
            yield Series(
                name=o.policy,
                x=[at / SECONDS_PER_MINUTE for at in o.timeline.tick_seconds],
                y=o.timeline.ready,
                color=wanted[o.policy],
                stepped=True,
                dashed=o.policy == ORACLE,
            )


def write(path: Path, picture: str) -> None:
    """Keep a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(picture + "\n", encoding="utf-8")
