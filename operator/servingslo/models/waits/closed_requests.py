"""Times of requests on a server that closes batches while another runs: see closed_batches.

Requests are points of an even sequence: the moment of an arrival, and how many come before and
after it in the same interval. A start that is twice as likely has twice as many of them.
Source: M. Roberts, The unreasonable effectiveness of quasirandom sequences (2018).
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv

from servingslo.models.engine.service_time import FloatArray
from servingslo.models.waits.batch_numbers import Times, middles

IntArray = NDArray[np.int64]

# Requests of an evaluation, about, and shares of Poisson numbers that are kept. Percentiles
# differ by 1 % in the mean from those of a grid of 1200 points for each start.
_POINTS, _NUMBERS = 3000, 9
# Steps of the even sequence in three dimensions: powers of the root of x⁴ = x + 1.
_EVEN = 1.2207440846057596 ** -np.arange(1.0, 4.0)
# Starts with fewer points than this have none.
_UNLIKELY = 1e-3
# Requests in an interval are at most so many.
_MOST_NUMBER = 2000
# While a batch is closed the server looks for more each half second.
# Source: Triton core, dynamic_batch_scheduler.cc, default_wait_microseconds.
_LOOKS_AGAIN_SECONDS = 0.5


class Case(NamedTuple):
    """Requests per second, full size, window and law in seconds, most waiting numbers kept."""

    rate: float
    size: int
    window: float
    fixed: float
    each: float
    most: int

    def seconds(self, batch: FloatArray) -> FloatArray:
        """Duration of batches."""
        return self.fixed + self.each * batch


# Late ones fill a batch if they make it full; if they alone are as many as a full one; never.
FILLS_TOGETHER, FILLS_ALONE, FILLS_NEVER = range(3)


class Forming(NamedTuple):
    """Batches that form while one of so many seconds runs, one for each row.

    share: of the starts of a row's state that go this way. first: requests in the batch. opened,
    closes: from when to when others join, in seconds from the start. joins: P(0), P(1), ... others
    until then, in a second dimension. fills: whether late ones join because they fill it.
    """

    rows: IntArray
    share: float
    first: IntArray
    opened: FloatArray
    closes: FloatArray
    joins: FloatArray
    fills: int
    seconds: FloatArray


class _Points(NamedTuple):
    """Requests, one in each row: three even numbers of 0 to 1, a weight, and what forms.

    grown: the mean number in the batch that closes. Else as in Forming.
    """

    fills: int
    even: FloatArray
    weight: FloatArray
    first: FloatArray
    grown: FloatArray
    opened: FloatArray
    closes: FloatArray
    seconds: FloatArray


class Requests:
    """Weighted times of the requests that come between starts. batch_mean: over starts."""

    def __init__(self, case: Case, batch_mean: float) -> None:
        self._case, self._each = case, _POINTS / batch_mean
        self.times = Times()

    def add(self, one: Forming, share: FloatArray) -> None:
        """Add those who come while a batch forms, after starts of these shares."""
        rate = self._case.rate
        if one.opened.any():
            self._add_openers(self._points(one, share))
        self._add_joining(self._points(one, share * rate * (one.closes - one.opened)))
        late = np.maximum(one.seconds - one.closes, 0.0)
        self._add_late(self._points(one, share * rate * late))

    def _points(self, one: Forming, requests: FloatArray) -> _Points:
        """Return points for requests, by their number in each row."""
        points = requests * self._each
        count = np.where(points > _UNLIKELY, np.ceil(points), 0.0).astype(int)
        at = np.repeat(np.arange(len(count)), count)
        even = _even_numbers()[:, : len(at)]
        weight = requests[at] / count[at]
        grown = one.first + one.joins @ np.arange(one.joins.shape[1])
        rows = (one.first.astype(float), grown, one.opened, one.closes, one.seconds)
        return _Points(one.fills, even, weight, *(row[at] for row in rows))

    def _add_openers(self, one: _Points) -> None:
        """Add those who find nobody waiting: their batch opens when they come."""
        case = self._case
        span = one.closes - one.opened
        joined = _numbers_of(case.rate * span, one.even[0])
        part = np.minimum((case.size - 1) / (joined + 1.0), 1.0)
        starts = np.maximum(one.seconds, one.opened + part * span)
        batch = np.minimum(1.0 + joined, case.size)
        self.times.add(starts - one.opened, batch, one.weight)

    def _add_joining(self, one: _Points) -> None:
        """Add those who come before a batch is closed; of a full one they are left."""
        case, span = self._case, one.closes - one.opened
        moment, before, after = self._arrival(one, span)
        first, opened, seconds, weight = one.first, one.opened, one.seconds, one.weight
        place, came = first + before + 1.0, first + before + after + 1.0
        fills = moment + (span - moment) * np.clip((case.size - place) / (after + 1.0), 0.0, 1.0)
        ends = np.where(came >= case.size, opened + fills, opened + span)
        starts = np.maximum(seconds, ends)
        joins = place <= case.size
        batch = np.minimum(came, case.size)
        self.times.add(starts - opened - moment, batch, np.where(joins, weight, 0.0))
        until = np.maximum(seconds - opened - moment, 0.0)
        over, size = np.maximum(came - case.size, 1.0), np.array(float(case.size))
        left = np.where(joins, 0.0, weight)
        self._add_left((until, place - case.size, over, size), until, left)

    def _add_late(self, one: _Points) -> None:
        """Add those who come after a batch was closed: some fill it, others are left."""
        case, late = self._case, np.maximum(one.seconds - one.closes, 0.0)
        moment, before, after = self._arrival(one, late)
        grown, weight = one.grown, one.weight
        came, over = before + after + 1.0, np.maximum(grown - case.size, 0.0)
        batch = np.minimum(grown, case.size)
        enough = {
            FILLS_TOGETHER: case.size - batch,
            FILLS_ALONE: np.array(case.size),
            FILLS_NEVER: np.array(np.inf),
        }[one.fills]
        fill = np.where(came >= enough, case.size - batch, 0.0)
        batch = batch + fill
        until = late - moment
        oldest = late - moment * np.minimum((fill + 1.0) / (before + 1.0), 1.0)
        joins = before < fill
        if one.fills == FILLS_NEVER:
            joins = (oldest >= case.window) & (grown + came <= case.size)
            batch = np.where(joins, grown + came, batch)
        self.times.add(until, batch, np.where(joins, weight, 0.0))
        place, others = over + before + 1.0 - fill, over + came - fill
        left = np.where(joins, 0.0, weight)
        alone = one.fills == FILLS_NEVER
        self._add_left((until, place, others, batch), oldest, left, alone=alone)

    def _add_left(
        self,
        left: tuple[FloatArray, ...],
        oldest: FloatArray,
        weight: FloatArray,
        *,
        alone: bool = False,
    ) -> None:
        """Add those whose batch is the one after the next.

        left: seconds until the next start, place among them, how many, size of the next batch.
        alone: nobody joins them.
        """
        case, (until, place, others, then) = self._case, left
        busy, full = case.seconds(then), float(case.seconds(np.array(case.size)))
        turns = np.floor((place - 1.0) / case.size)
        rest = np.maximum(others - turns * case.size, 1.0)
        remaining = np.where(turns > 0.0, 0.0, np.maximum(case.window - oldest, 0.0))
        wait = until + busy + turns * full
        # How much it grows until the batch that runs has ended.
        closes = np.where(remaining > 0.0, remaining, np.minimum(1.0 / case.rate, busy))
        closes = np.minimum(last_look(closes, busy), busy)
        grown = np.minimum(rest + case.rate * closes, case.size)
        grown = np.where((alone | (then >= case.size)) & (remaining <= 0.0), rest, grown)
        self.times.add(
            wait + np.maximum(remaining - busy, 0.0), np.minimum(grown, case.size), weight
        )

    def _arrival(self, one: _Points, span: FloatArray) -> tuple[FloatArray, ...]:
        """Return the moments of arrivals in spans, and how many come before and after them."""
        moment = span * one.even[2]
        before = _numbers_of(self._case.rate * moment, one.even[0])
        return moment, before, _numbers_of(self._case.rate * (span - moment), one.even[1])


def last_look(closes: FloatArray, seconds: FloatArray | float) -> FloatArray:
    """Return when a batch that closes then, while another runs, is looked at for the last time."""
    looks = np.floor((seconds - closes) / _LOOKS_AGAIN_SECONDS)
    last: FloatArray = closes + _LOOKS_AGAIN_SECONDS * np.maximum(looks, 0.0)
    return last


@lru_cache(maxsize=1)
def _even_numbers() -> FloatArray:
    """Return an even sequence of 0 to 1: dimensions × points."""
    numbers: FloatArray = (_EVEN[:, None] * np.arange(1.0, 4.0 * _POINTS)) % 1.0
    return numbers


def _numbers_of(mean: FloatArray, share: FloatArray) -> FloatArray:
    """Return the Poisson number of each mean that this share does not exceed."""
    found = np.zeros(len(mean))
    part = (share * _NUMBERS).astype(int)
    for one, means in enumerate(_least_means()):
        at = part == one
        found[at] = np.searchsorted(means, mean[at])
    return found


@lru_cache(maxsize=1)
def _least_means() -> tuple[FloatArray, ...]:
    """For each share, the least means at which its Poisson quantile is 1, 2, ..."""
    number = np.arange(1.0, _MOST_NUMBER)
    return tuple(gammainccinv(number, share) for share in middles(_NUMBERS))
