"""Holes of a pool: how many arrivals a replica is sent during a step, and when.

Source: L. Takács, Introduction to the Theory of Queues (1962), the transient M/M/1 queue;
docs/designs/0002-models.md, "Holes of a pool".
"""

import math
from typing import NamedTuple

from servingslo.models.paces import Pace
from servingslo.models.service_time import RequestDemand

# Loads of prefill from here on are taken as this one, so that steps stay finite.
_LARGEST_RATIO = 0.98
# Lengths of prompts vary by no less than this, so that their transform is that of a gamma law.
_LEAST_VARIABILITY = 1e-3
# Measured: twice as many move TTFT by 0.6 % at most, and by 0.1 % in 95 of 100 loads.
_ITERATIONS = 6
# Against a division by zero where every step holds a prompt.
_LEAST_SHARE = 1e-12
_FIRST_GROWING = 0.5
# Who has just been sent a request: between rounds in strict order (0) and no order at all (1).
_ORDER = 0.5


class Meeting(NamedTuple):
    """How the arrivals of one replica meet its steps.

    even_ratio: share that comes evenly over a step. again_ratio: others in the step of an arrival,
    as a share of those that independent arrivals would find. growing_ratio: by how much the
    arrivals in a step grow with its length, as a share of the rate. filling_ratio: others that fill
    holes in the step of an arrival, over those in a mean step.
    """

    even_ratio: float
    again_ratio: float
    growing_ratio: float
    filling_ratio: float


class Steps(NamedTuple):
    """Steps of a replica of a pool, in seconds.

    pool_count: replicas. rate_per_second: of one. bare: a step without prefill. mean: of all.
    work: prefill of a prompt. square, cube: its second and third moment, over powers of its mean.
    load: rate times work.
    """

    pool_count: int
    rate_per_second: float
    bare: float
    mean: float
    work: float
    square: float
    cube: float
    load: float


class Level(NamedTuple):
    """Arrivals that come with the level of the pool, see `level_met`.

    even_ratio: those that come later on in a step, as a share of the rate. horizon_seconds: over
    which.
    """

    even_ratio: float
    horizon_seconds: float


class Counts(NamedTuple):
    """Holes that are filled in steps, by whether they hold a prompt and by those before.

    long_ratio: share of the steps with a prompt. repeated_ratio: of those, that follow one.
    long_filled, bare_filled: arrivals that fill holes. long_seconds: mean length.
    """

    long_ratio: float
    repeated_ratio: float
    long_filled: float
    bare_filled: float
    long_seconds: float


def steps_of(demand: RequestDemand, pace: Pace, pool_count: int) -> Steps:
    """Steps at a pace; prompts must have tokens that are prefilled."""
    tokens = demand.uncached_mean_tokens
    load = min(pace.prefill_ratio, _LARGEST_RATIO)
    return Steps(
        pool_count,
        pace.rate_per_second,
        pace.mean_step,
        pace.base_ratio * pace.mean_step / (1.0 - load),
        demand.prefill_mean_seconds + pace.further,
        max(demand.uncached_second_moment_tokens2 / tokens**2, 1.0 + _LEAST_VARIABILITY),
        demand.uncached_third_moment_tokens3 / tokens**3,
        load,
    )


def meeting_in_steps(steps: Steps) -> Meeting:
    """How arrivals meet steps that hold all prompts that wait.

    A fixed point: steps that are met are longer as arrivals grow with their length, and arrivals
    come later on as steps are longer.
    """
    growing, busy = _FIRST_GROWING, -math.expm1(-steps.rate_per_second * steps.mean)
    counts = Counts(busy, busy, 0.0, 0.0, steps.bare + steps.work)
    level = level_met(steps, growing)
    for _ in range(_ITERATIONS):
        level = level_met(steps, growing)
        counts = counts_of(steps, level.even_ratio, counts)
        growing = growing_ratio(steps, level.even_ratio, growing, counts)
    even, horizon = level
    empty = empty_ratio(steps.rate_per_second, horizon, steps.pool_count)
    again = again_ratio(empty, even, steps.pool_count, (steps.mean, horizon))
    return Meeting(even, again, growing, again * filling_ratio(steps, even, counts))


def level_met(steps: Steps, growing: float) -> Level:
    """Arrivals that are sent to a replica as the level of the others comes up to it.

    Nobody leaves during a step, so a replica in a long one is sent requests only as long as none of
    the others has fewer. All arrivals less what leaves the others, cλ up and (c − 1)λ down, move
    the level of the pool, and each of its new maxima is shared by all c. The distance to the
    maximum is an M/M/1 queue, empty when the step begins; sent are as many as it serves.

    Others do not leave evenly: prefill holds them up. Over long times the work of prompts gives
    departures a dispersion of 1 + λ²E[S²]/(1 − p)², and it takes the memory of prefill, s/(1 − p)²,
    to come to that. A queue with the drift λ and with this variance has services u·λ and arrivals
    (u − 1)·λ, u = ((2c − 1)·I + 1)/2, I = (c + (c − 1)·D)/(2c − 1) the dispersion of the walk.

    The horizon is half of E[D³]/E[D²], of steps that make waits. Until an exponential time with the
    mean A come A·P(A), P the chance that the queue is empty, and what a longer step has on top is
    d(A·P)/dA of that: the rest comes at once, as holes do.
    """
    count, mean, load = steps.pool_count, steps.mean, steps.load
    arriving = steps.rate_per_second * mean
    ratio = growing * load
    variance = arriving * steps.work**2 * steps.square / (1.0 - ratio**2)
    third = arriving * steps.work**3 * steps.cube / (1.0 - ratio**3)
    third += 3.0 * mean * variance + mean**3
    horizon = 0.5 * third / (variance + mean * mean)
    held_up = load * load * steps.square / (1.0 - load) ** 2
    memory = mean / (1.0 - load)
    departures = 1.0 + held_up * horizon / (horizon + memory)
    walk = (count + (count - 1.0) * departures) / (2.0 * count - 1.0)
    services = 0.5 * ((2.0 * count - 1.0) * walk + 1.0)
    left, slope = _left(services, 1.0 / (steps.rate_per_second * horizon))
    return Level(min(services / count * (1.0 - left + slope), 1.0), horizon)


def empty_ratio(rate_per_second: float, seconds: float, pool_count: int) -> float:
    """Chance that the queue of `level_met` is empty, where departures come evenly.

    At an exponential time with this mean; rate_per_second: of one replica.
    """
    left, _ = _left(float(pool_count), 1.0 / (rate_per_second * seconds))
    return 1.0 - left


def _left(services: float, ending: float) -> tuple[float, float]:
    """Chance r that an M/M/1 queue is not empty at an exponential time, and θ·dr/dθ of its rate θ.

    In units of the drift: services u, arrivals u − 1, ending θ; the smaller root of
    u·r² − (2u − 1 + θ)·r + u − 1 = 0.
    """
    total = 2.0 * services - 1.0 + ending
    distance = math.sqrt(total * total - 4.0 * services * (services - 1.0))
    left = (total - distance) / (2.0 * services)
    return left, -ending * left / distance


def again_ratio(empty: float, even: float, pool_count: int, seconds: tuple[float, float]) -> float:
    """Others in the step of an arrival, as a share of those that independent ones would find.

    Who has just been sent a request stands above the level and has to wait until the others have
    theirs, any number of them from 0 to c − 1: by then the queue is empty again with the share
    g = (1 − η^c)/(c·(1 − η)), η = r·c/(c − 1), of the probability. That is for a level on which all
    stand in order; on one without order g is 1. The truth is taken in the middle. Only arrivals
    that come with the level are in its order; holes are filled as they are.
    empty: 1 − r. even: share that comes with the level. seconds: a mean step, and half of one that
    makes waits.
    """
    mean, age = seconds
    below = (1.0 - empty) * pool_count / (pool_count - 1)
    again = (1.0 - below**pool_count) / (pool_count * (1.0 - below))
    share = 2.0 * age * even
    share /= share + mean * (1.0 - even)
    return 1.0 - _ORDER * (1.0 - again) * share**2


def counts_of(steps: Steps, even: float, before: Counts) -> Counts:
    """Holes that are filled, when they are made and filled as they were and arrivals are Poisson.

    Of the arrivals of a mean step the share 1 − e fills holes, and as many are made at the end of
    every step. A hole is filled in the age t of a step at the rate κ = λ(1 + (c − 1)e): it is one
    of the least loaded, which are holes as often as those are made and filled. Steps without
    prompts are short, so holes add up until arrivals make a long one, in which most are filled: a
    step that follows a long one begins with those just made, one that follows others with more.
    """
    rate = steps.rate_per_second
    filling = rate * (1.0 + (steps.pool_count - 1.0) * even)
    variability = steps.square - 1.0
    bare_left = math.exp(-filling * steps.bare)
    left = bare_left * (1.0 + filling * steps.work * variability) ** (-1.0 / variability)
    made = (1.0 - even) * rate * steps.mean
    long, repeated = before.long_ratio, before.repeated_ratio
    bare = max(1.0 - long, _LEAST_SHARE)
    # Of steps without a prompt, those that follow one with.
    turned = min(long * (1.0 - repeated) / bare, 1.0)
    # Holes after a long step, m + left·L, and after a bare one, m + bare_left·B, of which L and B
    # are the means in the proportions in which long and bare steps follow them.
    kept = 1.0 - bare_left * (1.0 - turned)
    whole = (1.0 - left * repeated) * kept - left * (1.0 - repeated) * bare_left * turned
    after_long = made * (kept + left * (1.0 - repeated)) / whole
    after_bare = made * (1.0 - left * repeated + bare_left * turned) / whole
    long_filled = repeated * after_long + (1.0 - repeated) * after_bare
    long_filled *= 1.0 - left
    bare_filled = turned * after_long + (1.0 - turned) * after_bare
    bare_filled *= 1.0 - bare_left
    long_seconds = (steps.mean - bare * steps.bare) / long
    repeated = -math.expm1(-even * rate * long_seconds - long_filled)
    begun = -math.expm1(-even * rate * steps.bare - bare_filled)
    return Counts(
        begun / (1.0 - repeated + begun), repeated, long_filled, bare_filled, long_seconds
    )


def growing_ratio(steps: Steps, even: float, growing: float, counts: Counts) -> float:
    """Regression of the arrivals in a step on its length, as a share of the rate.

    Those that come evenly, and the holes that long steps fill more of. growing: the one before, of
    which the variance of steps is made.
    """
    arriving = steps.rate_per_second * steps.mean
    ratio = growing * steps.load
    variance = arriving * steps.work**2 * steps.square / (1.0 - ratio**2)
    longer = counts.long_seconds - steps.bare
    covariance = counts.long_ratio * (1.0 - counts.long_ratio) * longer
    covariance *= counts.long_filled - counts.bare_filled
    found = even + covariance / (steps.rate_per_second * variance)
    return min(max(found, 1.0 / steps.pool_count), 1.0)


def filling_ratio(steps: Steps, even: float, counts: Counts) -> float:
    """Others that fill holes in the step of an arrival, over those that do in a mean step.

    Who comes evenly meets long steps as long as they last, who fills a hole as many are filled.
    """
    long, bare = counts.long_ratio, 1.0 - counts.long_ratio
    mean = long * counts.long_filled + bare * counts.bare_filled
    if mean <= 0.0:
        return 1.0
    lasting = long * counts.long_seconds / steps.mean
    filled = long * counts.long_filled / mean
    met = even * lasting + (1.0 - even) * filled
    return (met * counts.long_filled + (1.0 - met) * counts.bare_filled) / mean
