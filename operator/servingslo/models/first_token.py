"""Time to first token below the cap: the rest of a step, then the steps that prefill the prompt."""

import math
from dataclasses import dataclass

import numpy as np

from servingslo.models.bursts import burst_swing, burst_variance_ratio
from servingslo.models.occupancy import Occupancy
from servingslo.models.prompt_work import RANGE_RATIO, PromptTable, PromptWork
from servingslo.models.queueing import erlang_c
from servingslo.models.service_time import ComplexArray, FloatArray, RequestDemand
from servingslo.models.transform import TabulatedLaw, invert

_RANGE_SPREADS = 9.0
_GENERATIONS = 3
_BLOCK = 4
_LEAST_LOGARITHM = -60.0
_BUDGET_ITERATIONS = 6
_BUDGET_TOLERANCE = 1e-3
_LEAST_SLACK = 0.02
_LEAST_BUDGET_RATIO = 0.1
_TINY_SECONDS = 1e-12
_TINY_TOKENS = 1e-9
_ONE: ComplexArray = np.ones(1, dtype=np.complex128)


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
    see `_further_seconds`. Bursty arrivals come at one of two rates, see `_paces`.

    A pool of c sends arrivals where sequences have left. Of the arrivals of a replica 1/c come as
    above, evenly over its steps and as many as the step is long. The others fill the holes that
    were there when the step began, whatever its length: a Poisson number of them, with the mean of
    a step; and as the least loaded share φ of the replicas is filled at rate λ/φ, with φ between
    1/c and 1, they come with the density e^(−κt) of the age t of the step, κ = 2λ/(1 + 1/c). Long
    steps are therefore met less often than in proportion to their length, and sooner.
    """
    paces = _paces(demand, prompts, law_of_running, rate_per_second, budget_tokens)
    level = _range_level(demand, prompts, law_of_running, paces[-1])
    table = prompts.table(level)
    characteristic = _characteristic(demand, prompts, table, law_of_running, paces[0])
    if len(paces) > 1:
        characteristic *= paces[0].share
        busy = _characteristic(demand, prompts, table, law_of_running, paces[1])
        characteristic += paces[1].share * busy
    return invert(characteristic, RANGE_RATIO**level)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """A rate of arrivals, and what follows from it.

    share: of the requests that arrive at this rate. shift: running sequences above the mean.
    mean_step: seconds of a step without prefill. room_tokens: of the budget, for prefill.
    further: seconds of further steps that a prompt causes. budget_ratio: share of the budget that
    prompts take on average. prefill_ratio: λ·(c·I + further).
    """

    share: float
    rate_per_second: float
    shift: float
    mean_step: float
    room_tokens: float
    further: float
    budget_ratio: float
    prefill_ratio: float


def _paces(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    rate_per_second: float,
    budget_tokens: float,
) -> tuple[_Pace, ...]:
    """The rates that arrivals are met at, slowest first: one for Poisson, two for bursty arrivals.

    Requests come in proportion to the rate, and n follows it with the memory of a residence, twice
    that of the rate: Cov(λ, n) = σ²·T/3.
    """
    swing = 0.0
    if law_of_running.excess_dispersion > 0.0:
        variance = burst_variance_ratio(law_of_running.excess_dispersion, law_of_running.mean)
        swing = burst_swing(variance, rate_per_second * demand.prefill_mean_seconds)
    growth = demand.step_growth_seconds
    lowest = -float(law_of_running.nodes[0]) - 0.5 * demand.step_fixed_seconds / max(growth, 1e-9)
    paces = []
    for change in (-swing, swing) if swing > 0.0 else (0.0,):
        rate = rate_per_second * (1.0 + change)
        shift = max(change * law_of_running.mean / 3.0, lowest)
        running = law_of_running.mean + shift
        mean_step = demand.step_fixed_seconds + growth * running
        room = max(budget_tokens - running, 1.0)
        further, full = _further_seconds(demand, prompts, rate, mean_step, room)
        paces.append(
            _Pace(
                share=0.5 * (1.0 + change) if swing > 0.0 else 1.0,
                rate_per_second=rate,
                shift=shift,
                mean_step=mean_step,
                room_tokens=room,
                further=further,
                budget_ratio=full,
                prefill_ratio=rate * (demand.prefill_mean_seconds + further),
            )
        )
    return tuple(paces)


def _characteristic(
    demand: RequestDemand,
    prompts: PromptWork,
    table: PromptTable,
    law_of_running: Occupancy,
    pace: _Pace,
) -> ComplexArray:
    """Characteristic function of `first_token_law` at one rate of arrivals."""
    rate, further, prefill_ratio = pace.rate_per_second, pace.further, pace.prefill_ratio
    z = table.z
    others, slope = table.mgf, table.slope
    if further > 0.0:
        delay = np.exp(further * z)
        others = others * delay
        slope = (slope + further * table.mgf) * delay
    lag = prompts.lag_seconds * (1.0 + further / max(demand.prefill_mean_seconds, _TINY_SECONDS))
    mean = demand.prefill_mean_seconds + further
    pool = _pool_count(demand, law_of_running, pace)
    meeting = rate / pool
    filling = (rate - meeting) / (1.0 - prefill_ratio)
    kappa = 2.0 * rate / (1.0 + 1.0 / pool)
    excess = others - 1.0
    # Rows: the step in progress together with what arrives during it; what arrives, which is left
    # at its end; and that for arrivals that fill holes.
    exponents = np.empty((3 if pool > 1 else 2, len(z)), dtype=np.complex128)
    arriving = np.multiply(meeting, excess, out=exponents[1])
    np.add(z, arriving, out=exponents[0])
    if pool > 1:
        np.subtract(arriving, kappa, out=exponents[2])
    # The prefill of the prompts of a step, M(w) − 1 for each row w: to first order in w for the
    # first, and with the first two moments of the prefill for the others.
    prefill = np.empty_like(exponents)
    prefill[0] = excess + arriving * _lagged(slope, arriving, lag)
    prefill[1:] = _lagged(mean * exponents[1:], exponents[1:], lag)
    lumps = meeting * prefill
    later = _generations(lumps, prefill_ratio / pool, lag)
    if pool > 1:
        later *= 1.0 + filling / meeting
        lumps += filling * prefill
        arriving = z + filling * excess
    exponents += lumps
    exponents += later
    # The next step, which holds the own prompt.
    exponents += arriving if pool > 1 else z
    nodes = law_of_running.nodes + pace.shift
    steps = demand.step_fixed_seconds + demand.step_growth_seconds * nodes
    mixtures = _mixture(exponents, steps, law_of_running.weights / steps)
    own = table.mgf
    if prompts.tokens[-1] > pace.room_tokens:
        own = _own_with_further_steps(demand, prompts, table, pace, law_of_running)
    met = (mixtures[0, 1:] - mixtures[1, 1:]) / z[1:]
    cycles = (1.0 - law_of_running.wait_probability) / (1.0 - prefill_ratio)
    if pool > 1:
        # Both kinds of arrivals in their proportion, 1/c and the rest.
        hit = (mixtures[0, 0].real - mixtures[2, 0].real) / kappa
        met /= pool
        filled = (mixtures[0, 1:] - mixtures[2, 1:]) / (z[1:] + kappa)
        filled *= (1.0 - 1.0 / pool) * cycles / hit
        met += filled
    met *= own[1:]
    met /= cycles
    return np.concatenate((_ONE, met))


def _pool_count(demand: RequestDemand, law_of_running: Occupancy, pace: _Pace) -> float:
    """Replicas that share arrivals by filling holes, 1 to all of the pool.

    Prompts that wait for room in the budget are a queue that routing by number does not see. As far
    as the budget is full, there is one with the probability of Erlang C at the load of the
    stability frontier, λ·Ī·(c + s/room), and an arrival meets what it would meet at a replica on
    its own.
    """
    count = law_of_running.pool_count
    if count == 1 or pace.budget_ratio < _LEAST_BUDGET_RATIO:
        return float(count)
    seconds = demand.prefill_per_token_seconds + pace.mean_step / pace.room_tokens
    load = pace.rate_per_second * demand.uncached_mean_tokens * seconds
    waiting = pace.budget_ratio * (erlang_c(count * load, count) if load < 1.0 else 1.0)
    return 1.0 / (waiting + (1.0 - waiting) / count)


def _lagged(value: ComplexArray, work: ComplexArray, lag: float) -> ComplexArray:
    """value/(1 − lag·work)."""
    scaled: ComplexArray = work * -lag
    scaled += 1.0
    np.divide(value, scaled, out=scaled)
    return scaled


def _own_with_further_steps(
    demand: RequestDemand,
    prompts: PromptWork,
    table: PromptTable,
    pace: _Pace,
    law_of_running: Occupancy,
) -> ComplexArray:
    """Transform of a request's own prefill when prompts longer than the budget take more steps.

    Each step before the last costs s, and the prompts that arrive during these full steps (Poisson)
    share the last one: each of them up to the room that is left there, and all together no more
    than that on average. A pool of c sends arrivals where sequences leave, which is n/O of them at
    the end of a step however long it was, and 1/c of the rest.
    """
    per_token, room = demand.prefill_per_token_seconds, pace.room_tokens
    start = int(prompts.tokens.searchsorted(room, side="right"))
    before = np.ceil(prompts.tokens[start:] / room) - 1.0
    # Prompts with as many full steps are taken together, with the room that they leave on average.
    change = (before[1:] != before[:-1]).nonzero()[0] + 1
    first = np.concatenate(((0,), change))
    before = before[first]
    first += start
    end = np.concatenate((first[1:], (len(prompts.tokens),)))
    weight = prompts.weights_from[first] - prompts.weights_from[end]
    tokens = (prompts.mean_tokens_below[end] - prompts.mean_tokens_below[first]) / weight
    left = (before + 1.0) * room - tokens
    whole = prompts.tokens.searchsorted(left, side="right")
    cut = prompts.weights_from[whole]
    shared = prompts.mean_tokens_below[whole] + cut * left
    arriving = pace.rate_per_second * (pace.mean_step + per_token * room)
    leaving = law_of_running.mean / demand.output_mean_tokens
    pool = law_of_running.pool_count
    others = (arriving / pool + (1.0 - 1.0 / pool) * min(leaving, arriving)) * before
    others = np.minimum(others, left / np.maximum(shared, _TINY_TOKENS))
    sharing = np.exp((per_token * left)[:, None] * table.z)
    sharing *= cut[:, None]
    sharing += table.below[whole]
    sharing -= 1.0
    sharing *= others[:, None]
    sharing += (before * pace.mean_step)[:, None] * table.z
    delayed = np.exp(sharing)
    delayed -= 1.0
    delayed *= table.below[end] - table.below[first]
    own: ComplexArray = table.mgf + delayed.sum(axis=0)
    return own


def _further_seconds(
    demand: RequestDemand,
    prompts: PromptWork,
    rate_per_second: float,
    mean_step: float,
    room_tokens: float,
) -> tuple[float, float]:
    """Seconds of further steps that each prompt of others causes, and the share of budget in use.

    A prompt of J tokens in front of one of I tokens adds ⌈(I + J)/room⌉ − ⌈I/room⌉ steps of s, on
    average over both lengths. Half of the prompts of a cycle stand behind the request, and cost it
    these steps only as far as the budget is full. Where several come in a step, those beyond the
    first find the backlog at any point of a room and add J/room, so that the work diverges exactly
    at the stability frontier λ·Ī·(c + s/room) = 1.
    """
    work = demand.prefill_mean_seconds
    if work <= 0.0 or rate_per_second <= 0.0:
        return 0.0, 0.0
    even = demand.uncached_mean_tokens / room_tokens
    paired = prompts.paired_steps(room_tokens) if 2.0 * prompts.tokens[-1] > room_tokens else 0.0
    most = max((1.0 - _LEAST_SLACK) / rate_per_second - work, 0.0)
    further = full = 0.0
    for _ in range(_BUDGET_ITERATIONS):
        cycle = mean_step / max(1.0 - rate_per_second * (work + further), _LEAST_SLACK)
        count = rate_per_second * cycle
        beyond = max(count - 1.0, 0.0) / count
        full = min(count * even, 1.0)
        steps = (1.0 - beyond) * paired + beyond * full * even
        previous, further = further, min((0.5 + 0.5 * full) * steps * mean_step, most)
        if abs(further - previous) <= _BUDGET_TOLERANCE * further:
            break
    return further, full


def _generations(lumps: ComplexArray, prefill_ratio: float, lag: float) -> ComplexArray:
    """Sum of the later generations of prefill work set off by `lumps`.

    The transform of one generation is replaced by ρ·v/(1 − v·E[S²]/(2·E[S])), which has the same
    first two moments and stays bounded; what follows the last generation is taken as its mean.
    """
    current = _lagged(prefill_ratio * lumps, lumps, lag)
    total = current.copy()
    for _ in range(_GENERATIONS - 1):
        current = _lagged(prefill_ratio * current, current, lag)
        total += current
    current *= prefill_ratio / (1.0 - prefill_ratio)
    total += current
    return total


def _mixture(exponent: ComplexArray, steps: FloatArray, weights: FloatArray) -> ComplexArray:
    """Σ w·exp(s·exponent) over evenly spaced s: a polynomial, in blocks of four terms.

    Source: M. S. Paterson and L. J. Stockmeyer, On the number of nonscalar multiplications
    necessary to evaluate polynomials, SIAM J. Comput. 2 (1973).
    """
    flat = exponent.ravel()
    # What has decayed to nothing stays a normal number: arithmetic with subnormal ones is slow.
    np.maximum(flat.real, _LEAST_LOGARITHM / steps[-1], out=flat.real)
    start: ComplexArray = np.exp(steps[0] * flat)
    if len(steps) == 1:
        start *= weights[0]
        return start.reshape(exponent.shape)
    powers: ComplexArray = np.empty((_BLOCK, len(flat)), dtype=np.complex128)
    powers[0] = 1.0
    powers[1] = np.exp((steps[1] - steps[0]) * flat)
    np.multiply(powers[1], powers[1], out=powers[2])
    np.multiply(powers[2], powers[1], out=powers[3])
    fourth = powers[2] * powers[2]
    padded = np.zeros(-(-len(weights) // _BLOCK) * _BLOCK)
    padded[: len(weights)] = weights
    # Real weights: both parts of the powers at once.
    blocks = (padded.reshape(-1, _BLOCK) @ powers.view(np.float64)).view(np.complex128)
    total: ComplexArray = blocks[-1]
    for block in blocks[-2::-1]:
        total *= fourth
        total += block
    total *= start
    return total.reshape(exponent.shape)


def _range_level(
    demand: RequestDemand,
    prompts: PromptWork,
    law_of_running: Occupancy,
    pace: _Pace,
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
