"""The part of the status about where the time of a request goes, and its gauges."""

from collections.abc import Iterator

from servingslo.api.status_base import (
    GaugeRow,
    GaugeValue,
    StatusModel,
    StatusPart,
    Timestamp,
    rounded,
    told,
)
from servingslo.features.latency_budget.growth import NOT_MENDED_BY_REPLICAS
from servingslo.features.latency_budget.report import LATENCY, LatencyReport, PartReport
from servingslo.units import timestamp_from_seconds


def _seen_by(report: LatencyReport) -> str | None:
    if report.whole_mean_seconds is None:
        return None
    return "gateway" if report.by_gateway else "engines"


def _parts(report: LatencyReport) -> tuple[str, ...]:
    return tuple(_part(one, report.percentile) for one in report.parts)


def _part(one: PartReport, percent: float) -> str:
    """A part in a line: few lines of a described status, and every number is a gauge as well."""
    if one.mean_seconds is None:
        return f"{one.part.value} {one.source.value}: {one.missing}".removesuffix(": ")
    found = [f"{one.part.value} mean {rounded(one.mean_seconds):g}s"]
    if one.percentile_seconds is not None:
        found.append(f"p{percent:g} {rounded(one.percentile_seconds):g}s")
    if one.grown_seconds is not None:
        found.append(f"grown {rounded(one.grown_seconds):+g}s")
    return f"{', '.join(found)} ({one.source.value})"


def _replicas_help(report: LatencyReport) -> bool | None:
    return None if report.grew is None else report.grew not in NOT_MENDED_BY_REPLICAS


def _met_until(report: LatencyReport) -> str | None:
    at = report.met_at_seconds
    return None if at is None else timestamp_from_seconds(at)


def _means(report: LatencyReport) -> Iterator[GaugeValue]:
    return (({"part": one.part.value}, one.mean_seconds) for one in report.parts)


def _percentiles(report: LatencyReport) -> Iterator[GaugeValue]:
    at = f"{report.percentile:g}"
    for one in report.parts:
        yield {"part": one.part.value, "percentile": at}, one.percentile_seconds


def _growths(report: LatencyReport) -> Iterator[GaugeValue]:
    return (({"part": one.part.value}, one.grown_seconds) for one in report.parts)


class LatencyStatus(StatusModel):
    """Where the time of a request goes."""

    gauge_rows = (
        GaugeRow(
            name="servingslo_latency_part_mean_seconds",
            help="Mean time of a request in one part of its way, over the last two minutes.",
            labels=("part",),
            values=_means,
        ),
        GaugeRow(
            name="servingslo_latency_part_percentile_seconds",
            help="The same part alone at the greatest percentile of the objectives, if it is "
            "measured.",
            labels=("part", "percentile"),
            values=_percentiles,
        ),
        GaugeRow(
            name="servingslo_latency_part_grown_seconds",
            help="Mean of a part above its value while the objectives were met, if they are not.",
            labels=("part",),
            values=_growths,
        ),
    )

    percentile: float = told(
        "percentile", "The greatest percentile of the objectives, percent.", exact=True, default=...
    )
    mean_seconds: float | None = told("whole_mean_seconds", "Mean of whole requests, seconds.")
    percentile_seconds: float | None = told(
        "whole_percentile_seconds", "Whole requests at this percentile, seconds."
    )
    seen_by: str | None = told(_seen_by, "Who measured whole requests: gateway or engines.")
    parts: tuple[str, ...] = told(
        _parts,
        default=(),
        description="A line for each part, in order: gateway, queue, prefill, transfer, decode, "
        "compute (of servers that answer at once) or other (of the engine's server). Gateway is "
        "its time less the engine's, so with the network behind it. A line has the part's mean, "
        "its own percentile unless it is a difference of two means, what it grew by since the "
        "objectives were last met, and whether it is measured, derived, stated or assumed.",
    )
    grew: str | None = told("grew", "The part that grew most since the objectives were last met.")
    more_replicas_help: bool | None = told(
        _replicas_help, "False if that part is outside of the replicas."
    )
    met_until: Timestamp | None = told(
        _met_until, "When the objectives were last met, while they are not."
    )


PART = StatusPart(
    key=LATENCY,
    model=LatencyStatus,
    description="The parts of the time of a request, and which of them grew.",
)
