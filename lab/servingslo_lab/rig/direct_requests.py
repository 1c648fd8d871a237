"""Single requests to one simulated engine over HTTP, instead of requests from a trace."""

import asyncio
from dataclasses import dataclass, field

from servingslo_lab.sim.engine import Engine, Outcome, RequestRecord


@dataclass(slots=True, eq=False)
class DirectRequest:
    """A request in an engine. started: its first token was emitted, or it ended."""

    index: int
    started: asyncio.Event = field(default_factory=asyncio.Event)
    record: asyncio.Future[RequestRecord] = field(default_factory=asyncio.Future)


class DirectRequests:
    """The requests of one engine with a table of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pending: dict[int, DirectRequest] = {}

    @property
    def is_idle(self) -> bool:
        """Whether the engine has no requests."""
        return not self._pending and self.engine.in_system == 0

    def submit(self, *, prompt_tokens: int, output_tokens: int, now: float) -> DirectRequest:
        """Submit a request to the engine; a refused one ends at once."""
        self.advance(now)
        table = self.engine.requests
        index = table.add(arrival=now, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        request = DirectRequest(index)
        if self.engine.submit(index, now):
            self._pending[index] = request
        else:
            _close(request, table.take(index))
        return request

    def abort(self, request: DirectRequest, now: float) -> None:
        """Abort a request whose client has left."""
        if self._pending.get(request.index) is request:
            self.engine.abort(request.index, now)
            self.advance(now)

    def advance(self, now: float) -> None:
        """Advance the engine to now, and mark requests that got a first token or ended."""
        self._settle(self.engine.advance(now))
        first_token = self.engine.requests.columns.first_token
        for index, request in self._pending.items():
            if first_token[index] >= 0:
                request.started.set()

    def fail(self, now: float) -> None:
        """Fail the engine; all its requests are lost."""
        self._settle(self.engine.fail_all(now))

    def _settle(self, over: list[int]) -> None:
        for index in over:
            record = self.engine.requests.take(index)
            request = self._pending.pop(index, None)
            if request is not None:
                _close(request, record)


def _close(request: DirectRequest, record: RequestRecord) -> None:
    if not request.record.done():
        request.record.set_result(record)
    request.started.set()


LOST = frozenset({Outcome.FAILED, Outcome.ABORTED})
"""Outcomes after which the connection is closed without an answer."""
