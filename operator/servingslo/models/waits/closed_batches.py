"""Times on a server that closes batches while another runs: a window, one instance, no bound.

Triton forms the next batch while the instance is busy. It is closed when its oldest request has
waited for the window. Who comes later joins only if that makes the batch full, or if the server
looks again; else it waits for one batch more than on a server that takes all who wait.

The chain is embedded at starts of batches: b requests start, m wait, and those are closed already
or open still.
Source: Triton Inference Server core, dynamic_batch_scheduler.cc (BatcherThread, GetDynamicBatch),
rate_limiter.cc (PayloadSlotAvailable with prefetching), release 2.51.
Approximations: an open batch closes at its mean moment; large sizes are on a grid.
Shown by: tests/unit/test_models_closed_batches.py, against a simulation of the server's rules.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servingslo.models.engine.service_time import FloatArray
from servingslo.models.numerics import TINY_SECONDS
from servingslo.models.waits.batch_numbers import Times, middles, poisson, stationary
from servingslo.models.waits.closed_requests import (
    FILLS_ALONE,
    FILLS_NEVER,
    FILLS_TOGETHER,
    Case,
    Forming,
    Requests,
    last_look,
)

IntArray = NDArray[np.int64]

# Points of the quadrature over openings of a batch.
_OPENINGS = 8
# Probabilities that show in no percentile.
_NEGLIGIBLE = 1e-9
# The chain is solved for states that are likelier than this after so many starts.
_RARE, _STARTS = 1e-6, 8
# Sizes below the largest that are evaluated: at most so many, closer where they are small. Twelve
# evenly spaced ones differ by 1 % in the mean of p95.
_MOST_SIZES = 8
# A chain is of at most so many requests in a batch; of larger ones several count as one, which
# spreads their numbers a little more. Batches stay below the mean by so many standard deviations.
_MOST_REQUESTS, _SPREADS = 32, 6.0
# The queue's tail, as in dynamic_batches, and the utilization up to which it is followed.
_TAIL, _BUSIEST = 4.0, 0.95
# Numbers that are left at the start of a batch that is not full: so many full batches.
_WIDE_BATCHES = 2


class ClosedTimes(NamedTuple):
    """Waits in seconds, batches and weights of requests; the mean batch over starts."""

    wait: FloatArray
    batch: FloatArray
    weight: FloatArray
    batch_mean: float


def closed_times(case: Case) -> ClosedTimes:
    """Times of a server below saturation. Of large batches several requests count as one."""
    case = case._replace(size=_reached(case))
    several = max(case.size / _MOST_REQUESTS, 1.0)
    size = min(case.size, _MOST_REQUESTS)
    # Requests of a batch and a window, and the tail of the queue, which falls by e for every
    # 1/(2·(1 − ρ)) requests.
    full = case.fixed + case.each * case.size
    mean = case.rate / several * (full + case.window)
    busy = min(case.rate * full / case.size, _BUSIEST)
    most = size + mean + _SPREADS * mean**0.5 + _TAIL / (1.0 - busy)
    chain = ClosedBatches(
        case._replace(
            rate=case.rate / several,
            size=size,
            each=case.each * several,
            most=min(case.most, int(most)),
        )
    )
    wait, batch, weight = chain.times().join()
    return ClosedTimes(wait, batch * several, weight, chain.batch_mean * several)


def _reached(case: Case) -> int:
    """Return the largest size, or a size that batches do not reach at this rate."""
    growth = case.rate * case.each
    if growth >= 1.0:
        return case.size
    mean = 1.0 + case.rate * (case.fixed + case.each + case.window) / (1.0 - growth)
    return min(case.size, int(mean + _SPREADS * (mean / (1.0 - growth)) ** 0.5) + 2)


# How the next batch is at a start: closed then, so that some still join; open; closed before, so
# that nobody joins, but the batch after it does if both fit.
_CLOSED, _OPEN, _SET = range(3)


def _together(kind: tuple[Forming, ...]) -> Forming:
    """Return what forms in one way, during batches of all sizes."""
    return kind[0]._replace(
        rows=np.concatenate([one.rows for one in kind]),
        first=np.concatenate([one.first for one in kind]),
        opened=np.concatenate([one.opened for one in kind]),
        closes=np.concatenate([one.closes for one in kind]),
        joins=np.concatenate([one.joins for one in kind]),
        seconds=np.concatenate([one.seconds for one in kind]),
    )


class ClosedBatches:
    """The chain of one instance. batch_mean: over starts."""

    def __init__(self, case: Case) -> None:
        self._case = case
        below = min(case.size - 1, _MOST_SIZES)
        grid = np.round(np.geomspace(1, max(case.size - 1, 1), below))
        self._levels: FloatArray = np.append(np.unique(grid), case.size).astype(float)
        sizes, bases = np.arange(case.size + 1.0), np.eye(len(self._levels))
        # Each size as shares of those that are evaluated, of the same mean.
        self._shares = np.stack([np.interp(sizes, self._levels, one) for one in bases], axis=1)
        # States: how the next batch is, the size that starts, and the number left.
        self._wide = min(_WIDE_BATCHES * case.size, case.most)
        self._place = self._places()
        by_level = [self._formings(at) for at in range(len(self._levels))]
        self._forming = [_together(kind) for kind in zip(*by_level, strict=True)]
        chain = np.zeros((len(self._size_at),) * 2)
        for one in self._forming:
            states = self._next_states(one)
            if one.share < 1.0:
                states = states.reshape(-1, _OPENINGS, len(chain)).sum(axis=1)
            chain[one.rows[:: round(1.0 / one.share)]] += one.share * states
        # From anywhere, after some starts: states that are left out are as unlikely.
        share = np.full(len(chain), 1.0 / len(chain))
        for _ in range(_STARTS):
            share = share @ chain
        reached = share > _RARE
        self._stationary = np.zeros(len(reached))
        self._stationary[reached] = stationary(chain[np.ix_(reached, reached)])
        self.batch_mean = float(self._stationary @ self._size_at)

    def _places(self) -> IntArray:
        """Number the states: how the next batch is, the size that starts, and the number left."""
        size, most = self._case.size, self._case.most
        used = np.zeros((3, len(self._levels), most + 1), dtype=bool)
        used[_CLOSED, :-1, :size] = used[_CLOSED, -1, 0] = True
        used[_OPEN, :, 1:size] = True
        used[_SET, :-1, 1 : self._wide + 1] = used[_SET, -1, 1:] = True
        self._size_at = np.broadcast_to(self._levels[:, None], used.shape)[used]
        place: IntArray = np.cumsum(used).reshape(used.shape) - 1
        return place

    def times(self) -> Times:
        """Waits and batches of requests, by the start after which they come."""
        requests = Requests(self._case, self.batch_mean)
        for one in self._forming:
            requests.add(one, one.share * self._stationary[one.rows])
        return requests.times

    def _formings(self, at: int) -> tuple[Forming, ...]:
        """Return what may form while a batch of this size runs."""
        case, seconds = self._case, float(self._case.seconds(self._levels[at]))
        full = at == len(self._levels) - 1
        number = np.arange(1, case.size)
        zero = np.zeros(len(number))
        first = min(1.0 / case.rate, seconds)
        closes = last_look(zero + first, seconds)
        # The first who comes joins, and who is there when the server looks again.
        joins = self._numbers(np.maximum(closes - first, 0.0))
        one = -np.expm1(-case.rate * seconds)
        joins = (1.0 - one) * joins + one * np.pad(joins, ((0, 0), (1, 0)))[:, :-1]
        rows = self._place[_CLOSED, at, number]
        many = np.full(len(number), seconds)
        kept = np.s_[:0] if full else np.s_[:]
        parts = (rows[kept], 1.0, number[kept], zero[kept], closes[kept], joins[kept])
        closed = Forming(*parts, FILLS_TOGETHER, many[kept])
        most = np.arange(1, (case.most if full else self._wide) + 1)
        none, rows = np.zeros(len(most)), self._place[_SET, at, most]
        nobody = self._numbers(none)
        each = none + seconds
        before = Forming(rows, 1.0, most, none, none, nobody, FILLS_NEVER, each)
        closes = last_look(np.asarray(case.window / (number + 1.0), dtype=float), seconds)
        rows, joins = self._place[_OPEN, at, number], self._numbers(closes)
        still = Forming(rows, 1.0, number, zero, closes, joins, FILLS_ALONE, many)
        opened: FloatArray = np.asarray(-np.log1p(-middles(_OPENINGS)) / case.rate)
        closes = last_look(opened + case.window, seconds)
        rows, joins = (
            np.repeat(self._place[_CLOSED, at, 0], _OPENINGS),
            self._numbers(closes - opened),
        )
        ones = np.ones(_OPENINGS, dtype=int)
        share, each = 1.0 / _OPENINGS, np.full(_OPENINGS, seconds)
        empty = Forming(rows, share, ones, opened, closes, joins, FILLS_ALONE, each)
        return closed, before, still, empty

    def _numbers(self, seconds: FloatArray) -> FloatArray:
        """P(0), P(1), ... requests in so many seconds, in the last place of all more."""
        shares = poisson(self._case.rate * np.asarray(seconds), self._case.most + 1)
        shares[..., -1] += np.maximum(1.0 - shares.sum(axis=-1), 0.0)
        return shares

    def _next_states(self, one: Forming) -> FloatArray:
        """Return the shares of next states: rows × states."""
        size, most, levels = self._case.size, self._case.most, len(self._levels)
        late = np.maximum(one.seconds - one.closes, 0.0)
        after = self._numbers(late)
        never = one.fills == FILLS_NEVER
        partly = self._not_full(one, after)
        full = self._left_full(one, after) if never else self._full(one, after)
        full[:, -1] += np.maximum(1.0 - partly.sum(axis=(1, 2)) - full.sum(axis=1), 0.0)
        found = np.zeros((len(late), len(self._size_at)))
        ends = np.cumsum([(levels - 1) * size, 1, levels * (size - 1), (levels - 1) * self._wide])
        closed, whole, still, before, filled = np.split(found, ends, axis=1)
        closed = closed.reshape(-1, levels - 1, size)
        still = still.reshape(-1, levels, size - 1)
        waited = self._waited(np.arange(most + 1), late)
        still[:, :-1] = (partly[:, :, :size] * (1.0 - waited[:, None, :size]))[:, :, 1:]
        still[:, -1] = (full * (1.0 - waited))[:, 1:size]
        partly *= waited[:, None, : partly.shape[2]]
        # What is closed while a full batch waits is closed before that starts; so is a full one.
        filled[:] = (full * waited)[:, 1:]
        whole[:, 0] = full[:, 0]
        if not never:
            closed[:] = partly
            return found
        together = self._merged(one, partly)
        closed[:, :, 0] = partly[:, :, 0] + together[:, :-1]
        whole[:, 0] += together[:, -1]
        before.reshape(-1, levels - 1, self._wide)[:] = partly[:, :, 1:]
        return found

    def _not_full(self, one: Forming, after: FloatArray) -> FloatArray:
        """Return the shares of batches that are not full: rows × sizes × numbers left."""
        size = self._case.size
        shares = self._shares[:-1, :-1]
        if one.fills == FILLS_NEVER:
            left = after[:, : self._wide + 1].copy()
            # Numbers that no state tells apart, which are unlikely, are the nearest.
            left[:, -1] += after[:, self._wide + 1 :].sum(axis=1)
            own = shares[np.minimum(one.first, size - 1)] * (one.first < size)[:, None]
            partly: FloatArray = own[:, :, None] * left[:, None, :]
            return partly
        joins, left = self._grown(one), after[:, :size]
        if one.fills == FILLS_ALONE:
            alone: FloatArray = (joins @ shares)[:, :, None] * left[:, None, :]
            return alone
        number = np.arange(size)
        below = number < size - number[:, None]
        each = (shares[:, :, None] * below[:, None, :]).reshape(size, -1)
        some: FloatArray = (joins @ each).reshape(len(joins), -1, size) * left[:, None, :]
        return some

    def _grown(self, one: Forming) -> FloatArray:
        """P(a batch has grown to 0, 1, ... requests, and is not full)."""
        more = np.arange(self._case.size) - one.first[:, None]
        joins = np.take_along_axis(one.joins, np.clip(more, 0, self._case.most), axis=1)
        shares: FloatArray = joins * (more >= 0)
        return shares

    def _full(self, one: Forming, after: FloatArray) -> FloatArray:
        """Return the shares of numbers left by full batches: late ones fill them, or they were."""
        size, most, joins = self._case.size, self._case.most, self._grown(one)
        full = np.zeros(after.shape)
        for batch in range(1, size):
            lacking = size - batch
            start = size if one.fills == FILLS_ALONE else lacking
            filled = joins[:, batch, None] * after[:, start:]
            full[:, start - lacking : most + 1 - lacking] += filled
        over = np.arange(most + 1) + (size - one.first)[:, None]
        beyond = np.take_along_axis(one.joins, np.minimum(over, most), axis=1) * (over <= most)
        for number in np.flatnonzero(beyond.max(axis=0, initial=0.0) > _NEGLIGIBLE):
            full[:, number:] += beyond[:, number, None] * after[:, : most + 1 - number]
        return full

    def _left_full(self, one: Forming, after: FloatArray) -> FloatArray:
        """Return the shares of numbers left by batches that were full and that nobody joins."""
        place = np.arange(self._case.most + 1) - (one.first - self._case.size)[:, None]
        full = np.take_along_axis(after, np.clip(place, 0, self._case.most), axis=1)
        shares: FloatArray = full * ((place >= 0) & (one.first >= self._case.size)[:, None])
        return shares

    def _merged(self, one: Forming, partly: FloatArray) -> FloatArray:
        """Take out two closed batches that fit in one; return its shares of sizes."""
        size = self._case.size
        number = np.arange(partly.shape[2])
        whole = one.first[:, None] + number
        fits = (number > 0) & (whole <= size)
        share = partly.sum(axis=1) * fits
        partly *= ~fits[:, None, :]
        sizes = self._shares[np.minimum(whole, size)]
        together: FloatArray = np.einsum("rn,rnl->rl", share, sizes)
        return together

    def _waited(self, number: IntArray, seconds: FloatArray) -> FloatArray:
        """P(the oldest of so many, who came within these seconds, has waited for the window)."""
        part = np.minimum(self._case.window / np.maximum(seconds, TINY_SECONDS), 1.0)
        share: FloatArray = np.asarray(1.0 - part[:, None] ** number, dtype=float)
        share[:, 0] = 1.0
        share[:, self._case.size :] = 1.0
        return share
