"""The first window of a rise: a step to another rate, or a surge that has just begun.

One window does not tell the two apart, and they ask for capacities that differ several times. A
surge that is seen a window later loses its requests for as long, while what is ordered for one that
is none is given back at the next window; so such a rise is taken for a surge as likely as those
before it were surges, the first one as likely as not.

That it may be one, what is in flight says: by Little's law its number is the rate at the window's
end times the time in flight, while the count has the mean of the window. A rate that has risen
linearly ends at least twice as far above what was usual as its mean; one that has stepped up in the
first half of the window does not.
Source: J. D. C. Little, "A proof for the queuing formula L = λW", Operations Research 1961;
H. Jeffreys, "An invariant form for the prior probability in estimation problems", 1946, whose prior
of a share counts half an outcome of either kind.
"""

from dataclasses import dataclass, replace

from servingslo.estimation.errors import SURGE_PROBABILITY
from servingslo.estimation.rate_filters import JUMP, SURGE, FilterState, RateWindow
from servingslo.estimation.surges import NOISE_DEVIATIONS, SURGE_RATIO

# Outcomes of either kind that are taken to be known before any: Jeffreys' prior of a share.
PRIOR_OUTCOMES = 0.5
# Share of the window that a rise has lasted. One that begins at any moment of it and is seen in
# proportion to what it adds, the square of that share s, has lasted ∫s·s² / ∫s² = 3/4 on average.
RISE_RATIO = 0.75
# A rate that rises linearly from what was usual ends at so many times its mean above it.
LINEAR_END_RATIO = 2.0
# Mean of the next window above what was usual, over that of this one: 1 where the rise has ended,
# at least 2 after half a window of it. Between the two nothing is concluded.
RISING_RATIO = 1.5
# How well slope and rate at the end are known of one window: relative deviations of 1/s² and 1/s
# for a share s between a half, as more in flight would show, and all of it, as likely as above.
# They move together: a rise that has lasted less long is steeper and ends higher.
SLOPE_ERROR_RATIO = 0.4
END_ERROR_RATIO = 0.2
# The time in flight is that of the last minute without a rise: four scrapes of 15 s.
MEMORY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """A rise whose first window may have been a surge's.

    since_seconds: end of that window. end_per_second: the rate then, were it a surge.
    rising_per_second: what the next window is above if the rise goes on. surge_probability: that it
    was taken for a surge. refuted: the next window showed that the rise does not go on.
    """

    since_seconds: float
    rising_per_second: float
    end_per_second: float
    surge_probability: float
    refuted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OnsetState:
    """How many rises were surges and how many were not, and the newest while it is news.

    in_flight_requests, rate_per_second: moving averages outside of rises, None before any.
    """

    surges: int = 0
    others: int = 0
    in_flight_requests: float | None = None
    rate_per_second: float = 0.0
    newest: Onset | None = None

    @property
    def surge_probability(self) -> float:
        """How likely the next rise is a surge, 0 to 1."""
        return (self.surges + PRIOR_OUTCOMES) / (self.surges + self.others + 2.0 * PRIOR_OUTCOMES)


NO_ONSET = OnsetState()


def observe(
    state: OnsetState,
    before: tuple[FilterState, ...],
    after: tuple[FilterState, ...],
    window: RateWindow,
    now_seconds: float,
    *,
    known: bool,
) -> tuple[OnsetState, tuple[FilterState, ...]]:
    """The state after a window, and the bank with what it says of a surge.

    before, after: the bank without and with the window. known: whether it is known what is usual,
    and of no surges that keep coming, for which what they reach is kept.
    """
    newest = state.newest
    if newest is not None and not newest.refuted:
        return _judged(state, newest, window), after
    state = replace(state, newest=None)
    level = sum(f.probability * f.level for f in before)
    if not _is_rise(before, after, level, window):
        return _with_time_in_flight(state, window), after
    excess = window.rate_per_second - level
    if not known or _end_per_second(state, window) < level + LINEAR_END_RATIO * excess:
        return state, after
    onset = Onset(
        since_seconds=now_seconds,
        rising_per_second=level + RISING_RATIO * excess,
        end_per_second=level + LINEAR_END_RATIO * excess / RISE_RATIO,
        surge_probability=state.surge_probability,
    )
    return replace(state, newest=onset), _with_surge(after, onset, level, window)


def forgotten(state: OnsetState) -> OnsetState:
    """The state without the newest rise and the time in flight: demand has become another."""
    return OnsetState(surges=state.surges, others=state.others)


def _judged(state: OnsetState, onset: Onset, window: RateWindow) -> OnsetState:
    """The state after the window behind an onset: a surge has risen on."""
    if window.rate_per_second > onset.end_per_second:
        return replace(state, surges=state.surges + 1, newest=None)
    ended = window.rate_per_second <= onset.rising_per_second
    newest = replace(onset, refuted=True) if ended else None
    return replace(state, others=state.others + 1, newest=newest)


def _is_rise(
    before: tuple[FilterState, ...],
    after: tuple[FilterState, ...],
    level: float,
    window: RateWindow,
) -> bool:
    """Whether demand was settled, and this window is beyond it by what nothing foretold.

    Where pods have just come or gone counts are known less well, which the window says.
    """
    rate, noise = window.rate_per_second, window.variance(level) ** 0.5
    settled = before[JUMP].probability + before[SURGE].probability <= SURGE_PROBABILITY
    unforeseen = after[JUMP].probability + after[SURGE].probability > SURGE_PROBABILITY
    beyond = rate > max(SURGE_RATIO * level, level + NOISE_DEVIATIONS * noise)
    return bool(settled and unforeseen and beyond)


def _with_time_in_flight(state: OnsetState, window: RateWindow) -> OnsetState:
    """The state with a window without a rise in its averages."""
    rate, flying = window.rate_per_second, window.in_flight_requests
    if flying is None:
        return state
    if state.in_flight_requests is None:
        return replace(state, in_flight_requests=flying, rate_per_second=rate)
    share = min(window.seconds / MEMORY_SECONDS, 1.0)
    mean_rate, mean_flying = state.rate_per_second, state.in_flight_requests
    return replace(
        state,
        in_flight_requests=mean_flying + share * (flying - mean_flying),
        rate_per_second=mean_rate + share * (rate - mean_rate),
    )


def _end_per_second(state: OnsetState, window: RateWindow) -> float:
    """The rate at the window's end that what is in flight speaks of; 0 where nothing is known."""
    if not state.in_flight_requests or window.in_flight_requests is None:
        return 0.0
    return state.rate_per_second * window.in_flight_requests / state.in_flight_requests


def _with_surge(
    filters: tuple[FilterState, ...], onset: Onset, level: float, window: RateWindow
) -> tuple[FilterState, ...]:
    """The bank in which a surge is so likely, and has the slope of a rise within this window."""
    slope = (onset.end_per_second - level) / (RISE_RATIO * window.seconds)
    level_error = END_ERROR_RATIO * onset.end_per_second
    slope_error = SLOPE_ERROR_RATIO * slope
    unsettled = filters[JUMP].probability + filters[SURGE].probability
    changed = list(filters)
    changed[JUMP] = replace(filters[JUMP], probability=unsettled * (1.0 - onset.surge_probability))
    changed[SURGE] = FilterState(
        probability=unsettled * onset.surge_probability,
        level=onset.end_per_second,
        trend=slope,
        level_variance=level_error**2,
        covariance=level_error * slope_error,
        trend_variance=slope_error**2,
    )
    return tuple(changed)
