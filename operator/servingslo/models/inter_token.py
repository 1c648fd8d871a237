"""Moments of the time per output token of one request: the average of its steps."""

import math
from dataclasses import dataclass, replace

import numpy as np

from servingslo.models.bursts import Bursts
from servingslo.models.occupancy import Occupancy, cluster_third_moment
from servingslo.models.output_laws import GapMoments, OutputGaps
from servingslo.models.service_time import FloatArray, RequestDemand

_LEAST_RATIO = 1e-9
_LEAST_CUBE = 1e-30
_POOL_VARIANCE = 1.0 / 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lumps:
    """Prefill that is met in the gaps, by output length and per gap.

    reach: gaps that a prompt in the first of them delays. variance, third: cumulants, in powers of
    seconds. others_seconds: mean prefill of others in a request's own prefill steps.
    """

    reach: FloatArray
    variance: FloatArray
    third: FloatArray
    others_seconds: float


def gap_moments(
    demand: RequestDemand,
    output: OutputGaps,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
    prefill_steps: float,
) -> GapMoments:
    """Moments of the time per output token given the output length, in seconds.

    Three parts. (1) The step s = a + β·n with the request itself among the n: mean conditional
    sojourns of processor sharing are linear in the length, so its mean is the same for all lengths.
    (2) Prefill that arrives during the gaps, see `_prefill_in_gaps`. (3) Fluctuations of n averaged
    over the stay: in the clock that stops during prefill they forget at rate κ = (1 − βn/s)/(O·s),
    so that their variance shrinks by h(x) = 2(x − 1 + e^−x)/x², x = κ·(O − 1)·s; and arrivals raise
    prefill and n together, which adds the covariance β·s·C·h/(1 − p), where C = λ·E[N·W] is that
    of the counts N and the work W of the clusters that arrive together during prefill.
    prefill_steps: mean number of steps that prefill a prompt.
    """
    prefill_ratio = rate_per_second * demand.prefill_mean_seconds
    slack = 1.0 - prefill_ratio
    growth = demand.step_growth_seconds
    # The request is one more in the pool, which spreads evenly.
    pool = law_of_running.pool_count
    step = demand.step_fixed_seconds + growth * (law_of_running.mean + 1.0 / pool)
    lumps = _prefill_in_gaps(demand, output, rate_per_second, step, budget_tokens, law_of_running)
    lump_variance, lump_third = lumps.variance, lumps.third
    prefill_seconds = lumps.others_seconds + demand.prefill_mean_seconds + prefill_steps * step
    # In a pool a replica gets its share of each cluster, and n is the average of all.
    forget = demand.step_fixed_seconds / (step * demand.output_mean_tokens)
    averaging = np.expm1(output.gaps * -forget)
    averaging *= output.inverse_square
    averaging *= 2.0 / forget**2
    averaging += output.inverse * (2.0 / forget)
    cluster = _cluster_covariance(demand, law_of_running, rate_per_second)
    own_variance = (growth / slack) ** 2 * law_of_running.variance
    full_variance = own_variance + growth * step * cluster / (slack * pool)
    mean = _mean_gap(demand, lumps.reach, law_of_running, rate_per_second, step, prefill_seconds)
    bursts = law_of_running.bursts
    if bursts is not None:
        mean += _burst_seconds(demand, bursts, output, law_of_running.mean, rate_per_second, step)
    jumps = cluster_third_moment(demand, rate_per_second) - rate_per_second / slack
    # With all slots taken clusters wait instead of running.
    jumps *= 1.0 - law_of_running.wait_probability
    n_third = law_of_running.third_moment + jumps * step / (3.0 * forget * pool**2)
    n_skew = n_third / max(law_of_running.variance, 1e-12) ** 1.5
    # No negative binomial law is more skewed; next to the cap the quotient loses its meaning.
    n_skew = min(n_skew, 2.0 + max(law_of_running.mean, _LEAST_RATIO) ** -0.5)
    third = np.sqrt(averaging)
    third *= n_skew * full_variance**1.5
    third += lump_variance * (3.0 * own_variance * slack / step)
    third *= averaging
    third += lump_third
    averaging *= full_variance
    variance = lump_variance
    variance += averaging
    deviation = np.sqrt(variance)
    variance *= deviation
    third /= np.maximum(variance, _LEAST_CUBE, out=variance)
    return GapMoments(
        mean=mean,
        deviation=deviation,
        skewness=third,
        prefill_seconds=prefill_seconds,
        prefill_steps=prefill_steps,
    )


def _cluster_covariance(
    demand: RequestDemand, law_of_running: Occupancy, rate_per_second: float
) -> float:
    """λ·E[N·W] of the counts and the work of the clusters that arrive together during prefill."""
    slack = 1.0 - rate_per_second * demand.prefill_mean_seconds
    second = demand.prefill_per_token_seconds**2 * demand.uncached_second_moment_tokens2
    cluster = demand.prefill_mean_seconds / slack**2 + rate_per_second * second / slack**3
    # A burst reaches all replicas at once. Evener than Poisson counts as Poisson, on the safe side.
    bursts = law_of_running.bursts
    excess = bursts.relaxed_excess if bursts is not None else 0.0
    cluster += law_of_running.pool_count * excess * demand.prefill_mean_seconds / slack**2
    return rate_per_second * cluster


def states_of_bursts(
    demand: RequestDemand,
    output: OutputGaps,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
    moments: GapMoments,
) -> tuple[tuple[FloatArray, GapMoments], ...]:
    """Shares of requests, by output length, that meet one rate all along, and their moments.

    Nothing without bursts. The rest meet both rates, which the given moments are of.
    """
    bursts = law_of_running.bursts
    ratio = rate_per_second * demand.prefill_mean_seconds
    swing = bursts.swing(ratio) if bursts is not None else 0.0
    if bursts is None or swing == 0.0:
        return ()
    mean = law_of_running.mean
    step = demand.step_fixed_seconds + demand.step_growth_seconds * mean
    unchanged = bursts.unchanged_share(output.gaps * (step / (1.0 - ratio)))
    followed = bursts.followed_ratio * mean
    left = max(1.0 - (swing * followed) ** 2 / max(law_of_running.variance, _LEAST_CUBE), 0.0)
    states = []
    for change in (-swing, swing):
        shifted = replace(
            law_of_running,
            mean=max(mean + change * followed, 0.0),
            variance=left * law_of_running.variance,
            third_moment=left**1.5 * law_of_running.third_moment,
            bursts=None,
        )
        rate = rate_per_second * (1.0 + bursts.lasting_change(change, step, ratio))
        own = gap_moments(demand, output, shifted, rate, budget_tokens, moments.prefill_steps)
        states.append((0.5 * (1.0 + change) * unchanged, own))
    return tuple(states)


def _prefill_in_gaps(
    demand: RequestDemand,
    output: OutputGaps,
    rate_per_second: float,
    step: float,
    budget_tokens: float,
    law_of_running: Occupancy,
) -> _Lumps:
    """Variance and third cumulant, per gap, of the prefill met in these gaps.

    Steps form an autoregression D′ = s + c·Σ I over the arrivals during D. A prompt that arrives
    in gap j delays the rest by c·I·G, G = (1 − p^k)/(1 − p) with k the gaps left, because its step
    lets further prompts in. The first gap holds what arrived during the request's own prefill step,
    which is longer than others by its own prompt: short outputs therefore see slower tokens.

    A pool sends arrivals to where sequences have left, and a long step lets none leave, so that
    only 1/c of the arrivals that come meanwhile meet it (p/c in place of p in G); and arrivals of a
    replica follow departures, half as disperse as Poisson in a large pool: (1 + 1/c)/2. Bursts add
    what they disperse counts over the stay.
    """
    pool_count = law_of_running.pool_count
    per_token = demand.prefill_per_token_seconds
    ratio = rate_per_second * demand.prefill_mean_seconds
    mean_step = step / (1.0 - ratio)
    ratio = max(ratio / pool_count, _LEAST_RATIO)
    slack, rest = 1.0 - ratio, 1.0 - ratio**2
    square: float | FloatArray = demand.uncached_second_moment_tokens2
    prompt_variance = square - demand.uncached_mean_tokens**2
    dispersion = 0.5 * (1.0 + 1.0 / pool_count)
    square -= (1.0 - dispersion) * demand.uncached_mean_tokens**2
    cube: float | FloatArray = demand.uncached_third_moment_tokens3
    others = mean_step + (
        rate_per_second * per_token**2 * demand.uncached_second_moment_tokens2 / rest
    )
    others = ratio * others + (1.0 - 1.0 / pool_count) * (mean_step - step)
    if law_of_running.bursts is not None:
        tokens = demand.uncached_mean_tokens
        excess = tokens * law_of_running.bursts.excess_over(output.gaps * mean_step)
        cube += 3.0 * excess * square + 1.5 * tokens * excess**2
        square += excess * tokens
    second = rate_per_second * per_token**2 * square
    third = rate_per_second * per_token**3 * cube
    seen_step = mean_step + second / rest
    own_step = step + ratio * seen_step
    own_step += per_token * min(demand.uncached_mean_tokens, budget_tokens)
    own_variance = ratio**2 * (per_token**2 * prompt_variance + second * seen_step)
    power = np.exp(output.gaps * math.log(ratio))
    # From here on per gap.
    reach = 1.0 - power
    reach *= output.inverse
    reach *= 1.0 / slack
    # Sum of G² over the later gaps, in closed form.
    lumps = power * (-1.0 / rest)
    lumps += 2.0 / slack
    lumps *= power
    lumps += output.gaps
    lumps -= 1.0 + 2.0 * ratio / slack - ratio**2 / rest
    lumps *= output.inverse_square
    lumps *= mean_step / slack**2
    reach_square = reach * reach
    lumps += reach_square * own_step
    reach_square *= own_variance
    reach_square += second * lumps
    # G ≤ reach in every gap, and equal to it in most, so that Σ G³ is nearly reach·Σ G².
    lumps *= reach
    lumps *= third + 3.0 * second**2 / slack
    return _Lumps(reach=reach, variance=reach_square, third=lumps, others_seconds=others)


def _mean_gap(
    demand: RequestDemand,
    reach: FloatArray,
    law_of_running: Occupancy,
    rate_per_second: float,
    step: float,
    prefill_seconds: float,
) -> FloatArray:
    """Mean time per output token by output length, in seconds.

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
    pool = law_of_running.pool_count
    slack = 1.0 - rate_per_second * demand.prefill_mean_seconds
    ratio = 1.0 - slack
    mean_step = step / slack
    excess = prefill_seconds - mean_step
    alone = max(ratio, _LEAST_RATIO) / pool
    mean: FloatArray = reach * (alone * excess * (1.0 - alone) / slack)
    mean += mean_step
    if pool > 1:
        running = law_of_running.mean
        lacking = (1.0 - 1.0 / pool - _POOL_VARIANCE / max(running, 1.0)) * min(running, 1.0)
        lacking = max(lacking, 0.0) / rate_per_second
        gaps = max(demand.output_mean_tokens - 1.0, 1.0)
        mean += ratio / slack * ((1.0 - 1.0 / pool) * excess - lacking) / gaps
    return mean


def _burst_seconds(
    demand: RequestDemand,
    bursts: Bursts,
    output: OutputGaps,
    running_mean: float,
    rate_per_second: float,
    step: float,
) -> FloatArray:
    """How much slower tokens are for requests, which come in bursts, than over time, in seconds.

    An arrival finds the rate cv² above its mean, and n by the share of that which n follows. And
    steps grow faster than in proportion to the rate, 1/(1 − λcI), which the variance of the rate
    over the stay adds to.
    """
    slack = 1.0 - rate_per_second * demand.prefill_mean_seconds
    ratio = (1.0 - slack) / slack
    prefill = step * ratio / slack
    stays = output.gaps * (step / slack)
    over_stay = bursts.excess_over(stays) / (rate_per_second * stays)
    decode = demand.step_growth_seconds * running_mean * bursts.followed_ratio / slack
    remembered = bursts.variance_ratio * bursts.remembered_share(stays)
    slower: FloatArray = (prefill + decode) * remembered
    slower += step / slack * ratio**2 * over_stay
    return slower
