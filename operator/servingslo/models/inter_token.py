"""Moments of the time per output token of one request: the average of its steps.

Source: level crossing and conservation of time, P. H. Brill, Level Crossing Methods in Stochastic
Models (2008); sums of a stationary process over a stay; docs/designs/0002-models.md, "What was
added".
"""

import math
from collections.abc import Sequence

import numpy as np

from servingslo.models.bursts import (
    remembered_share,
    swing_of,
    unchanged_share,
)
from servingslo.models.few_requests import FewLoad, few_load, where_few
from servingslo.models.first_gaps import OwnStep, own_step_of
from servingslo.models.gap_loads import GapLoad, at_changed_rate, own_step
from servingslo.models.gap_prefill import Met, prefill_in_gaps
from servingslo.models.levels import NEVER_IDLE, Found, Shared, found_by_arrivals, never_idle
from servingslo.models.occupancy import cluster_third_moment
from servingslo.models.output_laws import Bare, GapMoments, Moments, OutputGaps
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
    levels = _found_by_arrivals(demand, loads, steps)
    firsts = [
        first_step(demand, load, step, budget_tokens)
        for load, step in zip(loads, steps, strict=True)
    ]
    prefills = [
        first_token_after(demand, load, step, budget_tokens, first, found)
        for load, step, first, found in zip(loads, steps, firsts, levels, strict=True)
    ]
    numbers = [
        met_in_gaps(demand, load, step, first, prefill)
        for load, step, first, prefill in zip(loads, steps, firsts, prefills, strict=True)
    ]
    gaps, inverse, inverse_square, *rest = spread_columns(numbers, output.powers)
    powers, met = (gaps, inverse, inverse_square), Met(*rest)
    burst: tuple[FloatArray, FloatArray] | None = None
    if any(load.bursts.limit_excess > 0.0 for load in loads):
        burst = burst_in_gaps(powers, met)
    most_replicas = max(load.pool_count for load in loads)
    found = moments_in_gaps(powers, met, burst, most_replicas)
    usual = (law.reshape(len(loads), -1) for law in found)
    few = [
        few_load(demand, load, step, level, budget_tokens) if level.few > 0.0 else None
        for load, step, level in zip(loads, steps, levels, strict=True)
    ]
    laws = list(map(Moments, *usual))
    prefill_steps = [load.prefill_steps for load in loads]
    return [_with_few(output, *one) for one in zip(laws, few, prefills, prefill_steps, strict=True)]


def _with_few(
    output: OutputGaps,
    usual: Moments,
    load: FewLoad | None,
    prefill_seconds: float,
    prefill_steps: float,
) -> GapMoments:
    """Moments of a load, with those that meet no prefill apart where few requests run."""
    if load is None:
        return GapMoments(*usual, prefill_seconds, prefill_steps)
    gaps, inverse, _ = output.powers
    share, others, every = where_few(usual, gaps, inverse, load)
    bare = Bare(share, load.step, load.deviation, *others)
    return GapMoments(*every, prefill_seconds, prefill_steps, bare)


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
    powers: Powers,
    met: Met[FloatArray],
    burst: tuple[FloatArray, FloatArray] | None,
    most_replicas: int,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean, deviation and skewness of `gap_moments`.

    burst: of `burst_in_gaps`, None without. most_replicas: see `prefill_in_gaps`.
    """
    gaps, inverse, _ = powers
    lumps = prefill_in_gaps(powers, met, None if burst is None else burst[0], most_replicas)
    mean = lumps.first + met.all_gaps
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


def _found_by_arrivals(
    demand: RequestDemand, loads: Sequence[GapLoad], steps: Sequence[float]
) -> list[Found]:
    """What arrivals find at their replica, by load, as far as replicas of a pool are ever idle."""
    found = [NEVER_IDLE] * len(loads)
    rows = [
        row
        for row, load in enumerate(loads)
        if load.pool_count > 1 and not never_idle(load.mean, load.variance)
    ]
    pools = [shared_of(loads[row], steps[row]) for row in rows]
    for row, one in zip(rows, found_by_arrivals(demand, pools), strict=True):
        found[row] = one
    return found


def shared_of(load: GapLoad, step: float) -> Shared:
    """The replicas that share these arrivals; step: see `own_step`."""
    return Shared(
        load.pool_count,
        load.rate_per_second,
        1.0 + load.pool_count * load.bursts.relaxed_excess,
        load.mean,
        load.variance,
        step,
        load.prefill_steps,
    )


def first_step(demand: RequestDemand, load: GapLoad, step: float, budget_tokens: float) -> OwnStep:
    """The step that makes a request's first token; step: see `own_step`."""
    room = budget_tokens - load.mean
    return own_step_of(demand, load.rate_per_second, step, load.pool_count, room)


def first_token_after(
    demand: RequestDemand,
    load: GapLoad,
    step: float,
    budget_tokens: float,
    first: OwnStep,
    found: Found,
) -> float:
    """Time from the slot to the first token: own prefill, that of others, and their steps.

    Others have at most the room that the own prompt leaves in its last step, and who meets no
    prefill at its replica has none of them.
    """
    room = load.prefill_steps * (budget_tokens - load.mean) - demand.uncached_mean_tokens
    others = min(first.others_seconds, demand.prefill_per_token_seconds * max(room, 0.0))
    others *= 1.0 - found.free
    return others + demand.prefill_mean_seconds + load.prefill_steps * step


def met_in_gaps(
    demand: RequestDemand,
    load: GapLoad,
    step: float,
    first: OwnStep,
    prefill_seconds: float,
) -> Met[float]:
    """Numbers of this load that `prefill_in_gaps` and `gap_moments` are made of.

    step: see `own_step`. first: see `first_step`. prefill_seconds: see `first_token_after`.
    """
    rate, growth, shared = load.rate_per_second, demand.step_growth_seconds, 1.0 / load.pool_count
    per_token, tokens = demand.prefill_per_token_seconds, demand.uncached_mean_tokens
    slack = 1.0 - rate * demand.prefill_mean_seconds
    mean_step = step / slack
    ratio = first.ratio
    square, cube = demand.uncached_second_moment_tokens2, demand.uncached_third_moment_tokens3
    spread, skewed = square - tokens**2, cube - 3.0 * square * tokens + 2.0 * tokens**3
    # The last of the steps that prefill a prompt.
    last = demand.prefill_mean_seconds + first.others_seconds
    last -= (load.prefill_steps - 1.0) * (first.full_seconds - step)
    last = min(step + max(last, 0.0), first.full_seconds)
    own_variance = min(
        per_token**2 * spread + first.others_variance,
        (first.full_seconds - last) * (last - step),
    )
    forget = demand.step_fixed_seconds / (step * demand.output_mean_tokens)
    # In a pool a replica gets its share of each cluster, and n is the average of all.
    moved = (growth / slack) ** 2 * load.variance
    full = moved + growth * step * cluster_covariance(demand, load) * shared / slack
    all_gaps = mean_gap(demand, load, step, prefill_seconds)
    slower, over_stay = slower_in_bursts(demand, load, step)
    own = 1.0 - shared
    echo = first.echo / (1.0 - first.echo)
    settling = -math.expm1(-rate * mean_step)
    departures = demand.output_dispersion
    forget_counts = 6.0 / ((1.0 + departures) * demand.output_mean_tokens)
    per_square, per_cube = rate * per_token**2, rate * per_token**3
    # Tokens of a pool meet this share of the prefill of an average step.
    met = max(all_gaps - step, 0.0) / max(mean_step - step, _LEAST_CUBE)
    in_steps = met * mean_step
    return Met(
        mean_step,
        ratio,
        math.log(ratio),
        1.0 / (1.0 - ratio),
        2.0 * ratio / (1.0 + ratio),
        ratio**2 * (1.0 - ratio) / (1.0 + ratio),
        per_square * square,
        per_cube * cube,
        tokens,
        square,
        per_square,
        per_cube,
        prefill_seconds - mean_step,
        last - mean_step,
        own_variance,
        per_token**3 * skewed + first.others_third,
        shared,
        own,
        -rate * mean_step,
        own * echo,
        (2.0 * echo + echo**2 / (2.0 - settling)) / settling,
        departures,
        (1.0 - departures) / forget_counts,
        -forget_counts,
        own * in_steps * per_square * spread,
        own * in_steps * per_square * tokens**2,
        in_steps * per_cube * (own * skewed + shared * cube),
        3.0 * own * in_steps * per_cube * tokens * spread,
        own * in_steps * per_cube * tokens**3,
        all_gaps,
        1.0 / forget,
        full,
        law_skewness(demand, load, step, forget) * full**1.5,
        3.0 * moved * slack / step,
        load.bursts.limit_excess,
        load.bursts.correlation_seconds,
        slower,
        over_stay,
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


def mean_gap(demand: RequestDemand, load: GapLoad, step: float, prefill_seconds: float) -> float:
    """Mean time per output token in seconds, less what the first gaps have more than all.

    By conservation of time: of all decoding, (O − 1)·s per request are steps and c·I per prompt
    times the sequences that decode while it is prefilled. A Poisson arrival finds as many as there
    are on average, and those that were in prefill decode by then, so that a gap takes
    s/(1 − p) + p·(T − D)/((1 − p)·(O − 1)) with T the prefill of one request and D a step: the
    first gaps hold what arrived during its own prefill, on a replica by itself all of that.

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
    if pool == 1:
        return mean_step
    excess = prefill_seconds - mean_step
    lacking = (1.0 - 1.0 / pool - _POOL_VARIANCE / max(load.mean, 1.0)) * min(load.mean, 1.0)
    lacking = max(lacking, 0.0) / load.rate_per_second
    gaps = max(demand.output_mean_tokens - 1.0, 1.0)
    return mean_step + ratio / slack * ((1.0 - 1.0 / pool) * excess - lacking) / gaps


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
