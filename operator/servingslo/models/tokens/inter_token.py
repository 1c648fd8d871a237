"""Time per output token of one request: the average of its steps.

Law: level crossing and conservation of time for the mean; sums of a stationary process over a stay
for the spread.
Source: P. H. Brill, Level Crossing Methods in Stochastic Models (2008), chapter 1; D. R. Cox and H.
D. Miller, The Theory of Stochastic Processes (1965), chapter 7.
Assumes: running sequences forget at the rate at which the mean does.
Fails: see `prefill_interference`.
Shown by: `make validate`, "one replica, Poisson" and "least-loaded routing": TPOT p95 within 6 %.
"""

from collections.abc import Sequence

import numpy as np

from servingslo.models.engine.service_time import FloatArray, RequestDemand
from servingslo.models.numerics import TINY_VARIANCE
from servingslo.models.running.bursts import remembered_share, swing_of, unchanged_share
from servingslo.models.running.occupancy_levels import NEVER_IDLE, Found, Pool, level_at_arrival
from servingslo.models.tokens.gap_loads import GapLoad, at_changed_rate, own_step
from servingslo.models.tokens.light_traffic import light_load, mixed_with_bare
from servingslo.models.tokens.output_laws import GapMoments, Moments, OutputGaps
from servingslo.models.tokens.prefill_interference import (
    FirstStep,
    Interference,
    first_step_of,
    prefill_in_gaps,
    prefill_square_seconds2,
)

# Variance of the running sequences among the replicas of a pool that sends to the least loaded: 1/2
# on two (chain of their difference), 1/6 on very many; this is the middle. Either end moves a mean
# or a percentile by 2 % at most in 95 of 100 loads.
_POOL_VARIANCE = 1.0 / 3.0


def gap_moments(
    demand: RequestDemand, output: OutputGaps, loads: Sequence[GapLoad], budget_tokens: float
) -> list[GapMoments]:
    """Return moments of the time per output token by output length, in seconds, by load.

    Three parts. (1) The step s = a + β·n with the request itself among the n: mean conditional
    sojourns of processor sharing are linear in the length, so its mean is the same for all lengths.
    (2) Prefill that arrives during the gaps, see `prefill_in_gaps`. (3) Fluctuations of n averaged
    over the stay. In the clock that stops during prefill they forget at rate κ = (1 − βn/s)/(O·s),
    so that their variance shrinks by h(x) = 2(x − 1 + e^−x)/x², x = κ·(O − 1)·s. Arrivals also
    raise prefill and n together, which adds the covariance β·s·C·h/(1 − p), where C = λ·E[N·W] is
    that of the counts N and the work W of the clusters that arrive together during prefill.
    """
    return [
        _moments_of(demand, output, load, own_step(demand, load), budget_tokens) for load in loads
    ]


def _moments_of(
    demand: RequestDemand,
    output: OutputGaps,
    load: GapLoad,
    step: float,
    budget_tokens: float,
) -> GapMoments:
    pooled = load.pool_count > 1
    found = level_at_arrival(demand, pool_of(load, step)) if pooled else NEVER_IDLE
    room = budget_tokens - load.mean
    first = first_step_of(demand, load.rate_per_second, step, load.pool_count, room)
    prefill = first_token_after(demand, load, step, budget_tokens, first, found)
    usual = _usual_moments(demand, output, load, step, first, prefill)
    ones = np.ones_like(output.gaps)
    if found.few <= 0.0:
        return GapMoments(usual, ((ones, usual),), prefill)
    light = light_load(demand, load, step, found, budget_tokens)
    share, others, every = mixed_with_bare(usual, output.gaps, light)
    bare = Moments(step * ones, light.deviation * ones)
    return GapMoments(every, ((1.0 - share, others), (share, bare)), prefill)


def _usual_moments(
    demand: RequestDemand,
    output: OutputGaps,
    load: GapLoad,
    step: float,
    first: FirstStep,
    prefill_seconds: float,
) -> Moments:
    """Return mean and deviation of `gap_moments`, by output length."""
    gaps, growth = output.gaps, demand.step_growth_seconds
    slack = 1.0 - load.rate_per_second * demand.prefill_mean_seconds
    interference = _interference(demand, gaps, load, step, first, prefill_seconds)
    prefill = prefill_in_gaps(gaps, interference)
    slower = _slower_in_bursts(demand, gaps, load, step)
    mean = prefill.mean + mean_gap(demand, load, step, prefill_seconds) + slower
    # In a pool a replica receives its share of each cluster, and n is the average of all.
    moved = (growth / slack) ** 2 * load.variance
    together = growth * step * cluster_covariance(demand, load) / (load.pool_count * slack)
    forgotten = gaps * (demand.step_fixed_seconds / (step * demand.output_mean_tokens))
    averaging = 2.0 * (forgotten + np.expm1(-forgotten)) / forgotten**2
    variance = np.maximum(prefill.variance + averaging * (moved + together), TINY_VARIANCE)
    return Moments(mean, np.sqrt(variance))


def _interference(
    demand: RequestDemand,
    gaps: FloatArray,
    load: GapLoad,
    step: float,
    first: FirstStep,
    prefill_seconds: float,
) -> Interference:
    """Return the inputs of `prefill_in_gaps`; arguments and result as of `first_token_after`."""
    rate, work = load.rate_per_second, demand.prefill_mean_seconds
    square = prefill_square_seconds2(demand)
    mean_step = step / (1.0 - rate * work)
    # The last of the steps that prefill a prompt.
    last = work + first.others.mean - (load.prefill_steps - 1.0) * (first.full_seconds - step)
    last = min(step + max(last, 0.0), first.full_seconds)
    most = (first.full_seconds - last) * (last - step)
    return Interference(
        first.ratio,
        mean_step,
        rate * square,
        rate * work**2 * _excess(gaps, load, mean_step),
        prefill_seconds - mean_step,
        min(square - work**2 + first.others.variance, most),
        load.pool_count,
    )


def _excess(gaps: FloatArray, load: GapLoad, mean_step: float) -> FloatArray:
    """Return the dispersion of counts that bursts add over the stay, by output length."""
    bursts = load.bursts
    kept = remembered_share(gaps * mean_step, bursts.correlation_seconds)
    excess: FloatArray = bursts.limit_excess * (1.0 - kept)
    return excess


def parts_seen(
    demand: RequestDemand,
    output: OutputGaps,
    load: GapLoad,
    moments: GapMoments,
    budget_tokens: float,
) -> list[tuple[FloatArray, Moments]]:
    """Return shares of a load's requests, by output length, and the moments of each part.

    In bursts some requests meet the lower rate all along and some the higher one, with moments of
    their own. The rest meet both and have the moments over all.
    """
    bursts = load.bursts
    ratio = load.rate_per_second * demand.prefill_mean_seconds
    swing = swing_of(bursts, ratio)
    if swing == 0.0:
        return list(moments.parts)
    step = demand.step_fixed_seconds + demand.step_growth_seconds * load.mean
    unchanged = unchanged_share(output.gaps * (step / (1.0 - ratio)), bursts.correlation_seconds)
    rates = [at_changed_rate(demand, load, change, swing) for change in (-swing, swing)]
    shares = [0.5 * (1.0 - swing) * unchanged, 0.5 * (1.0 + swing) * unchanged, 1.0 - unchanged]
    laws = [*gap_moments(demand, output, rates, budget_tokens), moments]
    return [
        (share * part, seen)
        for share, law in zip(shares, laws, strict=True)
        for part, seen in law.parts
    ]


def pool_of(load: GapLoad, step: float) -> Pool:
    """Return the replicas that share these arrivals; step: see `own_step`."""
    return Pool(
        load.pool_count,
        load.rate_per_second,
        load.mean,
        load.variance,
        step,
        load.prefill_steps,
    )


def first_token_after(
    demand: RequestDemand,
    load: GapLoad,
    step: float,
    budget_tokens: float,
    first: FirstStep,
    found: Found,
) -> float:
    """Return seconds from slot to first token: own prefill, prefill of others, and their steps.

    Prefill of others takes at most the room that the own prompt leaves in its last step. A request
    that meets no prefill at its replica has none of it.
    """
    room = load.prefill_steps * (budget_tokens - load.mean) - demand.uncached_mean_tokens
    most = demand.prefill_per_token_seconds * max(room, 0.0)
    others = min(float(first.others.mean), most) * (1.0 - found.free)
    return others + demand.prefill_mean_seconds + load.prefill_steps * step


def cluster_covariance(demand: RequestDemand, load: GapLoad) -> float:
    """Return λ·E[N·W] of counts and work of the clusters that arrive together during prefill."""
    rate_per_second = load.rate_per_second
    slack = 1.0 - rate_per_second * demand.prefill_mean_seconds
    second = rate_per_second * prefill_square_seconds2(demand)
    cluster = demand.prefill_mean_seconds / slack**2 + second / slack**3
    # A burst reaches all replicas at once. More regular arrivals count as Poisson, the safe side.
    cluster += load.pool_count * load.bursts.relaxed_excess * demand.prefill_mean_seconds / slack**2
    return rate_per_second * cluster


def mean_gap(demand: RequestDemand, load: GapLoad, step: float, prefill_seconds: float) -> float:
    """Return the mean time per output token, in seconds, without the excess of the first gaps.

    By conservation of time: of all decoding, (O − 1)·s per request are steps, and c·I per prompt
    times the sequences that decode while it is prefilled. A Poisson arrival finds the average
    number of requests, and those that were in prefill decode by then. So a gap takes s/(1 − p) +
    p·(T − D)/((1 − p)·(O − 1)) with T the prefill of one request and D a step: the first gaps hold
    the arrivals during its own prefill, all of them on a single replica.

    The least loaded replica of a pool of c has fewer than the average n. By level crossing an
    arrival finds the number that a departure leaves: (n + 1/c) + v/n − 1, because departures are
    proportional to the number, v its variance within the pool. A pool lacks 1 − 1/c − v/n
    sequences, in all gaps alike, because arrivals come as others leave. v is 1/2 for two replicas
    (the chain of their difference) and 1/6 for very many (two levels next to each other); taken as
    1/3. Below n = 1 the lacking number goes to 0 with n.
    """
    pool = load.pool_count
    slack = 1.0 - load.rate_per_second * demand.prefill_mean_seconds
    ratio = 1.0 - slack
    mean_step = step / slack
    if pool == 1:
        return mean_step
    excess = prefill_seconds - mean_step
    lacking = (1.0 - 1.0 / pool - _POOL_VARIANCE / max(load.mean, 1.0)) * min(load.mean, 1.0)
    lacking = max(lacking, 0.0) / load.rate_per_second
    gaps = max(demand.output_mean_tokens - 1.0, 1.0)
    return mean_step + ratio / slack * ((1.0 - 1.0 / pool) * excess - lacking) / gaps


def _slower_in_bursts(
    demand: RequestDemand, gaps: FloatArray, load: GapLoad, step: float
) -> FloatArray | float:
    """Return the extra seconds per token that requests meet, because they come in bursts.

    An arrival finds the rate cv² above its mean, and n above its mean by the share with which n
    follows, for as long as a burst lasts. Steps also grow faster than in proportion to the rate,
    1/(1 − λcI), and the variance of the rate over the stay adds to that.
    """
    bursts = load.bursts
    if bursts.limit_excess == 0.0:
        return 0.0
    slack = 1.0 - load.rate_per_second * demand.prefill_mean_seconds
    ratio = (1.0 - slack) / slack
    prefill = step * ratio / slack
    decode = demand.step_growth_seconds * load.mean * bursts.followed_ratio / slack
    kept = remembered_share(gaps * (step / slack), bursts.correlation_seconds)
    slower: FloatArray = kept * ((prefill + decode) * bursts.variance_ratio)
    slower += _excess(gaps, load, step / slack) / gaps * (ratio**2 / load.rate_per_second)
    return slower
