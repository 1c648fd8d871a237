"""Time to first token of one load, in loops: the same law as `first_token`, pace by pace."""

import math
from typing import Any

import numpy as np

from servingslo.models import arrivals, bursts, generations, holes, paces, pools
from servingslo.models.arrivals import Arrival, Flow, flow_of, pool_met, stretch_of
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
from servingslo.models.compiled.levels import found_by_arrivals
from servingslo.models.compiled.long_prompts import long_classes
from servingslo.models.compiled.prompts import Prompts, add_prompts, stretched
from servingslo.models.compiled.room_queue import meet_queue
from servingslo.models.compiled.shared import share, share_modules
from servingslo.models.compiled.spectra import TERMS, copy_less, cosine_and_sine
from servingslo.models.compiled.waiting import NEGLIGIBLE_WAIT, with_wait
from servingslo.models.compiled.waits import One, wait_of, waits
from servingslo.models.generations import quotient_of
from servingslo.models.levels import never_idle
from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import paces_met, range_level
from servingslo.models.pools import meeting_at
from servingslo.models.prompt_work import RANGE_RATIO
from servingslo.models.service_time import FloatArray, RequestDemand


def ttft_law(
    demand: RequestDemand,
    prompts: Any,
    running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
    sines: FloatArray,
    law: FloatArray,
) -> int:
    """Write the law of the time to first token into `law`: seconds, and their probabilities.

    Returns the number of points. prompts: `Prompts`, for functions of a `PromptWork`.
    sines: `transform.sine_table()`.
    """
    met = paces_met(demand, prompts, running, rate_per_second, budget_tokens)
    last = met[len(met) - 1]
    level = range_level(demand, prompts, running, last)
    range_seconds = RANGE_RATIO**level
    usual, queued = np.zeros(TERMS), np.zeros(TERMS)
    for pace in met:
        arrival = Arrival(running, pace, level, meeting_at(demand, prompts, running, pace))
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
        copy_less(rows[OWN], 1.0, rows[EXCESS])
    stretch = stretch_of(demand, pace)
    if stretch != 1.0:
        stretched(prompts, unit, stretch, rows[EXCESS], rows[SLOPE])
    if classes == 1:
        copy_less(rows[EXCESS], 0.0, rows[BEHIND])
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
    prompts: Any,
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
    wait = wait_of(demand, arrival, flow, quotient_of(*branching), joins)
    pooled = arrival.law_of_running.pool_count > 1
    _arrivals_met(flow, rows)
    one = One(unit, 0.0, by_step)
    before = rows[BEFORE], rows[MEAN], rows[EXCESS]
    if not waits(demand, arrival, wait, one, before, rows[MET]):
        return False
    if pooled:
        holes = rows[HOLES], rows[MEAN], rows[EXCESS]
        if not waits(demand, arrival, wait, one, holes, rows[FILLED]):
            return False
    begun, one = rows[BEGUN], One(unit, 1.0, by_step)
    for own in range(classes):
        for k in range(2 * TERMS):
            rows[ARRIVING, k] = rows[BEHIND + own, k] * flow.again
        taken = rows[ARRIVING], rows[SLOPE], rows[EXCESS]
        if not waits(demand, arrival, wait, one, taken, begun):
            return False
        later = rows[ARRIVING], rows[BEFORE]
        add_met((begun, rows[MET], rows[OWN + own]), later, (unit, 0.0, 1.0), transform)
        if pooled:
            # Both kinds of arrivals in their proportion.
            numbers = unit, flow.kappa, flow.filling_share / (begun[0] - rows[FILLED, 0])
            add_met((begun, rows[FILLED], rows[OWN + own]), later, numbers, transform)
    return True


def _arrivals_met(flow: Flow, rows: FloatArray) -> None:
    """Arrivals before a request, these less κ, and the mean prefill of each."""
    for k in range(TERMS):
        rows[MEAN, k] = flow.mean
        rows[BEFORE, k] = rows[EXCESS, k] * flow.again
        rows[BEFORE, TERMS + k] = rows[EXCESS, TERMS + k] * flow.again
        rows[HOLES, k] = rows[BEFORE, k] - flow.kappa
        rows[HOLES, TERMS + k] = rows[BEFORE, TERMS + k]


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


def _meet_idle(
    demand: RequestDemand,
    prompts: Any,
    arrival: Arrival,
    shape: tuple[float, int],
    rows: FloatArray,
    transform: FloatArray,
) -> None:
    """Let some arrivals meet no prefill: they take their own and a step."""
    running = arrival.law_of_running
    if never_idle(running.mean, running.variance):
        return
    free = found_by_arrivals(demand, pool_met(prompts, arrival)).free
    unit, classes = shape
    angle = unit * demand.step_fixed_seconds
    for k in range(TERMS):
        cosine, sine = cosine_and_sine(angle * k)
        own, own_i = rows[OWN, k], rows[OWN, TERMS + k]
        if classes == 2:
            own += rows[OWN + 1, k]
            own_i += rows[OWN + 1, TERMS + k]
        transform[k] += free * (own * cosine - own_i * sine - transform[k])


share_modules(arrivals, bursts, generations, holes, paces, pools)
share(
    ttft_law,
    _add_pace,
    _over_own,
    _arrivals_met,
    add_met,
    _meet_idle,
)
