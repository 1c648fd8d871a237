"""Time to first token below the cap: the rest of a step, then the steps that prefill the prompt."""

import math

import numpy as np

from servingslo.models.occupancy import Occupancy, even_moments
from servingslo.models.paces import LEAST_FULL_RATIO, Pace, budget_queue, paces_met
from servingslo.models.prompt_work import RANGE_RATIO, PromptWork
from servingslo.models.queueing import erlang_c
from servingslo.models.service_time import ComplexArray, FloatArray, RequestDemand
from servingslo.models.transform import TabulatedLaw, invert

_RANGE_SPREADS = 9.0
# Later generations and further steps that move no percentile by more than 0.1 %.
_NEGLIGIBLE_GENERATION = 4e-3
_NEGLIGIBLE_FURTHER = 1e-3
_GENERATIONS = 3
_LEAST_BRANCHING = 0.05
_TINY_SECONDS = 1e-12
_ROUNDING = 1e-6


def first_token_law(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> TabulatedLaw:
    """Law of the time to first token of requests that do not wait for a slot, in seconds.

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
    paces = paces_met(demand, prompts, law_of_running, rate_per_second, budget_tokens)
    level = _range_level(demand, prompts, law_of_running, paces[-1])
    characteristic = _characteristic(demand, prompts, level, law_of_running, paces[0])
    if len(paces) > 1:
        characteristic *= paces[0].share
        for pace in paces[1:]:
            other = _characteristic(demand, prompts, level, law_of_running, pace)
            characteristic += pace.share * other
    return invert(characteristic, RANGE_RATIO**level)


def _characteristic(
    demand: RequestDemand,
    prompts: PromptWork,
    level: int,
    law_of_running: Occupancy,
    pace: Pace,
) -> ComplexArray:
    """Characteristic function of `first_token_law` at one rate of arrivals."""
    rate, further, prefill_ratio = pace.rate_per_second, pace.further, pace.prefill_ratio
    table = prompts.table(level)
    z, excess, slope = table.z, table.excess, table.slope
    if further > _NEGLIGIBLE_FURTHER * demand.prefill_mean_seconds:
        stretched = prompts.stretched(level, 1.0 + further / demand.prefill_mean_seconds)
        excess, slope = stretched.excess, stretched.slope
    lag = prompts.lag_seconds * (1.0 + further / max(demand.prefill_mean_seconds, _TINY_SECONDS))
    mean = demand.prefill_mean_seconds + further
    pool = _pool_count(demand, law_of_running, pace)
    meeting = rate / pool
    kappa = 2.0 * rate / (1.0 + 1.0 / pool)
    slack = 1.0 - prefill_ratio
    behind = 1.0 - pace.budget_ratio if pace.budget_ratio > LEAST_FULL_RATIO else 1.0
    filling = (rate - meeting) / slack
    # What arrives during the step in progress w, which is left at its end; and less κ, for arrivals
    # that fill holes.
    arriving = np.empty((2 if pool > 1 else 1, len(z)), dtype=np.complex128)
    np.multiply(excess, meeting, out=arriving[0])
    if pool > 1:
        np.subtract(arriving[0], kappa, out=arriving[1])
    # Rows: the step in progress together with what arrives during it; what arrives; and that for
    # arrivals that fill holes. Arrivals times the prefill of the prompts of a step, λ·(M(w) − 1)
    # for each row: to first order in w for the first, and with the first two moments of the prefill
    # for the others.
    lagged = arriving * -lag
    lagged += 1.0
    np.divide(arriving, lagged, out=lagged)
    exponents = np.empty((len(arriving) + 1, len(z)), dtype=np.complex128)
    first = np.multiply(slope, lagged[0], out=exponents[0])
    if behind < 1.0:
        first *= behind
    first += excess
    np.multiply(lagged, mean, out=exponents[1:])
    _grow(exponents, meeting, prefill_ratio / pool, lag, 1.0 + filling / meeting)
    # The next step holds the own prompt, and those of the arrivals that fill holes.
    exponents[1:] += arriving
    first += arriving[0] if behind == 1.0 else arriving[0] * behind
    first += z
    exponents += z + filling * excess if pool > 1 else z
    cycles = max(1.0 - law_of_running.wait_probability, _TINY_SECONDS) / slack
    steps = pace.mean_step + (demand.step_growth_seconds * pace.spread) * (
        law_of_running.nodes - law_of_running.mean
    )
    scaled = law_of_running.weights / (steps * (pool * cycles))
    mixtures = _averaged(exponents, steps, scaled)
    met = mixtures[0] - mixtures[1:]
    met[0, 1:] /= z[1:] if behind == 1.0 else z[1:] - (1.0 - behind) * arriving[0, 1:]
    if pool > 1:
        # Both kinds of arrivals in their proportion, 1/c and the rest.
        share = (1.0 - 1.0 / pool) * kappa / float(met[1, 0].real)
        met[0] += np.multiply(met[1], share / (z + kappa), out=met[1])
    own = table.mgf
    if prompts.tokens[-1] > pace.room_tokens:
        own = _own_with_further_steps(demand, prompts, level, pace, law_of_running)
    characteristic: ComplexArray = own * met[0]
    characteristic[0] = 1.0
    return characteristic


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


def _own_with_further_steps(
    demand: RequestDemand,
    prompts: PromptWork,
    level: int,
    pace: Pace,
    law_of_running: Occupancy,
) -> ComplexArray:
    """Transform of a request's own prefill when prompts longer than the budget take more steps.

    Each step before the last costs s, and the prompts that arrive during these full steps (Poisson)
    share the last one: each of them up to the room that is left there, and all together no more
    than that on average. A pool of c sends arrivals where sequences leave, which is n/O of them at
    the end of a step however long it was, and 1/c of the rest.
    """
    table = prompts.table(level)
    long = prompts.long_prompts(level, pace.room_tokens)
    full_step = pace.mean_step + demand.prefill_per_token_seconds * pace.room_tokens
    arriving = pace.rate_per_second * full_step
    leaving = law_of_running.mean / demand.output_mean_tokens
    pool = law_of_running.pool_count
    others = (arriving / pool + (1.0 - 1.0 / pool) * min(leaving, arriving)) * long.full_steps
    np.minimum(others, long.most_sharing, out=others)
    delayed = long.sharing * others[:, None]
    delayed += np.multiply.outer(long.full_steps, pace.mean_step * table.z)
    np.exp(delayed, out=delayed)
    delayed -= 1.0
    delayed *= long.own
    own: ComplexArray = np.add.reduce(delayed)
    own += table.mgf
    return own


def _grow(
    lumps: ComplexArray, rate_per_second: float, prefill_ratio: float, lag: float, scale: float
) -> None:
    """Turn prefill of one prompt, less 1, into that of arrivals and all their generations, scaled.

    With v = λ·(M − 1) the transform of one generation is replaced by ρ·v/(1 − L·v), L =
    E[S²]/(2·E[S]), which has the same first two moments and stays bounded. Such maps compose: the
    k-th generation is ρ^k·v/(1 − L_k·v), L_k = L·(1 + ρ + … + ρ^(k−1)). What follows the last is
    taken as its mean.
    """
    if prefill_ratio < _LEAST_BRANCHING:
        lumps *= rate_per_second * scale / (1.0 - prefill_ratio)
        return
    total: ComplexArray | None = None
    share, reach = prefill_ratio, lag
    for generation in range(1, _GENERATIONS + 1):
        last = generation == _GENERATIONS or share * prefill_ratio < _NEGLIGIBLE_GENERATION
        current = lumps * (-reach * rate_per_second)
        current += 1.0
        np.divide(scale * (share / (1.0 - prefill_ratio) if last else share), current, out=current)
        total = current if total is None else np.add(total, current, out=total)
        if last:
            break
        reach += lag * share
        share *= prefill_ratio
    assert total is not None  # noqa: S101 - there is a first generation
    total += scale
    total *= rate_per_second
    lumps *= total


def _averaged(exponents: ComplexArray, steps: FloatArray, weights: FloatArray) -> ComplexArray:
    """Σ w·exp(s·x) over evenly spaced steps s, at each exponent x, by three cumulants of s.

    Steps spread by a tenth or two of their mean, with little skewness, and make the lesser part of
    the spread of a time to first token: what the fourth cumulant would add is below 0.1 %.
    """
    mass, mean, variance, third = even_moments(weights)
    spacing = float(steps[1] - steps[0]) if len(steps) > 1 else 0.0
    total: ComplexArray = exponents * (spacing**3 * third / 6.0)
    total += 0.5 * spacing**2 * variance
    total *= exponents
    total += float(steps[0]) + spacing * mean
    total *= exponents
    total += math.log(mass)
    if np.maximum.reduce(total.real, axis=None) > math.log(mass) + _ROUNDING:
        # No transform is above its mass: steps too spread for a series, so each by itself.
        by_step = np.exp(np.multiply.outer(steps, exponents))
        by_step *= weights[:, None, None]
        np.add.reduce(by_step, out=total)
    else:
        np.exp(total, out=total)
    return total


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
