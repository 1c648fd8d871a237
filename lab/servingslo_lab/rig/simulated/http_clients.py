"""Clients that send a trace over HTTP, each request at its own time, and record the answers.

    python -m servingslo_lab.rig.simulated.http_clients --plan FILE.json --records FILE.jsonl

They know nothing of engines and gateways, so the records show a user's view. A failed request is
sent again after a backoff, up to the plan's number of retries.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

import aiohttp
import numpy as np
from pydantic import TypeAdapter, ValidationError

from servingslo.errors import InvalidInputError
from servingslo_lab.rig.simulated.traffic import TrafficPlan

# Source: openai-python `_constants.py` and `_base_client.py`: 0.5 s, doubled, at most 8 s, reduced
# at random by up to a quarter; 408, 409, 429, 5xx and broken connections are retried.
_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS, _JITTER = 0.5, 8.0, 0.25
_AGAIN = frozenset({408, 409, 429})
_SERVER_ERRORS = range(500, 600)
_OK = 200
SERVED_BY = "x-served-by"
"""Header in which a route says which of its backends answered."""


class Ending(StrEnum):
    """How a request ended for its client."""

    FINISHED = "finished"
    REFUSED = "refused"
    TIMED_OUT = "timed-out"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """The traffic, its destination, and the clients' patience.

    traffic: the arrivals; its pods and routing are not used. url: of the gateway.
    timeout_seconds: for each attempt. retries: further attempts after a failed one. headers: of
    every request.
    """

    traffic: TrafficPlan
    url: str
    timeout_seconds: float = 120.0
    retries: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord:
    """One request from its client's view; times in seconds since the traffic began, or durations.

    ttft_seconds: from the first attempt to the first part of the answer, None without one.
    seconds: from the first attempt to the end. refusals: answers of 429 or 503. served_by: what the
    route says of the backend in the header x-served-by; '' if it says nothing.
    """

    arrival_seconds: float
    ending: Ending
    seconds: float
    ttft_seconds: float | None
    output_tokens: int
    attempts: int
    refusals: int
    served_by: str = ""

    def meets(self, ttft_seconds: float, tpot_seconds: float) -> bool:
        """Whether the whole answer arrived within both objectives."""
        if self.ending is not Ending.FINISHED or self.ttft_seconds is None:
            return False
        decode = self.seconds - self.ttft_seconds
        return (
            self.ttft_seconds <= ttft_seconds
            and decode <= max(self.output_tokens - 1, 0) * tpot_seconds
        )


_PLAN: TypeAdapter[ClientPlan] = TypeAdapter(ClientPlan)
_RECORD: TypeAdapter[ClientRecord] = TypeAdapter(ClientRecord)


def client_plan(document: Mapping[str, Any]) -> ClientPlan:
    """A plan from JSON. Raises: InvalidInputError naming field, value and allowed values."""
    try:
        return _PLAN.validate_python(dict(document))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInputError(where, first.get("input"), first["msg"]) from error


def read_records(path: Path) -> list[ClientRecord]:
    """The records written so far."""
    lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    return [_RECORD.validate_json(line) for line in lines]


class Clients:
    """All clients of one plan."""

    def __init__(self, plan: ClientPlan, records: TextIO) -> None:
        self._plan = plan
        self._records = records
        self._rng = np.random.default_rng(plan.traffic.seed)

    async def run(self) -> None:
        """Send every request at its time, and wait for every answer."""
        trace = self._plan.traffic.arrivals()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=self._plan.timeout_seconds)
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=self._plan.headers
            ) as session,
            asyncio.TaskGroup() as group,
        ):
            began = time.monotonic()
            for arrival, prompt, output in zip(
                trace.arrival_seconds.tolist(),
                trace.prompt_tokens.tolist(),
                trace.output_tokens.tolist(),
                strict=True,
            ):
                await asyncio.sleep(began + arrival - time.monotonic())
                document = {"prompt_tokens": prompt, "max_tokens": output, "stream": True}
                group.create_task(self._request(session, arrival, document))

    async def _request(
        self, session: aiohttp.ClientSession, arrival: float, document: Mapping[str, Any]
    ) -> None:
        began = time.monotonic()
        attempts = refusals = 0
        while True:
            attempts += 1
            ending, first, status, served_by = await attempt(session, self._plan.url, document)
            refusals += ending is Ending.REFUSED
            again = ending is not Ending.FINISHED and (
                status in _AGAIN or status in _SERVER_ERRORS or status == 0
            )
            if not again or attempts > self._plan.retries:
                break
            backoff = min(_FIRST_BACKOFF_SECONDS * 2 ** (attempts - 1), _LONGEST_BACKOFF_SECONDS)
            await asyncio.sleep(backoff * (1.0 - _JITTER * self._rng.random()))
        record = ClientRecord(
            arrival_seconds=arrival,
            ending=ending,
            seconds=time.monotonic() - began,
            ttft_seconds=None if first is None else first - began,
            output_tokens=int(document["max_tokens"]),
            attempts=attempts,
            refusals=refusals,
            served_by=served_by,
        )
        self._records.write(json.dumps(asdict(record)) + "\n")
        self._records.flush()


async def attempt(
    session: aiohttp.ClientSession, url: str, document: Mapping[str, Any]
) -> tuple[Ending, float | None, int, str]:
    """One attempt: its ending, when the answer began, its status (0: none), and who served it."""
    first, status, served_by = None, 0, ""
    try:
        async with session.post(f"{url}/v1/completions", json=document) as answer:
            status = answer.status
            served_by = answer.headers.get(SERVED_BY, "")
            async for _ in answer.content.iter_any():
                first = first if first is not None else time.monotonic()
    except TimeoutError:
        return Ending.TIMED_OUT, first, 0, served_by
    except (aiohttp.ClientError, OSError):
        return Ending.BROKEN, first, 0, served_by
    if status == _OK:
        return Ending.FINISHED, first, status, served_by
    refused = status in {429, 503}
    return (Ending.REFUSED if refused else Ending.BROKEN), None, status, served_by


def main() -> None:
    """Send one plan as a process."""
    parser = argparse.ArgumentParser(description="Clients that send a trace over HTTP.")
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--records", required=True, type=Path)
    arguments = parser.parse_args()
    plan = client_plan(json.loads(arguments.plan.read_text(encoding="utf-8")))
    with arguments.records.open("w", encoding="utf-8") as records:
        asyncio.run(Clients(plan, records).run())


if __name__ == "__main__":
    main()
