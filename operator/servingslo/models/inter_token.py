"""Moments of the time per output token of one request: the average of its steps.

Source: level crossing and conservation of time, P. H. Brill, Level Crossing Methods in Stochastic
Models (2008); sums of a stationary process over a stay; docs/designs/0002-models.md, "What was
added".
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from servingslo.models.bursts import (
    STEADY,
    Bursts,
    lasting_change,
    remembered_share,
    swing_of,
    unchanged_share,
)
from servingslo.models.gap_prefill import Met, prefill_in_gaps
from servingslo.models.occupancy import Occupancy, cluster_third_moment
from servingslo.models.output_laws import GapMoments, OutputGaps
from servingslo.models.pools import Shared, idle_met, never_idle
from servingslo.models.rows import spread_columns
from servingslo.models.service_time import FloatArray, RequestDemand

# Against divisions by zero: shares of a load, and variances where nothing varies.
_LEAST_RATIO = 1e-9
_LEAST_CUBE = 1e-30
# Variance of the running sequences among the replicas of a pool that sends to the least loaded: 1/2
# on two (chain of their difference), 1/6 on very many; the middle. Either end moves a mean or a
# percentile by 2 % at most in 95 of 100 loads. See docs/designs/0002-models.md.
_POOL_VARIANCE = 1.0 / 3.0
Powers = tuple[FloatArray, FloatArray, FloatArray]


class GapLoad(NamedTuple):
    """What requests meet while they decode: a rate of arrivals, and the law of running sequences.

    rate_per_second: of one replica. mean, variance, third_moment: of the running sequences.
    wait_probability, pool_count, bursts: as in `Occupancy`. prefill_steps: mean number of steps
    that prefill a prompt.
    """

    rate_per_second: float
    mean: float
    variance: float
    third_moment: float
    wait_probability: float
    pool_count: int
    bursts: Bursts
    prefill_steps: float


def gap_load(law_of_running: Occupancy, rate_per_second: float, prefill_steps: float) -> GapLoad:
    """What requests meet at this load; prefill_steps: mean number of steps of a prompt."""
    return GapLoad(
        rate_per_second=rate_per_second,
        mean=law_of_running.mean,
        variance=law_of_running.variance,
        third_moment=law_of_running.third_moment,
        wait_probability=law_of_running.wait_probability,
        pool_count=law_of_running.pool_count,
        bursts=law_of_running.bursts,
        prefill_steps=prefill_steps,
    )


def gap_moments(
    demand: RequestDemand, output: OutputGaps, loads: Sequence[GapLoad], budget_tokens: float
) -> list[GapMoments]:
    """Moments of the time per output token given the output length, in seconds, by load.

    Three parts. (1) The step s = a + β·n with the request itself among the n: mean conditional
    sojourns of processor sharing are linear in the length, so its mean is the same for all lengths.
    (2) Prefill that arrives during the gaps, see `prefill_in_gaps`. (3) Fluctuations of n averaged
    over the stay: in the clock that stops during prefill they forget at rate κ = (1 − βn/s)/(O·s),
    so that their variance shrinks by h(x) = 2(x − 1 + e^−x)/x², x = κ·(O − 1)·s; and arrivals raise
    prefill and n together, which adds the covariance β·s·C·h/(1 − p), where C = λ·E[N·W] is that
    of the counts N and the work W of the clusters that arrive together during prefill.
    """
    steps = [own_step(demand, load) for load in loads]
    busy = _finding_busy(demand, loads, steps)
    prefills = [
        first_token_after(demand, load, step, budget_tokens, share)
        for load, step, share in zip(loads, steps, busy, strict=True)
    ]
    numbers = [
        met_in_gaps(demand, load, step, prefill, budget_tokens, share)
        for load, step, prefill, share in zip(loads, steps, prefills, busy, strict=True)
    ]
    gaps, inverse, inverse_square, *rest = spread_columns(numbers, output.powers)
    powers, met = (gaps, inverse, inverse_square), Met(*rest)
    burst: tuple[FloatArray, FloatArray] | None = None
    if any(load.bursts.limit_excess > 0.0 for load in loads):
        burst = burst_in_gaps(powers, met)
    laws = (law.reshape(len(loads), -1) for law in moments_in_gaps(demand, powers, met, burst))
    return list(map(GapMoments, *laws, prefills, [load.prefill_steps for load in loads]))


def burst_in_gaps(powers: Powers, met: Met[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """What bursts add to the dispersion of counts over the stay, and to a gap, in seconds."""
    gaps, inverse, _ = powers
    slower = remembered_share(gaps * met.mean_step, met.correlation_seconds)
    excess = 1.0 - slower
    excess *= met.limit_excess
    slower *= met.slower
    slower += excess * inverse * met.over_stay
    return excess, slower


def moments_in_gaps(
    demand: RequestDemand,
    powers: Powers,
    met: Met[FloatArray],
    burst: tuple[FloatArray, FloatArray] | None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean, deviation and skewness of `gap_moments`; burst: of `burst_in_gaps`, None without."""
    gaps, inverse, _ = powers
    lumps = prefill_in_gaps(demand, powers, met, None if burst is None else burst[0])
    mean = lumps.reach * met.first_gaps
    mean += met.all_gaps
    if burst is not None:
        mean += burst[1]
    # 2(x − 1 + e^−x)/x² of x = forget·gaps, the inverse of forget being met.forget.
    averaging = np.expm1(gaps / -met.forget)
    forgotten = inverse * met.forget
    averaging *= forgotten
    averaging += 1.0
    averaging *= forgotten
    averaging *= 2.0
    third = np.sqrt(averaging)
    third *= met.skewness
    third += lumps.variance * met.lump_skewness
    third *= averaging
    third += lumps.third
    averaging *= met.variance
    variance = lumps.variance
    variance += averaging
    deviation = np.sqrt(variance)
    variance *= deviation
    third /= np.maximum(variance, _LEAST_CUBE)
    return mean, deviation, third


def states_of_bursts(
    demand: RequestDemand,
    output: OutputGaps,
    loads: Sequence[GapLoad],
    budget_tokens: float,
) -> list[tuple[tuple[FloatArray, GapMoments], ...]]:
    """Shares of requests, by output length, that meet one rate all along, and their moments.

    By load; nothing for one without bursts. The rest meet both rates, as the moments over all.
    """
    states = [_at_both_rates(demand, output, load) for load in loads]
    met = [load for pair in states for _, load in pair]
    if not met:
        return [()] * len(loads)
    moments = iter(gap_moments(demand, output, met, budget_tokens))
    return [tuple((share, next(moments)) for share, _ in pair) for pair in states]


def _at_both_rates(
    demand: RequestDemand, output: OutputGaps, load: GapLoad
) -> tuple[tuple[FloatArray, GapLoad], ...]:
    """Shares of requests that meet the lower and the higher rate all along, and what they meet."""
    bursts = load.bursts
    ratio = load.rate_per_second * demand.prefill_mean_seconds
    swing = swing_of(bursts, ratio)
    if swing == 0.0:
        return ()
    step = demand.step_fixed_seconds + demand.step_growth_seconds * load.mean
    unchanged = unchanged_share(output.gaps * (step / (1.0 - ratio)), bursts.correlation_seconds)
    return tuple(
        (0.5 * (1.0 + change) * unchanged, at_changed_rate(demand, load, change, swing))
        for change in (-swing, swing)
    )


def at_changed_rate(demand: RequestDemand, load: GapLoad, change: float, swing: float) -> GapLoad:
    """What requests meet that meet one of the two rates λ(1 ± swing) all along."""
    bursts = load.bursts
    ratio = load.rate_per_second * demand.prefill_mean_seconds
    step = demand.step_fixed_seconds + demand.step_growth_seconds * load.mean
    followed = bursts.followed_ratio * load.mean
    left = max(1.0 - (swing * followed) ** 2 / max(load.variance, _LEAST_CUBE), 0.0)
    lasting = lasting_change(bursts, change, step, ratio)
    return GapLoad(
        rate_per_second=load.rate_per_second * (1.0 + lasting),
        mean=max(load.mean + change * followed, 0.0),
        variance=left * load.variance,
        third_moment=left**1.5 * load.third_moment,
        wait_probability=load.wait_probability,
        pool_count=load.pool_count,
        bursts=STEADY,
        prefill_steps=load.prefill_steps,
    )


def own_step(demand: RequestDemand, load: GapLoad) -> float:
    """A step with the request itself, which is one more in the pool and spreads evenly."""
    return demand.step_fixed_seconds + demand.step_growth_seconds * (
        load.mean + 1.0 / load.pool_count
    )


def _finding_busy(
    demand: RequestDemand, loads: Sequence[GapLoad], steps: Sequence[float]
) -> list[float]:
    """Share of the arrivals of a pool that find no replica idle, by load; 1 for one replica.

    The others delay nobody, and nobody delays them: of the prefill that requests of a pool would
    meet as a rule only this share is met.
    """
    busy = [1.0] * len(loads)
    rows = [
        row
        for row, load in enumerate(loads)
        if load.pool_count > 1 and not never_idle(load.mean, load.variance)
    ]
    if rows:
        pools = [
            Shared(
                loads[row].pool_count,
                loads[row].rate_per_second,
                loads[row].mean,
                loads[row].variance,
                steps[row],
                loads[row].prefill_steps,
            )
            for row in rows
        ]
        for row, idle in zip(rows, idle_met(demand, pools), strict=True):
            busy[row] = 1.0 - idle
    return busy


def first_token_after(
    demand: RequestDemand, load: GapLoad, step: float, budget_tokens: float, busy: float
) -> float:
    """Time from the slot to the first token: own prefill, that of others, and their steps.

    Others have at most the room that the own prompt leaves in its last step.
    """
    rate, pool = load.rate_per_second, load.pool_count
    ratio = rate * demand.prefill_mean_seconds
    mean_step = step / (1.0 - ratio)
    alone = max(ratio / pool, _LEAST_RATIO)
    second = demand.prefill_per_token_seconds**2 * demand.uncached_second_moment_tokens2
    others = alone * (mean_step + rate * second / (1.0 - alone**2))
    others += (1.0 - 1.0 / pool) * (mean_step - step)
    others *= busy
    room = load.prefill_steps * (budget_tokens - load.mean) - demand.uncached_mean_tokens
    others = min(others, demand.prefill_per_token_seconds * max(room, 0.0))
    return others + demand.prefill_mean_seconds + load.prefill_steps * step


def met_in_gaps(
    demand: RequestDemand,
    load: GapLoad,
    step: float,
    prefill_seconds: float,
    budget_tokens: float,
    busy: float,
) -> Met[float]:
    """Numbers of this load that `prefill_in_gaps` and `gap_moments` are made of.

    step: see `own_step`. prefill_seconds: see `first_token_after`. busy: see `_finding_busy`.
    """
    rate, pool, growth = load.rate_per_second, load.pool_count, demand.step_growth_seconds
    per_token, tokens = demand.prefill_per_token_seconds, demand.uncached_mean_tokens
    slack = 1.0 - rate * demand.prefill_mean_seconds
    mean_step = step / slack
    ratio = max((1.0 - slack) / pool, _LEAST_RATIO)
    left, rest = 1.0 - ratio, 1.0 - ratio**2
    # Arrivals of a replica follow departures, see `prefill_in_gaps`.
    dispersion = 0.5 * (1.0 + 1.0 / pool)
    prompt_square = demand.uncached_second_moment_tokens2
    forget = demand.step_fixed_seconds / (step * demand.output_mean_tokens)
    # In a pool a replica gets its share of each cluster, and n is the average of all.
    own = (growth / slack) ** 2 * load.variance
    cluster = cluster_covariance(demand, load)
    full = own + growth * step * cluster / (slack * pool)
    bursts = load.bursts
    first_gaps, all_gaps = mean_gap(demand, load, step, prefill_seconds)
    return Met(
        mean_step,
        math.log(ratio),
        ratio,
        left,
        -1.0 / rest,
        1.0 + 2.0 * ratio / left - ratio**2 / rest,
        mean_step / left**2,
        step + per_token * min(tokens, budget_tokens),
        busy * per_token**2 * (prompt_square - tokens**2),
        busy * rate * per_token**2,
        busy * rate * per_token**3,
        prompt_square - (1.0 - dispersion) * tokens**2,
        demand.uncached_third_moment_tokens3,
        busy * first_gaps,
        step + busy * (all_gaps - step),
        1.0 / forget,
        full,
        law_skewness(demand, load, step, forget) * full**1.5,
        3.0 * own * slack / step,
        bursts.limit_excess,
        bursts.correlation_seconds,
        *slower_in_bursts(demand, load, step),
    )


def law_skewness(demand: RequestDemand, load: GapLoad, step: float, forget: float) -> float:
    """Skewness of n with that of the clusters that arrive together."""
    rate = load.rate_per_second
    jumps = cluster_third_moment(demand, rate) - rate / (1.0 - rate * demand.prefill_mean_seconds)
    # With all slots taken clusters wait instead of running.
    jumps *= 1.0 - load.wait_probability
    third = load.third_moment + jumps * step / (3.0 * forget * load.pool_count**2)
    skewness = third / math.sqrt(max(load.variance, 1e-12)) ** 3
    # No negative binomial law is more skewed; next to the cap the quotient loses its meaning.
    return min(skewness, 2.0 + 1.0 / math.sqrt(max(load.mean, _LEAST_RATIO)))


def cluster_covariance(demand: RequestDemand, load: GapLoad) -> float:
    """λ·E[N·W] of the counts and the work of the clusters that arrive together during prefill."""
    rate_per_second = load.rate_per_second
    slack = 1.0 - rate_per_second * demand.prefill_mean_seconds
    second = demand.prefill_per_token_seconds**2 * demand.uncached_second_moment_tokens2
    cluster = demand.prefill_mean_seconds / slack**2 + rate_per_second * second / slack**3
    # A burst reaches all replicas at once. Evener than Poisson counts as Poisson, on the safe side.
    cluster += load.pool_count * load.bursts.relaxed_excess * demand.prefill_mean_seconds / slack**2
    return rate_per_second * cluster


def mean_gap(
    demand: RequestDemand, load: GapLoad, step: float, prefill_seconds: float
) -> tuple[float, float]:
    """Mean time per output token, in seconds: what goes with reach, and what is in all gaps alike.

    By conservation of time: of all decoding, (O − 1)·s per request are steps and c·I per prompt
    times the sequences that decode while it is prefilled. A Poisson arrival finds as many as there
    are on average, and those that were in prefill decode by then, so that a gap takes
    s/(1 − p) + p·(T − D)/((1 − p)·(O − 1)) with T the prefill of one request and D a step: the
    first gaps hold what arrived during its own prefill.

    The least loaded replica of a pool of c has fewer than the average n. By level crossing an
    arrival finds what a departure leaves behind: (n + 1/c) + v/n − 1, as departures go with the
    number, v its variance within the pool. A pool lacks 1 − 1/c − v/n sequences, in all gaps alike,
    because arrivals come as others leave. v is 1/2 for two replicas (the chain of their difference)
    and 1/6 for very many (two levels next to each other); taken as 1/3. Below n = 1 what is lacking
    goes to 0 with n.
    """
    pool = load.pool_count
    slack = 1.0 - load.rate_per_second * demand.prefill_mean_seconds
    ratio = 1.0 - slack
    mean_step = step / slack
    excess = prefill_seconds - mean_step
    alone = max(ratio, _LEAST_RATIO) / pool
    first_gaps = alone * excess * (1.0 - alone) / slack
    if pool == 1:
        return first_gaps, mean_step
    lacking = (1.0 - 1.0 / pool - _POOL_VARIANCE / max(load.mean, 1.0)) * min(load.mean, 1.0)
    lacking = max(lacking, 0.0) / load.rate_per_second
    gaps = max(demand.output_mean_tokens - 1.0, 1.0)
    return first_gaps, mean_step + ratio / slack * ((1.0 - 1.0 / pool) * excess - lacking) / gaps


def slower_in_bursts(demand: RequestDemand, load: GapLoad, step: float) -> tuple[float, float]:
    """How much slower tokens are for requests, which come in bursts, than over time, in seconds.

    At a burst that lasts; and in proportion to the dispersion over the stay, per gap.
    An arrival finds the rate cv² above its mean, and n by the share of that which n follows. And
    steps grow faster than in proportion to the rate, 1/(1 − λcI), which the variance of the rate
    over the stay adds to.
    """
    bursts = load.bursts
    if bursts.limit_excess == 0.0:
        return 0.0, 0.0
    slack = 1.0 - load.rate_per_second * demand.prefill_mean_seconds
    ratio = (1.0 - slack) / slack
    prefill = step * ratio / slack
    decode = demand.step_growth_seconds * load.mean * bursts.followed_ratio / slack
    return (prefill + decode) * bursts.variance_ratio, ratio**2 / load.rate_per_second
