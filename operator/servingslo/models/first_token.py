"""Time to first token below the cap: the rest of a step, then the steps that prefill the prompt."""

import math
from dataclasses import dataclass, field

import numpy as np

from servingslo.models.bursts import burst_swing, burst_variance_ratio
from servingslo.models.occupancy import Occupancy
from servingslo.models.service_time import ComplexArray, FloatArray, RequestDemand
from servingslo.models.transform import TERM_COUNT, TabulatedLaw, frequencies, invert
from servingslo.models.workload import LengthDistribution

_PROMPT_POINTS = 24
# Ranges of the inversion are powers of this ratio, so that tables are shared by many loads.
_RANGE_RATIO = 2.0**0.25
_RANGE_SPREADS = 9.0
_GENERATIONS = 3
_BLOCK = 4
_LEAST_LOGARITHM = -60.0
_BUDGET_ITERATIONS = 6
_BUDGET_TOLERANCE = 1e-3
# Rooms closer than this many tokens share a table entry.
_ROOM_TOKENS = 8
_LEAST_SLACK = 0.02
_TINY_SECONDS = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTable:
    """Transforms of the prefill work of one prompt at the frequencies of one range.

    by_point: exp(iω·c·I) for every prompt point, shape (points, terms). mgf, slope: its mean,
    and the mean with c·I as a factor. below: its mean over the first points only, by their number.
    """

    z: ComplexArray
    by_point: ComplexArray
    mgf: ComplexArray
    slope: ComplexArray
    below: ComplexArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWork:
    """Prefill work of prompts: seconds at each point of a compact distribution, with tables.

    weights_from: mass from this point on; mean_tokens_below: Σ w·I over the first points; both by
    the number of points before, one longer than the points.
    The tables depend on the lengths and on c only, never on the load, and are filled on demand.
    """

    seconds: FloatArray
    weights: FloatArray
    tokens: FloatArray
    mean_seconds: float
    second_moment_seconds2: float
    longest_seconds: float
    weights_from: FloatArray
    mean_tokens_below: FloatArray
    tables: dict[int, PromptTable] = field(default_factory=dict, compare=False)
    pairs: dict[int, float] = field(default_factory=dict, compare=False)

    @property
    def lag_seconds(self) -> float:
        """E[S²]/(2·E[S]) of the prefill work S of a prompt; 0 without work."""
        if self.mean_seconds <= 0.0:
            return 0.0
        return 0.5 * self.second_moment_seconds2 / self.mean_seconds

    def paired_steps(self, room_tokens: float) -> float:
        """Mean of ⌈(I + J)/room⌉ − ⌈I/room⌉ over two prompts; room to the nearest few tokens."""
        key = int(room_tokens / _ROOM_TOKENS)
        found = self.pairs.get(key)
        if found is None:
            own = self.tokens / (_ROOM_TOKENS * (key + 0.5))
            steps = np.ceil(own[:, None] + own) - np.ceil(own)[:, None]
            found = float(self.weights @ steps @ self.weights)
            self.pairs[key] = found
        return found

    def table(self, level: int) -> PromptTable:
        """Transforms for the range _RANGE_RATIO**level seconds."""
        found = self.tables.get(level)
        if found is None:
            z: ComplexArray = np.zeros(TERM_COUNT, dtype=np.complex128)
            z.imag = frequencies(_RANGE_RATIO**level)
            by_point: ComplexArray = np.exp(np.outer(self.seconds, z))
            weighted = self.weights * self.seconds
            below: ComplexArray = np.zeros((len(self.seconds) + 1, TERM_COUNT), dtype=np.complex128)
            np.cumsum(self.weights[:, None] * by_point, axis=0, out=below[1:])
            found = PromptTable(
                z=z,
                by_point=by_point,
                mgf=self.weights @ by_point,
                slope=weighted @ by_point,
                below=below,
            )
            self.tables[level] = found
        return found


def prompt_work(
    prompt: LengthDistribution, cached_ratio: float, prefill_per_token_seconds: float
) -> PromptWork:
    """Prefill work of these prompts, compacted to a few points."""
    compact = prompt.compacted(_PROMPT_POINTS)
    tokens = np.array(compact.tokens) * (1.0 - cached_ratio)
    seconds = tokens * prefill_per_token_seconds
    weights = np.array(compact.weights)
    return PromptWork(
        seconds=seconds,
        weights=weights,
        tokens=tokens,
        mean_seconds=float(weights @ seconds),
        second_moment_seconds2=float(weights @ seconds**2),
        longest_seconds=float(seconds[-1]),
        weights_from=np.concatenate((np.cumsum(weights[::-1])[::-1], (0.0,))),
        mean_tokens_below=np.concatenate(((0.0,), np.cumsum(weights * tokens))),
    )


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

    A pool sends arrivals where sequences have left, and none leave during a long step, so that an
    arrival finds steps in progress that vary less than in proportion to their length: the lumps of
    D count 1/√c, the rest as its mean. Both ends follow from the argument, 1 for one replica and 0
    for very many; the root is an interpolation that simulation with 2 to 16 replicas confirms.
    """
    paces = _paces(demand, prompts, law_of_running, rate_per_second, budget_tokens)
    level = _range_level(demand, prompts, law_of_running, paces[-1])
    table = prompts.table(level)
    characteristic = _characteristic(demand, prompts, table, law_of_running, paces[0])
    if len(paces) > 1:
        characteristic *= paces[0].share
        busy = _characteristic(demand, prompts, table, law_of_running, paces[1])
        characteristic += paces[1].share * busy
    return invert(characteristic, _RANGE_RATIO**level)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """A rate of arrivals, and what follows from it.

    share: of the requests that arrive at this rate. shift: running sequences above the mean.
    mean_step: seconds of a step without prefill. room_tokens: of the budget, for prefill.
    further: seconds of further steps that a prompt causes. prefill_ratio: λ·(c·I + further).
    """

    share: float
    rate_per_second: float
    shift: float
    mean_step: float
    room_tokens: float
    further: float
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
        further = _further_seconds(demand, prompts, rate, mean_step, room)
        paces.append(
            _Pace(
                share=0.5 * (1.0 + change) if swing > 0.0 else 1.0,
                rate_per_second=rate,
                shift=shift,
                mean_step=mean_step,
                room_tokens=room,
                further=further,
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
    lumps = np.empty((2, len(z)), dtype=np.complex128)
    first = rate * (others - 1.0)
    lumps[1] = first
    behind = first * -lag
    behind += 1.0
    np.divide(slope, behind, out=behind)
    behind *= rate
    behind += 1.0
    np.multiply(first, behind, out=lumps[0])
    later = _generations(lumps, prefill_ratio, lag)
    # Seen from a pool, the step in progress varies less: see the docstring.
    seen = law_of_running.pool_count**-0.5
    even = 1.0 + (1.0 - seen) * prefill_ratio / (1.0 - prefill_ratio)
    exponents = seen * later
    exponents += z + even * first
    exponents[0] += even * z + seen * lumps[0]
    nodes = law_of_running.nodes + pace.shift
    steps = demand.step_fixed_seconds + demand.step_growth_seconds * nodes
    mixtures = _mixture(exponents, steps, law_of_running.weights / steps)
    served = 1.0 - law_of_running.wait_probability
    own = table.mgf
    if prompts.tokens[-1] > pace.room_tokens:
        own = _own_with_further_steps(demand, prompts, table, pace, law_of_running)
    characteristic: ComplexArray = own * (mixtures[0] - mixtures[1])
    characteristic[1:] *= (1.0 - prefill_ratio) / (z[1:] * served)
    characteristic[0] = 1.0
    return characteristic


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
    others = np.minimum(others, left / shared)
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
) -> float:
    """Seconds of further steps that each prompt of others causes, on average.

    A prompt of J tokens in front of one of I tokens adds ⌈(I + J)/room⌉ − ⌈I/room⌉ steps of s, on
    average over both lengths. Half of the prompts of a cycle stand behind the request, and cost it
    these steps only as far as the budget is full. Where several come in a step, those beyond the
    first find the backlog at any point of a room and add J/room, so that the work diverges exactly
    at the stability frontier λ·Ī·(c + s/room) = 1.
    """
    work = demand.prefill_mean_seconds
    if work <= 0.0 or rate_per_second <= 0.0:
        return 0.0
    even = demand.uncached_mean_tokens / room_tokens
    paired = prompts.paired_steps(room_tokens) if 2.0 * prompts.tokens[-1] > room_tokens else 0.0
    most = max((1.0 - _LEAST_SLACK) / rate_per_second - work, 0.0)
    further = 0.0
    for _ in range(_BUDGET_ITERATIONS):
        cycle = mean_step / max(1.0 - rate_per_second * (work + further), _LEAST_SLACK)
        count = rate_per_second * cycle
        beyond = max(count - 1.0, 0.0) / count
        full = min(count * even, 1.0)
        steps = (1.0 - beyond) * paired + beyond * full * even
        previous, further = further, min((0.5 + 0.5 * full) * steps * mean_step, most)
        if abs(further - previous) <= _BUDGET_TOLERANCE * further:
            break
    return further


def _generations(lumps: ComplexArray, prefill_ratio: float, lag: float) -> ComplexArray:
    """Sum of the later generations of prefill work set off by `lumps`.

    The transform of one generation is replaced by ρ·v/(1 − v·E[S²]/(2·E[S])), which has the same
    first two moments and stays bounded; what follows the last generation is taken as its mean.
    """
    current = _offspring(lumps, prefill_ratio, lag)
    total = current.copy()
    for _ in range(_GENERATIONS - 1):
        current = _offspring(current, prefill_ratio, lag)
        total += current
    current *= prefill_ratio / (1.0 - prefill_ratio)
    total += current
    return total


def _offspring(lumps: ComplexArray, prefill_ratio: float, lag: float) -> ComplexArray:
    """ρ·v/(1 − v·lag), the prefill that comes during prefill v."""
    next_one: ComplexArray = lumps * -lag
    next_one += 1.0
    np.divide(lumps, next_one, out=next_one)
    next_one *= prefill_ratio
    return next_one


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
    return math.ceil(math.log(reach) / math.log(_RANGE_RATIO))
