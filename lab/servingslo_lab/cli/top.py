"""`servingslo top`: every ServingSLO of a cluster at one glance, again and again."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.cli.live import Access, resources_of
from servingslo.cli.options import Context, Kubeconfig
from servingslo.cli.output import OutputFormat, as_json
from servingslo.controller.place import place_of
from servingslo.errors import ClusterError, InvalidInputError
from servingslo.explain.format import number
from servingslo.units import parse_duration_seconds
from servingslo_lab.cli.columns import aligned

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

    pool: '' for the whole. slo, ready: status of conditions SLOMet and Ready: True, False or
    Unknown. reason: of what is wrong, or of the last decision. Names are those of `kubectl get`.
    lease: whose holder decides.
    """

    namespace: str
    name: str
    pool: str = ""
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
    lease: int = 0


def top(
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Namespace to show; repeatable. All by default."),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show every namespace.")
    ] = False,
    sort: Annotated[SortBy, typer.Option(help="Order of the rows.")] = SortBy.NAME,
    once: Annotated[
        bool, typer.Option("--once", help="Print the table once, as in a pipe.")
    ] = False,
    pools: Annotated[
        bool, typer.Option("--pools", help="Show each pool in a row of its own.")
    ] = False,
    classes: Annotated[
        bool, typer.Option("--classes", help="Show each class of requests in a row of its own.")
    ] = False,
    every: Annotated[str, typer.Option(help="Time between updates.")] = "2s",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="Output format.")
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
        read = asyncio.run(_records(access, tuple(namespace or ())))
        rows = (rows_of(record, by_pool=pools, by_class=classes) for record in read)
        return ordered([row for of_record in rows for row in of_record], sort)

    rows = look()  # what cannot be read at all ends the command
    if output is OutputFormat.JSON:
        typer.echo(as_json(rows))
    elif once or not sys.stdout.isatty():
        typer.echo("\n".join(lines(rows)))
    else:
        _renew(rows, look, every_seconds)


def rows_of(record: ResourceRecord, *, by_pool: bool, by_class: bool = False) -> list[Row]:
    """The row of a resource, and those of its pools and classes if they are asked for."""
    whole = row_of(record)
    pools = record.status.get("pools") or () if by_pool else ()
    classes = record.status.get("classes") or () if by_class else ()
    return [
        whole,
        *(_pool_row(whole, pool) for pool in pools),
        *(_class_row(whole, one) for one in classes),
    ]


def _class_row(whole: Row, one: Mapping[str, Any]) -> Row:
    """What a class's part of the status tells; replicas are of the whole."""
    refused = one.get("refusedPerSecond")
    return replace(
        whole,
        pool=str(one.get("name")),
        mode=str(one.get("state")),
        replicas=None,
        desired_replicas=None,
        arrivals_per_second=one.get("offeredPerSecond"),
        utilization_ratio=None,
        slo=None,
        ready=None,
        reason=f"refused {number(refused)}/s" if refused else None,
        binding=None if one.get("lane") is None else f"lane {one['lane']}",
        cost_per_hour=None,
        currency=None,
    )


def _pool_row(whole: Row, pool: Mapping[str, Any]) -> Row:
    """What a pool's part of the status tells; conditions are of the whole."""
    replicas, cost = pool.get("replicas") or {}, pool.get("cost") or {}
    return Row(
        namespace=whole.namespace,
        name=whole.name,
        pool=str(pool.get("name")),
        target=str(pool.get("target")),
        mode=str(pool.get("role")),
        replicas=replicas.get("current"),
        desired_replicas=replicas.get("desired"),
        arrivals_per_second=(pool.get("observed") or {}).get("arrivalsPerSecond"),
        utilization_ratio=pool.get("utilization"),
        slo=pool.get("slo"),
        ready=None,
        reason=pool.get("reason"),
        binding=pool.get("bindingConstraint"),
        cost_per_hour=cost.get("perHour"),
        currency=cost.get("currency"),
        lease=whole.lease,
    )


def row_of(record: ResourceRecord) -> Row:
    """What a resource's spec and status tell."""
    spec, status = record.spec, record.status
    conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
    replicas, cost = status.get("replicas") or {}, status.get("cost") or {}
    return Row(
        namespace=record.ref.namespace,
        name=record.ref.name,
        target=_target(spec, status),
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
        lease=place_of(status).lease,
    )


def _target(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """The only target, or the pools with their replicas: 'prefill 3/decode 5'."""
    if spec.get("pools"):
        names = "/".join(str(pool.get("name")) for pool in spec["pools"])
        return str(status.get("poolsSummary") or names)
    target = spec.get("targetRef") or {}
    return f"{target.get('kind') or 'Deployment'}/{target.get('name')}"


def ordered(rows: Sequence[Row], sort: SortBy) -> list[Row]:
    """The rows in this order, equal ones by namespace and name; pools follow their resource."""
    keys: Mapping[SortBy, Callable[[Row], float]] = {
        SortBy.NAME: lambda _row: 0.0,
        SortBy.REPLICAS: lambda row: _first(row.desired_replicas),
        SortBy.RATE: lambda row: _first(row.arrivals_per_second),
        SortBy.UTILIZATION: lambda row: _first(row.utilization_ratio),
        SortBy.SLO: lambda row: ("False", "Unknown", None, "True").index(row.slo),
        SortBy.COST: lambda row: _first(row.cost_per_hour),
    }
    whole = {(row.namespace, row.name): keys[sort](row) for row in rows if not row.pool}
    return sorted(
        rows,
        key=lambda row: (
            whole[row.namespace, row.name],
            row.namespace,
            row.name,
            bool(row.pool),
        ),
    )


def lines(rows: Sequence[Row]) -> list[str]:
    """The table, or that there is nothing. The Lease is shown if there are several."""
    if not rows:
        return ["no ServingSLO found"]
    if not any(row.lease for row in rows):
        return aligned(_HEAD, [tuple(_cells(row)) for row in rows], left=_LEFT)
    cells = [(*_cells(row), str(row.lease)) for row in rows]
    return aligned((*_HEAD, "LEASE"), cells, left=_LEFT)


async def _records(access: Access, namespaces: tuple[str, ...]) -> Sequence[ResourceRecord]:
    async with resources_of(access, namespaces) as resources:
        return await resources.read_all()


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
    yield from (row.namespace, f"{row.name}/{row.pool}".rstrip("/"), row.target, row.mode)
    yield _ABSENT if row.replicas is None else str(row.replicas)
    yield _ABSENT if row.desired_replicas is None else str(row.desired_replicas)
    yield _ABSENT if row.arrivals_per_second is None else number(row.arrivals_per_second)
    yield _ABSENT if row.utilization_ratio is None else number(row.utilization_ratio)
    yield from (row.slo or _ABSENT, row.ready or _ABSENT, row.reason or _ABSENT)
    yield row.binding or _ABSENT
    cost = row.cost_per_hour
    yield _ABSENT if cost is None else f"{number(cost)} {row.currency or ''}".rstrip()
