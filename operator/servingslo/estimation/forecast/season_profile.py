"""Find a daily or weekly season in the history of an arrival rate, and its profile.

A day begins at its quietest hour, so that no busy evening is cut in two wherever the users live. A
weekday profile cannot be learnt from two weeks: they hold only two Mondays, and a single holiday
would spoil them. So a week is described by its rest days, the day or two that differ most from the
others, which have their own profile: two weeks hold ten working days and four rest days.
Source: how much of the variance a season explains, and from where on it counts, X. Wang, K. Smith
and R. Hyndman, "Characteristic-based clustering for time series data", 2006 (strength of
seasonality; 0.64 is the bound of `nsdiffs` in Hyndman's forecast and feasts); here it is measured
out of sample, on days predicted from the days before them.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servingslo.reasons import Reason
from servingslo.units import SECONDS_PER_DAY, SECONDS_PER_HOUR

# Source: the week.
WEEK_DAYS = 7
# Source: R. Hyndman, `nsdiffs` in forecast and feasts: a seasonal strength from here on counts.
LEAST_STRENGTH = 0.64
# The season must also predict changes over this time, about a lead, better than "no change" does.
CHANGE_SECONDS = 600.0
# Two days to learn from and one to test on; a day counts if half of its bins are known.
LEAST_DAYS = 3
LEAST_DAY_COVERAGE = 0.5
# With so many days of a kind, the most unusual one is left out of their spread.
LEAST_DAYS_FOR_ODD_ONE = 4
# Rest days are separated if the history holds rest days of two weeks and they explain another
# twentieth of the variance: one day, or two in a row.
LEAST_WEEKLY_DAYS = 8
LEAST_WEEKLY_GAIN = 0.05
MOST_REST_DAYS = 2
# Jeffreys' prior of a Poisson rate: half a request, so that a quiet slot is not taken for never.
JEFFREYS_REQUESTS = 0.5
# Least deviation of the log rate's change from slot to slot beyond the profile: one percent.
LEAST_SLOT_DEVIATION = 0.01
# How many slots to either side may be averaged. The value that predicts changes best out of sample
# is chosen: none if offices open at nine sharp, half an hour if few requests were counted.
FIRST_REACH = 1
OTHER_REACHES = (0, 3, 6)

Rates = NDArray[np.float64]
# Arrays of single precision, 4.6 kB a workload; as tuples the seasons of a thousand workloads would
# be 37 MB.
Table = Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateHistory:
    """Past mean arrival rate of a workload, bin by bin; None in unknown bins.

    start_seconds: when the first bin begins, since the epoch. detail: why nothing is known at all.
    recent: the last day again, in shorter bins, which show how steep a rise is.
    """

    start_seconds: float
    bin_seconds: float
    rates_per_second: tuple[float | None, ...]
    detail: str = ""
    recent: "RateHistory | None" = None

    def rate_at(self, time_seconds: float) -> float | None:
        """Return the rate of the bin that holds this time; None if that is unknown."""
        place = math.floor((time_seconds - self.start_seconds) / self.bin_seconds)
        return self.rates_per_second[place] if 0 <= place < len(self.rates_per_second) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    """Arrival rate by time of day, for working days and, in a weekly season, for rest days.

    day_start_seconds: when a day begins, after midnight UTC. rest_days: days since 1970-01-01, a
    Thursday, mod 7; none in a daily season. profiles: rate per second by slot, for working days
    and, if separate, rest days. slot_variances: variance of the log rate's change over one slot
    beyond the profile's change. strength_ratio: share of the variance explained out of sample.
    """

    slot_seconds: float
    day_start_seconds: float
    rest_days: tuple[int, ...]
    profiles: tuple[Table, ...]
    slot_variances: tuple[Table, ...]
    strength_ratio: float

    def rate_per_second(self, time_seconds: float) -> float:
        """Return the profile at a time, linear between the middles of slots; greater than 0."""
        place = (time_seconds - self.day_start_seconds) / self.slot_seconds - 0.5
        slot = math.floor(place)
        share = place - slot
        return (1.0 - share) * self._at(self.profiles, slot) + share * self._at(
            self.profiles, slot + 1
        )

    def variance_per_second(self, time_seconds: float) -> float:
        """Return how fast the log rate leaves the profile at a time, variance per second."""
        place = (time_seconds - self.day_start_seconds) / self.slot_seconds
        return self._at(self.slot_variances, math.floor(place)) / self.slot_seconds

    def _at(self, tables: tuple[Table, ...], slot: int) -> float:
        day, of_day = divmod(slot, len(tables[0]))
        return tables[day % WEEK_DAYS in self.rest_days][of_day]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonFinding:
    """The season found in a history; reason: SEASON_FOUND, SEASON_NOT_FOUND or HISTORY_TOO_SHORT.

    day_count: days with enough data. strength_ratio: share of the variance that previous days
    explain, change_ratio: share of the changes over ten minutes; None if neither was measured.
    """

    reason: Reason
    season: Season | None = None
    day_count: int = 0
    strength_ratio: float | None = None
    change_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Days:
    """A history cut into days: rates by day and slot, and the weekday of each."""

    rates: Rates
    weekdays: NDArray[np.int64]
    slot_seconds: float
    start_seconds: float

    def rest_mask(self, rest_days: tuple[int, ...]) -> NDArray[np.bool_]:
        return np.isin(self.weekdays, rest_days)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Score:
    """Squared errors out of sample, of level and of change, for a season and for none."""

    level: float
    flat_level: float
    change: float
    flat_change: float

    @property
    def strength_ratio(self) -> float:
        return _explained_share(self.level, self.flat_level)

    @property
    def change_ratio(self) -> float:
        return _explained_share(self.change, self.flat_change)


def _explained_share(error: float, flat_error: float) -> float:
    """Return the explained share of the flat error; 0 if it was nothing but counting noise."""
    return 1.0 - error / flat_error if flat_error > 0 else 0.0


def find_season(history: RateHistory, stated_days: int | None = None) -> SeasonFinding:
    """Return the season of a history, or why there is none.

    stated_days: 1 or 7 if a daily or weekly season is stated; then the history need only be long
    enough, and the season may explain little. Two conditions: days predicted from the days before
    them explain LEAST_STRENGTH of the variance (of the square root of the rate, in which counting
    noise is the same at every rate and is subtracted), and changes over ten minutes are predicted
    better than by no change.
    """
    days = _days(history)
    count = 0 if days is None else len(days.rates)
    if days is None or count < LEAST_DAYS:
        return SeasonFinding(reason=Reason.HISTORY_TOO_SHORT, day_count=count)
    rest_days, score = _best_week(days, stated_days)
    reach, score = _best_reach(days, rest_days, score)
    found = score.strength_ratio >= LEAST_STRENGTH and score.change_ratio > 0.0
    found = found or stated_days is not None
    return SeasonFinding(
        reason=Reason.SEASON_FOUND if found else Reason.SEASON_NOT_FOUND,
        season=_season(days, rest_days, reach, score.strength_ratio) if found else None,
        day_count=count,
        strength_ratio=score.strength_ratio,
        change_ratio=score.change_ratio,
    )


def _days(history: RateHistory) -> _Days | None:
    """Return the days with enough data, oldest first; None if bins do not fit into a day."""
    width = history.bin_seconds
    if not history.rates_per_second or width <= 0 or not (SECONDS_PER_DAY / width).is_integer():
        return None
    slots = round(SECONDS_PER_DAY / width)
    rates = np.array(
        [math.nan if r is None else r for r in history.rates_per_second], dtype=np.float64
    )
    rates[~np.isfinite(rates) | (rates < 0)] = math.nan
    first = round(history.start_seconds / width)
    start = _quietest_hour(rates, first, slots) * SECONDS_PER_HOUR
    offset = first - round(start / width)
    first_day, before = divmod(offset, slots)
    after = -(before + len(rates)) % slots
    padded = np.pad(rates, (before, after), constant_values=math.nan).reshape(-1, slots)
    known = np.mean(np.isfinite(padded), axis=1) >= LEAST_DAY_COVERAGE
    return _Days(
        rates=padded[known],
        weekdays=((first_day + np.arange(len(padded))) % WEEK_DAYS)[known],
        slot_seconds=width,
        start_seconds=start,
    )


def _quietest_hour(rates: Rates, first: int, slots: int) -> int:
    """Return the hour of least arrivals, averaged with its neighbours; -12 to 11, in UTC.

    From noon on, the hour belongs to the previous day: a day is named after the date that covers
    most of it.
    """
    hours = (first + np.arange(len(rates))) % slots * 24 // slots
    sums = np.bincount(hours, weights=np.nan_to_num(rates), minlength=24)
    counts = np.bincount(hours, weights=np.isfinite(rates), minlength=24)
    means = np.where(counts > 0, sums / np.maximum(counts, 1.0), math.inf)
    hour = int(np.argmin(means + np.roll(means, 1) + np.roll(means, -1)))
    return hour - 24 if hour >= 12 else hour


def _best_week(days: _Days, stated_days: int | None) -> tuple[tuple[int, ...], _Score]:
    """Return the rest days that explain most (none if all days are alike), and their score."""
    best: tuple[tuple[int, ...], _Score] = ((), _score(days, (), FIRST_REACH))
    if len(days.rates) < LEAST_WEEKLY_DAYS or stated_days == 1:
        return best
    gain = LEAST_WEEKLY_GAIN if stated_days is None else 0.0
    least = best[1].strength_ratio + gain
    for rest_days in _unlike_others(days):
        score = _score(days, rest_days, FIRST_REACH)
        if score.strength_ratio > max(best[1].strength_ratio, least):
            best = (rest_days, score)
    return best


def _unlike_others(days: _Days) -> Iterator[tuple[int, ...]]:
    """Yield the weekday least like the others, then the two in a row; each known twice."""
    rates = np.sqrt(days.rates)
    for length in range(1, MOST_REST_DAYS + 1):
        distances = {}
        for first in range(WEEK_DAYS):
            rest_days = tuple(sorted((first + k) % WEEK_DAYS for k in range(length)))
            resting = days.rest_mask(rest_days)
            if length < np.sum(resting) < len(rates):
                apart = _mean_by_slot(rates[resting]) - _mean_by_slot(rates[~resting])
                distances[rest_days] = float(np.nansum(apart * apart))
        if distances:
            yield max(distances, key=lambda rest_days: distances[rest_days])


def _mean_by_slot(rates: Rates) -> Rates:
    """Return the mean of each slot's known rates, NaN if none is known."""
    counts = np.sum(np.isfinite(rates), axis=0)
    means: Rates = np.where(counts > 0, np.nansum(rates, axis=0) / np.maximum(counts, 1), math.nan)
    return means


def _best_reach(days: _Days, rest_days: tuple[int, ...], first: _Score) -> tuple[int, _Score]:
    """Return the reach in slots for which the profile predicts changes best, and its score."""
    best = (FIRST_REACH, first)
    for reach in OTHER_REACHES:
        score = _score(days, rest_days, reach)
        if score.change_ratio > best[1].change_ratio:
            best = (reach, score)
    return best


def _score(days: _Days, rest_days: tuple[int, ...], reach: int) -> _Score:
    """Score the prediction of each day from the days before it, except the first day.

    A week or more may hold one odd day, so the worst day is left out.
    """
    step = max(round(CHANGE_SECONDS / days.slot_seconds), 1)
    noise = 0.25 / days.slot_seconds
    errors = []
    for truth, predicted, flat in _predictions(days, rest_days, reach):
        change = truth[step:] - truth[:-step]
        expected = predicted[step:] - predicted[:-step]
        errors.append((
            _squares(truth - predicted, noise),
            _squares(truth - flat, noise),
            _squares(change - expected, 2.0 * noise),
            _squares(change, 2.0 * noise),
        ))  # fmt: skip
    if len(errors) >= LEAST_WEEKLY_DAYS - 1:
        errors.remove(max(errors))
    level, flat_level, change_sum, flat_change = np.maximum(np.sum(errors, axis=0), 0.0)
    return _Score(
        level=float(level),
        flat_level=float(flat_level),
        change=float(change_sum),
        flat_change=float(flat_change),
    )


def _predictions(
    days: _Days, rest_days: tuple[int, ...], reach: int
) -> Iterator[tuple[Rates, Rates, float]]:
    """Yield square roots: each day's rates, the profile before it, and the mean before it."""
    resting = days.rest_mask(rest_days)
    for day in range(1, len(days.rates)):
        before = days.rates[:day]
        alike = before[resting[:day] == resting[day]]
        profile = _profile(alike if len(alike) else before, days.slot_seconds, reach)
        yield np.sqrt(days.rates[day]), np.sqrt(profile), float(np.nanmean(np.sqrt(before)))


def _squares(errors: Rates, noise: float) -> float:
    """Return the sum of known squares beyond counting noise."""
    known = errors[np.isfinite(errors)]
    return float(np.sum(known * known) - noise * len(known))


def _profile(rates: Rates, slot_seconds: float, reach: int) -> Rates:
    """Return the rate by slot: the mean of the middle third of days, so that no odd day counts."""
    ordered = np.sort(rates, axis=0)
    counts = np.sum(np.isfinite(ordered), axis=0)
    places = np.arange(len(rates))[:, None]
    cut = counts // 3
    middle = (places >= cut) & (places < counts - cut)
    used = np.maximum(np.sum(middle, axis=0), 1)
    mean = np.sum(np.where(middle, ordered, 0.0), axis=0) / used
    known = np.flatnonzero(counts)
    slots = np.arange(len(mean))
    # Slots that no day knows are interpolated between known neighbours, round the clock.
    mean = np.interp(slots, known, mean[known], period=len(mean))
    mean = mean + JEFFREYS_REQUESTS / (used * slot_seconds)
    weights = np.bartlett(2 * reach + 3)[1:-1]
    wrapped = np.concatenate([mean[len(mean) - reach :], mean, mean[:reach]])
    smooth: Rates = np.convolve(wrapped, weights / np.sum(weights), "valid")
    return smooth


def _season(days: _Days, rest_days: tuple[int, ...], reach: int, strength: float) -> Season:
    resting = days.rest_mask(rest_days)
    classes = [days.rates[~resting], days.rates[resting]] if rest_days else [days.rates]
    profiles = [_profile(rates, days.slot_seconds, reach) for rates in classes]
    variances = [
        _slot_variances(rates, profile, days.slot_seconds)
        for rates, profile in zip(classes, profiles, strict=True)
    ]
    return Season(
        slot_seconds=days.slot_seconds,
        day_start_seconds=days.start_seconds,
        rest_days=rest_days,
        profiles=tuple(array("f", profile.tolist()) for profile in profiles),
        slot_variances=tuple(array("f", row.tolist()) for row in variances),
        strength_ratio=strength,
    )


def _slot_variances(rates: Rates, profile: Rates, slot_seconds: float) -> Rates:
    """Return the variance of the log rate's change to the next slot, beyond profile and noise.

    The odd day is left out if there are enough others. Each slot takes the largest value of itself
    and its neighbours, because an event at nine may also happen at five past nine.
    """
    counts = rates * slot_seconds + JEFFREYS_REQUESTS
    change = np.log(np.roll(counts, -1, axis=1) / counts)
    change[:, -1] = math.nan
    beyond = change - np.log(np.roll(profile, -1) / profile)
    squares = np.maximum(beyond**2 - 1.0 / counts - 1.0 / np.roll(counts, -1, axis=1), 0.0)
    ordered = np.sort(squares, axis=0)
    known = np.sum(np.isfinite(ordered), axis=0)
    used = np.where(known >= LEAST_DAYS_FOR_ODD_ONE, known - 1, known)
    kept = np.arange(len(rates))[:, None] < used
    mean = np.sum(np.where(kept, ordered, 0.0), axis=0) / np.maximum(used, 1)
    mean = np.where(used > 0, mean, np.max(mean))
    widest = np.maximum(mean, np.maximum(np.roll(mean, 1), np.roll(mean, -1)))
    variances: Rates = np.maximum(widest, LEAST_SLOT_DEVIATION**2)
    return variances
