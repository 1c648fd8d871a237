"""Latency, availability and reserve of a decision, as fields of a status."""

from typing import Any

from servingslo.adapters.kubernetes.api.timestamps import timestamp_from_seconds
from servingslo.api.v1alpha1.status_latency import AvailabilityStatus, LatencyStatus, ReserveStatus
from servingslo.controller.reporting.rounding import rounded
from servingslo.policy.decision_parts import ReserveReport
from servingslo.policy.latency.growth import NOT_MENDED_BY_REPLICAS
from servingslo.policy.latency.report import AvailabilityReport, LatencyReport, PartReport
from servingslo.units import format_duration


def latency_status(report: LatencyReport | None) -> LatencyStatus | None:
    """The latency's parts; None if no time of any request was observed."""
    if report is None:
        return None
    known = report.whole_mean_seconds is not None
    return LatencyStatus(
        percentile=report.percentile,
        mean_seconds=rounded(report.whole_mean_seconds),
        percentile_seconds=rounded(report.whole_percentile_seconds),
        seen_by=("gateway" if report.by_gateway else "engines") if known else None,
        parts=tuple(_part(one, report.percentile) for one in report.parts),
        grew=None if report.grew is None else report.grew.value,
        more_replicas_help=None
        if report.grew is None
        else report.grew not in NOT_MENDED_BY_REPLICAS,
        met_until=None
        if report.met_at_seconds is None
        else timestamp_from_seconds(report.met_at_seconds),
    )


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


def availability_status(report: AvailabilityReport | None) -> AvailabilityStatus | None:
    """The share of answered requests; None if no objective of it is stated.

    Not rounded to three digits: 99.95 % and 99.9 % differ.
    """
    if report is None:
        return None
    answered = report.answered_ratio
    return AvailabilityStatus(
        answered=None if answered is None else round(answered, 6),
        target=round(report.target_ratio, 6),
        met=None if answered is None else answered >= report.target_ratio,
        uncounted=report.uncounted,
    )


def reserve_status(report: ReserveReport | None) -> ReserveStatus | None:
    """The reserve in force; None if past demand asks for none."""
    if report is None:
        return None
    window = report.window_seconds
    rate = f"greatest rate of {format_duration(window)}" if window else "rate at the lead time"
    return ReserveStatus(
        rule=f"{rate} x {report.margin_ratio:g}, at least {report.floor_replicas} replicas",
        mean_replicas=rounded(report.mean_replicas),
        missed=rounded(report.missed_ratio),
        cheaper_mean_replicas=rounded(report.cheaper_mean_replicas),
        cheaper_missed=rounded(report.cheaper_missed_ratio),
    )


def latency_fields(
    latency: LatencyReport | None, availability: AvailabilityReport | None
) -> dict[str, Any]:
    """Both fields as JSON; None for what is not known."""
    found = {"latency": latency_status(latency), "availability": availability_status(availability)}
    return {
        name: None if one is None else one.model_dump(by_alias=True, mode="json", exclude_none=True)
        for name, one in found.items()
    }
