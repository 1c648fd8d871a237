"""Bursts of requests to a gateway of the rig, and how they were answered."""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator

import aiohttp

from servingslo_lab.rig.waiting import wait_until

# Long enough that a whole burst is in flight before the first answer, on a slow machine too.
_ANSWER_TOKENS = 120


# A client that was refused asks again so much later.
_REFUSED_SECONDS = 0.5


async def _ask(session: aiohttp.ClientSession, url: str, tokens: int = _ANSWER_TOKENS) -> int:
    document = {"prompt_tokens": 64, "max_tokens": tokens}
    async with session.post(f"{url}/v1/completions", json=document) as answer:
        await answer.read()
        return answer.status


def statuses(url: str, count: int) -> Counter[int]:
    """How many of so many requests, sent at once, got which status."""

    async def burst() -> list[int]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            return await asyncio.gather(*(_ask(session, url) for _ in range(count)))

    return Counter(asyncio.run(burst()))


def wait_for_answer(url: str) -> None:
    """Wait until one request is answered. Raises: RigError where none is in time."""
    wait_until(
        lambda: statuses(url, 1) == {200: 1}, what="an answer through Envoy", interval_seconds=0.2
    )


@contextlib.contextmanager
def crowd(url: str, clients: int) -> Iterator[None]:
    """So many clients, each of which asks again once it was answered, for as long as the block.

    Answers are of unequal length: clients that all begin and end at once are no load of a fleet.
    """
    ended, lengths = threading.Event(), random.Random(7)  # noqa: S311  lengths of answers

    async def ask_again(session: aiohttp.ClientSession) -> None:
        while not ended.is_set():
            if await _ask(session, url, lengths.randint(40, 2 * _ANSWER_TOKENS)) != 200:
                await asyncio.sleep(_REFUSED_SECONDS)

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(ask_again(session) for _ in range(clients)))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
