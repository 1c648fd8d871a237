"""A shadow as a table."""

from collections.abc import Iterator

from servingslo.explain.format import number
from servingslo.units import format_duration
from servingslo_lab.cli.columns import aligned
from servingslo_lab.cli.shadowing.play import Outcome, Shadow

_HEAD = ("RULE", "REPLICAS", "MEAN", "CHANGES", "REPLICA-HOURS", "MISSED", "OF JUDGED")


def shadow_text(shadow: Shadow) -> str:
    """The table, and what it does not show."""
    return "\n".join(_lines(shadow))


def _lines(shadow: Shadow) -> Iterator[str]:
    over, requests = format_duration(shadow.seconds), number(shadow.requests)
    yield f"{shadow.resource}: {over}, about {requests} requests"
    yield from aligned(_HEAD, [_cells(one, shadow) for one in shadow.outcomes], left=1)
    if shadow.judged_requests < shadow.requests:
        yield f"Judged: {number(shadow.judged_requests)} requests; else no law was trusted."
    for one in shadow.unread:
        yield f"Not read, so the rule may have ordered more: {one}"
    yield "Each rule saw the metrics of the replicas that were there. Missed: by the law."


def _cells(one: Outcome, shadow: Shadow) -> tuple[str, ...]:
    missed = one.missed_requests
    share = None if missed is None else missed / shadow.judged_requests
    return (
        one.name,
        f"{one.least_replicas}..{one.greatest_replicas}",
        number(one.mean_replicas),
        str(one.changes),
        number(one.replica_hours),
        "-" if missed is None else number(missed),
        "-" if share is None else f"{share:.2%}".replace("%", " %"),
    )
