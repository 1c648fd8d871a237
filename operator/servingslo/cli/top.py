"""`servingslo top`: every ServingSLO of a cluster at one glance, again and again."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.cli.columns import aligned
from servingslo.cli.live import Access, resources_of
from servingslo.cli.options import Context, Kubeconfig
from servingslo.cli.output import OutputFormat, as_json
from servingslo.errors import ClusterError, InvalidInputError
from servingslo.explain.format import number
from servingslo.units import parse_duration_seconds

_ABSENT = "-"
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.5, 3600.0
_HEAD = (
    *("NAMESPACE", "NAME", "TARGET", "MODE", "REPLICAS", "DESIRED", "RATE/S", "UTIL", "SLO"),
    *("READY", "REASON", "BINDING", "COST/H"),
)
_LEFT = 4


class SortBy(StrEnum):
    """What the rows are ordered by; numbers and troubles come first where they are greatest."""

    NAME = "name"
    REPLICAS = "replicas"
    RATE = "rate"
    UTILIZATION = "utilization"
    SLO = "slo"
    COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One resource, as its status tells it; None is unknown.

    slo, ready: status of conditions SLOMet and Ready: True, False or Unknown. reason: of what is
    wrong, or of the last decision. The names are those of `kubectl get`.
    """

    namespace: str
    name: str
    target: str
    mode: str
    replicas: int | None
    desired_replicas: int | None
    arrivals_per_second: float | None
    utilization_ratio: float | None
    slo: str | None
    ready: str | None
    reason: str | None
    binding: str | None
    cost_per_hour: float | None
    currency: str | None


def top(
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Namespace to show; repeatable. All by default."),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show every namespace.")
    ] = False,
    sort: Annotated[SortBy, typer.Option(help="What comes first.")] = SortBy.NAME,
    once: Annotated[
        bool, typer.Option("--once", help="Print the table once, as in a pipe.")
    ] = False,
    every: Annotated[str, typer.Option(help="Time between two looks.")] = "2s",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="How the rows are written.")
    ] = OutputFormat.TEXT,
) -> None:
    """Show all ServingSLOs with their replicas, demand, objectives and what limits them.

    On a terminal the table is renewed until Ctrl-C; in a pipe, with --once or as JSON it is
    printed once.

    Example: servingslo top -n inference --sort slo
    """
    if namespace and all_namespaces:
        raise InvalidInputError("--all-namespaces", "true", "not together with --namespace")
    every_seconds = parse_duration_seconds(every, "--every")
    if not _SHORTEST_SECONDS <= every_seconds <= _LONGEST_SECONDS:
        raise InvalidInputError("--every", every, "500ms to 1h")
    access = Access(kubeconfig=kubeconfig, context=context)

    def look() -> list[Row]:
        return ordered(asyncio.run(_rows(access, tuple(namespace or ()))), sort)

    rows = look()  # what cannot be read at all ends the command
    if output is OutputFormat.JSON:
        typer.echo(as_json(rows))
    elif once or not sys.stdout.isatty():
        typer.echo("\n".join(lines(rows)))
    else:
        _renew(rows, look, every_seconds)


def row_of(record: ResourceRecord) -> Row:
    """What a resource's spec and status tell."""
    spec, status = record.spec, record.status
    conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
    replicas, cost = status.get("replicas") or {}, status.get("cost") or {}
    target = spec.get("targetRef") or {}
    return Row(
        namespace=record.ref.namespace,
        name=record.ref.name,
        target=f"{target.get('kind') or 'Deployment'}/{target.get('name')}",
        mode=str(spec.get("mode") or "Auto"),
        replicas=replicas.get("current"),
        desired_replicas=replicas.get("desired"),
        arrivals_per_second=(status.get("observed") or {}).get("arrivalsPerSecond"),
        utilization_ratio=(status.get("predicted") or {}).get("utilization"),
        slo=(conditions.get("SLOMet") or {}).get("status"),
        ready=(conditions.get("Ready") or {}).get("status"),
        reason=status.get("reason"),
        binding=status.get("bindingConstraint"),
        cost_per_hour=cost.get("perHour"),
        currency=cost.get("currency"),
    )


def ordered(rows: Sequence[Row], sort: SortBy) -> list[Row]:
    """The rows in this order, equal ones by namespace and name."""
    keys: Mapping[SortBy, Callable[[Row], float]] = {
        SortBy.NAME: lambda _row: 0.0,
        SortBy.REPLICAS: lambda row: _first(row.desired_replicas),
        SortBy.RATE: lambda row: _first(row.arrivals_per_second),
        SortBy.UTILIZATION: lambda row: _first(row.utilization_ratio),
        SortBy.SLO: lambda row: ("False", "Unknown", None, "True").index(row.slo),
        SortBy.COST: lambda row: _first(row.cost_per_hour),
    }
    return sorted(rows, key=lambda row: (keys[sort](row), row.namespace, row.name))


def lines(rows: Sequence[Row]) -> list[str]:
    """The table, or that there is nothing."""
    if not rows:
        return ["no ServingSLO is there"]
    return aligned(_HEAD, [tuple(_cells(row)) for row in rows], left=_LEFT)


async def _rows(access: Access, namespaces: tuple[str, ...]) -> list[Row]:
    async with resources_of(access, namespaces) as resources:
        return [row_of(record) for record in await resources.read_all()]


def _renew(rows: list[Row], look: Callable[[], list[Row]], every_seconds: float) -> None:
    """Show the rows and look again until Ctrl-C; a look that fails is told below the last rows."""
    with Live(_picture(rows), console=Console(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every_seconds)
                trouble = ""
                try:
                    rows = look()
                except ClusterError as error:
                    trouble = f"error: {error}"
                live.update(_picture(rows, trouble), refresh=True)
        except KeyboardInterrupt:
            return


def _picture(rows: Sequence[Row], trouble: str = "") -> Text:
    told = [*lines(rows), *(["", trouble] if trouble else [])]
    return Text("\n".join(told), no_wrap=True, overflow="crop")


def _first(value: float | None) -> float:
    """Greatest first, unknown last."""
    return 1.0 if value is None else -value


def _cells(row: Row) -> Iterator[str]:
    yield from (row.namespace, row.name, row.target, row.mode)
    yield _ABSENT if row.replicas is None else str(row.replicas)
    yield _ABSENT if row.desired_replicas is None else str(row.desired_replicas)
    yield _ABSENT if row.arrivals_per_second is None else number(row.arrivals_per_second)
    yield _ABSENT if row.utilization_ratio is None else number(row.utilization_ratio)
    yield from (row.slo or _ABSENT, row.ready or _ABSENT, row.reason or _ABSENT)
    yield row.binding or _ABSENT
    cost = row.cost_per_hour
    yield _ABSENT if cost is None else f"{number(cost)} {row.currency or ''}".rstrip()
