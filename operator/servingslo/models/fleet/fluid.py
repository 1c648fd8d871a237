"""A fluid copy of a fleet, lived over past arrivals: what rules of scaling would have missed.

Requests are a fluid that arrives at the rates of bins. A rule orders replicas from rates that are
known one bin late; an ordered replica serves a lead later, and until then only those that were
ordered all that time do. A bin's requests miss to the degree that they exceed what the replicas
keep within the objectives, and wholly while more is queued than the fleet serves in the time that a
request may wait. Source: fluid limits of queues (W. Whitt, "Stochastic-Process Limits", 2002,
chapter 5): backlog is the net input less its running minimum.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rates = NDArray[np.float64]

# A rate is extrapolated from this time over the lead, and the result is held for half of it: about
# the shortest lead, so that a slope is longer than the noise of a bin.
SLOPE_SECONDS = 120.0
# Misses closer to each other are of one episode. One that lasts longer than this share of the past
# is no episode but what the rule does all the time.
EPISODE_SECONDS = 600.0
LONGEST_EPISODE_SHARE = 0.25


# A burst is over when the rate has fallen by this factor, about what it had to rise by.
OVER_RATIO = 1.3
# Counting noise of a bin that is no burst. Without it a working day costs 9 % more, a ramp 22 %.
NOISE_DEVIATIONS = 3.0


class Rule(NamedTuple):
    """Order for the greatest rate of a window, times a margin, and never below a floor.

    window_seconds: 0 for the rate extrapolated by its slope over the lead. floor: replicas.
    """

    window_seconds: float
    margin_ratio: float
    floor: int = 0


# What the planner does without a reserve, as far as a fluid shows it.
PLAIN = Rule(0.0, 1.0)


class Replica(NamedTuple):
    """What one replica does.

    planned_per_second: arrivals for which one is ordered. kept_per_second: arrivals at which it
    keeps the objectives. saturation_per_second: what it completes at most. lead_seconds: from a
    change of demand to serving it. wait_seconds: that a request may wait.
    """

    planned_per_second: float
    kept_per_second: float
    saturation_per_second: float
    lead_seconds: float
    wait_seconds: float


class Habit(NamedTuple):
    """Bursts that may come again.

    begins: the bin with which the present habit begins; the number of bins without one. bursts: of
    the whole past, each a lead after the one before. peak_per_second: since it began.
    """

    begins: int
    bursts: int
    peak_per_second: float


class Lived(NamedTuple):
    """How a rule did: the share of requests that missed, and the mean of the ordered replicas.

    orders_per_second: replicas that were ordered beyond those there were.

    habitual_ratio: the share without the largest episode of misses before the present habit. What
    came once is no habit.
    """

    rule: Rule
    missed_ratio: float
    habitual_ratio: float
    mean_replicas: float
    orders_per_second: float = 0.0


def wanted_replicas(
    rule: Rule, rates_per_second: Rates, replica: Replica, bin_seconds: float
) -> int:
    """Return the count that the rule orders after these rates, the last of them known.

    Raises: ValueError without rates.
    """
    rates = rates_per_second[-_bins(max(rule.window_seconds, 2.0 * SLOPE_SECONDS), bin_seconds) :]
    return int(max(_by_rate(rule, rates, replica, bin_seconds)[-1], rule.floor, 1))


def habit_of(
    rates_per_second: Rates, replica: Replica, bin_seconds: float, open_seconds: float
) -> Habit:
    """Return the bursts that saturate what the plain rule orders, as far as they may be a habit.

    Bursts are of one habit if each comes within this time after the end of the one before, and the
    last has ended no longer ago.
    """
    wanted = _by_rate(PLAIN, _a_bin_late(rates_per_second), replica, bin_seconds)
    lead = _bins(replica.lead_seconds, bin_seconds)
    serving = _sliding(np.minimum, np.maximum(wanted, 1.0), lead)
    expected = serving * replica.planned_per_second
    chance = NOISE_DEVIATIONS * np.sqrt(expected / bin_seconds)
    sure = np.maximum(serving * replica.saturation_per_second, OVER_RATIO * expected + chance)
    places = np.flatnonzero(rates_per_second > sure)
    begins = len(rates_per_second)
    for place in reversed(places.tolist()):
        fallen = rates_per_second[place:begins] < rates_per_second[place] / OVER_RATIO
        lasted = int(fallen.argmax()) if fallen.any() else begins - place
        if (begins - place - lasted) * bin_seconds > open_seconds:
            break
        begins = place
    apart = np.diff(places) * bin_seconds > replica.lead_seconds
    return Habit(
        begins=begins,
        bursts=int(apart.sum()) + bool(len(places)),
        peak_per_second=float(rates_per_second[begins:].max(initial=0.0)),
    )


def live(
    rule: Rule,
    rates_per_second: Rates,
    replica: Replica,
    bin_seconds: float,
    *,
    habit: int | None = None,
) -> Lived:
    """Live the rule over these rates, of consecutive bins.

    habit: the bin with which it begins, None without one.
    """
    wanted = _by_rate(rule, _a_bin_late(rates_per_second), replica, bin_seconds)
    return _live(wanted, rule, rates_per_second, replica, bin_seconds, habit)


def cheapest_floor(
    rule: Rule,
    rates_per_second: Rates,
    replica: Replica,
    bin_seconds: float,
    *,
    most_missed: float,
    least: int = 0,
    habit: int | None = None,
) -> Lived:
    """Live the rule with the least floor at which the habitual share is at most this.

    least: floor that is tried. The floor that carries the greatest rate, if none is low enough.
    """
    wanted = _by_rate(rule, _a_bin_late(rates_per_second), replica, bin_seconds)
    low, high = least, math.ceil(float(rates_per_second.max()) / replica.planned_per_second)

    def lived(floor: int) -> Lived:
        tried = rule._replace(floor=floor)
        return _live(wanted, tried, rates_per_second, replica, bin_seconds, habit)

    found = lived(high)
    while low < high:
        middle = (low + high) // 2
        tried = lived(middle)
        if tried.habitual_ratio <= most_missed:
            found, high = tried, middle
        else:
            low = middle + 1
    return found


def _live(
    wanted: Rates, rule: Rule, rates: Rates, replica: Replica, bin_seconds: float, habit: int | None
) -> Lived:
    ordered = np.maximum(wanted, max(rule.floor, 1))
    missed = _missed(ordered, rates, replica, bin_seconds)
    total = max(float(rates.sum()), 1e-9)
    before = _episodes(missed[:habit], bin_seconds, longest=LONGEST_EPISODE_SHARE * len(rates))
    largest = max((float(part.sum()) for part in before), default=0.0)
    all_missed = float(missed.sum())
    return Lived(
        rule=rule,
        missed_ratio=all_missed / total,
        habitual_ratio=max(all_missed - largest, 0.0) / total,
        mean_replicas=float(ordered.mean()),
        orders_per_second=float(np.maximum(np.diff(ordered), 0.0).sum())
        / (len(rates) * bin_seconds),
    )


def _missed(ordered: Rates, rates: Rates, replica: Replica, bin_seconds: float) -> Rates:
    """Return the missed requests per second of each bin."""
    serving = _sliding(np.minimum, ordered, _bins(replica.lead_seconds, bin_seconds))
    capacity = serving * replica.saturation_per_second
    net = np.cumsum((rates - capacity) * bin_seconds)
    backlog = net - np.minimum(np.minimum.accumulate(net), 0.0)
    late = backlog > replica.wait_seconds * capacity
    late[1:] |= late[:-1].copy()
    room = max(replica.saturation_per_second - replica.kept_per_second, 1e-9)
    beyond = np.clip((rates / serving - replica.kept_per_second) / room, 0.0, 1.0)
    return np.where(late, 1.0, beyond) * rates


def _by_rate(rule: Rule, known: Rates, replica: Replica, bin_seconds: float) -> Rates:
    """Return the count for each bin without a floor."""
    if rule.window_seconds > 0.0:
        highest = _sliding(np.maximum, known, _bins(rule.window_seconds, bin_seconds))
    else:
        before = _bins(SLOPE_SECONDS, bin_seconds)
        earlier = np.concatenate((np.full(min(before, len(known)), known[0]), known))[: len(known)]
        rise = np.maximum(known - earlier, 0.0) / SLOPE_SECONDS
        highest = _sliding(
            np.maximum, known + rise * replica.lead_seconds, _bins(SLOPE_SECONDS / 2, bin_seconds)
        )
    return np.ceil(highest * rule.margin_ratio / replica.planned_per_second - 1e-9)


def _a_bin_late(rates: Rates) -> Rates:
    """Return the rates as they are known while each bin runs."""
    return np.concatenate((rates[:1], rates[:-1]))


def _bins(seconds: float, bin_seconds: float) -> int:
    return max(math.ceil(seconds / bin_seconds - 1e-9), 1)


def _sliding(extreme: np.ufunc, values: Rates, count: int) -> Rates:
    """Return the extreme of each value and those before it, so many in all, in log₂ passes."""
    found, reached = values.copy(), 1
    while reached < min(count, len(values)):
        step = min(reached, count - reached)
        found[step:] = extreme(found[step:], found[:-step].copy())
        reached += step
    return found


def _episodes(missed: Rates, bin_seconds: float, longest: float) -> Iterator[Rates]:
    """Yield misses in groups that are further apart than an episode, of at most so many bins."""
    places = np.flatnonzero(missed > 0.0)
    if len(places):
        cuts = np.flatnonzero(np.diff(places) * bin_seconds > EPISODE_SECONDS) + 1
        for group in np.split(places, cuts):
            if group[-1] - group[0] <= longest:
                yield missed[group]
