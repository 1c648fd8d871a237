"""`servingslo history`: what was decided of one resource over the past, from Prometheus."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from servingslo.cli.live import parsed_name
from servingslo.cli.output import OutputFormat, answer_no, as_json
from servingslo.cli.prometheus_flags import PrometheusFlags, asks_prometheus
from servingslo.errors import InvalidInputError
from servingslo.explain.format import number, percent, timestamp
from servingslo.units import parse_duration_seconds
from servingslo_lab.cli.columns import aligned
from servingslo_lab.cli.past.exported import Interval, Question, read_exported
from servingslo_lab.cli.past.history import prometheus_now_seconds

# A day in half hours fits a screen.
_ROWS = 48
_MOST_ROWS = 1000
_SHORTEST_SECONDS = 1
_LONGEST_SECONDS = 90 * 86_400
_ABSENT = "-"
# Of an interval whose first and last scrapes may be another's; and what is not told as none.
_WHOLE, _LEAST = 0.95, 0.01


@asks_prometheus(engines=False)
def history(
    resource: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The ServingSLO.")],
    prometheus_url: Annotated[
        str,
        typer.Option(
            envvar="SERVINGSLO_PROMETHEUS_URL",
            help="Address of the Prometheus that scrapes the operator.",
        ),
    ],
    since: Annotated[str, typer.Option(help="How far back: 6h, 1d, 7d.")] = "1d",
    every: Annotated[
        str | None, typer.Option(help="Length of one row's interval; 48 rows by default.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="One pool of the resource; all of them by default.")
    ] = None,
    asking: PrometheusFlags = PrometheusFlags(),
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="Output format.")
    ] = OutputFormat.TEXT,
) -> None:
    """Show the past of a ServingSLO: replicas, arrivals, shares within the objectives, limits.

    In a row without numbers no operator ran, or the resource was paused. A limit that held for a
    part of the interval has its share of the time next to it. Pools follow one another.

    Exit code 1: Prometheus has no data of it for that time. It must scrape the operator with
    honorLabels, as the chart's ServiceMonitor does.

    Example: servingslo history inference/llama-chat --prometheus-url http://localhost:9090
    --since 6h
    """
    namespace, name = parsed_name(resource)
    interval_seconds, count = _intervals(since, every)
    config = asking.config(prometheus_url)
    # Bad names are refused before anything is asked.
    question = Question(
        namespace=namespace,
        name=name,
        end_seconds=0,
        interval_seconds=interval_seconds,
        count=count,
    )
    end_seconds = round(prometheus_now_seconds(config))
    found = read_exported(
        config,
        Question(
            namespace=question.namespace,
            name=question.name,
            end_seconds=end_seconds,
            interval_seconds=interval_seconds,
            count=count,
        ),
    )
    found = tuple(row for row in found if pool in (None, row.pool))
    known = _from_the_first_known(found)
    if output is OutputFormat.JSON:
        typer.echo(as_json(known))
    elif known:
        typer.echo("\n".join(_lines(known)))
    else:
        typer.echo(f"{namespace}/{name}: nothing in Prometheus in the last {since}")
    if not known:
        raise answer_no()


def _from_the_first_known(rows: Sequence[Interval]) -> list[Interval]:
    """What is not known in between, or by now, is told as that."""
    known = [row.replicas_greatest is not None or row.limited_by is not None for row in rows]
    first = next((row.end_seconds for row, one in zip(rows, known, strict=True) if one), math.inf)
    return [row for row in rows if row.end_seconds >= first]


def _intervals(since: str, every: str | None) -> tuple[int, int]:
    """Length of an interval in whole seconds, and how many. Raises: InvalidInputError."""
    since_seconds = parse_duration_seconds(since, "--since")
    if not _SHORTEST_SECONDS <= since_seconds <= _LONGEST_SECONDS:
        raise InvalidInputError("--since", since, "1s to 90d")
    if every is None:
        length = max(round(since_seconds / _ROWS), _SHORTEST_SECONDS)
    else:
        wanted = parse_duration_seconds(every, "--every")
        if wanted < _SHORTEST_SECONDS or not 1 <= since_seconds / wanted <= _MOST_ROWS:
            allowed = f"1s to --since, at most {_MOST_ROWS} rows"
            raise InvalidInputError("--every", every, allowed)
        length = round(wanted)
    return length, max(round(since_seconds / length), 1)


def _lines(rows: Sequence[Interval]) -> list[str]:
    objectives = sorted({name for row in rows for name in row.within_ratio})
    pools = ("POOL",) if any(row.pool for row in rows) else ()
    head = (
        "UNTIL",
        *pools,
        "REPLICAS",
        "READY",
        "CHANGES",
        "RATE/S",
        *objectives,
        "BINDING",
        "LIMITED BY",
    )
    cells = [tuple(_cells(row, objectives, by_pool=bool(pools))) for row in rows]
    return aligned(head, cells, left=1 + len(pools))


def _cells(row: Interval, objectives: Sequence[str], *, by_pool: bool) -> Iterator[str]:
    yield timestamp(row.end_seconds)
    if by_pool:
        yield row.pool or _ABSENT
    least, greatest = _number(row.replicas_least), _number(row.replicas_greatest)
    yield least if least == greatest else f"{least}..{greatest}"
    yield _number(row.ready_replicas)
    yield _number(row.replica_changes)
    yield _number(row.arrivals_per_second)
    for name in objectives:
        share = row.within_ratio.get(name)
        yield _ABSENT if share is None else percent(share)
    yield row.binding or _ABSENT
    yield _limited(row)


def _limited(row: Interval) -> str:
    """What limited; where it was for a part of the time alone, which."""
    if row.limited_by is None or row.limited_ratio is None:
        return _ABSENT
    if row.limited_ratio >= _WHOLE:
        return row.limited_by
    return f"{row.limited_by} {max(row.limited_ratio, _LEAST):.0%}".replace("%", " %")


def _number(value: float | None) -> str:
    return _ABSENT if value is None else number(value)
