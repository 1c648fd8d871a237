"""Requests to a real engine, open loop, and what each of them waited for."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import numpy as np
from tests.validation.engine_process import FIRST_PLAIN_TOKEN, MODEL_NAME, VOCABULARY_COUNT
from tests.validation.engine_requests import Served

from servingslo_lab.errors import RigError
from servingslo_lab.sim.traces.trace import Trace

_LONGEST_REQUEST_SECONDS = 300.0
# What the last part of an answer says that has all its tokens: an engine that aborts says "abort".
_WHOLE = b'"finish_reason":"length"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent: Poisson arrivals in phases of one rate each, lengths in the trace's pairs.

    phase_seconds: length of each phase. rates_per_second: one for each phase.
    """

    phase_seconds: float
    rates_per_second: tuple[float, ...]
    arrival_seconds: tuple[float, ...]
    phases: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    @property
    def duration_seconds(self) -> float:
        """From the first phase's begin to the last one's end."""
        return self.phase_seconds * len(self.rates_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Pairs of lengths, in tokens, of a trace scaled down for a small engine."""

    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


def scaled_lengths(trace: Trace, scale: float, max_model_len: int) -> Lengths:
    """Lengths of the trace times `scale`, at least one token each, cut to fit the model."""
    outputs = np.clip(np.round(trace.output_tokens * scale), 1, max_model_len // 2).astype(int)
    prompts = np.round(trace.prompt_tokens * scale).astype(int)
    prompts = np.clip(prompts, 1, max_model_len - outputs - 1)
    return Lengths(prompt_tokens=tuple(prompts.tolist()), output_tokens=tuple(outputs.tolist()))


def planned_load(
    lengths: Lengths, rates_per_second: Sequence[float], phase_seconds: float, seed: int
) -> Load:
    """A load with these rates; the same for the same seed.

    Raises: RigError if no request comes of them.
    """
    rng = np.random.default_rng(seed)
    arrivals: list[float] = []
    phases: list[int] = []
    for phase, rate in enumerate(rates_per_second):
        count = int(rng.poisson(rate * phase_seconds))
        begin = phase * phase_seconds
        arrivals += (begin + np.sort(rng.random(count)) * phase_seconds).tolist()
        phases += [phase] * count
    if not arrivals:
        rates = ", ".join(f"{rate:.2f}" for rate in rates_per_second)
        raise RigError(
            f"rates: no request comes of {rates} a second: leave the machine to the engine"
        )
    # Every pair is drawn equally often: a handful of requests should look like the trace.
    pairs = len(lengths.prompt_tokens)
    copies = -(-len(arrivals) // pairs)
    drawn = np.concatenate([rng.permutation(pairs) for _ in range(copies)])[: len(arrivals)]
    return Load(
        phase_seconds=phase_seconds,
        rates_per_second=tuple(rates_per_second),
        arrival_seconds=tuple(arrivals),
        phases=tuple(phases),
        prompt_tokens=tuple(lengths.prompt_tokens[i] for i in drawn),
        output_tokens=tuple(lengths.output_tokens[i] for i in drawn),
    )


async def send(url: str, load: Load, seed: int) -> list[Served]:
    """Send every request at its time, whatever became of those before it."""
    rng = np.random.default_rng(seed)
    async with _session() as session:
        begin = time.perf_counter()
        tasks = []
        for index, arrival in enumerate(load.arrival_seconds):
            body = _body(load.prompt_tokens[index], load.output_tokens[index], rng)
            await asyncio.sleep(max(begin + arrival - time.perf_counter(), 0.0))
            tasks.append(asyncio.create_task(_timed(session, url, body)))
        answers = await asyncio.gather(*tasks)
    return [
        Served(
            arrival_seconds=load.arrival_seconds[index],
            phase=load.phases[index],
            prompt_tokens=load.prompt_tokens[index],
            output_tokens=load.output_tokens[index],
            ttft_seconds=None if answer is None else answer[0],
            latency_seconds=None if answer is None else answer[1],
        )
        for index, answer in enumerate(answers)
    ]


async def saturation_rate_per_second(
    url: str, lengths: Lengths, concurrency: int, seconds: float, seed: int
) -> float:
    """Requests per second that the engine ends while there is always a next one.

    The first third, in which the batch fills, does not count.
    """
    rng = np.random.default_rng(seed)
    ended: list[float] = []
    begin = time.perf_counter()

    async def client(session: aiohttp.ClientSession, own: np.random.Generator) -> None:
        while time.perf_counter() - begin < seconds:
            i = int(own.integers(len(lengths.prompt_tokens)))
            body = _body(lengths.prompt_tokens[i], lengths.output_tokens[i], own)
            if await _timed(session, url, body) is not None:
                ended.append(time.perf_counter() - begin)

    async with _session() as session:
        await asyncio.gather(*(client(session, own) for own in rng.spawn(concurrency)))
    counted = [at for at in ended if seconds / 3 <= at < seconds]
    return len(counted) / (seconds * 2 / 3)


async def one_after_another(
    url: str, lengths: Lengths, seconds: float, seed: int
) -> list[tuple[float, float]]:
    """TTFT and TPOT, in seconds, of requests that are alone in the engine; failed ones left out."""
    rng = np.random.default_rng(seed)
    found: list[tuple[float, float]] = []
    begin = time.perf_counter()
    async with _session() as session:
        while time.perf_counter() - begin < seconds:
            i = int(rng.integers(len(lengths.prompt_tokens)))
            output = max(lengths.output_tokens[i], 2)
            answer = await _timed(session, url, _body(lengths.prompt_tokens[i], output, rng))
            if answer is not None:
                found.append((answer[0], (answer[1] - answer[0]) / (output - 1)))
    return found


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=_LONGEST_REQUEST_SECONDS),
    )


def _body(prompt_tokens: int, output_tokens: int, rng: np.random.Generator) -> bytes:
    """A request of exactly these lengths; random tokens, so that no two share a prefix."""
    prompt = rng.integers(FIRST_PLAIN_TOKEN, VOCABULARY_COUNT, prompt_tokens).tolist()
    document = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
    }
    return json.dumps(document).encode()


async def _timed(
    session: aiohttp.ClientSession, url: str, body: bytes
) -> tuple[float, float] | None:
    """Time to the first token and to the end, in seconds; None for a request that failed."""
    begin = time.perf_counter()
    first: float | None = None
    whole = False
    try:
        async with session.post(
            f"{url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            if answer.status != 200:
                return None
            async for line in answer.content:
                if first is None and line.startswith(b"data: {"):
                    first = time.perf_counter() - begin
                whole = whole or _WHOLE in line
    except (aiohttp.ClientError, TimeoutError):
        return None
    return (first, time.perf_counter() - begin) if first is not None and whole else None
