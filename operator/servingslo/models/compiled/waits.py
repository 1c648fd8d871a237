"""What arrivals make of the steps of a pace, as transforms in loops; see `first_token`."""

import math
from typing import NamedTuple

import numpy as np

from servingslo.models.arrivals import Arrival, Flow, steps_of, without_prompts
from servingslo.models.compiled.layout import Joins
from servingslo.models.compiled.shared import share
from servingslo.models.compiled.spectra import TERMS, cosine_and_sine, exponential
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


def wait_of(
    demand: RequestDemand,
    arrival: Arrival,
    flow: Flow,
    quotient: tuple[float, float, float, float, float],
    joins: Joins,
) -> Wait:
    """Numbers of a pace; quotient: of `generations`. Steps are met as often as they are long."""
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


class One(NamedTuple):
    """Which transform of waits.

    unit: the first frequency above 0. own: 1 for the step in progress, which takes its time, 0 for
    what arrives before the request. by_step: whether steps are too spread for a series.
    """

    unit: float
    own: float
    by_step: bool


def waits(
    demand: RequestDemand,
    arrival: Arrival,
    wait: Wait,
    one: One,
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


def _add_joins(wait: Wait, one: One, lagged: FloatArray, exponent: FloatArray) -> None:
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
    one: One,
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
    return float(peak)


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


def _add_without(wait: Wait, one: One, arriving: FloatArray, out: FloatArray) -> None:
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


share(
    wait_of,
    waits,
    _lagged_prefill,
    _add_joins,
    _grow,
    _logarithm,
    _by_step,
    _add_without,
)
