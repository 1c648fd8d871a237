"""How many sequences run on a replica: the law of the number in system, with its cap.

Law: processor sharing slowed by prefill: negative binomial below the cap, geometric above it.
Source: F. P. Kelly, Reversibility and Stochastic Networks (1979), chapter 3, symmetric queues;
diffusion limits for F and above the cap, J. F. C. Kingman (1962), L. Allen and A. Cunneen (1990).
Assumes: Poisson arrivals, or bursts that running sequences follow as a linear filter.
Fails: next to saturation, and bursts that nearly fill the engine.
Shown by: `make validate`, column n of every row: within 3 % with Poisson arrivals.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from servingslo.models.engine.service_time import FloatArray, RequestDemand
from servingslo.models.numerics import LEAST_MASS, ROUNDING, SMALL_RATIO
from servingslo.models.rows import columns
from servingslo.models.running.bursts import STEADY, Bursts, bursts_of

# Quadrature nodes over the number in system: Gaussian-like laws need a node per 0.8 standard
# deviations for four digits (trapezoid rule), and the range below is eleven of them wide. Measured:
# twice as many nodes move means and percentiles by 0.2 % at most in 95 of 100 loads, 1.1 % in all;
# a range of 6 and 9 deviations at the same spacing by 0.1 and 0.8 %.
_NODE_COUNT = 14
INDEX_CENTRE = 0.5 * _NODE_COUNT
# One more than the nodes: a lattice of whole numbers may end on both sides.
_NODES: FloatArray = np.arange(_NODE_COUNT + 3.0)
_OFFSETS: FloatArray = _NODES - INDEX_CENTRE
_INDEX_POWERS: FloatArray = np.stack((_OFFSETS**0, _OFFSETS, _OFFSETS**2), axis=1)
_SPREAD_BELOW = 4.5
_SPREAD_ABOVE = 6.5
# Beyond this the negative binomial law has no mean; no load below saturation comes near it.
_LARGEST_BUSY_RATIO = 0.999
# Rounds of a fixed point: twice as many change nothing by 1e-5.
_BURST_ITERATIONS = 4


class BudgetBound(NamedTuple):
    """A binding token budget: tokens of a step, and the running sequences at saturation.

    More may run for a while: prompts wait for room, whatever number of sequences runs.
    """

    tokens: float
    running_count: float


NO_BUDGET = BudgetBound(math.inf, math.inf)


class ReplicaLoad(NamedTuple):
    """The load of one replica, and the bounds of its running sequences.

    rate_per_second: arrivals of one replica. factor: F of `variability_factor`.
    cap: running sequences of one replica. saturation_rate_per_second: of one replica at the cap.
    pool_count: replicas that act as one queue, 1 for a single replica. queue_factor: variability of
    the queue above the cap, see the function of that name. bursts: of the arrivals of one replica,
    `STEADY` if they are not burstier than Poisson. budget: the token budget if it bounds the
    running sequences, else `NO_BUDGET`.
    """

    rate_per_second: float
    factor: float
    cap: float
    saturation_rate_per_second: float
    pool_count: int
    queue_factor: float
    bursts: Bursts
    budget: BudgetBound


class Occupancy(NamedTuple):
    """Law of the running sequences on one replica, and of waiting for a slot.

    lowest, spacing: the least number of running sequences with a weight, and the distance to the
    next one. weights: probabilities of these; the rest to 1 waits for a slot. cap: running
    sequences at which an arrival waits. wait_probability: probability that an arrival finds that
    many.
    wait_rate_per_second: waits are exponential with this rate.
    pool_count: replicas that share arrivals. bursts: as in the load.
    mean, variance: of the running sequences over time.
    below_cap: sum of the weights.
    """

    weights: FloatArray
    lowest: float
    spacing: float
    cap: float
    wait_probability: float
    wait_rate_per_second: float
    mean: float
    variance: float
    pool_count: int
    bursts: Bursts
    below_cap: float


def variability_factor(
    demand: RequestDemand, rate_per_second: float, arrival_dispersion: float
) -> float:
    """Return the factor F by which batched prefill and bursts overdisperse the number in system.

    In a clock that stands still during prefill, the number in system is a processor-sharing queue
    with departures of dispersion 1, and arrivals come in clusters: each arrival's prefill lets
    further arrivals in (a branching process with mean offspring p = λ·c·I). The dispersion of the
    clustered arrivals is (C_a² + λ²·c²·Var I)/(1 − p)², and the diffusion limit takes the average
    of both dispersions.
    """
    prefill_ratio = rate_per_second * demand.prefill_mean_seconds
    variance = demand.uncached_second_moment_tokens2 - demand.uncached_mean_tokens**2
    batch_work = (rate_per_second * demand.prefill_per_token_seconds) ** 2 * max(variance, 0.0)
    clustered = (arrival_dispersion + batch_work) / (1.0 - prefill_ratio) ** 2
    lengths = demand.output_dispersion
    return (clustered + lengths) / (1.0 + lengths)


def running_mean(demand: RequestDemand, rate_per_second: float, factor: float) -> float:
    """Return the mean running sequences of one replica with this factor F, without a cap.

    That of a negative binomial law to the power 1/F: (O·a/(O·β) + F)·ρ′/(1 − ρ′).
    """
    slack = 1.0 - rate_per_second * demand.prefill_mean_seconds
    ratio = min(rate_per_second * demand.decode_seconds / slack, _LARGEST_BUSY_RATIO)
    return (demand.fixed_seconds * rate_per_second / slack + factor * ratio) / (1.0 - ratio)


def followed_bursts(
    demand: RequestDemand,
    rate_per_second: float,
    excess_dispersion: float,
    correlation_seconds: float,
    pool_count: int,
    cap: float,
) -> Bursts:
    """Return the bursts of a replica's arrivals, as its running sequences meet them.

    Bursts lengthen the residences over which their dispersion is taken: a fixed point.
    """
    bursts, followed = STEADY, excess_dispersion
    for _ in range(_BURST_ITERATIONS):
        factor = variability_factor(demand, rate_per_second, 1.0 + followed * pool_count)
        mean = min(running_mean(demand, rate_per_second, factor / pool_count), cap)
        bursts = bursts_of(demand, rate_per_second, excess_dispersion, correlation_seconds, mean)
        followed = bursts.relaxed_excess
    return bursts


def service_dispersion(demand: RequestDemand, cap: float, *, budget_binds: bool) -> float:
    """Return C_s² of the queue above the cap: that of one request's work O·(a/N + β) + c·I.

    If the token budget binds, the queue is one for prefill, and C_s² that of the prompts.
    """
    prompt = demand.uncached_second_moment_tokens2 - demand.uncached_mean_tokens**2
    if budget_binds and demand.uncached_mean_tokens > 0.0:
        return prompt / demand.uncached_mean_tokens**2
    decode = demand.fixed_seconds / max(cap, 1.0) + demand.decode_seconds
    variance = demand.output_dispersion * decode**2
    variance += demand.prefill_per_token_seconds**2 * max(prompt, 0.0)
    work = decode + demand.prefill_mean_seconds
    return variance / work**2


def queue_factor(arrival_dispersion: float, dispersion_of_service: float) -> float:
    """Return the variability of the queue above the cap, (C_a² + C_s²)/2.

    With all slots taken prefill follows departures, so arrivals bring no clusters.
    Source: Allen–Cunneen approximation (1990).
    """
    return 0.5 * (arrival_dispersion + dispersion_of_service)


def occupancies(demand: RequestDemand, loads: Sequence[ReplicaLoad]) -> list[Occupancy]:
    """Return laws of the running sequences on one replica of a pool that shares arrivals, by load.

    Below the cap the pool is a processor-sharing queue, insensitive to output lengths, whose number
    in system is negative binomial with r = c·O·a/(O·β) + 1 and success parameter 1 − ρ′. Here β = b
    + d·k is the growth of a step per sequence and ρ′ = λ·O·β/(1 − λ·c·I): prefill belongs to
    arrivals, so it slows the clock instead of growing with n. The density becomes p^(1/F). Above
    the cap it is geometric in the ratio of arrival rate to saturation rate, to the power
    1/queue_factor.
    Source: F. P. Kelly, Reversibility and Stochastic Networks (1979), symmetric queues; the F is a
    diffusion argument, see `variability_factor`.
    """
    lattices = [lattice_of(demand, load) for load in loads]
    width = max(lattice.node_count for lattice in lattices)
    low, step, shape, slope = columns(
        [(at.low, at.step, at.shape, math.log(at.ratio)) for at in lattices]
    )
    totals = _NODES[:width] * step
    totals += low
    logs = gammaln(totals + (shape + 1.0))
    logs -= gammaln(totals + 1.0)
    logs += totals * slope
    # The density of a diffusion with variability F is that of one with 1, to the power 1/F.
    (inverse,) = columns([(1.0 / load.factor,) for load in loads])
    logs *= inverse
    logs = logs.reshape(len(loads), -1)
    for row, lattice in enumerate(lattices):
        if lattice.node_count < width:
            logs[row, lattice.node_count :] = -math.inf
    logs -= np.maximum.reduce(logs, axis=-1)[..., None]
    density = np.exp(logs, out=logs)
    weights = step * density
    weights[:, :1] = 0.5 * (step + 1.0) * density[:, :1]
    tails = [
        above_cap(load, lattice, density[row], weights[row])
        for row, (load, lattice) in enumerate(zip(loads, lattices, strict=True))
    ]
    moments = even_moments(weights)
    masses = [(inner[0] + tail[0],) for inner, tail in zip(moments, tails, strict=True)]
    weights /= columns(masses)[0]
    return [
        summarize(load, lattice, probabilities, inner, tail)
        for load, lattice, probabilities, inner, tail in zip(
            loads, lattices, weights, moments, tails, strict=True
        )
    ]


def even_moments(weights: FloatArray) -> list[tuple[float, float, float]]:
    """Return mass, mean and variance of weights at 0, 1, 2 and so on, by row."""
    return [central(*powers) for powers in (weights @ _INDEX_POWERS[: weights.shape[1]]).tolist()]


def central(mass: float, first: float, second: float) -> tuple[float, float, float]:
    """Return mass, mean and variance from sums of powers about the middle node."""
    mass = max(mass, LEAST_MASS)
    first /= mass
    # With all mass at one node only rounding is left.
    return mass, first + INDEX_CENTRE, max(second / mass - first**2, 0.0)


class _Lattice(NamedTuple):
    """Nodes over the total number in a pool (low, low + step and so on), and the law's parameters.

    at_cap: the last node is the cap.
    """

    low: float
    step: float
    node_count: int
    shape: float
    ratio: float
    at_cap: bool


def lattice_of(demand: RequestDemand, load: ReplicaLoad) -> _Lattice:
    """Spacing and nodes that cover the law of the total number, up to the cap if it is near."""
    decode = max(demand.decode_seconds, SMALL_RATIO * demand.fixed_seconds)
    slack = 1.0 - load.rate_per_second * demand.prefill_mean_seconds
    ratio = load.rate_per_second * decode / slack
    shape = load.pool_count * demand.fixed_seconds / decode
    top = load.cap * load.pool_count
    mean = (shape + load.factor) * ratio / (1.0 - ratio)
    spread = math.sqrt(load.factor * (shape + 1.0) * ratio) / (1.0 - ratio)
    low = max(0.0, min(mean - _SPREAD_BELOW * spread, top - 2.0 * _SPREAD_ABOVE * spread))
    high = min(top, mean + _SPREAD_ABOVE * spread + 4.0)
    if high - low <= _NODE_COUNT:
        low = math.floor(low) + (high - math.floor(high) if high == top else 0.0)
        step, count = 1.0, max(round(high - low), 1)
    else:
        step, count = (high - low) / _NODE_COUNT, _NODE_COUNT
    at_cap = low + step * count >= top * (1.0 - ROUNDING)
    return _Lattice(low, step, count + 1, shape, ratio, at_cap)


def above_cap(
    load: ReplicaLoad,
    lattice: _Lattice,
    density: FloatArray,
    weights: FloatArray,
) -> tuple[float, float]:
    """Return the weight of the states with all slots taken, and the rate at which a wait ends.

    The weight of the last node becomes that of its part below the cap.
    """
    saturation = load.saturation_rate_per_second
    ratio = min(load.rate_per_second / saturation, 1.0) ** (1.0 / load.queue_factor)
    waiting = 0.0
    if lattice.at_cap:
        last = lattice.node_count - 1
        at_cap = float(density[last])
        weights[last] = 0.5 * (lattice.step - 1.0) * at_cap
        # Diffusion: variability times density is continuous where the variability jumps.
        waiting = at_cap * load.factor / (load.queue_factor * (1.0 - ratio))
    return waiting, load.pool_count * saturation * (1.0 - ratio)


def summarize(
    load: ReplicaLoad,
    lattice: _Lattice,
    weights: FloatArray,
    below: tuple[float, float, float],
    above: tuple[float, float],
) -> Occupancy:
    """Return the law with its moments, from the nodes below the cap and the mass above it.

    If the budget bounds, arrivals wait when they find as many running as it carries.
    """
    first, inner_mean, inner_variance = below
    mass = first + above[0]
    waiting, inner = above[0] / mass, first / mass
    spacing = lattice.step / load.pool_count
    low = lattice.low / load.pool_count
    inside = low + spacing * inner_mean
    mean = inner * inside + waiting * load.cap
    off, over = inside - mean, load.cap - mean
    square = spacing**2 * inner_variance
    return Occupancy(
        weights=weights,
        lowest=low,
        spacing=spacing,
        cap=load.cap,
        wait_probability=waiting + at_budget(load.budget, low, spacing, weights),
        wait_rate_per_second=above[1],
        mean=mean,
        variance=inner * (square + off**2) + waiting * over**2,
        pool_count=load.pool_count,
        bursts=load.bursts,
        below_cap=inner,
    )


def at_budget(budget: BudgetBound, low: float, spacing: float, weights: FloatArray) -> float:
    """Return the probability of at least as many running sequences as the budget carries.

    A node represents half a spacing on both sides. If nodes were counted whole, the probability
    would jump as they move with the load.
    """
    if budget.running_count == math.inf:
        return 0.0
    reached = np.arange(len(weights)) + (0.5 + (low - budget.running_count) / spacing)
    return float(weights @ np.minimum(np.maximum(reached, 0.0), 1.0))
