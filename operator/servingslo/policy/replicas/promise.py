"""The attained share of requests beside the declared one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.misses import Misses, Within, misses
from servingslo.estimation.stored_fields import number_of
from servingslo.models.objectives import Objective
from servingslo.policy.decision_parts import PromiseReport
from servingslo.policy.inputs import Targets

# After a longer gap between two readings, the attained share inside the gap is unknown.
LONGEST_GAP_SECONDS = 300.0


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
    """The requests of a window with those served elsewhere, each by its own weight."""
    elsewhere = targets.elsewhere
    if elsewhere is None or degraded <= 0.0:
        return seen
    missed = (1.0 - elsewhere.counts_as_ratio) * degraded
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
        target_ratio=targets.promised_share_ratio,
        period_seconds=targets.promise_period_seconds,
        observed_seconds=state.seconds,
    )
