"""The attained share of requests beside the declared one, and the error budget's report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.misses import (
    BudgetReading,
    Misses,
    WindowMisses,
    Within,
    misses,
)
from servingslo.estimation.stored_fields import number_of
from servingslo.models.burn_rates import (
    FAST_BURN,
    MEDIUM_BURN,
    SLOW_BURN,
    budget_left_ratio,
    burn_rate,
)
from servingslo.models.objectives import Objective
from servingslo.policy.decision_parts import BudgetReport, BurnRate, PromiseReport
from servingslo.policy.inputs import Observation, Targets

# The attained share is reported over this time if no error budget states another.
DEFAULT_PERIOD_SECONDS = 86_400.0
# After a longer gap between two readings, the attained share inside the gap is unknown.
LONGEST_GAP_SECONDS = 300.0

BURN_WINDOWS = (FAST_BURN, MEDIUM_BURN, SLOW_BURN)
BURN_SECONDS = tuple(
    sorted({s for pair in BURN_WINDOWS for s in (pair.short_seconds, pair.long_seconds)})
)
"""Lengths of the windows whose burn rates are reported."""
# Readings come about every minute; an older one says nothing about the present.
OLDEST_READING_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseState:
    """The recently attained share.

    requests, missed: of the period, weighed less the older they are; unsure: of which buckets and
    several objectives do not show whether they missed. seconds: time for which the share was
    observed. at_seconds: when it was observed last.
    """

    requests: float = 0.0
    missed: float = 0.0
    unsure: float = 0.0
    seconds: float = 0.0
    at_seconds: float | None = None

    @property
    def attained_ratio(self) -> float | None:
        """Share of requests that surely met all objectives; None before the first observation."""
        missed = self.missed + self.unsure
        return 1.0 - missed / self.requests if self.requests > 0.0 else None


def misses_of(
    latencies: Mapping[str, HistogramDelta], objectives: Sequence[Objective], refused: float
) -> Misses | None:
    """Requests of a window and how many missed any objective; None if nothing is known.

    latencies: observed since the last tick, by metric. refused: requests that were refused.
    """
    found = []
    for objective in objectives:
        observed = latencies.get(objective.metric.value)
        share = None if observed is None else observed.share_within(objective.threshold_seconds)
        if observed is not None and share is not None:
            least, most = (observed.count * each for each in share)
            found.append(Within(requests=observed.count, least=least, most=most))
    seen = misses(found, refused)
    return seen if seen.requests > 0.0 else None


def with_degraded(seen: Misses, degraded: float, targets: Targets) -> Misses:
    """The requests of a window with those that a fallback served, each by its own weight."""
    asked = targets.degradation
    if asked is None or degraded <= 0.0:
        return seen
    missed = (1.0 - asked.counts_as_ratio) * degraded
    return Misses(
        requests=seen.requests + degraded, least=seen.least + missed, most=seen.most + missed
    )


def after_window(
    state: PromiseState,
    seen: Misses,
    *,
    period_seconds: float,
    now_seconds: float,
    lost: float = 0.0,
) -> PromiseState:
    """The state after the requests of a window.

    lost: requests without a whole answer that no replica would have answered.
    """
    if state.at_seconds is None:
        return replace(state, at_seconds=now_seconds)
    seconds = min(now_seconds - state.at_seconds, LONGEST_GAP_SECONDS)
    if seconds <= 0.0:
        return state
    kept = max(1.0 - seconds / period_seconds, 0.0)
    return PromiseState(
        requests=kept * state.requests + seen.requests + lost,
        missed=kept * state.missed + seen.least + lost,
        unsure=kept * state.unsure + seen.most - seen.least,
        seconds=state.seconds + seconds,
        at_seconds=now_seconds,
    )


def dump_promise(state: PromiseState, missed_name: str = "missed") -> dict[str, float]:
    """The part that survives a restart, as JSON values; misses under this name."""
    unsure = {"unsure": round(state.unsure, 2)} if missed_name == "missed" else {}
    return {
        "requests": round(state.requests, 1),
        missed_name: round(state.missed, 2),
        **unsure,
        "seconds": round(state.seconds),
    }


def load_promise(stored: object, missed_name: str = "missed") -> PromiseState | None:
    """The reverse of `dump_promise`; None for a malformed value."""
    if not isinstance(stored, Mapping):
        return None
    numbers = [number_of(stored.get(name)) for name in ("requests", missed_name, "seconds")]
    if any(number is None for number in numbers):
        return None
    requests, missed, seconds = (number or 0.0 for number in numbers)
    unsure = number_of(stored.get("unsure")) or 0.0
    return PromiseState(
        requests=requests,
        missed=min(missed, requests),
        unsure=max(min(unsure, requests - missed), 0.0),
        seconds=seconds,
    )


def promise_report(targets: Targets, state: PromiseState) -> PromiseReport | None:
    """The attained share compared with the declared one; None before any observation."""
    if state.attained_ratio is None:
        return None
    return PromiseReport(
        attained_ratio=state.attained_ratio,
        attained_most_ratio=state.attained_ratio + state.unsure / state.requests,
        target_ratio=targets.error_budget_target_ratio,
        period_seconds=period_seconds(targets),
        observed_seconds=state.seconds,
    )


def period_seconds(targets: Targets) -> float:
    """The time over which the attained share is reported: the error budget's, or a day."""
    budget = targets.error_budget
    return DEFAULT_PERIOD_SECONDS if budget is None else budget.window_seconds


def budget_report(targets: Targets, observation: Observation) -> BudgetReport | None:
    """The budget by its pessimistic bound; None if none is requested or nothing is known."""
    budget, reading = targets.error_budget, observation.error_budget
    if budget is None or reading is None or not reading.windows:
        return None
    age_seconds = observation.time_seconds - reading.time_seconds
    if age_seconds > OLDEST_READING_SECONDS or reading.covered_ratio <= 0:
        return None
    target = targets.error_budget_target_ratio
    whole = reading.windows[-1]
    return BudgetReport(
        target_ratio=target,
        window_seconds=budget.window_seconds,
        remaining_ratio=budget_left_ratio(whole.most, whole.requests, target),
        remaining_most_ratio=budget_left_ratio(whole.least, whole.requests, target),
        covered_ratio=reading.covered_ratio,
        burn_rates=_burn_rates(reading, target),
    )


def _burn_rates(reading: BudgetReading, target: float) -> tuple[BurnRate, ...]:
    return tuple(
        BurnRate(seconds=window.seconds, rate=_rate(window, target))
        for window in reading.windows[:-1]
        if window.requests > 0
    )


def _rate(window: WindowMisses, target: float) -> float:
    return burn_rate(window.most / window.requests, target)
