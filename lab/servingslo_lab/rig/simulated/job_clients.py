"""A background job over HTTP: workers send a list of requests, as fast as they are let in.

    python -m servingslo_lab.rig.simulated.job_clients --plan FILE.json --records FILE.jsonl

A worker takes the next request once its last one is answered. A request that is refused, breaks or
times out is sent again after a pause, until it is served.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

import aiohttp
import numpy as np
from pydantic import TypeAdapter

from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending, attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The requests of a job, and how they are sent.

    requests: prompt and output tokens of each. workers: most requests in flight. begin_seconds:
    when they begin. pause_seconds: before a request is sent again, half to one and a half of it.
    timeout_seconds: for each attempt.
    """

    url: str
    requests: Sequence[tuple[int, int]]
    workers: int
    begin_seconds: float = 0.0
    pause_seconds: float = 0.5
    timeout_seconds: float = 120.0
    headers: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0


_PLAN: TypeAdapter[JobPlan] = TypeAdapter(JobPlan)


class Job:
    """The workers of one job. Times of its records are seconds since the start of `run`."""

    def __init__(self, plan: JobPlan, records: TextIO) -> None:
        self._plan = plan
        self._records = records
        self._rng = np.random.default_rng(plan.seed)

    async def run(self) -> None:
        """Send everything, and wait until everything is served."""
        began = time.monotonic()
        await asyncio.sleep(self._plan.begin_seconds)
        timeout = aiohttp.ClientTimeout(total=self._plan.timeout_seconds)
        remaining = iter(self._plan.requests)
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=timeout,
                headers=self._plan.headers,
            ) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._plan.workers):
                group.create_task(self._work(session, remaining, began))

    async def _work(
        self, session: aiohttp.ClientSession, remaining: Iterator[tuple[int, int]], began: float
    ) -> None:
        for prompt, output in remaining:
            document = {"prompt_tokens": prompt, "max_tokens": output, "stream": True}
            sent = time.monotonic()
            attempts = refusals = 0
            while True:
                attempts += 1
                ending, first, _, _ = await attempt(session, self._plan.url, document)
                if ending is Ending.FINISHED:
                    break
                refusals += ending is Ending.REFUSED
                await asyncio.sleep(self._plan.pause_seconds * (0.5 + self._rng.random()))
            record = ClientRecord(
                arrival_seconds=sent - began,
                ending=ending,
                seconds=time.monotonic() - sent,
                ttft_seconds=None if first is None else first - sent,
                output_tokens=output,
                attempts=attempts,
                refusals=refusals,
            )
            self._records.write(json.dumps(asdict(record)) + "\n")
            self._records.flush()


def main() -> None:
    """Do one job as a process."""
    parser = argparse.ArgumentParser(description="A background job over HTTP.")
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--records", required=True, type=Path)
    arguments = parser.parse_args()
    plan = _PLAN.validate_json(arguments.plan.read_text(encoding="utf-8"))
    with arguments.records.open("w", encoding="utf-8") as records:
        asyncio.run(Job(plan, records).run())


if __name__ == "__main__":
    main()
