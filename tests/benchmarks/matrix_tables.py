"""Tables in Markdown, and how shares and costs are written in them."""

from servingslo_lab.sim.scoring import Interval
from servingslo_lab.sim.summary import PolicySummary

Table = list[list[str]]


def brief(one: PolicySummary | None) -> str:
    """'99.8 @ 1.21'; where no schedule meets the target, '83.2 @ 16.86 h', in replica-hours."""
    if one is None:
        return "-"
    if one.relative_cost is None:
        return f"{100 * one.share_ratio.mean:.1f} @ {one.replica_hours.mean:.2f} h"
    return pair_text(one.share_ratio.mean, one.relative_cost.mean)


def pair_text(share_ratio: float, relative_cost: float | None) -> str:
    """'99.8 @ 1.21'."""
    cost = "-" if relative_cost is None else f"{relative_cost:.2f}"
    return f"{100 * share_ratio:.1f} @ {cost}"


def spread(value: Interval | None, factor: float) -> str:
    """A mean with half the width of its interval."""
    if value is None:
        return "-"
    mean = f"{factor * value.mean:.2f}"
    return mean if value.half_width is None else f"{mean} ± {factor * value.half_width:.2f}"


def table(rows: Table) -> list[str]:
    """A table in Markdown."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in body)]
