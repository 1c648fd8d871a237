"""Where the time of a request goes, for a person on call."""

from collections.abc import Iterator

from servingslo.explain.features import Reports, Text
from servingslo.explain.format import milliseconds, seconds
from servingslo.features.latency_budget.growth import NOT_MENDED_BY_REPLICAS
from servingslo.features.latency_budget.report import (
    LATENCY,
    LatencyReport,
    Part,
    PartReport,
    PartSource,
)
from servingslo.units import timestamp_from_seconds

_NAMES = {Part.GATEWAY: "gateway and network", Part.OTHER: "the engine's server"}
_SECOND = 1.0


class LatencyText(Text):
    """Where the time of a request goes."""

    def pairs(self, reports: Reports) -> Iterator[tuple[str, str]]:
        """The part that grew most: 'gateway+180ms'."""
        report = LATENCY.of(reports)
        grown = None if report is None or report.grew is None else report.of(report.grew)
        if grown is not None:
            yield "grew", f"{grown.part.value}{_grown(grown).replace(' ', '')}"

    def essence(self, reports: Reports) -> Part | None:
        """The part that grew most."""
        report = LATENCY.of(reports)
        return None if report is None else report.grew

    def headlines(self, reports: Reports) -> Iterator[str]:
        """What more replicas do not mend."""
        if grown := growth_line(LATENCY.of(reports)):
            yield f"Outside of the replicas: {grown}"

    def lines(self, reports: Reports) -> Iterator[str]:
        """The whole and its parts."""
        return latency_lines(LATENCY.of(reports))


def part_name(part: Part) -> str:
    """A part in words."""
    return _NAMES.get(part, part.value)


def growth_line(report: LatencyReport | None) -> str:
    """'network +180 ms: more replicas do not help'; '' unless a part outside of replicas grew most.

    The first line that a person should read while an objective is missed.
    """
    grown = None if report is None or report.grew is None else report.of(report.grew)
    if grown is None or grown.part not in NOT_MENDED_BY_REPLICAS:
        return ""
    return f"{part_name(grown.part)} {_grown(grown)}: more replicas do not help"


def latency_lines(report: LatencyReport | None) -> Iterator[str]:
    """The whole, then each part with its mean, its percentile and its growth."""
    if report is None:
        return
    at = f"p{report.percentile:g}"
    by = "as the gateway sees it" if report.by_gateway else "as the engines see it"
    whole = report.whole_percentile_seconds
    told = "" if whole is None else f", {at} {seconds(whole)}"
    yield f"Where the time goes: a request takes {seconds(report.whole_mean_seconds)}{told}, {by}"
    for one in report.parts:
        yield f"  {_part(one, at)}"
    if report.met_at_seconds is not None:
        since = timestamp_from_seconds(report.met_at_seconds)
        what = "no part grew much" if report.grew is None else f"{part_name(report.grew)} grew most"
        yield f"  since the objectives were last met, at {since}: {what}"


def _part(one: PartReport, at: str) -> str:
    name = part_name(one.part)
    if one.source is PartSource.NOT_MEASURED:
        return f"{name}: not measured, {one.missing}"
    percentile = (
        "" if one.percentile_seconds is None else f", {at} {seconds(one.percentile_seconds)}"
    )
    grown = "" if one.grown_seconds is None else f", {_grown(one)}"
    source = "" if one.source is PartSource.MEASURED else f" ({one.source.value})"
    return f"{name}: mean {seconds(one.mean_seconds)}{source}{percentile}{grown}"


def _grown(one: PartReport) -> str:
    grown = one.grown_seconds or 0.0
    size = float(f"{abs(grown):.2g}")
    told = milliseconds(size) if size < _SECOND else seconds(size)
    return f"{'-' if grown < 0.0 else '+'}{told}"


PART = LatencyText()
