"""Time to first token below the cap: the rest of a step, then the steps that prefill the prompt.

Law: length-biased steps, and the compound Poisson law of the prompts that come meanwhile.
Source: W. Feller, An Introduction to Probability Theory and Its Applications II (1971), chapter XI;
percentiles by F. Fang and C. W. Oosterlee (2008), see `transform`.
Assumes: Poisson arrivals in each arrival-rate state; a step holds all prompts that wait.
Fails: steps that are mostly prefill, see `pool_vacancies`, or full of it, see `arrival_states`.
Shown by: `make validate`, "one replica, Poisson": TTFT p95 within 8 %.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from servingslo.models.engine.service_time import ComplexArray, FloatArray, RequestDemand
from servingslo.models.numerics import TINY_NUMBER, TINY_SECONDS
from servingslo.models.rows import columns, stack
from servingslo.models.running.occupancy import Occupancy, even_moments
from servingslo.models.running.occupancy_levels import Pool, level_at_arrival
from servingslo.models.transform import TabulatedLaw, invert
from servingslo.models.waits.arrival_states import ArrivalState, range_level, states_seen
from servingslo.models.waits.branching import Branching, grow
from servingslo.models.waits.pool_vacancies import even_arrivals
from servingslo.models.waits.prompt_work import (
    RANGE_RATIO,
    OwnPrefill,
    PromptTable,
    PromptWork,
    mean_steps,
    own_prefill,
)

# States whose arrays are computed together. Larger arrays are returned to the operating system
# after each use, and every allocation then makes new pages.
_BLOCK = 16
# Nodes of a law of running sequences are evenly spaced; this is the most there are.
_OFFSETS: FloatArray = np.arange(32.0)
# Further steps, and prefill, that move no percentile by more than 0.1 %.
_NEGLIGIBLE_FURTHER = 1e-3
_NEGLIGIBLE_PREFILL = 1e-5


class Arrival(NamedTuple):
    """Arrivals at one rate and one load, and the range of the law that they belong to.

    even_ratio: share of the arrivals of a replica that comes evenly over a step.
    """

    running: Occupancy
    state: ArrivalState
    level: int
    even_ratio: float


def first_token_laws(
    demand: RequestDemand,
    prompts: PromptWork,
    laws_of_running: Sequence[Occupancy],
    rates_per_second: Sequence[float],
    budget_tokens: float,
) -> list[TabulatedLaw]:
    """Return laws of the time to first token without a wait for a slot, in seconds, by load.

    An arrival finds n running and a step of length D in progress, sampled in proportion to D. It
    waits for the rest of D, evenly distributed over it. The next step holds its own prompt and all
    prompts that came during D. Given n, steps form a branching process: D = s + c·Σ I over the
    arrivals of the previous D, with s = a + β·n, so that E[exp(zD)] = exp(s·g(z)) with g(z) = z +
    g(λ·(M(z) − 1)) and M the transform of c·I. Then E[exp(zT)] = M(z)·(exp(s·(z + g(z + z₁))) −
    exp(s·g(z)))·(1 − λcI)/(s·z), z₁ = λ(M(z) − 1), averaged over n and over the arrival-rate
    states. In a pool only the share e of the arrivals comes as above, see `pool_vacancies`. The
    others fill the vacancies that existed when the step began, whatever its length, a Poisson
    number of them with the mean of a step. A vacancy is among the least loaded replicas at the rate
    at which vacancies are made, (1 − e)λ, over that at which they are filled, κ. So κ = λ/(1/c + (1
    − 1/c)(1 − e)λ/κ), and the age t of the step has the density e^(−κt), κ = λ(1 + (c − 1)e).
    """
    arrivals: list[Arrival] = []
    starts, levels = [], []
    for running, rate in zip(laws_of_running, rates_per_second, strict=True):
        states = states_seen(demand, prompts, running, rate, budget_tokens)
        levels.append(range_level(demand, prompts, running, states[-1]))
        starts.append(len(arrivals))
        arrivals += [
            Arrival(running, state, levels[-1], _even_ratio(demand, running, state))
            for state in states
        ]
    blocks = [
        _characteristics(demand, prompts, arrivals[start : start + _BLOCK])
        for start in range(0, len(arrivals), _BLOCK)
    ]
    characteristic = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    if len(arrivals) > len(starts):
        characteristic *= np.array([arrival.state.share for arrival in arrivals])[:, None]
        characteristic = np.add.reduceat(characteristic, starts)
    return invert(characteristic, [RANGE_RATIO**level for level in levels])


def _even_ratio(demand: RequestDemand, running: Occupancy, state: ArrivalState) -> float:
    step = state.mean_step / (1.0 - state.prefill_ratio)
    return even_arrivals(demand, state.rate_per_second, step, running.pool_count, state.further)


class _Flow(NamedTuple):
    """Numbers of `_characteristics` that are constant within a state.

    even: arrivals per second that come evenly. kappa: see `first_token_laws`. filling: arrivals
    that fill vacancies, for each second of a step without prefill. mean: seconds of prefill that a
    prompt causes. less_lag: −E[S²]/(2·E[S]) of it. filling_share: share of the arrivals that fill
    vacancies, times κ.
    """

    even: float
    kappa: float
    filling: float
    mean: float
    less_lag: float
    filling_share: float


def _flow_of(
    demand: RequestDemand, prompts: PromptWork, arrival: Arrival
) -> tuple[_Flow, Branching]:
    """Return a state's numbers, and its even arrivals plus those that fill vacancies."""
    state, even = arrival.state, arrival.even_ratio
    rate, mean = state.rate_per_second, demand.prefill_mean_seconds
    kappa = rate * (1.0 + (arrival.running.pool_count - 1.0) * even)
    lag = prompts.lag_seconds * (1.0 + state.further / max(mean, TINY_SECONDS))
    filling = rate * (1.0 - even) / (1.0 - state.prefill_ratio)
    flow = _Flow(rate * even, kappa, filling, mean + state.further, -lag, (1.0 - even) * kappa)
    return flow, Branching(rate * even, state.prefill_ratio * even, lag, filling)


def _work(demand: RequestDemand, prompts: PromptWork, arrival: Arrival) -> PromptTable:
    """Return transforms of the prefill of other prompts, with the further steps that they take."""
    state, mean = arrival.state, demand.prefill_mean_seconds
    if state.prefill_ratio < _NEGLIGIBLE_PREFILL or state.further <= _NEGLIGIBLE_FURTHER * mean:
        return prompts.table(arrival.level)
    return prompts.stretch(arrival.level, 1.0 + state.further / mean)


def _characteristics(
    demand: RequestDemand, prompts: PromptWork, arrivals: Sequence[Arrival]
) -> FloatArray:
    """Return the real part of the characteristic function of `first_token_laws`, by state.

    Rows of the exponents below: the step in progress together with arrivals after the request;
    arrivals before it; and, in pools, the latter less κ, for arrivals that fill vacancies.
    """
    works = [_work(demand, prompts, arrival) for arrival in arrivals]
    z, excess, slope = (stack([getattr(w, name) for w in works]) for name in _TRANSFORMS)
    pooled = any(arrival.even_ratio < 1.0 for arrival in arrivals)
    flows, branchings = zip(
        *[_flow_of(demand, prompts, arrival) for arrival in arrivals], strict=True
    )
    even, kappa, filling, mean, less_lag, filling_share = columns(flows)
    arriving = np.empty((2 if pooled else 1, *z.shape), dtype=np.complex128)
    np.multiply(excess, even, out=arriving[0])
    if pooled:
        np.subtract(arriving[0], kappa, out=arriving[1])
    # Arrivals times the prefill of the prompts of a step, λ·(M(w) − 1) for each row w: to first
    # order in w for the step in progress, and with two moments of the prefill for the others.
    lagged = arriving / (1.0 + arriving * less_lag)
    exponents = np.empty((1 + len(arriving), *z.shape), dtype=np.complex128)
    exponents[0] = lagged[0] * slope + excess
    exponents[1:] = lagged * mean
    grow(exponents, branchings)
    # The next step holds the own prompt, and those of the arrivals that fill vacancies.
    exponents[0] += arriving[0] + z
    exponents[1:] += arriving
    exponents += z + excess * filling
    mixtures = _average(demand, exponents, arrivals)
    evenly = z.copy()
    evenly[..., 0] = 1.0
    seen = (mixtures[0] - mixtures[1]) / evenly
    if pooled:
        # Both kinds of arrivals in their proportion; a single replica has no vacancies to fill.
        filled = mixtures[0] - mixtures[2]
        whole = filled[..., :1].real
        share = np.divide(filling_share, whole, out=np.zeros_like(whole), where=whole != 0.0)
        seen += filled / (z + kappa) * share
    own = stack([_own_prefill(demand, prompts, arrival) for arrival in arrivals])
    characteristic: FloatArray = (seen * own).real
    _meet_idle(demand, prompts, arrivals, characteristic, own, z)
    characteristic = characteristic.reshape(len(arrivals), -1)
    characteristic[:, 0] = 1.0
    return characteristic


_TRANSFORMS = "z", "excess", "slope"


def _own_prefill(demand: RequestDemand, prompts: PromptWork, arrival: Arrival) -> ComplexArray:
    """Return the transform of the own prefill, with the arrivals while it lasts several steps.

    A pool of c sends arrivals where sequences leave: n/O of them at the end of a step, however long
    it was, and 1/c of the rest.
    """
    running, state = arrival.running, arrival.state
    full_step = state.mean_step + demand.prefill_per_token_seconds * state.room_tokens
    arriving, shared = state.rate_per_second * full_step, 1.0 / running.pool_count
    leaving = min(running.mean / demand.output_mean_tokens, arriving)
    coming = shared * arriving + (1.0 - shared) * leaving
    own = OwnPrefill(state.mean_step, state.room_tokens, coming)
    return own_prefill(demand, prompts, arrival.level, own)


def _meet_idle(
    demand: RequestDemand,
    prompts: PromptWork,
    arrivals: Sequence[Arrival],
    characteristic: FloatArray,
    own: ComplexArray,
    z: ComplexArray,
) -> None:
    """Let some arrivals find a replica idle, in place: they take their own prefill and a step."""
    pools = [_pool_of(prompts, arrival) for arrival in arrivals]
    shares = [level_at_arrival(demand, pool).free for pool in pools]
    if any(shares):
        (idle,) = columns([(share,) for share in shares])
        characteristic *= 1.0 - idle
        characteristic += idle * (own * np.exp(z * demand.step_fixed_seconds)).real


def _pool_of(prompts: PromptWork, arrival: Arrival) -> Pool:
    """Return the replicas that share the arrivals; each prompt's steps have the whole room."""
    running, state = arrival.running, arrival.state
    return Pool(
        running.pool_count,
        state.rate_per_second,
        running.mean,
        running.variance,
        state.mean_step,
        mean_steps(prompts, state.room_tokens),
    )


def _average(
    demand: RequestDemand, exponents: ComplexArray, arrivals: Sequence[Arrival]
) -> ComplexArray:
    """Σ w·exp(s·x)/s over the steps s of each state, at each exponent x, by two cumulants of s.

    Steps are met in proportion to their length; s·x is the wait of an arrival. Steps spread by a
    tenth or two of their mean, which is the lesser part of the spread of a time to first token: the
    third cumulant moves no row of `make validate`.
    """
    lines = [_steps_of(demand, arrival) for arrival in arrivals]
    masses = even_moments(_step_weights(lines, arrivals))
    square, mean, mass = columns(
        [
            (
                0.5 * line[1] ** 2 * variance,
                line[0] + line[1] * place,
                math.log(whole),
            )
            for line, (whole, place, variance) in zip(lines, masses, strict=True)
        ]
    )
    logs = (exponents * square + mean) * exponents
    # No transform is above its mass.
    np.minimum(logs.real, 0.0, out=logs.real)
    logs += mass
    averaged: ComplexArray = np.exp(logs)
    return averaged


def _steps_of(demand: RequestDemand, arrival: Arrival) -> tuple[float, float, float]:
    """Return the shortest step, the addition of one more node, and a mean step per even arrival."""
    running, state = arrival.running, arrival.state
    growth = demand.step_growth_seconds * state.spread
    first = state.mean_step + growth * (running.lowest - running.mean)
    below = max(running.below_cap, TINY_NUMBER)
    per_even = below / (1.0 - state.prefill_ratio) / arrival.even_ratio
    return first, growth * running.spacing, per_even


def _step_weights(
    lines: Sequence[tuple[float, float, float]], arrivals: Sequence[Arrival]
) -> FloatArray:
    """Weights of the steps of each state over their length; shorter rows are padded with 0."""
    first, spacing, scale = columns(lines)
    laws = [arrival.running.weights for arrival in arrivals]
    width = max(len(law) for law in laws)
    weights = np.zeros((len(arrivals), width))
    for row, law in enumerate(laws):
        weights[row, : len(law)] = law
    weights /= (first + _OFFSETS[:width] * spacing) * scale
    return weights
