"""Where the time of a request goes, and how many requests are answered, for a person on call."""

from collections.abc import Iterator

from servingslo.explain.format import UNKNOWN, milliseconds, percent, seconds
from servingslo.policy.decision import Decision
from servingslo.policy.latency.growth import NOT_MENDED_BY_REPLICAS
from servingslo.policy.latency.report import (
    AvailabilityReport,
    LatencyReport,
    Part,
    PartReport,
    PartSource,
)
from servingslo.units import timestamp_from_seconds

_NAMES = {Part.GATEWAY: "gateway and network", Part.OTHER: "the engine's server"}
_FULL = 1.0
_SECOND = 1.0


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


def availability_lines(report: AvailabilityReport | None) -> Iterator[str]:
    """The share of answered requests, the objective, and what no one counts."""
    if report is None:
        return
    answered = UNKNOWN if report.answered_ratio is None else share(report.answered_ratio)
    over = seconds(60.0 * max(round(report.observed_seconds / 60.0), 1))
    uncounted = ""
    if report.uncounted:
        uncounted = f"; no one counts {' and '.join(report.uncounted)} requests"
    yield (
        f"Availability: {answered} of requests answered, {share(report.target_ratio)} wanted, "
        f"over {over}{uncounted}"
    )


def growth_pair(decision: Decision) -> Iterator[tuple[str, str]]:
    """The part that grew most, for the log: 'gateway+180ms'."""
    report = decision.latency
    grown = None if report is None or report.grew is None else report.of(report.grew)
    if grown is not None:
        yield "grew", f"{grown.part.value}{_grown(grown).replace(' ', '')}"


def share(ratio: float) -> str:
    """A ratio with as many digits as targets have: '99.95 %'. Never rounded up to 100."""
    text = f"{100.0 * ratio:.3f}".rstrip("0").rstrip(".")
    return percent(ratio) if text == "100" and ratio < _FULL else f"{text} %"


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
