"""Time to first token below the cap: the rest of a step, then the steps that prefill the prompt.

Source: the rest of a step that is met, E[D²]/(2·E[D]), W. Feller, An Introduction to Probability
Theory and Its Applications II (1971), chapter XI; the prompts that come meanwhile, a compound
Poisson law; percentiles by F. Fang and C. W. Oosterlee (2008), see `transform`;
docs/designs/0002-models.md, "What was added".
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from servingslo.models.arrivals import (
    Arrival,
    flow_of,
    pool_met,
    steps_of,
    stretch_of,
    without_prompts,
)
from servingslo.models.generations import grow
from servingslo.models.levels import found_by_arrivals, never_idle
from servingslo.models.long_prompts import Chunked, chunked_prompts
from servingslo.models.occupancy import Occupancy, even_moments
from servingslo.models.paces import paces_met, range_level
from servingslo.models.pools import ALONE, meeting_at
from servingslo.models.prompt_work import (
    RANGE_RATIO,
    PromptTable,
    PromptWork,
    StretchedPrompts,
)
from servingslo.models.room_queue import meet_queue
from servingslo.models.rows import columns, exponential, stacked
from servingslo.models.service_time import ComplexArray, FloatArray, RequestDemand
from servingslo.models.transform import TabulatedLaw, driven, invert

# Logarithms closer than this differ by rounding alone.
_ROUNDING = 1e-6
# Paces whose arrays are computed together, half of it where prompts are longer than the room: of
# larger arrays each allocation is given back to the system, and its pages are made anew.
_BLOCK = 16
# Nodes of a law of running sequences are evenly spaced, and no more than these.
_OFFSETS: FloatArray = np.arange(32.0)


def first_token_laws(
    demand: RequestDemand,
    prompts: PromptWork,
    laws_of_running: Sequence[Occupancy],
    rates_per_second: Sequence[float],
    budget_tokens: float,
) -> list[TabulatedLaw]:
    """Laws of the time to first token of requests that do not wait for a slot, in seconds, by load.

    An arrival finds n running and a step of length D in progress, sampled in proportion to D. It
    waits for the rest of D, evenly distributed over it; the next step holds its own prompt and all
    prompts that came during D. Given n, steps form a branching process: D = s + c·Σ I over the
    arrivals of the previous D, with s = a + β·n, so that E[exp(zD)] = exp(s·g(z)) with
    g(z) = z + g(λ·(M(z) − 1)) and M the transform of c·I. Then
    E[exp(zT)] = M(z)·(exp(s·(z + g(z + z₁))) − exp(s·g(z)))·(1 − λcI)/(s·z), z₁ = λ(M(z) − 1),
    averaged over n. Bursty arrivals come at one of two rates, see `paces_met`. In a pool only a
    share e of the arrivals comes as above, see `pools`: the others fill the holes that were there
    when the step began, whatever its length, a Poisson number of them with the mean of a step. The
    replicas with a hole are the least loaded; a hole is one of them at the rate at which holes are
    made, (1 − e)λ, over that at which they are filled, κ, so that κ = λ/(1/c + (1 − 1/c)(1 − e)λ/κ)
    and the age t of the step has the density e^(−κt), κ = λ(1 + (c − 1)e).

    Where a prompt is longer than the room in a step, D is a cycle of prefill (`Cycle`): one step
    where it has no prompts, else first·s + Σ (c·I + further). The own prompt takes its steps, see
    `long_prompts`; behind one that does not fit nobody is in its first step.
    """
    arrivals: list[Arrival] = []
    starts, levels, twice = [], [], []
    for running, rate in zip(laws_of_running, rates_per_second, strict=True):
        paces = paces_met(demand, prompts, running, rate, budget_tokens)
        level = range_level(demand, prompts, running, paces[-1])
        twice.append(paces[-1].queued)
        for queued in (False, True)[: 1 + twice[-1]]:
            starts.append(len(arrivals))
            levels.append(level)
            arrivals += [
                Arrival(running, pace, level, meeting_at(demand, prompts, running, pace))
                for pace in paces
                if pace.queued == queued
            ]
    fitting = all(prompts.tokens[-1] <= arrival.pace.room_tokens for arrival in arrivals)
    block = _BLOCK if fitting else _BLOCK // 2
    blocks = [
        _characteristics(demand, prompts, arrivals[start : start + block])
        for start in range(0, len(arrivals), block)
    ]
    characteristic = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    if len(arrivals) > len(starts):
        characteristic *= np.array([arrival.pace.share for arrival in arrivals])[:, None]
        characteristic = np.add.reduceat(characteristic, starts)
    laws = iter(invert(characteristic, [RANGE_RATIO**level for level in levels]))
    return [driven(next(laws), next(laws)) if both else next(laws) for both in twice]


def _characteristics(
    demand: RequestDemand, prompts: PromptWork, arrivals: Sequence[Arrival]
) -> FloatArray:
    """Real part of the characteristic function of `first_token_laws`, by pace.

    Rows of the exponents below: for each class of own prompts (`Chunked`) the step in progress
    together with what arrives after the request; what arrives before it; and, in pools, the latter
    less κ, for arrivals that fill holes. Where all prompts fit in a step what arrives before and
    after is the same.
    """
    tables = [prompts.table(arrival.level) for arrival in arrivals]
    works = [
        _work(demand, prompts, arrival, table)
        for arrival, table in zip(arrivals, tables, strict=True)
    ]
    z = stacked([table.z for table in tables])
    excess = stacked([work.excess for work in works])
    chunked = _chunked(demand, prompts, arrivals, tables, works)
    classes = len(chunked.own)
    before = 0 if chunked.joins is None else classes
    flows, branchings = zip(
        *[flow_of(demand, prompts, arrival) for arrival in arrivals], strict=True
    )
    again, kappa, filling, mean, less_lag, filling_share, base, first = columns(flows)
    pooled = any(arrival.meeting is not ALONE for arrival in arrivals)
    arriving = np.empty((before + (2 if pooled else 1), *z.shape), dtype=np.complex128)
    np.multiply(excess, again, out=arriving[before])
    if chunked.joins is not None:
        np.multiply(chunked.behind, again, out=arriving[:classes])
    if pooled:
        np.subtract(arriving[before], kappa, out=arriving[before + 1])
    # Arrivals times the prefill of the prompts of a step, λ·(M(w) − 1) for each row w: to first
    # order in w for the step in progress, and with two moments of the prefill for the others.
    lagged = arriving * less_lag
    lagged += 1.0
    np.divide(arriving, lagged, out=lagged)
    exponents = np.empty((classes + len(arriving) - before, *z.shape), dtype=np.complex128)
    np.multiply(lagged[:classes], stacked([work.slope for work in works]), out=exponents[:classes])
    exponents[:classes] += excess
    np.multiply(lagged[before:], mean, out=exponents[classes:])
    if chunked.joins is not None:
        exponents += chunked.joins.saved(lagged, classes)
    grow(exponents, branchings)
    # The next step holds the own prompt, and those of the arrivals that fill holes.
    beside = z + excess * filling if pooled else z
    arguments = None
    if any(flow.first != 1.0 for flow in flows):
        arguments = np.concatenate((arriving[:classes] + z, arriving[before:]))
        exponents *= base
        exponents += arguments * first
    else:
        exponents[:classes] += arriving[:classes]
        exponents[:classes] += z
        exponents[classes:] += arriving[before:]
    exponents += beside
    mixtures = _averaged(demand, exponents, arguments, z, arrivals)
    characteristic = _over_own(chunked, mixtures, arriving, z, (filling_share, kappa))
    if any(arrival.pace.alone for arrival in arrivals):
        meet_queue(demand, prompts, arrivals, characteristic, chunked)
    _meet_idle(demand, prompts, arrivals, characteristic, (chunked.own, z))
    characteristic = characteristic.reshape(len(arrivals), -1)
    characteristic[:, 0] = 1.0
    return characteristic


def _over_own(
    chunked: Chunked,
    mixtures: ComplexArray,
    arriving: ComplexArray,
    z: ComplexArray,
    filling: tuple[Any, Any],
) -> FloatArray:
    """Real part of what is met times the own prefill, summed over the classes of own prompts.

    filling: share of the arrivals that fill holes, times κ, and κ.
    """
    filling_share, kappa = filling
    classes = len(chunked.own)
    later = z
    if chunked.joins is not None:
        # Who comes behind the request takes longer for it than who comes before: z and the rest.
        later = arriving[:classes] - arriving[classes]
        later += z
    evenly = later.copy()
    evenly[..., 0] = 1.0
    met = mixtures[:classes] - mixtures[classes]
    met /= evenly
    if len(mixtures) > classes + 1:
        # Both kinds of arrivals in their proportion.
        filled = mixtures[:classes] - mixtures[classes + 1]
        shares = filling_share / filled[..., :1].real
        filled /= later + kappa
        filled *= shares
        met += filled
    met *= chunked.own
    characteristic: FloatArray = np.add.reduce(met.real)
    return characteristic


def _meet_idle(
    demand: RequestDemand,
    prompts: PromptWork,
    arrivals: Sequence[Arrival],
    characteristic: FloatArray,
    transforms: tuple[ComplexArray, ComplexArray],
) -> None:
    """Let some arrivals find a replica idle, in place: they take their own prefill and a step."""
    laws = [arrival.law_of_running for arrival in arrivals]
    if all(never_idle(law.mean, law.variance) for law in laws):
        return
    pools = [pool_met(prompts, arrival) for arrival in arrivals]
    shares = [found.free for found in found_by_arrivals(demand, pools)]
    if any(shares):
        own, z = np.add.reduce(transforms[0]), transforms[1]
        (idle,) = columns([(share,) for share in shares])
        characteristic *= 1.0 - idle
        characteristic += idle * (own * exponential(z * demand.step_fixed_seconds)).real


def _chunked(
    demand: RequestDemand,
    prompts: PromptWork,
    arrivals: Sequence[Arrival],
    tables: Sequence[PromptTable],
    works: Sequence[PromptTable | StretchedPrompts],
) -> Chunked:
    """Own prompts by class; only one where all prompts fit in a step."""
    longest = prompts.tokens[-1]
    if all(longest <= arrival.pace.room_tokens for arrival in arrivals):
        behind = stacked([work.excess for work in works])
        return Chunked(behind[None], stacked([table.mgf for table in tables])[None], None)
    return chunked_prompts(demand, prompts, arrivals, tables, works)


def _work(
    demand: RequestDemand, prompts: PromptWork, arrival: Arrival, table: PromptTable
) -> PromptTable | StretchedPrompts:
    """Transforms of the prefill of the prompts of others, with the further steps that they take."""
    stretch = stretch_of(demand, arrival.pace)
    return table if stretch == 1.0 else prompts.stretched(arrival.level, stretch)


def _averaged(
    demand: RequestDemand,
    exponents: ComplexArray,
    arguments: ComplexArray | None,
    z: ComplexArray,
    arrivals: Sequence[Arrival],
) -> ComplexArray:
    """Σ w·exp(s·x)/s over the steps s of each pace, at each exponent x, by three cumulants of s.

    Steps are met in proportion to their length; s·x is what an arrival waits for.
    Steps spread by a tenth or two of their mean, with little skewness, and make the lesser part of
    the spread of a time to first token: what the fourth cumulant would add is below 0.1 %.

    arguments: where there are cycles without prompts, which take a whole step where others begin
    with less, what they wait for per second of a step: all with the mean step of their pace, as the
    spread of steps is that of the others.
    """
    lines = [steps_of(demand, arrival) for arrival in arrivals]
    steps, weights = _steps_met(lines, arrivals)
    masses = even_moments(weights)
    cubic, square, mean, mass = columns(
        [
            (
                line[1] ** 3 * moments[3] / 6.0,
                0.5 * line[1] ** 2 * moments[2],
                line[0] + line[1] * moments[1],
                math.log(moments[0]),
            )
            for line, moments in zip(lines, masses, strict=True)
        ]
    )
    logs = np.empty((1 if arguments is None else 3, *exponents.shape), dtype=np.complex128)
    total = logs[0]
    np.multiply(exponents, cubic, out=total)
    total += square
    total *= exponents
    total += mean
    total *= exponents
    total += mass
    peaks = np.maximum.reduce(np.maximum.reduce(total.real), axis=-1).reshape(-1).tolist()
    without: Any = 0.0
    if arguments is not None:
        pace_step, begun, without = columns([without_prompts(arrival) for arrival in arrivals])
        np.multiply(arguments + z, pace_step, out=logs[1])
        np.multiply(arguments, begun, out=logs[2])
        logs[2] += z * pace_step
    averaged: ComplexArray
    averaged, *others = exponential(logs)
    for row, moments in enumerate(masses):
        # No transform is above its mass: else steps too spread for a series, so each by itself.
        if peaks[row] > math.log(moments[0]) + _ROUNDING:
            by_row = exponents.reshape(len(exponents), len(arrivals), -1)[:, row]
            by_step = exponential(np.multiply.outer(steps.reshape(len(arrivals), -1)[row], by_row))
            by_step *= weights[row][:, None, None]
            np.add.reduce(by_step, out=averaged.reshape(len(exponents), len(arrivals), -1)[:, row])
    if others:
        others[0] -= others[1]
        others[0] *= without
        averaged += others[0]
    return averaged


def _steps_met(
    lines: Sequence[tuple[float, float, float]], arrivals: Sequence[Arrival]
) -> tuple[FloatArray, FloatArray]:
    """Steps and, over their length, their weights, by pace."""
    first, spacing, scale = columns(lines)
    running = [arrival.law_of_running for arrival in arrivals]
    width = max(len(law.weights) for law in running)
    steps = _OFFSETS[:width] * spacing
    steps += first
    weights = _weights(running, width)
    weights /= steps * scale
    return steps, weights


def _weights(running: Sequence[Occupancy], width: int) -> FloatArray:
    """Weights of the nodes, by load; the shorter ones are continued with 0."""
    if all(len(law.weights) == width for law in running):
        return np.array([law.weights for law in running])
    weights = np.zeros((len(running), width))
    for row, law in enumerate(running):
        weights[row, : len(law.weights)] = law.weights
    return weights
