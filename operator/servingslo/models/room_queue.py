"""Time to first token of prompts that queue for room in the token budget: a queue with vacations.

Full steps of s + c·R take R tokens off what waits, c + s/R for each. Only a partial step, which has
room left, ends the queue. The workload X that an arrival finds falls by 1 in a second, grows by
W = I·(c + s/R) with each arrival, and by V = s·(1 − Q/R) when a partial step with Q tokens begins,
as whoever comes now has to wait for its end. With r partial steps in a second, r·E[V] = 1 − u and
u = λ·E[W], the balance of E[exp(zX)] is

    E[exp(zX)] = r·E[exp(z·(s + c·Q)) − exp(z·Q·(c + s/R))]/(z − λ·(E[exp(zW)] − 1)),

the law of Pollaczek and Khinchine and what a vacation adds to it. Only the law of Q is approximate.
Source: S. W. Fuhrmann and R. B. Cooper, Stochastic decompositions in the M/G/1 queue with
generalized vacations, Operations Research 33 (1985).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammainc

from servingslo.models.long_prompts import Chunked, Met, SumOfPrompts
from servingslo.models.paces import Pace
from servingslo.models.prompt_work import PromptWork
from servingslo.models.rows import columns
from servingslo.models.service_time import ComplexArray, FloatArray, RequestDemand

# Loads of the budget from here on are taken as this one, so that the law stays finite.
LARGEST_LOAD = 0.98
# Shares of arrivals in full steps that move no percentile by more than 0.5 %.
FEW_FULL = 0.05
# Against divisions by zero where a kind of step does not occur.
_TINY = 1e-12


class PartialSteps(NamedTuple):
    """Steps of a queue for room that are not full.

    none, some, rest: of them, those without prompts, those with what came in one step, and those
    with what full steps left, which is even over the room. mean_tokens, variance_tokens2: of some.
    stretch: W in units of c·I. per_second: how many. time_ratio: their share of the time.
    ended_ratio: share of the tokens, and with that of the ends of prompts, that they hold.
    """

    none: float
    some: float
    rest: float
    mean_tokens: float
    variance_tokens2: float
    stretch: float
    per_second: float
    time_ratio: float
    ended_ratio: float


class Content(NamedTuple):
    """What comes in one step: shares of none, some and more than the room; moments of some."""

    none: float
    some: float
    more: float
    mean: float
    square: float


def meet_queue(
    demand: RequestDemand,
    prompts: PromptWork,
    arrivals: Sequence[Met],
    characteristic: FloatArray,
    chunked: Chunked,
) -> None:
    """Take the law of a queue for room as far as arrivals come in full steps, in place.

    Cycles of prefill are exact where no step is full, and wrong where most are: there prompts that
    come during a cycle fill its last step, so that it goes on.
    arrivals: as many as rows of the transforms; those at paces of one replica that queue are taken.
    """
    rows = [row for row, arrival in enumerate(arrivals) if arrival.pace.alone]
    paces = [arrivals[row].pace for row in rows]
    partial = partial_steps(demand, paces)
    kept = [place for place, steps in enumerate(partial) if 1.0 - steps.time_ratio > FEW_FULL]
    if not kept:
        return
    rows, paces = [rows[place] for place in kept], [paces[place] for place in kept]
    partial = [partial[place] for place in kept]
    behind, own = (
        law.reshape(len(law), len(arrivals), -1)[:, rows] for law in (chunked.behind, chunked.own)
    )
    excess = [
        prompts.stretched(arrivals[row].level, steps.stretch).excess
        for row, steps in zip(rows, partial, strict=True)
    ]
    z = np.array([prompts.table(arrivals[row].level).z for row in rows])
    longer = own[1] if len(own) > 1 else None
    laws = _queued_laws(demand, paces, partial, np.array(excess), (behind[0], own[0], longer), z)
    full = np.array([[1.0 - steps.time_ratio] for steps in partial])
    by_row = characteristic.reshape(len(arrivals), -1)
    by_row[rows] += full * (laws - by_row[rows])


def partial_steps(demand: RequestDemand, paces: Sequence[Pace]) -> list[PartialSteps]:
    """Partial steps, by pace.

    What comes during a step is less than the room, and the content of the next one, or more: then
    full steps follow, and what they leave is taken as even over the room. Contents are a chain.
    """
    per_token = demand.prefill_per_token_seconds
    lengths = [
        length
        for pace in paces
        for length in (pace.mean_step, pace.mean_step + 0.5 * per_token * pace.room_tokens)
    ]
    ends = _contents(demand, [pace for pace in paces for _ in range(2)], lengths)
    begun = ends[::2]
    lengths = [
        pace.mean_step + per_token * content.mean
        for pace, content in zip(paces, begun, strict=True)
    ]
    middle = _contents(demand, paces, lengths)
    return list(map(partial_of, [demand] * len(paces), paces, begun, middle, ends[1::2]))


def _contents(
    demand: RequestDemand, paces: Sequence[Pace], lengths: Sequence[float]
) -> list[Content]:
    """Prompts that come in steps of these lengths: Poisson, their sum a gamma law if there are any.

    The gamma law has the first two moments of the sum.
    """
    laws = [
        sum_in_step(demand, pace.rate_per_second * length)
        for pace, length in zip(paces, lengths, strict=True)
    ]
    shares = gammainc(
        [(law.shape, law.shape + 1.0, law.shape + 2.0) for law in laws],
        [(pace.room_tokens / law.scale,) for pace, law in zip(paces, laws, strict=True)],
    )
    return [content_of(law, *below) for law, below in zip(laws, shares.tolist(), strict=True)]


def sum_in_step(demand: RequestDemand, count: float) -> SumOfPrompts:
    """The tokens of the prompts that come in a step, as a gamma law where there are any."""
    tokens, square = demand.uncached_mean_tokens, demand.uncached_second_moment_tokens2
    some = -math.expm1(-count)
    mean = count * tokens / some
    second = (count * square + (count * tokens) ** 2) / some
    variance = max(second - mean * mean, _TINY * second)
    return SumOfPrompts(some, mean * mean / variance, variance / mean)


def content_of(law: SumOfPrompts, below: float, once: float, twice: float) -> Content:
    """What comes in a step; numbers as in `filling_of`."""
    some, shape, scale = law
    part = max(below, _TINY)
    mean = shape * scale * once / part
    second = shape * (shape + 1.0) * scale * scale * twice / part
    return Content(1.0 - some, some * below, some * (1.0 - below), mean, second)


def partial_of(
    demand: RequestDemand, pace: Pace, first: Content, middle: Content, last: Content
) -> PartialSteps:
    """Shares of the chain whose rows are what comes in steps of each kind."""
    per_token, room, step = demand.prefill_per_token_seconds, pace.room_tokens, pace.mean_step
    none = middle.none * (last.none + last.some) + middle.more * last.none
    some = first.some * (last.none + last.some) + first.more * last.some
    rest = first.more * (middle.none + middle.more) + first.some * middle.more
    total = max(none + some + rest, _TINY)
    none, some, rest = none / total, some / total, rest / total
    masses = (none * first.some, some * middle.some, rest * last.some)
    mass = max(sum(masses), _TINY)
    mean = (masses[0] * first.mean + masses[1] * middle.mean + masses[2] * last.mean) / mass
    square = masses[0] * first.square + masses[1] * middle.square + masses[2] * last.square
    held = some * mean + rest * 0.5 * room
    arriving = pace.rate_per_second * demand.uncached_mean_tokens
    work = min(per_token + step / room, LARGEST_LOAD / arriving)
    per_second = (1.0 - arriving * work) / (step + (per_token - work) * held)
    return PartialSteps(
        none,
        some,
        rest,
        mean,
        max(square / mass - mean * mean, 0.0),
        work / per_token,
        per_second,
        min(per_second * (step + per_token * held), 1.0),
        min(per_second * held / arriving, 1.0),
    )


def _queued_laws(
    demand: RequestDemand,
    paces: Sequence[Pace],
    partial: Sequence[PartialSteps],
    excess: ComplexArray,
    own: tuple[ComplexArray, ComplexArray, ComplexArray | None],
    z: ComplexArray,
) -> FloatArray:
    """Real part of the transforms of the time to first token, by pace.

    An arrival in a partial step waits for its rest, then for what came before it there, and takes
    its own steps from the beginning of one; what comes behind it until that step begins shares it.
    Tokens before it in its step cost c and were counted at c + s/R; as many come behind as before,
    so that these are counted at c − s/R. Arrivals in full steps end anywhere in a step, in a full
    one but for those that end in partial steps, and wait for its end.

    excess: transform of W, less 1. own: transforms of a prompt behind, less 1, of own prompts that
    fit in a step, with their share, and of the others with their steps; None where all fit.
    """
    per_token = demand.prefill_per_token_seconds
    behind, fitting, longer = own
    rows = [
        (
            pace.rate_per_second, pace.mean_step, pace.room_tokens, steps.mean_tokens,
            0.5 * steps.variance_tokens2, steps.none, steps.some, steps.rest, steps.per_second,
            steps.ended_ratio, max(1.0 - pace.mean_step / (pace.room_tokens * per_token), 0.0),
            per_token * steps.stretch,
        )
        for pace, steps in zip(paces, partial, strict=True)
    ]  # fmt: skip
    rate, step, room, mean, spread, none, some, rest, often, ended, sharing, work = columns(rows)
    sharing = sharing * rate
    arriving = excess * rate
    later = behind * sharing
    later += z
    per = np.empty((4, *z.shape), dtype=np.complex128)
    np.multiply(z, per_token, out=per[0])
    np.multiply(later, per_token, out=per[1])
    np.multiply(arriving, per_token, out=per[2])
    np.multiply(z, work, out=per[3])
    logs = np.empty((11, *z.shape), dtype=np.complex128)
    np.multiply(per, room, out=logs[:4])
    np.multiply(per, spread, out=logs[4:8])
    logs[4:8] += mean
    logs[4:8] *= per
    np.multiply(z, step, out=logs[8])
    np.multiply(later, step, out=logs[9])
    np.multiply(arriving, step, out=logs[10])
    full = logs[:4].copy()
    powers = np.exp(logs)
    # The mean of e^(xQ) over an even room, (e^(Rx) − 1)/(Rx), and its limit at 0.
    full[..., 0] = 1.0
    even = powers[:4] - 1.0
    even /= full
    even[..., 0] = 1.0
    content = even * rest
    content += powers[4:8] * some
    content += none
    begun, joint, came = content[:3] * powers[8:]
    rest_of_step = z - arriving
    rest_of_step[..., 0] = 1.0
    all_found = (begun - content[3]) * often / rest_of_step
    in_partial = (begun - came) * often / rest_of_step
    in_joint = later - arriving
    in_joint[..., 0] = 1.0
    in_joint = (joint - came) * often / in_joint
    ends = (powers[8] - 1.0) / np.where(logs[8] == 0.0, 1.0, logs[8])
    ends *= ended
    ends += (1.0 - ended) * even[3]
    met = (all_found - in_partial) * (excess + 1.0) * ends
    met += in_joint * fitting * powers[8]
    if longer is not None:
        met += in_partial * longer * powers[8]
    return np.asarray(met.real)
