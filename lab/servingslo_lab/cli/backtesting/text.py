"""A backtest's result as a table for people at a terminal."""

from collections.abc import Sequence

from servingslo.units import format_duration, milliseconds_from_seconds
from servingslo_lab.cli.backtesting.report import BacktestResult, Report, oracle_over_bound
from servingslo_lab.cli.backtesting.traces import LEAST_EARLIER_SECONDS
from servingslo_lab.sim.policies import OTHERS, OURS, REAL_RULES, RULES, is_ours
from servingslo_lab.sim.scoring import Interval
from servingslo_lab.sim.summary import PolicySummary


def report_text(report: Report) -> str:
    """What was replayed, a row for each policy, and how to read it."""
    result = report.result
    rows = [headers(result.policies), *(_row(one) for one in result.policies)]
    lines = [title(result), objectives_text(result), *past_text(result)]
    lines += ["", *aligned(rows), "", *result.verdict]
    lines += [f"{name}: no count or schedule meets the target" for name in result.without_solution]
    lines += gap_text(result)
    lines.append(f"* {star_text(result)}; ~ made from the trace itself, in hindsight")
    return "\n".join(lines)


def star_text(result: BacktestResult) -> str:
    """What a star claims: with several seeds, what their intervals allow."""
    claim = "no other is both cheaper and better"
    if len(result.seeds) > 1:
        return f"{claim}, wherever in the intervals both are"
    return f"{claim}, in this one run: --seeds 3 tells chance apart"


def gap_text(result: BacktestResult) -> list[str]:
    """How far the oracle may be from the best; empty without an oracle."""
    gap = oracle_over_bound(result)
    if gap is None:
        return []
    least = f"{result.least_replica_hours:.2f} replica-hours"
    return [f"oracle: the cheapest schedule found, {gap:.2f} × the {least} below which none can be"]


def title(result: BacktestResult) -> str:
    """'trace.csv: 19366 requests in 59m, 3 seeds, engine h100-8b'."""
    seeds = "1 seed" if len(result.seeds) == 1 else f"{len(result.seeds)} seeds"
    duration = format_duration(round(result.duration_seconds))
    return (
        f"{result.trace}: {result.request_count} requests in {duration}, {seeds}, "
        f"engine {result.engine}"
    )


def objectives_text(result: BacktestResult) -> str:
    """'TTFT ≤ 1s, TPOT ≤ 50ms; the target is 99 % of all requests meeting all'."""
    thresholds = (
        ("TTFT", result.ttft_seconds),
        ("TPOT", result.tpot_seconds),
        ("latency", result.latency_seconds),
    )
    named = ", ".join(f"{name} ≤ {seconds_text(s)}" for name, s in thresholds if s is not None)
    return f"{named}; the target is {100 * result.target_share_ratio:g} % of all requests"


def past_text(result: BacktestResult) -> list[str]:
    """Who knows of the time before the trace, or why nobody does; empty where that is nobody's."""
    if not any(is_ours(one.policy) for one in result.policies):
        return []
    if not result.past_seconds:
        least = format_duration(round(2 * LEAST_EARLIER_SECONDS))
        short = result.duration_seconds < 2 * LEAST_EARLIER_SECONDS
        why = f", as the trace is shorter than {least}; --past FILE tells one" if short else ""
        return [f"past: {OURS} is told none{why}"]
    span = format_duration(round(result.past_seconds))
    told = f"past: {OURS} is told the arrival rates of {span} before; no other rule uses them"
    if not result.earlier_seconds:
        return [told]
    first = format_duration(round(result.earlier_seconds))
    return [f"{told}. The first {first} of the trace are not played"]


def seconds_text(seconds: float) -> str:
    """'50 ms', '1 s', '1.25 s'."""
    if seconds < 1.0:
        return f"{milliseconds_from_seconds(seconds):.3g} ms"
    return f"{seconds:.4g} s"


def _row(one: PolicySummary) -> list[str]:
    mark = "~" if one.in_hindsight else "*" if one.surely_on_frontier else " "
    return [
        f"{mark} {one.policy}",
        spread(one.share_ratio, 100.0, 2),
        spread(one.replica_hours, 1.0, 2),
        *(spread(value, 1.0, 2) for value in parts_of_cost(one)),
        spread(one.dollars, 1.0, 2),
        spread(one.dollars_per_million_tokens, 1.0, 2),
        spread(one.actions_per_hour, 1.0, 0),
        f"{100 * one.worst_minute_ratio:.1f}",
        format_duration(one.recovery_seconds),
    ]


def headers(policies: Sequence[PolicySummary]) -> list[str]:
    """Of the columns that table and page have in common."""
    pools = policies[0].pools if policies else ()
    parts = [f"{pool.name.upper()}-H" for pool in pools] or ["× ORACLE"]
    first = ["POLICY", "IN SLO %", "REPLICA-H", *parts]
    return [*first, "$", "$/MTOK", "ACTIONS/H", "WORST MIN %", "RECOVERY"]


def parts_of_cost(one: PolicySummary) -> list[Interval | None]:
    """Replica-hours of each pool, or of one pool what they are over the oracle's."""
    return [pool.replica_hours for pool in one.pools] or [one.relative_cost]


def spread(value: Interval | None, factor: float, digits: int) -> str:
    """A mean with half the width of its interval, '-' where it is unknown."""
    if value is None:
        return "-"
    mean = f"{factor * value.mean:.{digits}f}"
    if value.half_width is None:
        return mean
    return f"{mean}±{factor * value.half_width:.{digits}f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, the first to the left and the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def policies_text() -> str:
    """Every policy, what it is, and its settings by default."""
    rows = [["NAME", "", ""]]
    rows += [[name, summary, ""] for name, summary in OTHERS.items()]
    rows += [
        [name, rule.summary, ",".join(f"{key}={value:g}" for key, value in rule.defaults.items())]
        for name, rule in (*RULES.items(), *REAL_RULES.items())
    ]
    width = max(len(row[0]) for row in rows)
    second = max(len(row[1]) for row in rows)
    return "\n".join(f"{a:<{width}}  {b:<{second}}  {c}".rstrip() for a, b, c in rows[1:])
