"""The rules by which a real Triton forms batches, event by event, written apart from the product.

One thread forms batches and sleeps in between; requests and ends of batches wake it, or do not:
that decides. Source: Triton Inference Server core, dynamic_batch_scheduler.cc (Enqueue,
BatcherThread, WaitForPayloadSlotAvailable, GetDynamicBatch), rate_limiter.cc
(PayloadSlotAvailable), instance_queue.cc (Dequeue), about release 2.51. One row a request, one
priority, no preferred sizes, which the server then sets to the largest batch.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from servingslo.models.engine.service_time import DynamicBatcher, ServiceLaw

# Source: dynamic_batch_scheduler.cc, default_wait_microseconds.
WAIT_SECONDS = 0.5
# Two batches for each instance may be ready ahead. Source: rate_limiter.cc.
READY_BATCHES = 2
# Clocks of the server are in nanoseconds, so a window has passed when its sleep ends.
_CLOCK_SECONDS = 1e-9


class State(Enum):
    """Of a batch: not handed over yet, waiting for an instance, running."""

    OWN = 0
    READY = 1
    RUNNING = 2


@dataclass(eq=False)
class Batch:
    """Requests, each as when it came and its number."""

    requests: list[tuple[float, int]] = field(default_factory=list)
    state: State = State.OWN


@dataclass(frozen=True, slots=True)
class Steps:
    """Latencies in seconds of answered requests by number (nan: refused), and sizes of batches."""

    latency_seconds: np.ndarray
    sizes: np.ndarray

    @property
    def lost_ratio(self) -> float:
        """Share of requests that a full queue refused."""
        return float(np.isnan(self.latency_seconds).mean())

    def percentile(self, percent: float) -> float:
        """Of answered requests, in seconds."""
        return float(np.nanpercentile(self.latency_seconds, percent))


class TritonSteps:
    """One server.

    notices: whether a server with a bound learns at the end of a batch that an instance is free. On
    a real one it does, unless its threads wait for a processor: then only the next request that is
    accepted, or half a second, wakes it (docs/lab/triton.md). Measured, not found in the source.
    """

    def __init__(self, law: ServiceLaw, batcher: DynamicBatcher, *, notices: bool = True) -> None:
        self._law, self._batcher, self._notices = law, batcher, notices
        self._queue: deque[tuple[float, int]] = deque()
        self._forming, self._full, self._enough, self._queued = Batch(), False, 0, 0
        self._ready: deque[Batch] = deque()
        self._free = self._idle = batcher.instances
        self._wakes_at, self._for_slot = WAIT_SECONDS, False
        self._events: list[tuple[float, int, Batch | int]] = []
        self._sizes: list[int] = []
        self._count = 0

    def run(self, arrival_seconds: np.ndarray) -> Steps:
        """Serve these requests; all are answered or refused."""
        latency = np.full(len(arrival_seconds), np.nan)
        for number, moment in enumerate(arrival_seconds):
            self._push(float(moment), number)
        answered = 0
        while self._events:
            moment = self._events[0][0]
            if self._wakes_at <= moment:
                self._wake(self._wakes_at)
                continue
            _, _, what = heapq.heappop(self._events)
            if isinstance(what, int):
                self._arrive(moment, what)
                answered += 1
                continue
            for came, number in what.requests:
                latency[number] = moment - came
            self._free += 1
            self._idle += 1
            if self._start(moment) or self._notices:
                self._notify(moment)
            while not self._events and (self._queue or self._ready):
                self._wake(self._wakes_at)
        return Steps(latency, np.array(self._sizes))

    def _push(self, moment: float, what: Batch | int) -> None:
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, what))

    @property
    def _slot(self) -> bool:
        if self._batcher.room:
            return self._idle > 0
        return len(self._ready) < READY_BATCHES * self._batcher.instances

    def _arrive(self, moment: float, number: int) -> None:
        self._queued += 1
        if self._batcher.room and len(self._queue) >= self._batcher.room:
            # The server counts it nevertheless, and nobody is woken.
            return
        self._queue.append((moment, number))
        stale = self._full or self._forming.state is State.RUNNING
        if self._slot and (stale or self._queued >= self._enough):
            self._notify(moment)

    def _notify(self, moment: float) -> None:
        if not self._for_slot or self._slot:
            self._form(moment)

    def _wake(self, moment: float) -> None:
        if self._for_slot and not self._slot:
            self._wakes_at = moment + WAIT_SECONDS
        else:
            self._form(moment)

    def _start(self, moment: float) -> bool:
        """Hand batches to free instances; whether any started."""
        started = False
        while self._free and self._ready:
            batch = self._ready.popleft()
            batch.state = State.RUNNING
            window = self._batcher.window_seconds
            while window and self._ready and moment - self._ready[0].requests[0][0] > window:
                # As on the server, one that does not fit takes no more requests either.
                following = self._ready[0]
                following.state = State.RUNNING
                if len(batch.requests) + len(following.requests) > self._batcher.largest_batch:
                    break
                batch.requests += self._ready.popleft().requests
            self._free -= 1
            size = len(batch.requests)
            self._sizes.append(size)
            seconds = self._law.step_fixed_seconds + self._law.step_per_sequence_seconds * size
            self._push(moment + seconds, batch)
            started = True
        return started

    def _form(self, moment: float) -> None:
        """One waking of the thread, until it sleeps again."""
        self._for_slot = False
        while True:
            if self._full or self._forming.state is State.RUNNING:
                self._forming, self._full, self._enough = Batch(), False, 0
            if not self._queue:
                self._wakes_at = moment + WAIT_SECONDS
                return
            if not self._slot:
                self._for_slot, self._wakes_at = True, moment + WAIT_SECONDS
                return
            wait, taken = self._look(moment)
            if wait > 0.0:
                self._wakes_at = moment + wait
                return
            for _ in range(taken):
                self._forming.requests.append(self._queue.popleft())
            self._queued -= taken
            if self._forming.requests and self._forming.state is State.OWN:
                self._forming.state = State.READY
                self._idle -= 1
                self._ready.append(self._forming)
                self._start(moment)

    def _look(self, moment: float) -> tuple[float, int]:
        """How long to sleep before the next look, or 0 and how many requests join."""
        largest, window = self._batcher.largest_batch, self._batcher.window_seconds
        held = len(self._forming.requests)
        taken = min(len(self._queue), largest - held)
        age = moment - self._queue[0][0] + _CLOCK_SECONDS
        if held + taken == largest:
            # A batch that is exactly full is left open until the next request, as on the server.
            waited = window > 0.0 and age >= window
            self._full |= len(self._queue) > taken or not window or waited
            return 0.0, taken
        if not window or age >= window:
            return 0.0, taken
        self._enough = largest - held
        return (0.0, taken) if held else (window - age + _CLOCK_SECONDS, taken)
