"""Traffic of kinds that the standard cases do not have: days, sessions, batches, other noise.

Every function draws all that it makes from the generator that is passed: rates, moments, lengths.
"""

import math
from collections.abc import Callable

import numpy as np
from tests.benchmarks.matrix_blind_cases import points

from servingslo_lab.sim.traces.trace import IntArray, Trace
from servingslo_lab.sim.traces.transforms import superposed
from servingslo_lab.sim.traces.workloads import LengthSource, RateCourse, generated

_TAG = 83  # of random generators, beside 77 of the blind cases and 79 of the older rows
# Lengths are lognormal. Means and spreads of prompts and outputs are drawn from these ranges.
# Source: the Azure conversation trace has means of 1,155 and 211 tokens and spreads of 1.1 and 1.0.
PROMPT_MEANS, OUTPUT_MEANS, LENGTH_SPREADS = (500.0, 2000.0), (100.0, 350.0), (0.6, 1.2)
# A longer prompt would take more than half of the TTFT objective alone, on the large card.
MOST_PROMPT, _MOST_OUTPUT = 15_000, 4_000

Course = Callable[[np.random.Generator], RateCourse]


def lengths_drawn(rng: np.random.Generator, most_prompt: int = MOST_PROMPT) -> LengthSource:
    """Lognormal lengths whose own means and spreads are drawn."""
    means = rng.uniform(*PROMPT_MEANS), rng.uniform(*OUTPUT_MEANS)
    spreads = rng.uniform(*LENGTH_SPREADS, 2)

    def draw(rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        drawn = [
            np.exp(rng.normal(math.log(mean) - 0.5 * spread**2, spread, count))
            for mean, spread in zip(means, spreads, strict=True)
        ]
        prompts, outputs = (np.maximum(np.floor(one), 1).astype(np.int64) for one in drawn)
        return np.minimum(prompts, most_prompt), np.minimum(outputs, _MOST_OUTPUT)

    return draw


def traffic_of(
    course: Course, rate: float = 1.0, most_prompt: int = MOST_PROMPT
) -> Callable[[int], Trace]:
    """The course at so many times its rate, with lengths drawn for each seed."""

    def traffic(seed: int) -> Trace:
        rng = np.random.default_rng([seed, _TAG])
        return generated(course(rng).scaled(rate), lengths_drawn(rng, most_prompt), rng)

    return traffic


def correlated(
    rng: np.random.Generator, minutes: int, deviation: float, memory_minutes: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A factor for each minute whose logarithm is correlated over so many minutes."""
    kept = math.exp(-1.0 / memory_minutes)
    found = np.empty(minutes + 1)
    value = float(rng.normal())
    for minute in range(minutes + 1):
        found[minute] = math.exp(deviation * value)
        value = kept * value + math.sqrt(1.0 - kept**2) * float(rng.normal())
    return found


def working_day(
    rng: np.random.Generator,
    *,
    minutes: int,
    low: float,
    high: float,
    deviation: float = 0.12,
    grows: bool = False,
) -> RateCourse:
    """Two humps with noise that is correlated over minutes.

    grows: the noise grows with the rate, from a quarter of its deviation.
    """
    heights = high * rng.uniform(0.8, 1.1, 2)
    places, widths = rng.uniform((0.25, 0.62), (0.35, 0.75)), rng.uniform(0.07, 0.13, 2)
    share = np.arange(minutes + 1) / minutes
    humps = heights * np.exp(-0.5 * ((share[:, None] - places) / widths) ** 2)
    mean = low + humps.max(axis=1)
    noise = correlated(rng, minutes, deviation, 3.0)
    power = np.clip(mean / high, 0.25, None) if grows else 1.0
    rates = mean * noise**power
    return points(*((float(minute), float(rate)) for minute, rate in enumerate(rates)))


def plain_noise(rng: np.random.Generator, *, minutes: int, mean: float) -> RateCourse:
    """A level with noise that is correlated over minutes."""
    rates = mean * correlated(rng, minutes, 0.10, 4.0)
    return points(*((float(minute), float(rate)) for minute, rate in enumerate(rates)))


def swell(rng: np.random.Generator, *, minutes: int, low: float, high: float) -> RateCourse:
    """From a low rate to a high one and back, by equal factors in equal times."""
    top = rng.uniform(0.4, 0.6) * minutes
    noise = correlated(rng, minutes, 0.06, 3.0)
    found = []
    for minute in range(minutes + 1):
        share = minute / top if minute <= top else (minutes - minute) / (minutes - top)
        found.append((float(minute), low * (high / low) ** share * float(noise[minute])))
    return points(*found)


def with_batches(
    course: Course, *, minutes: tuple[tuple[float, float], ...], sizes: tuple[int, int]
) -> Callable[[int], Trace]:
    """A steady chat, and thousands of requests that are sent within seconds.

    minutes: between which each of the batches is sent.
    """

    def traffic(seed: int) -> Trace:
        rng = np.random.default_rng([seed, _TAG])
        chat = generated(course(rng), lengths_drawn(rng), rng)
        batches = []
        for low, high in minutes:
            count = int(rng.integers(*sizes))
            begins = 60.0 * float(rng.uniform(low, high))
            prompts, outputs = lengths_drawn(rng)(rng, count)
            batches.append(
                Trace(
                    arrival_seconds=begins + np.sort(rng.uniform(0.0, 5.0, count)),
                    prompt_tokens=prompts,
                    output_tokens=outputs,
                    duration_seconds=chat.duration_seconds,
                )
            )
        return superposed(chat, *batches)

    return traffic


# Of an agent: calls of a session, tokens that its context begins with, that each call adds and
# answers with, and seconds between an answer and the next call. An answer's token takes 25 ms.
CALLS, FIRST_TOKENS, ADDED_TOKENS = (6, 24), (1_000, 4_000), (100, 900)
ANSWER_TOKENS, THINK_SECONDS, TOKEN_SECONDS = (30, 300), (1.0, 15.0), 0.025
# Before a trace begins: longer than a session lasts.
EARLIER_MINUTES = 6.0


def agents(
    *, minutes: float, groups_per_minute: float, group: tuple[int, int]
) -> Callable[[int], Trace]:
    """Sessions whose calls follow one another with growing, cached prompts, started in groups."""

    def traffic(seed: int) -> Trace:
        rng = np.random.default_rng([seed, _TAG])
        end = 60.0 * minutes
        count = int(rng.poisson(groups_per_minute * (minutes + EARLIER_MINUTES)))
        starts = np.sort(rng.uniform(-60.0 * EARLIER_MINUTES, end, count))
        rows: list[tuple[float, int, int, int, int]] = []
        session = 0
        for start in starts:
            for _ in range(int(rng.integers(*group))):
                rows += _session(rng, float(start) + float(rng.uniform(0.0, 10.0)), session)
                session += 1
        rows = sorted(row for row in rows if 0.0 <= row[0] < end)
        arrival, prompt, output, number, shared = zip(*rows, strict=True)
        return Trace(
            arrival_seconds=np.array(arrival),
            prompt_tokens=np.array(prompt, dtype=np.int64),
            output_tokens=np.array(output, dtype=np.int64),
            duration_seconds=end,
            sessions=np.array(number, dtype=np.int64),
            shared_tokens=np.array(shared, dtype=np.int64),
        )

    return traffic


def _session(
    rng: np.random.Generator, start: float, number: int
) -> list[tuple[float, int, int, int, int]]:
    """Arrival, prompt, output, session and shared tokens of each call."""
    now, context, shared, found = start, int(rng.integers(*FIRST_TOKENS)), 0, []
    for _ in range(int(rng.integers(*CALLS))):
        answer = int(rng.integers(*ANSWER_TOKENS))
        found.append((now, context, answer, number, shared))
        shared = context + answer
        context = shared + int(rng.integers(*ADDED_TOKENS))
        now += TOKEN_SECONDS * answer + float(rng.uniform(*THINK_SECONDS))
    return found
