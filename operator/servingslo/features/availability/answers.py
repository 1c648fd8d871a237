"""The share of requests that get a whole answer, counted from tick to tick.

A refused, failed or aborted request is not answered. What no one counts is named.
"""

from dataclasses import dataclass

from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.plugins import Key

# After a longer gap between two ticks nothing is known of the time between.
LONGEST_GAP_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityReport:
    """The share of requests that got a whole answer, and the objective.

    answered_ratio: over the last period_seconds, as far as observed (observed_seconds); None before
    the first request. uncounted: which of 'refused', 'failed' and 'aborted' no one counts.
    """

    target_ratio: float
    period_seconds: float
    answered_ratio: float | None = None
    observed_seconds: float = 0.0
    uncounted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityState:
    """Requests of the period, weighed less the older they are.

    seconds: over which they were observed. at_seconds: of the last tick with requests counted.
    """

    requests: float = 0.0
    unanswered: float = 0.0
    seconds: float = 0.0
    at_seconds: float | None = None


NOTHING_COUNTED = AvailabilityState()


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityTargets:
    """The objective: share of requests to be answered."""

    target_ratio: float


TARGET: Key[AvailabilityTargets] = Key("availability", AvailabilityTargets)
REPORT: Key[AvailabilityReport] = Key(TARGET.name, AvailabilityReport)
MEMORY: Key[AvailabilityState] = Key(TARGET.name, AvailabilityState)


def count_answers(
    state: AvailabilityState,
    ledger: RequestLedger,
    *,
    period_seconds: float,
    now_seconds: float,
) -> AvailabilityState:
    """The state after the requests since the last tick, at the ledger's rates."""
    unanswered = ledger.unanswered_per_second
    if unanswered is None:
        return state
    if state.at_seconds is None:
        return AvailabilityState(
            requests=state.requests,
            unanswered=state.unanswered,
            seconds=state.seconds,
            at_seconds=now_seconds,
        )
    elapsed = min(now_seconds - state.at_seconds, LONGEST_GAP_SECONDS)
    if elapsed <= 0.0:
        return state
    kept = max(1.0 - elapsed / period_seconds, 0.0)
    return AvailabilityState(
        requests=kept * state.requests + elapsed * ledger.offered_per_second,
        unanswered=kept * state.unanswered + elapsed * unanswered,
        seconds=min(state.seconds + elapsed, period_seconds),
        at_seconds=now_seconds,
    )


def availability_report(
    state: AvailabilityState,
    ledger: RequestLedger | None,
    *,
    target_ratio: float,
    period_seconds: float,
) -> AvailabilityReport:
    """The share of answered requests next to the objective."""
    known = state.requests > 0.0
    return AvailabilityReport(
        target_ratio=target_ratio,
        period_seconds=period_seconds,
        answered_ratio=1.0 - state.unanswered / state.requests if known else None,
        observed_seconds=state.seconds,
        uncounted=() if ledger is None else ledger.uncounted,
    )
