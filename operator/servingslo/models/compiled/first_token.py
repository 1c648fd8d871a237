"""Time to first token of one load, in loops: the same law as `first_token`, pace by pace."""

import math
from typing import NamedTuple

import numpy as np

from servingslo.models import arrivals, bursts, generations, paces, pools
from servingslo.models.arrivals import (
    Arrival,
    Flow,
    flow_of,
    steps_of,
    stretch_of,
    without_prompts,
)
from servingslo.models.compiled.idle import idle_share
from servingslo.models.compiled.inversion import POINTS, drive, invert
from servingslo.models.compiled.layout import (
    ARRIVING,
    BEFORE,
    BEGUN,
    BEHIND,
    EXCESS,
    FILLED,
    HOLES,
    MEAN,
    MET,
    OWN,
    ROWS,
    SLOPE,
    Joins,
)
from servingslo.models.compiled.long_prompts import long_classes
from servingslo.models.compiled.prompts import Prompts, add_prompts, mean_steps, stretched
from servingslo.models.compiled.room_queue import meet_queue
from servingslo.models.compiled.shared import share, share_modules
from servingslo.models.compiled.spectra import TERMS, cosine_and_sine, exponential
from servingslo.models.compiled.waiting import NEGLIGIBLE_WAIT, with_wait
from servingslo.models.generations import quotient_of
from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import paces_met, range_level
from servingslo.models.pools import Shared, meeting_at, never_idle
from servingslo.models.prompt_work import RANGE_RATIO
from servingslo.models.service_time import FloatArray, RequestDemand

_ROUNDING = 1e-6


class Wait(NamedTuple):
    """Numbers of a pace, by which arrivals become transforms of waits.

    less_lag, base, first, filling: as in `Flow`. quotient: as in `generations`. cubic, square,
    mean, mass: of the logarithm of the steps met, over their length. joins: as in `long_prompts`.
    step, begun, without: as in `without_prompts`; nothing where first is 1.
    """

    less_lag: float
    base: float
    first: float
    filling: float
    quotient: tuple[float, float, float, float, float]
    cubic: float
    square: float
    mean: float
    mass: float
    joins: Joins
    step: float
    begun: float
    without: float


def ttft_law(
    demand: RequestDemand,
    prompts: Prompts,
    running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
    sines: FloatArray,
    law: FloatArray,
) -> int:
    """Write the law of the time to first token into `law`: seconds, and their probabilities.

    Returns the number of points. sines: `transform.sine_table()`.
    """
    met = paces_met(demand, prompts, running, rate_per_second, budget_tokens)
    last = met[len(met) - 1]
    level = range_level(demand, prompts, running, last)
    range_seconds = RANGE_RATIO**level
    usual, queued = np.zeros(TERMS), np.zeros(TERMS)
    for pace in met:
        arrival = Arrival(running, pace, level, meeting_at(demand, running, pace))
        into = queued if pace.queued else usual
        _add_pace(demand, prompts, arrival, math.pi / range_seconds, into)
    for point in range(POINTS):
        law[0, point] = range_seconds * (point / (POINTS - 1))
    invert(usual, sines, law[1])
    if last.queued:
        drive(queued, sines, law[1])
    if 1.0 - running.below_cap < NEGLIGIBLE_WAIT:
        return POINTS
    return with_wait(demand, prompts, running, (rate_per_second, budget_tokens), law)


def _add_pace(
    demand: RequestDemand, prompts: Prompts, arrival: Arrival, unit: float, into: FloatArray
) -> None:
    """Add the real part of the transform at one pace, as often as it is met."""
    pace = arrival.pace
    rows = np.zeros((ROWS, 2 * TERMS))
    joins = (0.0, 1.0, 0.0, 0.0)
    classes = 1
    if prompts.tokens[-1] > pace.room_tokens:
        classes = 2
        joins = long_classes(demand, prompts, arrival, unit, rows)
    else:
        add_prompts(prompts, (0, len(prompts.tokens)), unit, rows[OWN], rows[SLOPE])
        rows[EXCESS] = rows[OWN]
        for k in range(TERMS):
            rows[EXCESS, k] -= 1.0
        rows[BEHIND] = rows[EXCESS]
    stretch = stretch_of(demand, pace)
    if stretch != 1.0:
        stretched(prompts, unit, stretch, rows[EXCESS], rows[SLOPE])
        if classes == 1:
            rows[BEHIND] = rows[EXCESS]
    transform = np.zeros(TERMS)
    if not _over_own(demand, prompts, arrival, (unit, classes, joins, False), rows, transform):
        transform[:] = 0.0
        _over_own(demand, prompts, arrival, (unit, classes, joins, True), rows, transform)
    if pace.alone:
        meet_queue(demand, prompts, pace, (unit, classes), rows, transform)
    _meet_idle(demand, prompts, arrival, (unit, classes), rows, transform)
    transform[0] = 1.0
    for k in range(TERMS):
        into[k] += pace.share * transform[k]


def _over_own(
    demand: RequestDemand,
    prompts: Prompts,
    arrival: Arrival,
    shape: tuple[float, int, Joins, bool],
    rows: FloatArray,
    transform: FloatArray,
) -> bool:
    """Add the real part of what is met times the own prefill, over the classes of own prompts.

    shape: the first frequency above 0, the number of classes, who goes along with long prompts, and
    whether steps are too spread for a series. Returns False if that is found.
    """
    unit, classes, joins, by_step = shape
    flow, branching = flow_of(demand, prompts, arrival)
    wait = _wait_of(demand, arrival, flow, quotient_of(*branching), joins)
    pooled = arrival.law_of_running.pool_count > 1
    for k in range(TERMS):
        rows[MEAN, k] = flow.mean
    for k in range(2 * TERMS):
        rows[BEFORE, k] = rows[EXCESS, k] * flow.again
    one = _One(unit, 0.0, by_step)
    if not _waits(demand, arrival, wait, one, (rows[BEFORE], rows[MEAN], rows[EXCESS]), rows[MET]):
        return False
    if pooled:
        rows[HOLES] = rows[BEFORE]
        for k in range(TERMS):
            rows[HOLES, k] -= flow.kappa
        holes = rows[HOLES], rows[MEAN], rows[EXCESS]
        if not _waits(demand, arrival, wait, one, holes, rows[FILLED]):
            return False
    for own in range(classes):
        arriving = rows[ARRIVING]
        for k in range(2 * TERMS):
            arriving[k] = rows[BEHIND + own, k] * flow.again
        begun = rows[BEGUN]
        taken = arriving, rows[SLOPE], rows[EXCESS]
        if not _waits(demand, arrival, wait, _One(unit, 1.0, by_step), taken, begun):
            return False
        later = arriving, rows[BEFORE]
        add_met((begun, rows[MET], rows[OWN + own]), later, (unit, 0.0, 1.0), transform)
        if pooled:
            # Both kinds of arrivals in their proportion.
            numbers = unit, flow.kappa, flow.filling_share / (begun[0] - rows[FILLED, 0])
            add_met((begun, rows[FILLED], rows[OWN + own]), later, numbers, transform)
    return True


def add_met(
    met: tuple[FloatArray, FloatArray, FloatArray],
    arriving: tuple[FloatArray, FloatArray],
    numbers: tuple[float, float, float],
    transform: FloatArray,
) -> None:
    """Add the real part of what begins a step, less what it begins with, times the own prefill.

    met: these three. Over z and what arrives behind the request more than before it (`arriving`),
    and over a constant. numbers: the first frequency above 0, that constant, a factor.
    """
    begun, before, own = met
    behind, ahead = arriving
    unit, constant, factor = numbers
    for k in range(TERMS):
        below = behind[k] - ahead[k] + constant
        below_i = behind[TERMS + k] - ahead[TERMS + k] + unit * k
        above = begun[k] - before[k]
        above_i = begun[TERMS + k] - before[TERMS + k]
        inverse = factor / (below * below + below_i * below_i)
        real = (above * below + above_i * below_i) * inverse
        imaginary = (above_i * below - above * below_i) * inverse
        transform[k] += real * own[k] - imaginary * own[TERMS + k]


def _wait_of(
    demand: RequestDemand,
    arrival: Arrival,
    flow: Flow,
    quotient: tuple[float, float, float, float, float],
    joins: Joins,
) -> Wait:
    first, spacing, scale = steps_of(demand, arrival)
    weights = arrival.law_of_running.weights
    mass, mean = 0.0, 0.0
    for j in range(len(weights)):
        weight = weights[j] / ((first + spacing * j) * scale)
        mass += weight
        mean += weight * j
    mean /= mass
    variance, third = 0.0, 0.0
    for j in range(len(weights)):
        weight = weights[j] / ((first + spacing * j) * scale)
        off = j - mean
        variance += weight * off * off
        third += weight * off * off * off
    step, begun, without = without_prompts(arrival)
    return Wait(
        less_lag=flow.less_lag,
        base=flow.base,
        first=flow.first,
        filling=flow.filling,
        quotient=quotient,
        cubic=spacing**3 * third / mass / 6.0,
        square=0.5 * spacing**2 * variance / mass,
        mean=first + spacing * mean,
        mass=math.log(mass),
        joins=joins,
        step=step,
        begun=begun,
        without=without,
    )


class _One(NamedTuple):
    """Which transform of waits.

    unit: the first frequency above 0. own: 1 for the step in progress, which takes its time, 0 for
    what arrives before the request. by_step: whether steps are too spread for a series.
    """

    unit: float
    own: float
    by_step: bool


def _waits(
    demand: RequestDemand,
    arrival: Arrival,
    wait: Wait,
    one: _One,
    transforms: tuple[FloatArray, FloatArray, FloatArray],
    out: FloatArray,
) -> bool:
    """Transform of what arrivals make of steps, as a mean over the steps that are met.

    transforms: arrivals, what one brings, and what a prompt takes less 1. Returns False where steps
    are found to be too spread for a series.
    """
    exponent, log = np.empty(2 * TERMS), np.empty(2 * TERMS)
    _lagged_prefill(wait, one.own, transforms, out, exponent)
    if wait.joins[0] > 0.0:
        # Arrivals with their lag are in `out` until then.
        _add_joins(wait, one, out, exponent)
    _grow(wait, one, transforms, exponent)
    if one.by_step:
        _by_step(demand, arrival, exponent, out)
    elif _logarithm(wait, exponent, log) > wait.mass + _ROUNDING:
        return False
    else:
        exponential(log, out)
    if wait.first != 1.0:
        _add_without(wait, one, transforms[0], out)
    return True


def _lagged_prefill(
    wait: Wait,
    own: float,
    transforms: tuple[FloatArray, FloatArray, FloatArray],
    lagged: FloatArray,
    exponent: FloatArray,
) -> None:
    """Arrivals with the lag of their prefill; and these times what each brings.

    To first order for the step in progress, and with two moments of the prefill for the others.
    """
    arriving, prefill, excess = transforms
    for k in range(TERMS):
        real, imaginary = arriving[k], arriving[TERMS + k]
        below, below_i = 1.0 + real * wait.less_lag, imaginary * wait.less_lag
        inverse = 1.0 / (below * below + below_i * below_i)
        later = (real * below + imaginary * below_i) * inverse
        later_i = (imaginary * below - real * below_i) * inverse
        lagged[k] = later
        lagged[TERMS + k] = later_i
        exponent[k] = later * prefill[k] - later_i * prefill[TERMS + k] + own * excess[k]
        exponent[TERMS + k] = (
            later * prefill[TERMS + k] + later_i * prefill[k] + own * excess[TERMS + k]
        )


def _add_joins(wait: Wait, one: _One, lagged: FloatArray, exponent: FloatArray) -> None:
    """Add what those save who go along with long prompts, see `long_prompts.Joins`."""
    mass, length, half_variance, less_step = wait.joins
    log, joined = np.empty(2 * TERMS), np.empty(2 * TERMS)
    for k in range(TERMS):
        met, met_i = lagged[k], lagged[TERMS + k] + one.own * one.unit * k
        real, imaginary = met * half_variance + length, met_i * half_variance
        log[k] = real * met - imaginary * met_i
        log[TERMS + k] = real * met_i + imaginary * met
    exponential(log, joined)
    for k in range(TERMS):
        saving, saving_i = cosine_and_sine(one.unit * less_step * k)
        saving = (saving - 1.0) * mass
        saving_i *= mass
        exponent[k] += joined[k] * saving - joined[TERMS + k] * saving_i
        exponent[TERMS + k] += joined[k] * saving_i + joined[TERMS + k] * saving


def _grow(
    wait: Wait,
    one: _One,
    transforms: tuple[FloatArray, FloatArray, FloatArray],
    exponent: FloatArray,
) -> None:
    """Prefill of one generation into that of all, see `generations`; then what is met besides.

    The next step holds the own prompt, and those of the arrivals that fill holes.
    """
    arriving, _, excess = transforms
    unit, own = one.unit, one.own
    none, first, second, first_below, second_below = wait.quotient
    for k in range(TERMS):
        x, y = exponent[k], exponent[TERMS + k]
        square, square_i = x * x - y * y, 2.0 * x * y
        above = none + first * x + second * square
        above_i = first * y + second * square_i
        below = 1.0 + first_below * x + second_below * square
        below_i = first_below * y + second_below * square_i
        inverse = 1.0 / (below * below + below_i * below_i)
        ratio = (above * below + above_i * below_i) * inverse
        ratio_i = (above_i * below - above * below_i) * inverse
        real, imaginary = x * ratio - y * ratio_i, x * ratio_i + y * ratio
        exponent[k] = real * wait.base + arriving[k] * wait.first + excess[k] * wait.filling
        exponent[TERMS + k] = (
            imaginary * wait.base
            + (arriving[TERMS + k] + own * unit * k) * wait.first
            + unit * k
            + excess[TERMS + k] * wait.filling
        )


def _logarithm(wait: Wait, exponent: FloatArray, log: FloatArray) -> float:
    """Logarithm of the mean over steps by three cumulants; returns its largest real part."""
    for k in range(TERMS):
        x, y = exponent[k], exponent[TERMS + k]
        total, total_i = x * wait.cubic + wait.square, y * wait.cubic
        total, total_i = total * x - total_i * y + wait.mean, total * y + total_i * x
        log[k] = total * x - total_i * y + wait.mass
        log[TERMS + k] = total * y + total_i * x
    peak = log[0]
    for k in range(TERMS):
        peak = max(peak, log[k])
    return peak


def _by_step(
    demand: RequestDemand, arrival: Arrival, exponent: FloatArray, out: FloatArray
) -> None:
    """The mean over steps that are too spread for a series, each by itself."""
    first, spacing, scale = steps_of(demand, arrival)
    weights = arrival.law_of_running.weights
    log, one = np.empty(2 * TERMS), np.empty(2 * TERMS)
    out[:] = 0.0
    for j in range(len(weights)):
        step = first + spacing * j
        weight = weights[j] / (step * scale)
        for k in range(2 * TERMS):
            log[k] = exponent[k] * step
        exponential(log, one)
        for k in range(2 * TERMS):
            out[k] += one[k] * weight


def _add_without(wait: Wait, one: _One, arriving: FloatArray, out: FloatArray) -> None:
    """Cycles without prompts take a whole step where others begin with less."""
    unit, own = one.unit, one.own
    log, turned = np.empty(2 * TERMS), np.empty(2 * TERMS)
    for begun, sign in ((wait.step, wait.without), (wait.begun, -wait.without)):
        for k in range(TERMS):
            log[k] = arriving[k] * begun
            log[TERMS + k] = (arriving[TERMS + k] + own * unit * k) * begun + unit * wait.step * k
        exponential(log, turned)
        for k in range(2 * TERMS):
            out[k] += sign * turned[k]


def _meet_idle(
    demand: RequestDemand,
    prompts: Prompts,
    arrival: Arrival,
    shape: tuple[float, int],
    rows: FloatArray,
    transform: FloatArray,
) -> None:
    """Let some arrivals find a replica idle: they take their own prefill and a step."""
    running, pace = arrival.law_of_running, arrival.pace
    if never_idle(running.mean, running.variance):
        return
    idle = idle_share(
        demand,
        Shared(
            running.pool_count,
            pace.rate_per_second,
            running.mean,
            running.variance,
            pace.mean_step,
            mean_steps(prompts, pace.room_tokens),
        ),
    )
    unit, classes = shape
    angle = unit * demand.step_fixed_seconds
    for k in range(TERMS):
        cosine, sine = cosine_and_sine(angle * k)
        own, own_i = rows[OWN, k], rows[OWN, TERMS + k]
        if classes == 2:
            own += rows[OWN + 1, k]
            own_i += rows[OWN + 1, TERMS + k]
        transform[k] += idle * (own * cosine - own_i * sine - transform[k])


share_modules(arrivals, bursts, generations, paces, pools)
share(
    ttft_law,
    _add_pace,
    _over_own,
    add_met,
    _wait_of,
    _waits,
    _lagged_prefill,
    _add_joins,
    _grow,
    _logarithm,
    _by_step,
    _add_without,
    _meet_idle,
)
