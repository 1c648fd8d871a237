"""Generate traces from a course of the arrival rate and a source of lengths.

Arrivals are Poisson with the current rate (thinning of a faster Poisson process); with a
Markov-modulated course they are an MMPP.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import FloatArray
from servingslo_lab.sim.traces.trace import IntArray, Trace

LengthSource = Callable[[np.random.Generator, int], tuple[IntArray, IntArray]]
"""Prompt and output lengths, in tokens, of the given number of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCourse:
    """The arrival rate over time.

    times_seconds: increasing, from 0 to the end. rates_per_second: at these times, linear between
    them; two equal times make a step.
    """

    times_seconds: tuple[float, ...]
    rates_per_second: tuple[float, ...]

    @property
    def duration_seconds(self) -> float:
        """Length of the course."""
        return self.times_seconds[-1]

    def scaled(self, factor: float) -> "RateCourse":
        """The same course at `factor` times the rate."""
        return RateCourse(
            times_seconds=self.times_seconds,
            rates_per_second=tuple(factor * rate for rate in self.rates_per_second),
        )


def constant(rate: float, duration_seconds: float) -> RateCourse:
    """Poisson arrivals at one rate."""
    return RateCourse(times_seconds=(0.0, duration_seconds), rates_per_second=(rate, rate))


def diurnal(
    peak: float, trough_ratio: float, duration_seconds: float, points: int = 241
) -> RateCourse:
    """One day, compressed to the duration: a cosine that begins and ends in the trough."""
    times = np.linspace(0.0, duration_seconds, points)
    wave = (1.0 - np.cos(2.0 * np.pi * times / duration_seconds)) / 2.0
    rates = peak * (trough_ratio + (1.0 - trough_ratio) * wave)
    return RateCourse(times_seconds=tuple(times.tolist()), rates_per_second=tuple(rates.tolist()))


def ramp(
    low: float,
    high: float,
    *,
    up_seconds: float,
    hold_seconds: float,
    down_seconds: float,
    rest_seconds: float = 0.0,
) -> RateCourse:
    """From low to high, hold, and back; rest: time at the low rate, before and after."""
    risen = rest_seconds + up_seconds
    top = risen + hold_seconds
    end = top + down_seconds
    if rest_seconds <= 0:
        return RateCourse(
            times_seconds=(0.0, risen, top, end), rates_per_second=(low, high, high, low)
        )
    return RateCourse(
        times_seconds=(0.0, rest_seconds, risen, top, end, end + rest_seconds),
        rates_per_second=(low, low, high, high, low, low),
    )


def step(low: float, high: float, *, at_seconds: float, duration_seconds: float) -> RateCourse:
    """An immediate change from one rate to another."""
    return RateCourse(
        times_seconds=(0.0, at_seconds, at_seconds, duration_seconds),
        rates_per_second=(low, low, high, high),
    )


def flash_crowd(
    base: float,
    factor: float,
    *,
    at_seconds: float,
    rise_seconds: float,
    hold_seconds: float,
    duration_seconds: float,
) -> RateCourse:
    """A burst: up to `factor` times the rate within the rise, held, then down as fast."""
    risen = at_seconds + rise_seconds
    held = risen + hold_seconds
    return RateCourse(
        times_seconds=(0.0, at_seconds, risen, held, held + rise_seconds, duration_seconds),
        rates_per_second=(base, base, factor * base, factor * base, base, base),
    )


def markov_modulated(
    low: float,
    high: float,
    *,
    mean_low_seconds: float,
    mean_high_seconds: float,
    duration_seconds: float,
    rng: np.random.Generator,
) -> RateCourse:
    """Bursts: two rates that alternate after exponential times (MMPP with two states)."""
    times, rates = [0.0], [low]
    now, is_high = 0.0, False
    while True:
        now += float(rng.exponential(mean_high_seconds if is_high else mean_low_seconds))
        rate = high if is_high else low
        if now >= duration_seconds:
            return RateCourse(
                times_seconds=(*times, duration_seconds), rates_per_second=(*rates, rate)
            )
        is_high = not is_high
        times += [now, now]
        rates += [rate, high if is_high else low]


def lengths_of(trace: Trace) -> LengthSource:
    """Prompt and output lengths, drawn together from the requests of a trace."""

    def draw(rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        chosen = rng.integers(0, len(trace), count)
        return trace.prompt_tokens[chosen], trace.output_tokens[chosen]

    return draw


def uniform_lengths(prompt: tuple[int, int], output: tuple[int, int]) -> LengthSource:
    """Independent uniform lengths, both ends included; prompts log-uniform."""

    def draw(rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        low, high = np.log(prompt[0]), np.log(prompt[1] + 1)
        prompts = np.floor(np.exp(rng.uniform(low, high, count))).astype(np.int64)
        return prompts, rng.integers(output[0], output[1] + 1, count)

    return draw


LONG_CONTEXT = uniform_lengths((2_000, 16_000), (4, 60))
"""Long prompts and short outputs: summaries, retrieval, classification of documents."""


def mixed_lengths(first: LengthSource, second: LengthSource, second_ratio: float) -> LengthSource:
    """Requests of two kinds; second_ratio of them are of the second."""

    def draw(rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        other = rng.random(count) < second_ratio
        one, two = first(rng, count), second(rng, count)
        return np.where(other, two[0], one[0]), np.where(other, two[1], one[1])

    return draw


def generated(course: RateCourse, lengths: LengthSource, rng: np.random.Generator) -> Trace:
    """A trace with Poisson arrivals at the rates of the course.

    Raises: InvalidInputError if no request can arrive.
    """
    highest = max(course.rates_per_second)
    if highest <= 0:
        raise InvalidInputError("rates", course.rates_per_second, "a rate > 0")
    count = int(rng.poisson(highest * course.duration_seconds))
    times = np.sort(rng.uniform(0.0, course.duration_seconds, count))
    kept: FloatArray = times[rng.random(count) * highest < _rates(course, times)]
    prompts, outputs = lengths(rng, len(kept))
    return Trace(
        arrival_seconds=kept,
        prompt_tokens=np.asarray(prompts, dtype=np.int64),
        output_tokens=np.asarray(outputs, dtype=np.int64),
        duration_seconds=course.duration_seconds,
    )


def _rates(course: RateCourse, times: FloatArray) -> FloatArray:
    return np.interp(times, course.times_seconds, course.rates_per_second)
