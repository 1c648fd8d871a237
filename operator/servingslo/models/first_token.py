"""Time to first token below the cap: the rest of a step, then the steps that prefill the prompt."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servingslo.models.generations import Branching, grow
from servingslo.models.occupancy import Occupancy, even_moments
from servingslo.models.paces import LEAST_FULL_RATIO, Pace, budget_queue, paces_met
from servingslo.models.prompt_work import RANGE_RATIO, PromptTable, PromptWork, StretchedPrompts
from servingslo.models.queueing import erlang_c
from servingslo.models.rows import columns, exponential, polar, stacked
from servingslo.models.service_time import ComplexArray, FloatArray, RequestDemand
from servingslo.models.transform import TabulatedLaw, invert

_RANGE_SPREADS = 9.0
# Further steps that move no percentile by more than 0.1 %.
_NEGLIGIBLE_FURTHER = 1e-3
_TINY_SECONDS = 1e-12
_ROUNDING = 1e-6
# Nodes of a law of running sequences are evenly spaced, and no more than these.
_OFFSETS: FloatArray = np.arange(32.0)


class _Arrival(NamedTuple):
    """What arrivals at one pace meet at one load, and the range of the law that they are part of.

    load: index of the load. pool: replicas that share arrivals by filling holes.
    """

    load: int
    law_of_running: Occupancy
    pace: Pace
    level: int
    pool: float


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
    averaged over n. A prompt longer than the token budget takes further steps; for those of others
    see `further_seconds`, and as far as the budget is full, prompts that arrive later in D are not
    in the next step: z + z₁ is then z + (1 − full)·z₁, and z in the denominator z − full·z₁. Bursty
    arrivals come at one of two rates, see `paces_met`.

    A pool of c sends arrivals where sequences have left. Of the arrivals of a replica 1/c come as
    above, evenly over its steps and as many as the step is long. The others fill the holes that
    were there when the step began, whatever its length: a Poisson number of them, with the mean of
    a step; and as the least loaded share φ of the replicas is filled at rate λ/φ, with φ between
    1/c and 1, they come with the density e^(−κt) of the age t of the step, κ = 2λ/(1 + 1/c). Long
    steps are therefore met less often than in proportion to their length, and sooner.
    """
    arrivals: list[_Arrival] = []
    starts, levels = [], []
    for load, (running, rate) in enumerate(zip(laws_of_running, rates_per_second, strict=True)):
        paces = paces_met(demand, prompts, running, rate, budget_tokens)
        starts.append(len(arrivals))
        levels.append(_range_level(demand, prompts, running, paces[-1]))
        arrivals += [
            _Arrival(load, running, pace, levels[-1], _pool_count(demand, running, pace))
            for pace in paces
        ]
    characteristic = _characteristics(demand, prompts, arrivals)
    if len(arrivals) > len(starts):
        characteristic *= np.array([arrival.pace.share for arrival in arrivals])[:, None]
        characteristic = np.add.reduceat(characteristic, starts)
    return invert(characteristic, [RANGE_RATIO**level for level in levels])


class _Flow(NamedTuple):
    """Numbers of `_characteristics` that are one for each pace.

    meeting: arrivals per second that come evenly over steps. kappa: the others come with the
    density e^(−κt) of the age t of the step. filling: how many they are, for each second of a step
    without prefill. mean, lag: seconds of prefill that a prompt causes, and E[S²]/(2·E[S]) of it.
    behind: share of the prompts that arrive later in a step that are in the next. meeting_share:
    1/c of the others, less 1, times κ.
    """

    meeting: float
    kappa: float
    filling: float
    mean: float
    lag: float
    behind: float
    filling_share: float


def _flow(demand: RequestDemand, prompts: PromptWork, arrival: _Arrival) -> _Flow:
    pace, pool = arrival.pace, arrival.pool
    rate = pace.rate_per_second
    meeting = rate / pool
    kappa = 2.0 * rate / (1.0 + 1.0 / pool)
    stretch = pace.further / max(demand.prefill_mean_seconds, _TINY_SECONDS)
    filling = (rate - meeting) / (1.0 - pace.prefill_ratio)
    mean = demand.prefill_mean_seconds + pace.further
    lag = prompts.lag_seconds * (1.0 + stretch)
    behind = 1.0 - pace.budget_ratio if pace.budget_ratio > LEAST_FULL_RATIO else 1.0
    return _Flow(meeting, kappa, filling, mean, lag, behind, (1.0 - 1.0 / pool) * kappa)


def _characteristics(
    demand: RequestDemand, prompts: PromptWork, arrivals: Sequence[_Arrival]
) -> FloatArray:
    """Real part of the characteristic function of `first_token_laws`, by pace."""
    tables = [prompts.table(arrival.level) for arrival in arrivals]
    works = [
        _work(demand, prompts, arrival, table)
        for arrival, table in zip(arrivals, tables, strict=True)
    ]
    z = stacked([table.z for table in tables])
    excess = stacked([work.excess for work in works])
    flows = [_flow(demand, prompts, arrival) for arrival in arrivals]
    meeting, kappa, filling, mean, lag, behind, filling_share = columns(flows)
    pooled = any(arrival.pool > 1.0 for arrival in arrivals)
    in_place = all(flow.behind == 1.0 for flow in flows)
    # What arrives during the step in progress w, which is left at its end; and less κ, for arrivals
    # that fill holes.
    arriving = np.empty((2 if pooled else 1, *z.shape), dtype=np.complex128)
    np.multiply(excess, meeting, out=arriving[0])
    if pooled:
        np.subtract(arriving[0], kappa, out=arriving[1])
    # The step in progress together with what arrives during it; what arrives; and that for
    # arrivals that fill holes. Arrivals times the prefill of the prompts of a step, λ·(M(w) − 1)
    # for each: to first order in w for the first, and with the first two moments of the prefill
    # for the others.
    lagged = arriving * -lag
    lagged += 1.0
    np.divide(arriving, lagged, out=lagged)
    exponents = np.empty((len(arriving) + 1, *z.shape), dtype=np.complex128)
    first = np.multiply(stacked([work.slope for work in works]), lagged[0], out=exponents[0])
    if not in_place:
        first *= behind
    first += excess
    np.multiply(lagged, mean, out=exponents[1:])
    grow(
        exponents,
        [
            Branching(
                flow.meeting, arrival.pace.prefill_ratio / arrival.pool, flow.lag, flow.filling
            )
            for arrival, flow in zip(arrivals, flows, strict=True)
        ],
    )
    # The next step holds the own prompt, and those of the arrivals that fill holes.
    exponents[1:] += arriving
    first += arriving[0] if in_place else arriving[0] * behind
    first += z
    exponents += z + filling * excess if pooled else z
    mixtures = _averaged(demand, exponents, arrivals)
    met = mixtures[0] - mixtures[1:]
    beyond = z[..., 1:] if in_place else z[..., 1:] - (1.0 - behind) * arriving[0, ..., 1:]
    met[0, ..., 1:] /= beyond
    if pooled:
        # Both kinds of arrivals in their proportion, 1/c and the rest.
        kappa = z + kappa
        np.divide(filling_share / met[1, ..., :1].real, kappa, out=kappa)
        met[1] *= kappa
        met[0] += met[1]
    met[0] *= _own(demand, prompts, arrivals, tables)
    characteristic: FloatArray = met[0].real.reshape(len(arrivals), -1)
    characteristic[:, 0] = 1.0
    return characteristic


def _work(
    demand: RequestDemand, prompts: PromptWork, arrival: _Arrival, table: PromptTable
) -> PromptTable | StretchedPrompts:
    """Transforms of the prefill of the prompts of others, with the further steps that they take."""
    further = arrival.pace.further
    if further <= _NEGLIGIBLE_FURTHER * demand.prefill_mean_seconds:
        return table
    return prompts.stretched(arrival.level, 1.0 + further / demand.prefill_mean_seconds)


def _pool_count(demand: RequestDemand, law_of_running: Occupancy, pace: Pace) -> float:
    """Replicas that share arrivals by filling holes, 1 to all of the pool.

    Prompts that wait for room in the budget are a queue. As far as the budget is full during a
    cycle of prefill, an arrival meets what it would meet at a replica on its own where routing by
    number does not see that queue: where it is there, at the load u = λ·Ī·(c + s/room) of the
    stability frontier. Routing does see it as far as the replica, with prompts that wait in place
    of sequences that leave, is sent less: at the rate 1/R of a residence, against that of the queue
    itself. It is then there as in a queue for all, with the probability of Erlang C.
    """
    count = law_of_running.pool_count
    if count == 1 or pace.budget_ratio < LEAST_FULL_RATIO:
        return float(count)
    cycle = pace.mean_step / (1.0 - pace.prefill_ratio)
    full = min(pace.rate_per_second * cycle * demand.uncached_mean_tokens / pace.room_tokens, 1.0)
    busy, relaxing = budget_queue(demand, pace)
    residence = law_of_running.mean / pace.rate_per_second
    unseen = residence / (residence + relaxing)
    waiting = full * (unseen * busy + (1.0 - unseen) * erlang_c(count * busy, count))
    return 1.0 / (waiting + (1.0 - waiting) / count)


def _own(
    demand: RequestDemand,
    prompts: PromptWork,
    arrivals: Sequence[_Arrival],
    tables: Sequence[PromptTable],
) -> ComplexArray:
    """Transform of a request's own prefill, by pace, with the steps that a long prompt takes more.

    Each step before the last costs s, and the prompts that arrive during these full steps (Poisson)
    share the last one: each of them up to the room that is left there, and all together no more
    than that on average. A pool of c sends arrivals where sequences leave, which is n/O of them at
    the end of a step however long it was, and 1/c of the rest.
    """
    own: ComplexArray = stacked([table.mgf for table in tables])
    rows = [
        row for row, arrival in enumerate(arrivals) if prompts.tokens[-1] > arrival.pace.room_tokens
    ]
    if not rows:
        return own
    longs = [
        prompts.long_prompts(arrivals[row].level, arrivals[row].pace.room_tokens) for row in rows
    ]
    sharing: list[float] = []
    delays: list[float] = []
    ends = [0]
    for row, long in zip(rows, longs, strict=True):
        arriving, step = _arriving(demand, arrivals[row]), arrivals[row].pace.mean_step
        sharing += [min(arriving * full, most) for full, most in long.groups]
        delays += [step * full for full, _ in long.groups]
        ends.append(len(delays))
    delayed = np.concatenate([long.sharing for long in longs])
    delayed *= np.array(sharing)[:, None]
    counts = [len(long.groups) for long in longs]
    angles = np.repeat([tables[row].z.imag for row in rows], counts, axis=0)
    angles *= np.array(delays)[:, None]
    angles += delayed.imag
    delayed = polar(np.exp(delayed.real), angles)
    delayed -= 1.0
    delayed *= np.concatenate([long.own for long in longs])
    if len(tables) == 1:
        alone: ComplexArray = own + np.add.reduce(delayed)
        return alone
    for row, start, end in zip(rows, ends[:-1], ends[1:], strict=True):
        own[row] += np.add.reduce(delayed[start:end])
    return own


def _arriving(demand: RequestDemand, arrival: _Arrival) -> float:
    """Prompts that arrive at the replica during a full step."""
    pace, running = arrival.pace, arrival.law_of_running
    full_step = pace.mean_step + demand.prefill_per_token_seconds * pace.room_tokens
    arriving = pace.rate_per_second * full_step
    leaving = running.mean / demand.output_mean_tokens
    pool = running.pool_count
    return arriving / pool + (1.0 - 1.0 / pool) * min(leaving, arriving)


def _averaged(
    demand: RequestDemand, exponents: ComplexArray, arrivals: Sequence[_Arrival]
) -> ComplexArray:
    """Σ w·exp(s·x)/s over the steps s of each pace, at each exponent x, by three cumulants of s.

    Steps are met in proportion to their length; s·x is what an arrival waits for.
    Steps spread by a tenth or two of their mean, with little skewness, and make the lesser part of
    the spread of a time to first token: what the fourth cumulant would add is below 0.1 %.
    """
    lines = [_steps(demand, arrival) for arrival in arrivals]
    first, spacing, scale = columns(lines)
    running = [arrival.law_of_running for arrival in arrivals]
    width = max(len(law.weights) for law in running)
    steps = _OFFSETS[:width] * spacing
    steps += first
    weights = _weights(running, width)
    weights /= steps * scale
    masses = even_moments(weights)
    cubic, square, mean, mass = columns(
        [
            (
                line[1] ** 3 * moments[3] / 6.0,
                0.5 * line[1] ** 2 * moments[2],
                line[0] + line[1] * moments[1],
                moments[0],
            )
            for line, moments in zip(lines, masses, strict=True)
        ]
    )
    total: ComplexArray = exponents * cubic
    total += square
    total *= exponents
    total += mean
    total *= exponents
    length = np.exp(total.real)
    spread_out = np.maximum.reduce(length, axis=None) > 1.0 + _ROUNDING
    length *= mass
    averaged = polar(length, total.imag)
    if spread_out:
        # No transform is above its mass: steps too spread for a series, so each by itself.
        too_spread = total.real.max(axis=(0, -1)) > _ROUNDING
        _by_step(exponents, steps, weights, np.atleast_1d(too_spread), averaged)
    return averaged


def _by_step(
    exponents: ComplexArray,
    steps: FloatArray,
    weights: FloatArray,
    too_spread: NDArray[np.bool_],
    averaged: ComplexArray,
) -> None:
    """Average over each step by itself where steps are too spread for a series.

    There a transform would be above its mass, which none is.
    """
    shape = len(exponents), len(weights), -1
    exponents, averaged = exponents.reshape(shape), averaged.reshape(shape)
    for row in np.flatnonzero(too_spread).tolist():
        by_step = exponential(
            np.multiply.outer(steps.reshape(len(weights), -1)[row], exponents[:, row])
        )
        by_step *= weights[row][:, None, None]
        np.add.reduce(by_step, out=averaged[:, row])


def _steps(demand: RequestDemand, arrival: _Arrival) -> tuple[float, float, float]:
    """Shortest step of a pace, what a node more adds, and the length of a cycle in steps."""
    running, pace = arrival.law_of_running, arrival.pace
    growth = demand.step_growth_seconds * pace.spread
    cycles = max(1.0 - running.wait_probability, _TINY_SECONDS) / (1.0 - pace.prefill_ratio)
    first = pace.mean_step + growth * (running.lowest - running.mean)
    return first, growth * running.spacing, arrival.pool * cycles


def _weights(running: Sequence[Occupancy], width: int) -> FloatArray:
    """Weights of the nodes, by load; the shorter ones are continued with 0."""
    if all(len(law.weights) == width for law in running):
        return np.array([law.weights for law in running])
    weights = np.zeros((len(running), width))
    for row, law in enumerate(running):
        weights[row, : len(law.weights)] = law.weights
    return weights


def _range_level(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    pace: Pace,
) -> int:
    """Level of the shortest range that holds all but the last 0.01 % of the law."""
    cycle = pace.mean_step / (1.0 - pace.prefill_ratio)
    arrivals = pace.prefill_ratio / max(demand.prefill_mean_seconds, _TINY_SECONDS) * cycle
    mean = 2.0 * cycle + prompts.mean_seconds
    square = prompts.second_moment_seconds2
    spread_n = demand.step_growth_seconds**2 * law_of_running.variance
    variance = (
        square - prompts.mean_seconds**2 + 3.0 * arrivals * square + 4.0 * spread_n + cycle**2
    )
    reach = mean + max(_RANGE_SPREADS * math.sqrt(variance), prompts.longest_seconds)
    return math.ceil(math.log(reach) / math.log(RANGE_RATIO))
