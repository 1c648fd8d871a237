"""A gateway with one lane for each class of requests: counts, bounds, refusals, workers.

As at Envoy, a new bound begins a new count of what is in flight: requests from before are answered
and no longer counted. A class may be sent by workers, as a job is: each sends its next request when
the one before is answered, and a refused one again after a while. Or a dispatcher sends it at a
rate.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.estimation.gateway.classes import whole_sample
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.policy.inputs import InForce
from servingslo.policy.knobs.in_flight.gateway import FORMER, LIMIT
from servingslo.policy.routes import LANES
from servingslo.runtimes.gateways import CountedWhen
from servingslo_lab.sim.fleets.fleet import ClassSpec
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import Backend
from servingslo_lab.sim.replicas.intake import submit
from servingslo_lab.sim.replicas.layout import EngineRow, Requests
from servingslo_lab.sim.replicas.routing import NEXT_ARRIVAL, REQUESTS, pick

# Ends are found at arrivals, or after this time: a worker's next request is at most so late.
_STEP_SECONDS = 0.25


@dataclass(slots=True)
class Lane:
    """One class. bound: None for none. counted: in flight since the last change of the bound.

    number: of that change. free: workers without a request; None if requests are sent when they
    arrive. due: requests that nobody has sent yet. per_second: at which they are sent; None without
    a dispatcher. owed: of that, what is not sent yet, at sent_seconds.
    """

    backoff_seconds: float
    free: int | None
    bound: int | None = None
    offered: int = 0
    rejected: int = 0
    active: int = 0
    counted: int = 0
    number: int = 0
    due: deque[int] = field(default_factory=deque)
    per_second: float | None = None
    owed: float = 0.0
    sent_seconds: float = 0.0

    @property
    def queues(self) -> bool:
        """Whether requests wait until they are sent."""
        return self.free is not None or self.per_second is not None


class Lanes:
    """The gateway of a fleet whose requests have classes. classes: of each request, by index."""

    def __init__(self, lanes: Mapping[str, Lane], classes: tuple[str, ...]) -> None:
        self._lanes = lanes
        self._classes = classes
        self._in_flight: dict[int, int] = {}
        self._retries: list[tuple[float, int]] = []
        self._scraped: dict[str, tuple[int, int, int]] = {}
        self._now = 0.0

    def set_bounds(self, bounds: Mapping[str, int | None]) -> None:
        """Change the bound of each proxy's lane; there is one proxy."""
        for name, bound in bounds.items():
            lane = self._lanes[name]
            lane.bound, lane.counted, lane.number = bound, 0, lane.number + 1

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Change what dispatchers send."""
        for name, rate in rates.items():
            self._lanes[name].per_second = rate

    def serve(
        self,
        backend: Backend,
        q: Requests,
        rows: list[EngineRow],
        serving: list[int],
        gateway: list[int],
        until: float,
    ) -> None:
        """Simulate arrivals, refusals and retries until this time."""
        self._drop_lost(q)
        while True:
            r = int(gateway[NEXT_ARRIVAL])
            arrival = float(q.arrival[r]) if r < gateway[REQUESTS] else until
            retry = self._retries[0][0] if self._retries else until
            step = self._now + _STEP_SECONDS if self._has_workers() else until
            now = max(min(arrival, retry, step, until), self._now)
            self._now = now
            for place, row in enumerate(rows):
                if row.floats[layout.NEXT_CHANGE] <= now:
                    backend.advance(q, rows, place, now)
                if row.ints[layout.DONE_HEAD] != layout.NONE:
                    self._end(q, row)
            sent = list(self._due_again(now))
            if r < gateway[REQUESTS] and arrival <= now:
                gateway[NEXT_ARRIVAL] = r + 1
                lane = self._lanes[self._classes[r]]
                if lane.queues:
                    lane.due.append(r)
                else:
                    sent.append(r)
            for request in (*sent, *self._by_workers(), *self._by_dispatchers(now)):
                self._send(q, rows, serving, gateway, request, now)
            if now >= until and not (r < gateway[REQUESTS] and arrival <= until):
                return

    def _drop_lost(self, q: Requests) -> None:
        """Count the requests of failed engines as ended."""
        for r in [r for r in self._in_flight if q.status[r] in (layout.FAILED, layout.ABORTED)]:
            self._leave(r)

    def scrape(self) -> None:
        """Read the counters of all lanes."""
        self._scraped = {
            name: (lane.offered, lane.rejected, lane.active) for name, lane in self._lanes.items()
        }

    def samples(self, age_seconds: float) -> dict[str, GatewaySample]:
        """The counters as last scraped, by class."""
        return {
            name: GatewaySample(
                counted=CountedWhen.PASSED_ON,
                instances=(
                    GatewayInstance(
                        name="proxy",
                        age_seconds=age_seconds,
                        requests_total=float(offered),
                        rejected_total=float(rejected),
                        queued=0.0,
                        active=float(active),
                    ),
                ),
            )
            for name, (offered, rejected, active) in self._scraped.items()
        }

    def in_force(self) -> InForce:
        """The bounds, as the actuator of lanes finds them."""
        values: dict[str, int | None] = {}
        for name, lane in self._lanes.items():
            values[f"{name}.{LIMIT}"] = lane.bound
            if lane.number:
                values[f"{name}.{FORMER}"] = None
        return InForce(values=values)

    def _has_workers(self) -> bool:
        return any(lane.queues and lane.due for lane in self._lanes.values())

    def _due_again(self, now: float) -> Iterator[int]:
        while self._retries and self._retries[0][0] <= now:
            yield heapq.heappop(self._retries)[1]

    def _by_workers(self) -> Iterator[int]:
        for lane in self._lanes.values():
            while lane.free and lane.due:
                lane.free -= 1
                yield lane.due.popleft()

    def _by_dispatchers(self, now: float) -> Iterator[int]:
        for lane in self._lanes.values():
            owed = lane.owed + (lane.per_second or 0.0) * (now - lane.sent_seconds)
            lane.owed, lane.sent_seconds = owed if lane.due else 0.0, now
            while lane.owed >= 1.0 and lane.due:
                lane.owed -= 1.0
                yield lane.due.popleft()

    def _send(
        self,
        q: Requests,
        rows: list[EngineRow],
        serving: list[int],
        gateway: list[int],
        r: int,
        now: float,
    ) -> None:
        lane = self._lanes[self._classes[r]]
        lane.offered += 1
        if q.status[r] != layout.PENDING:
            layout.begin_again(q, r)
        if lane.queues:
            q.arrival[r] = now
        full = lane.bound is not None and lane.counted >= lane.bound
        engine = layout.NONE if full else pick(q, rows, serving, gateway, now)
        if engine != layout.NONE:
            q.engine[r] = engine
            if submit(q, rows[engine], r, now):
                lane.active += 1
                lane.counted += 1
                self._in_flight[r] = lane.number
                return
        else:
            lane.rejected += 1
            q.status[r] = layout.REJECTED if full else layout.FAILED
            q.finish[r] = now
        if lane.queues:
            heapq.heappush(self._retries, (now + lane.backoff_seconds, r))

    def _end(self, q: Requests, row: EngineRow) -> None:
        r = int(row.ints[layout.DONE_HEAD])
        row.ints[layout.DONE_HEAD] = layout.NONE
        while r != layout.NONE:
            self._leave(r)
            r = int(q.next[r])

    def _leave(self, r: int) -> None:
        number = self._in_flight.pop(r, None)
        if number is None:
            return
        lane = self._lanes[self._classes[r]]
        lane.active -= 1
        if number == lane.number:
            lane.counted -= 1
        if lane.free is not None:
            lane.free += 1


def gateway_fields(lanes: Lanes | None, age_seconds: float) -> dict[str, Any]:
    """What the gateway adds to an observation; nothing without one."""
    if lanes is None:
        return {}
    samples = lanes.samples(age_seconds)
    return {
        "gateway": whole_sample(samples.values()),
        "classes": samples,
        "in_force": {LANES: lanes.in_force()},
    }


def lanes_of(classes: Sequence[ClassSpec], names: tuple[str, ...] | None) -> Lanes | None:
    """The gateway of these classes; None without any.

    names: of the class of each request; one that is not listed is sent when it arrives.
    """
    if not classes or names is None:
        return None
    known = {name: ClassSpec(name=name) for name in names} | {one.name: one for one in classes}
    return Lanes(
        {
            one.name: Lane(
                backoff_seconds=one.backoff_seconds,
                free=one.workers,
                per_second=0.0 if one.paced else None,
            )
            for one in known.values()
        },
        names,
    )
