"""Single requests to one simulated engine over HTTP, instead of requests from a trace."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from servingslo_lab.rig.simulated.kv_transfers import (
    HELD_SECONDS,
    CacheAddress,
    Connector,
    TransferCounts,
)
from servingslo_lab.sim.replicas.engine import Engine, Outcome, RequestRecord
from servingslo_lab.sim.replicas.layout import NONE


@dataclass(slots=True, eq=False)
class DirectRequest:
    """A request in an engine.

    index: in the engine's table; NONE while its KV cache is on its way. started: its first token
    was emitted, or it ended. keeps: leave its KV cache in the engine; kept: the address of it.
    remote_tokens: of its prompt, from a KV cache that was read.
    """

    index: int
    started: asyncio.Event = field(default_factory=asyncio.Event)
    record: asyncio.Future[RequestRecord] = field(default_factory=asyncio.Future)
    keeps: bool = False
    kept: CacheAddress | None = None
    remote_tokens: int = 0
    hits_counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    """A KV cache on its way to this engine. read: tells the engine that keeps it."""

    request: DirectRequest
    prompt_tokens: int
    output_tokens: int
    begins_seconds: float
    ends_seconds: float
    read: Callable[[], None]


class DirectRequests:
    """The requests of one engine with a table of its own.

    engine_id: for the addresses of its KV caches. connector: None if it has none.
    """

    def __init__(
        self, engine: Engine, *, engine_id: str = "", connector: Connector | None = None
    ) -> None:
        self.engine = engine
        self.engine_id = engine_id
        self.connector = connector
        self.counts = TransferCounts()
        self._pending: dict[int, DirectRequest] = {}
        self._transfers: list[_Transfer] = []
        # The time until which each KV cache is kept.
        self._kept: dict[str, float] = {}
        self._numbers = itertools.count(1)

    @property
    def is_idle(self) -> bool:
        """Whether the engine has no requests, and keeps no KV cache."""
        busy = self._pending or self._transfers or self._kept
        return not busy and self.engine.in_system == 0

    def submit(
        self, *, prompt_tokens: int, output_tokens: int, now: float, keeps: bool = False
    ) -> DirectRequest:
        """Submit a request to the engine; a refused one ends at once."""
        self.advance(now)
        request = DirectRequest(NONE, keeps=keeps and self.connector is not None)
        self._enter(request, prompt_tokens, output_tokens, arrived=now, now=now)
        return request

    def submit_remote(
        self, *, prompt_tokens: int, output_tokens: int, now: float,
        source: "DirectRequests | None", cache: CacheAddress,
    ) -> DirectRequest:  # fmt: skip
        """Submit a request whose prompt was computed by another engine: source, if it still runs.

        If the cache is gone, the request fails, or its prompt is computed again.
        """
        connector = self.connector
        if connector is None:
            return self.submit(prompt_tokens=prompt_tokens, output_tokens=output_tokens, now=now)
        if source is None or not source.keeps(cache):
            self.counts.failed += 1
            if connector.recompute:
                return self.submit(
                    prompt_tokens=prompt_tokens, output_tokens=output_tokens, now=now
                )
            request = DirectRequest(NONE)
            _close(request, _unserved(Outcome.FAILED, now, now, prompt_tokens))
            return request
        self.advance(now)
        request = DirectRequest(NONE, remote_tokens=max(prompt_tokens - 1, 0))
        transfer = _Transfer(
            request=request,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            begins_seconds=now,
            ends_seconds=now + connector.transfer.seconds(prompt_tokens),
            read=lambda: source.release(cache),
        )
        self._transfers.append(transfer)
        self.counts.waiting += 1
        return request

    def keeps(self, cache: CacheAddress) -> bool:
        """Whether this KV cache can be read here."""
        return cache.engine_id == self.engine_id and cache.request_id in self._kept

    def release(self, cache: CacheAddress) -> None:
        """Free a KV cache that was read."""
        self._kept.pop(cache.request_id, None)

    def abort(self, request: DirectRequest, now: float) -> None:
        """Abort a request whose client has left."""
        for transfer in [one for one in self._transfers if one.request is request]:
            self._end_transfer(transfer, Outcome.ABORTED, now)
        if self._pending.get(request.index) is request:
            self.engine.abort(request.index, now)
            self.advance(now)

    def advance(self, now: float) -> None:
        """Advance the engine to now, and mark requests that got a first token or ended."""
        due = [one for one in self._transfers if one.ends_seconds <= now]
        for one in sorted(due, key=lambda transfer: transfer.ends_seconds):
            self._settle(self.engine.advance(one.ends_seconds))
            self._arrive(one)
        self._settle(self.engine.advance(now))
        columns = self.engine.requests.columns
        for index, request in self._pending.items():
            self._count(request)
            if columns.first_token[index] >= 0:
                request.started.set()
        for name in [name for name, until in self._kept.items() if until <= now]:
            del self._kept[name]
            self.counts.expired += 1

    def fail(self, now: float) -> None:
        """Fail the engine; all its requests and KV caches are lost."""
        self._kept.clear()
        for transfer in list(self._transfers):
            self._end_transfer(transfer, Outcome.FAILED, now)
        self._settle(self.engine.fail_all(now))

    def _enter(
        self, request: DirectRequest, prompt: int, output: int, *, arrived: float, now: float
    ) -> None:
        table = self.engine.requests
        index = table.add(arrival=arrived, prompt_tokens=prompt, output_tokens=output)
        table.columns.cached[index] = request.remote_tokens
        request.index = index
        if self.engine.submit(index, now):
            self._pending[index] = request
        else:
            _close(request, table.take(index))

    def _arrive(self, transfer: _Transfer) -> None:
        """End a transfer: the request enters the queue, with the time at which it arrived."""
        self._transfers.remove(transfer)
        self.counts.waiting -= 1
        transfer.read()
        seconds = transfer.ends_seconds - transfer.begins_seconds
        self.counts.read(transfer.prompt_tokens, seconds)
        self._enter(
            transfer.request, transfer.prompt_tokens, transfer.output_tokens,
            arrived=transfer.begins_seconds, now=transfer.ends_seconds,
        )  # fmt: skip

    def _end_transfer(self, transfer: _Transfer, outcome: Outcome, now: float) -> None:
        self._transfers.remove(transfer)
        self.counts.waiting -= 1
        transfer.read()
        arrived, prompt = transfer.begins_seconds, transfer.prompt_tokens
        _close(transfer.request, _unserved(outcome, arrived, now, prompt))

    def _count(self, request: DirectRequest) -> None:
        """Count tokens of a KV cache that was read when the engine counts them as cached."""
        columns, tokens = self.engine.requests.columns, request.remote_tokens
        if tokens and not request.hits_counted and columns.scheduled[request.index] >= 0:
            request.hits_counted = True
            self.counts.hit_tokens += tokens
        if request.hits_counted and columns.first_token[request.index] >= 0:
            request.remote_tokens = 0
            request.hits_counted = False
            self.counts.prompt_tokens += tokens

    def _settle(self, over: list[int]) -> None:
        for index in over:
            request = self._pending.pop(index, None)
            if request is not None:
                self._count(request)
            record = self.engine.requests.take(index)
            if request is None:
                continue
            if request.keeps and record.outcome is Outcome.FINISHED:
                request.kept = self._keep(record)
            _close(request, record)

    def _keep(self, record: RequestRecord) -> CacheAddress:
        """Keep the KV cache of a request that ended."""
        name = str(next(self._numbers))
        self._kept[name] = record.finish_seconds + HELD_SECONDS
        return CacheAddress(engine_id=self.engine_id, request_id=name)


def _unserved(outcome: Outcome, arrived: float, now: float, prompt_tokens: int) -> RequestRecord:
    return RequestRecord(
        outcome=outcome,
        arrival_seconds=arrived,
        first_token_seconds=None,
        finish_seconds=now,
        prompt_tokens=prompt_tokens,
        output_tokens=0,
    )


def _close(request: DirectRequest, record: RequestRecord) -> None:
    if not request.record.done():
        request.record.set_result(record)
    request.started.set()


LOST = frozenset({Outcome.FAILED, Outcome.ABORTED})
"""Outcomes after which the connection is closed without an answer."""
