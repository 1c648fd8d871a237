"""Engines behind one gateway: routing, removal of engines, and the true results.

Runs on the caller's clock. Calls must be in order of time.
"""

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas import routing as rules
from servingslo_lab.sim.replicas.engine import Engine, RequestRecord, RequestTable
from servingslo_lab.sim.replicas.routing import new_gateway, pick


class Routing(StrEnum):
    """How the gateway picks an engine."""

    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    PREFIX_AFFINE = "prefix-affine"
    LEAST_OF_TWO = "least-of-two"


RULES: Mapping[Routing, int] = MappingProxyType(
    {
        Routing.LEAST_LOADED: rules.LEAST_LOADED,
        Routing.ROUND_ROBIN: rules.ROUND_ROBIN,
        Routing.RANDOM: rules.RANDOM,
        Routing.PREFIX_AFFINE: rules.PREFIX_AFFINE,
        Routing.LEAST_OF_TWO: rules.LEAST_OF_TWO,
    }
)


class WhenNoEngine(StrEnum):
    """The gateway's action for a request while no engine is ready."""

    FAIL = "fail"
    WAIT = "wait"


class Service:
    """A gateway and its engines.

    routing: least loaded counts running + waiting at the arrival; ties are broken round-robin.
    random_state: seeds random routing.
    """

    def __init__(
        self,
        *,
        routing: Routing = Routing.LEAST_LOADED,
        when_no_engine: WhenNoEngine = WhenNoEngine.FAIL,
        random_state: int = 0,
    ) -> None:
        if routing is Routing.PREFIX_AFFINE:  # its requests have no sessions
            allowed = ", ".join(rule for rule in Routing if rule is not routing)
            raise InvalidInputError("routing", routing, allowed)
        self.requests = RequestTable()
        self.when_no_engine = when_no_engine
        self._serving: dict[str, Engine] = {}
        self._draining: dict[str, Engine] = {}
        self._waiting: deque[int] = deque()
        self._records: list[RequestRecord] = []
        self._gateway = new_gateway(RULES[routing], random_state)

    @property
    def engines(self) -> dict[str, Engine]:
        """Engines that take requests, by name."""
        return self._serving

    @property
    def draining(self) -> dict[str, Engine]:
        """Engines that only finish their requests, by name."""
        return self._draining

    @property
    def waiting_at_gateway(self) -> int:
        """Requests that wait until the first engine is ready."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Requests in engines and at the gateway."""
        engines = (*self._serving.values(), *self._draining.values())
        return sum(engine.in_system for engine in engines) + len(self._waiting)

    def add(self, name: str, engine: Engine, now: float) -> None:
        """Add a ready engine; it must have been created with this service's request table."""
        self._serving[name] = engine
        while self._waiting:
            self._route(self._waiting.popleft(), now)

    def remove(self, name: str, now: float, *, drain: bool) -> None:
        """Remove an engine; its requests are finished if drained, else lost."""
        engine = self._serving.pop(name, None) or self._draining.pop(name, None)
        if engine is None:
            return
        if drain:
            self._draining[name] = engine
        else:
            self._close(engine.fail_all(now))

    def offer(self, *, arrival: float, prompt_tokens: int, output_tokens: int,
              cached_ratio: float = 0.0) -> None:  # fmt: skip
        """Submit an arriving request."""
        index = self.requests.add(
            arrival=arrival, prompt_tokens=prompt_tokens, output_tokens=output_tokens,
            cached_ratio=cached_ratio,
        )  # fmt: skip
        self._route(index, arrival)

    def advance(self, until: float) -> list[RequestRecord]:
        """Simulate until this time; returns records of requests ended since the last call."""
        for engine in self._serving.values():
            self._close(engine.advance(until))
        for name, engine in list(self._draining.items()):
            self._close(engine.advance(until))
            if engine.in_system == 0:
                del self._draining[name]
        records, self._records = self._records, []
        return records

    def _close(self, over: list[int]) -> None:
        self._records.extend(map(self.requests.take, over))

    def _route(self, index: int, now: float) -> None:
        engine = self._pick(now)
        if engine is None and self.when_no_engine is WhenNoEngine.WAIT:
            self._waiting.append(index)
            return
        if engine is None:
            self.requests.columns.status[index] = layout.FAILED
            self.requests.columns.finish[index] = now
            self._close([index])
        elif not engine.submit(index, now):
            self._close([index])

    def _pick(self, now: float) -> Engine | None:
        engines = list(self._serving.values())
        rows = [engine.row for engine in engines]
        place = pick(self.requests.columns, rows, list(range(len(rows))), self._gateway, now)
        return None if place == layout.NONE else engines[place]
