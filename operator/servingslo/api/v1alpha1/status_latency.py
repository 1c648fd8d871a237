"""The parts of the status about where time goes, what is answered, and what the promise costs."""

from servingslo.api.v1alpha1.status_base import StatusModel, Timestamp, rounded, told
from servingslo.policy.decision_parts import ReserveReport
from servingslo.policy.latency.growth import NOT_MENDED_BY_REPLICAS
from servingslo.policy.latency.report import AvailabilityReport, LatencyReport, PartReport
from servingslo.units import format_duration, timestamp_from_seconds

# 99.95 % and 99.9 % differ.
_DIGITS_OF_A_SHARE = 6


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


def _answered(report: AvailabilityReport) -> float | None:
    answered = report.answered_ratio
    return None if answered is None else round(answered, _DIGITS_OF_A_SHARE)


def _is_met(report: AvailabilityReport) -> bool | None:
    answered = report.answered_ratio
    return None if answered is None else answered >= report.target_ratio


class LatencyStatus(StatusModel):
    """Where the time of a request goes."""

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
        description="A line for each part: gateway (and network), queue, prefill, transfer, "
        "decode, compute (of servers that answer at once) or other (of the engine's server); with "
        "its mean, its own percentile if measured, its growth since the objectives were last met, "
        "and its source.",
    )
    grew: str | None = told("grew", "The part that grew most since the objectives were last met.")
    more_replicas_help: bool | None = told(
        _replicas_help, "False if that part is outside of the replicas."
    )
    met_until: Timestamp | None = told(
        _met_until, "When the objectives were last met, while they are not."
    )


class AvailabilityStatus(StatusModel):
    """The share of answered requests, if spec.availability is set."""

    answered: float | None = told(
        _answered,
        exact=True,
        description="Share of requests that got a whole answer, over errorBudget.window or a day, "
        "0 to 1.",
        gauge="servingslo_availability_ratio",
    )
    target: float | None = told(
        lambda report: round(report.target_ratio, _DIGITS_OF_A_SHARE),
        exact=True,
        description="The objective, 0 to 1.",
        gauge="servingslo_availability_target_ratio",
    )
    met: bool | None = told(_is_met, "Whether the share is at least the objective.")
    uncounted: tuple[str, ...] = told(
        "uncounted",
        default=(),
        description="Which of refused, failed and aborted requests no one counts.",
    )


def _rule(report: ReserveReport) -> str:
    window = report.window_seconds
    rate = f"greatest rate of {format_duration(window)}" if window else "rate at the lead time"
    return f"{rate} x {report.margin_ratio:g}, at least {report.floor_replicas} replicas"


class ReserveStatus(StatusModel):
    """The replicas that past demand asks for beyond the forecast, and what they are worth."""

    rule: str = told(
        _rule,
        "What is ordered for: the greatest rate of a time or the rate at the lead time, times a "
        "margin, and never fewer replicas than a floor.",
        default=...,
    )
    mean_replicas: float | None = told(
        "mean_replicas", "Mean count of this rule over the last day's demand."
    )
    missed: float | None = told(
        "missed_ratio", "Share of that day's requests that it would have missed."
    )
    cheaper_mean_replicas: float | None = told(
        "cheaper_mean_replicas", "Mean count of the next cheaper rule."
    )
    cheaper_missed: float | None = told(
        "cheaper_missed_ratio", "Share that the next cheaper rule would have missed."
    )
