"""The share of requests that get a whole answer, counted from tick to tick.

A refused, failed or aborted request is not answered. What no one counts is named.
"""

from dataclasses import dataclass

from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.estimation.requests.misses import Misses
from servingslo.plugins import Key
from servingslo.policy.replicas.promise import LONGEST_GAP_SECONDS, PromiseState, after_window


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
class AvailabilityTargets:
    """The objective: share of requests to be answered."""

    target_ratio: float


TARGET: Key[AvailabilityTargets] = Key("availability", AvailabilityTargets)
REPORT: Key[AvailabilityReport] = Key(TARGET.name, AvailabilityReport)
# Misses of this promise are requests without a whole answer.
MEMORY: Key[PromiseState] = Key(TARGET.name, PromiseState)


def count_answers(
    state: PromiseState, ledger: RequestLedger, *, period_seconds: float, now_seconds: float
) -> PromiseState:
    """The state after the requests since the last tick, at the ledger's rates."""
    unanswered = ledger.unanswered_per_second
    if unanswered is None:
        return state
    at_seconds = now_seconds if state.at_seconds is None else state.at_seconds
    seconds = min(now_seconds - at_seconds, LONGEST_GAP_SECONDS)
    missed = seconds * unanswered
    seen = Misses(requests=seconds * ledger.offered_per_second, least=missed, most=missed)
    return after_window(state, seen, period_seconds=period_seconds, now_seconds=now_seconds)


def availability_report(
    state: PromiseState,
    ledger: RequestLedger | None,
    *,
    target_ratio: float,
    period_seconds: float,
) -> AvailabilityReport:
    """The share of answered requests next to the objective."""
    return AvailabilityReport(
        target_ratio=target_ratio,
        period_seconds=period_seconds,
        answered_ratio=state.attained_ratio,
        observed_seconds=min(state.seconds, period_seconds),
        uncounted=() if ledger is None else ledger.uncounted,
    )
