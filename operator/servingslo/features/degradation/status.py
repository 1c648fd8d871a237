"""The part of the status about the fallback, and its gauges."""

from collections.abc import Iterator

from servingslo.api.status_base import (
    MAX_REASON_LENGTH,
    GaugeRow,
    GaugeValue,
    StatusModel,
    StatusPart,
    told,
)
from servingslo.features.degradation.share import TARGETS, degradation_of
from servingslo.policy.decision import Decision


def _share(decision: Decision) -> float | None:
    decided = degradation_of(decision.knobs)
    return None if decided is None or decided.unread else decided.after


def _reason(decision: Decision) -> str | None:
    decided = degradation_of(decision.knobs)
    return None if decided is None else decided.reason


def _reasons(decision: Decision) -> Iterator[GaugeValue]:
    if (reason := _reason(decision)) is not None:
        yield {"reason": reason}, 1


class DegradationStatus(StatusModel):
    """What goes to the fallback of spec.degradation."""

    gauge_rows = (
        GaugeRow(
            name="servingslo_degradation",
            help="1 for the reason of condition FallbackUsable, if a fallback is named.",
            labels=("reason",),
            values=_reasons,
        ),
    )

    share: float | None = told(
        _share,
        "Share of the requests that the route sends to the fallback, 0 to 1.",
        gauge="servingslo_fallback_share_ratio",
    )
    degraded_per_second: float | None = told(
        "demand.ledger.degraded_per_second", "Requests per second that the fallback answered."
    )
    reason: str | None = told(
        _reason, max_length=MAX_REASON_LENGTH, description="Why the share is what it is."
    )


PART = StatusPart(
    key=TARGETS,
    model=DegradationStatus,
    description="What goes to the fallback, if spec.degradation is set.",
    of=lambda decision: decision if degradation_of(decision.knobs) else None,
)
