"""Times in a server of dynamic batches, as Triton: M/G/c/K with a window in which batches form.

Arrivals are Poisson. A batch begins on a free instance when it is full or its oldest request has
waited for the window. It takes a + b·n for all n requests in it, and all of them end together. The
chain is embedded at the starts of batches: how many requests wait there, and how many instances are
busy. The times of a request follow from where it arrives in the interval between two starts. A
server with a window and no bound closes batches while it is busy: see closed_batches.

Approximations: an instance that is busy at a start has a uniform part of its batch left (exact for
the renewals of a loss system), and behind more than one full batch the instances take turns evenly.
Source: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16 (1954), with
a window, a bounded room and several servers added.
Fails: a window under load on several instances, up to a fifth early (docs/lab/triton.md); a server
whose threads wait for a processor notices late that it is free, and loses more than is said here.
Shown by: tests/unit/test_models_dynamic_batches.py, and twelve points of a real Triton.
"""

import math
from typing import NamedTuple

import numpy as np

from servingslo.models.engine.service_time import DynamicBatcher, FloatArray, ServiceLaw
from servingslo.models.numerics import TINY_SECONDS
from servingslo.models.waits.batch_numbers import (
    Times,
    middles,
    poisson,
    poisson_points,
    stationary,
)
from servingslo.models.waits.closed_batches import closed_times
from servingslo.models.waits.closed_requests import Case

# Distinct numbers of requests at a start: so many full batches, and at least so many requests. Near
# saturation the tail of the queue falls by e for every 1/(2·(1 − ρ)) requests.
_BATCHES, _LEAST_STATES, _TAIL = 4, 48, 4.0
# Most numbers and most instances of one evaluation, to limit its time.
_MOST_STATES, _MOST_SERVERS = 1200, 4
NEAREST_SATURATION = 0.998
# Points of each quadrature: rest of a batch, the window, the age of the oldest request, the moment
# of an arrival in an interval, the number before it and the number after it.
_RESIDUALS, _WINDOWS, _AGES, _MOMENTS, _BEFORE, _AFTER = 4, 9, 3, 10, 9, 3
# Rest of busy batches, between uniform parts (1), as if instances are seldom all busy, and even
# turns (0). Chosen by simulation of 2 and 4 instances, utilization 0.1 to 0.9.
_SPREAD = 0.75
# Less likely starts do not show in any percentile up to 99.9.
_UNLIKELY = 1e-6


class Starts(NamedTuple):
    """Numbers of waiting requests at starts of batches; the first axis is those numbers.

    left: waiting requests that do not fit in the batch. seconds: of the batch.
    """

    number: FloatArray
    left: FloatArray
    seconds: FloatArray


class BatchTimes:
    """Times of requests at one server and one rate, below saturation.

    lost_ratio: requests that find no room. batch_mean: over batches; batch_mean_of_request: over
    requests, E[b²]/E[b]. wait_seconds, latency_seconds: with weight, of those that find room.
    """

    def __init__(
        self, law: ServiceLaw, batcher: DynamicBatcher, arrival_rate_per_second: float
    ) -> None:
        self._law = law
        self._size = largest_batch(batcher)
        self._window = batcher.window_seconds
        told_apart = _MOST_STATES // max(self._size, _LEAST_STATES)
        self._servers = max(min(batcher.instances, _MOST_SERVERS, told_apart), 1)
        # More instances are treated as equal groups, each with its part of the arrivals and of the
        # room.
        part = self._servers / batcher.instances
        self._rate = arrival_rate_per_second * part
        self._room = batcher.room and max(int(batcher.room * part), 1)
        self._starts = self._numbered_starts()
        self._windows: FloatArray = np.linspace(
            0.0, self._window, _WINDOWS if self._window > 0.0 else 1
        )
        closes_early = self._window > 0.0 and self._servers == 1 and self._size > 1
        if closes_early and not self._room:
            wait, batch, weight = self._closed_early()
        else:
            wait, batch, weight = self._solve()
        self.wait_seconds = wait
        self.latency_seconds = wait + self._seconds(batch)
        self.weight = weight / weight.sum()
        self.batch_mean_of_request = float(batch @ self.weight)

    def quantile(self, times: FloatArray, share: float) -> float:
        """Return the time that this share of all requests does not exceed, in seconds.

        A lost request has none: math.inf if more than the remaining share find no room.
        """
        share = share / (1.0 - self.lost_ratio)
        if share > 1.0:
            return math.inf
        order = np.argsort(times)
        reached = np.cumsum(self.weight[order])
        at = min(int(np.searchsorted(reached, share)), len(order) - 1)
        return float(times[order[at]])

    def _seconds(self, batch: FloatArray) -> FloatArray:
        law = self._law
        return law.step_fixed_seconds + law.step_per_sequence_seconds * batch

    def _numbered_starts(self) -> Starts:
        size, full = self._size, float(self._seconds(np.array([self._size]))[0])
        busy = min(self._rate * full / (size * self._servers), NEAREST_SATURATION)
        states = max(_LEAST_STATES, _BATCHES * size, size + int(_TAIL / (1.0 - busy)))
        states = min(states, _MOST_STATES // self._servers, self._room or _MOST_STATES)
        number = np.arange(1.0, states + 1.0)
        batch = np.minimum(number, size)
        return Starts(number, number - batch, self._seconds(batch))

    def _closed_early(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Solve the chain of a server that forms batches ahead; none finds no room."""
        fixed, each = self._law.step_fixed_seconds, self._law.step_per_sequence_seconds
        most = len(self._starts.number)
        found = closed_times(Case(self._rate, self._size, self._window, fixed, each, most))
        self.lost_ratio, self.batch_mean = 0.0, found.batch_mean
        return found.wait, found.batch, found.weight

    def _solve(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Solve the chain, and return the times that follow from it."""
        count, servers = len(self._starts.number), self._servers
        # From each start to the next: instances busy then, number then.
        chain = np.zeros((servers, count, servers, count))
        blocked = self._starts.seconds[:, None] / servers
        arrived = self._arrival_law(blocked)
        waited = self._window_weights(blocked, arrived)
        self._add_full(chain[-1], blocked, arrived, waited)
        for busy in range(1, servers):
            self._add_free(chain[busy - 1], busy)
        share = stationary(chain.reshape(servers * count, servers * count))
        share = share.reshape(servers, count)
        full = share[-1]
        lost = self._losses(full, arrived, blocked)
        taken = float(share.sum(axis=0) @ np.minimum(self._starts.number, self._size))
        self.batch_mean = taken / float(share.sum())
        self.lost_ratio = lost / (lost + taken)
        times = Times()
        self._add_blocked_times(times, full, self._blocked_seconds())
        open_windows = np.einsum("n,nqxg->xg", full, waited) / blocked.shape[1]
        self._add_window_times(times, open_windows)
        alone = float(full @ arrived[:, :, 0].mean(axis=1))
        alone += float(share[:-1, self._starts.left == 0.0].sum())
        self._add_idle_times(times, alone)
        return times.join()

    def _blocked_seconds(self) -> FloatArray:
        """Return seconds from a start on the last free instance to a free one: starts × points."""
        seconds, others = self._starts.seconds[:, None], self._servers - 1
        if not others:
            return seconds
        shares = 1.0 - (1.0 - middles(_RESIDUALS)) ** (1.0 / others)
        blocked: FloatArray = seconds * (_SPREAD * shares + (1.0 - _SPREAD) / self._servers)
        return blocked

    def _arrival_law(self, blocked: FloatArray) -> FloatArray:
        """Return P(so many wait when an instance is free): starts × points × (0 to all states)."""
        count = len(self._starts.number)
        shares = poisson(self._rate * blocked, count + 1)
        place = np.arange(count + 1) - self._starts.left[:, None].astype(int)
        shares = np.take_along_axis(shares, np.maximum(place, 0)[:, None, :], axis=2)
        shares *= (place >= 0)[:, None, :]
        shares[:, :, -1] += np.maximum(1.0 - shares.sum(axis=2), 0.0)
        return shares

    def _window_weights(self, blocked: FloatArray, arrived: FloatArray) -> FloatArray:
        """Return P(so many wait, so much window left): starts × points × number × window."""
        size, window, grid = self._size, self._window, self._windows
        count, points = blocked.shape
        known = min(size - 1, len(self._starts.number))
        weights = np.zeros((count, points, known, len(grid)))
        if not known:
            return weights
        shares = arrived[:, :, 1 : known + 1]
        if len(grid) == 1:
            weights[..., 0] = shares
            return weights
        number = np.arange(1.0, known + 1.0)[:, None]
        ages = middles(_AGES) ** (1.0 / number)
        # If some did not fit in the batch, the oldest has waited for at least the batch.
        ages = np.where((self._starts.left > 0.0)[:, None, None], 1.0, ages)
        left = np.maximum(window - blocked[:, :, None, None] * ages[:, None], 0.0)
        place = left * (len(grid) - 1) / window
        low = np.minimum(place.astype(int), len(grid) - 2)
        part = place - low
        for one in range(len(grid)):
            at = np.where(low == one, 1.0 - part, 0.0) + np.where(low + 1 == one, part, 0.0)
            weights[..., one] = shares * at.mean(axis=-1)
        return weights

    def _fill_law(self) -> FloatArray:
        """Return P(number at the start | number before, window left): number × window × number."""
        size, grid = self._size, self._windows
        known = min(size - 1, len(self._starts.number))
        more = poisson(self._rate * grid, size)
        filled = np.zeros((known, len(grid), size))
        for before in range(1, known + 1):
            filled[before - 1, :, before - 1 :] = more[:, : size - before + 1]
            filled[before - 1, :, -1] += np.maximum(1.0 - filled[before - 1].sum(axis=1), 0.0)
        return filled[:, :, : len(self._starts.number)]

    def _first_filled(self) -> FloatArray:
        """Return P(number at the start) if the first came to an idle server."""
        filled = self._fill_law()
        return filled[0, -1] if len(filled) else np.ones(1)

    def _add_full(
        self, chain: FloatArray, blocked: FloatArray, arrived: FloatArray, waited: FloatArray
    ) -> None:
        """Add transitions from starts on the last free instance: starts × busy × number."""
        size, servers = self._size, self._servers
        points = blocked.shape[1]
        at_once = arrived[:, :, size:].mean(axis=1)
        chain[:, -1, size - 1 :] += at_once
        remaining = self._starts.seconds[:, None] - blocked
        filled = self._fill_law()
        if len(filled):
            gaps = self._windows
            own = (gaps < remaining[..., None]).astype(float)
            rest = np.maximum(1.0 - gaps / np.maximum(remaining[..., None], TINY_SECONDS), 0.0)
            for busy, share in _busy_shares(own, rest, servers, servers - 2):
                part = np.einsum("nqxg,nqg->nxg", waited, share) / points
                known = part.reshape(len(part), -1) @ filled.reshape(-1, filled.shape[2])
                chain[:, busy - 1, : filled.shape[2]] += known
        first = self._first_filled()
        idle = arrived[:, :, 0]
        own, rest = self._busy_after_idle(remaining)
        for busy, share in _busy_shares(own, rest, servers, servers - 2):
            chain[:, busy - 1, : len(first)] += (idle * share).mean(axis=1)[:, None] * first

    def _add_free(self, chain: FloatArray, busy: int) -> None:
        """Add transitions from starts after which an instance is free."""
        left = self._starts.left
        for at in np.flatnonzero(left > 0.0):
            chain[at, busy, int(left[at]) - 1] = 1.0
        first, none = self._first_filled(), left == 0.0
        own, rest = self._busy_after_idle(self._starts.seconds[none])
        for then, share in _busy_shares(own, rest, self._servers, busy - 1):
            chain[none, then - 1, : len(first)] += share[:, None] * first

    def _busy_after_idle(self, remaining: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return P(busy at the next start) after an idle time and a window.

        First for a batch with `remaining` seconds left, then for one with a uniform part of it
        left.
        """
        longer = np.maximum(remaining - self._window, 0.0)
        own = -np.expm1(-self._rate * longer)
        rest = (longer - own / self._rate) / np.maximum(remaining, TINY_SECONDS)
        return own, np.maximum(rest, 0.0)

    def _losses(self, full: FloatArray, arrived: FloatArray, blocked: FloatArray) -> float:
        """Return the requests that find no room, for each start."""
        if not self._room:
            return 0.0
        number = np.arange(arrived.shape[2])
        came = self._starts.left + self._rate * blocked.mean(axis=1)
        found = np.minimum(number, self._room)
        kept = (arrived @ found).mean(axis=1)
        return float(full @ np.maximum(came - kept, 0.0))

    def _add_blocked_times(self, times: Times, full: FloatArray, blocked: FloatArray) -> None:
        """Add requests that come while every instance is busy."""
        rate, size, window = self._rate, self._size, self._window
        likely = full > _UNLIKELY * full.max()
        seconds = blocked[likely][..., None]
        left = self._starts.left[likely][:, None, None, None]
        since = seconds * middles(_MOMENTS)
        until = (seconds - since)[..., None]
        before = poisson_points(rate * since, _BEFORE, len(self._starts.number))
        place = left + before + 1.0
        ahead = np.floor((place - 1.0) / size)
        turns = ahead * float(self._seconds(np.array([size]))[0]) / self._servers
        served = until + turns
        after = poisson_points(rate * served, _AFTER, size + 1)
        batch = np.minimum((place - ahead * size)[..., None] + after, size)
        aged = since[..., None] * 0.5 ** (1.0 / np.maximum(before, 1.0))
        oldest = until + np.where(before > 0.0, aged, 0.0)
        oldest = np.where(left > 0.0, seconds[..., None], oldest)
        open_for = np.where(ahead > 0.0, 0.0, np.maximum(window - oldest, 0.0))[..., None]
        open_for = np.minimum(open_for, (size - batch) / rate)
        batch = np.minimum(batch + rate * open_for, size)
        weight = full[likely][:, None, None] * rate * seconds
        weight = weight / (blocked.shape[1] * _MOMENTS * _BEFORE * _AFTER)
        weight = np.broadcast_to(weight[..., None], place.shape)
        if self._room:
            weight = np.where(place > self._room, 0.0, weight)
        times.add(served[..., None] + open_for, batch, weight[..., None])

    def _add_window_times(self, times: Times, opened: FloatArray) -> None:
        """Add requests that come while a batch forms on a free instance: number before × window."""
        filled = self._fill_law()
        if not len(filled):
            return
        number = np.arange(1.0, filled.shape[2] + 1.0)
        before = np.arange(1.0, len(filled) + 1.0)[:, None, None]
        came = np.maximum(number - before, 0.0)
        lasted = self._forming_seconds(self._windows[:, None], self._size - before, number)
        self._add_uniform(times, lasted, number, opened[:, :, None] * filled * came)

    def _add_idle_times(self, times: Times, alone: float) -> None:
        """Add requests that find a free instance and an empty queue, and those that join them."""
        first = self._first_filled()
        number = np.arange(1.0, len(first) + 1.0)
        lasted = self._forming_seconds(np.array(self._window), np.array(self._size - 1.0), number)
        times.add(lasted, number, alone * first)
        self._add_uniform(times, lasted, number, alone * first * (number - 1.0))

    def _add_uniform(
        self, times: Times, lasted: FloatArray, number: FloatArray, weight: FloatArray
    ) -> None:
        shares = middles(_AFTER)
        wait = lasted[..., None] * shares
        times.add(wait, number[..., None], weight[..., None] / _AFTER)

    def _forming_seconds(
        self, window: FloatArray, lacking: FloatArray, number: FloatArray
    ) -> FloatArray:
        """Return how long a batch formed: the window, or less if it was full earlier."""
        filling = np.minimum(lacking / self._rate, window * lacking / (lacking + 1.0))
        return np.where(number >= self._size, filling, window)


def largest_batch(batcher: DynamicBatcher) -> int:
    """Return the requests in a full batch: at most as many as find room."""
    return min(batcher.largest_batch, batcher.room or batcher.largest_batch)


def saturation_per_second(law: ServiceLaw, batcher: DynamicBatcher) -> float:
    """Return the requests per second of full batches back to back on every instance."""
    size = largest_batch(batcher)
    seconds = law.step_fixed_seconds + law.step_per_sequence_seconds * size
    return batcher.instances * size / seconds


def _busy_shares(
    own: FloatArray, rest: FloatArray, servers: int, others: int
) -> list[tuple[int, FloatArray]]:
    """Return P(so many instances busy after a start).

    These are the starting one, perhaps the previous one, and some of the others. own, rest:
    probability that the previous one and each of the others still runs.
    """
    if servers == 1:
        return [(1, np.ones_like(own))]
    found = []
    for busy in range(1, servers + 1):
        share = np.zeros_like(own)
        for mine in (0, 1):
            among = busy - 1 - mine
            if 0 <= among <= others:
                ways = math.comb(others, among)
                part = own if mine else 1.0 - own
                share = share + part * ways * rest**among * (1.0 - rest) ** (others - among)
        found.append((busy, share))
    return found
