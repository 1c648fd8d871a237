"""Rows by kind of traffic: rises, bursts that return and that do not, mixes, clients, pools."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tests.benchmarks.guard_row import Row
from tests.benchmarks.guard_traffic import lengths_drawn, plain_noise, traffic_of
from tests.benchmarks.guard_unseen import fleet_of
from tests.benchmarks.matrix import LARGE
from tests.benchmarks.matrix_blind_cases import points

from servingslo_lab.sim.fleets.fleet import ClientSpec, FleetSpec
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.pools.fleet import PoolsSpec
from servingslo_lab.sim.traces.trace import IntArray, Trace
from servingslo_lab.sim.traces.transforms import superposed
from servingslo_lab.sim.traces.workloads import RateCourse, generated

_TAG = 97  # of random generators


def bursts(
    rng: np.random.Generator,
    *,
    minutes: int,
    every: float,
    low: float,
    factor: float,
    lasts: tuple[float, float],
    shift: float = 0.0,
) -> RateCourse:
    """A low rate with a burst of so many times it every so many minutes, shifted at random."""
    found = [(0.0, low)]
    begins = every * float(rng.uniform(0.3, 0.6))
    while begins < minutes:
        at = begins + float(rng.uniform(-shift, shift))
        ends, high = at + float(rng.uniform(*lasts)), low * factor * float(rng.uniform(0.85, 1.15))
        found += [(at, low), (at, high), (ends, high), (ends, low)]
        begins += every
    inside = [(minute, rate) for minute, rate in found if minute < minutes]
    return points(*inside, (minutes, inside[-1][1]))


def climb(
    rng: np.random.Generator, *, low: float, factor: float, at: float, over: float, minutes: int
) -> RateCourse:
    """A level, a rise by this factor within some minutes, and the level reached."""
    begins = at * float(rng.uniform(0.8, 1.2))
    high = low * factor * float(rng.uniform(0.85, 1.15))
    return points((0.0, low), (begins, low), (begins + over, high), (minutes, high))


def collapse(minutes: float, rate: float) -> Callable[[int], Trace]:
    """Two thirds of each prompt are cached for the first half of the time, and nothing after."""

    def traffic(seed: int) -> Trace:
        rng = np.random.default_rng([seed, _TAG])
        trace = generated(
            plain_noise(rng, minutes=int(minutes), mean=rate), lengths_drawn(rng), rng
        )
        count = len(trace.prompt_tokens)
        cached = trace.arrival_seconds < 60.0 * minutes * float(rng.uniform(0.4, 0.6))
        return replace(
            trace,
            sessions=rng.integers(0, 40, count).astype(np.int64),
            shared_tokens=np.where(cached, trace.prompt_tokens * 2 // 3, 0).astype(np.int64),
        )

    return traffic


def fan_out(minutes: float, per_minute: float, size: tuple[int, int]) -> Callable[[int], Trace]:
    """Groups of parallel calls of one context, at random moments."""

    def traffic(seed: int) -> Trace:
        rng = np.random.default_rng([seed, _TAG])
        starts = np.sort(rng.uniform(0.0, 60.0 * minutes, rng.poisson(per_minute * minutes)))
        rows: list[tuple[float, int, int, int, int]] = []
        for session, start in enumerate(starts):
            context = int(rng.integers(1_000, 5_000))
            for _ in range(int(rng.integers(*size))):
                prompt, answer = context + int(rng.integers(50, 600)), int(rng.integers(50, 400))
                rows.append((start + float(rng.uniform(0, 2.0)), prompt, answer, session, context))
        rows = sorted(row for row in rows if row[0] < 60.0 * minutes)
        arrival, prompts, outputs, sessions, shared = zip(*rows, strict=True)
        return Trace(
            arrival_seconds=np.array(arrival),
            prompt_tokens=np.array(prompts, dtype=np.int64),
            output_tokens=np.array(outputs, dtype=np.int64),
            duration_seconds=60.0 * minutes,
            sessions=np.array(sessions, dtype=np.int64),
            shared_tokens=np.array(shared, dtype=np.int64),
        )

    return traffic


def at_once(count: int, minutes: float, rate: float) -> Callable[[int], Trace]:
    """A chat, and so many requests within a minute."""

    def traffic(seed: int) -> Trace:
        rng = np.random.default_rng([seed, _TAG])
        chat = generated(plain_noise(rng, minutes=int(minutes), mean=rate), lengths_drawn(rng), rng)
        begins = 60.0 * minutes * float(rng.uniform(0.3, 0.5))
        prompts, outputs = lengths_drawn(rng)(rng, count)
        batch = Trace(
            arrival_seconds=begins + np.sort(rng.uniform(0.0, 60.0, count)),
            prompt_tokens=prompts,
            output_tokens=outputs,
            duration_seconds=chat.duration_seconds,
        )
        return superposed(chat, batch)

    return traffic


def shifting(minutes: int, rate: float, factor: int) -> Callable[[int], Trace]:
    """In the second third of the time prompts are so many times as long, in the last one answers.

    Each comes within five minutes, as its users do.
    """

    def traffic(seed: int) -> Trace:
        rng = np.random.default_rng([seed, _TAG])
        trace = generated(plain_noise(rng, minutes=minutes, mean=rate), lengths_drawn(rng), rng)
        share, within = trace.arrival_seconds / (60.0 * minutes), 5.0 / minutes

        def longer(tokens: IntArray, begins: float, ends: float) -> IntArray:
            shifted = np.interp(share, (begins, begins + within, ends, ends + within), (0, 1, 1, 0))
            return np.rint(tokens * (1.0 + (factor - 1) * shifted)).astype(np.int64)

        return replace(
            trace,
            prompt_tokens=longer(trace.prompt_tokens, 1 / 3, 2 / 3),
            output_tokens=longer(trace.output_tokens, 2 / 3, 2.0),
        )

    return traffic


def _row(
    name: str, kind: str, traffic: Callable[[int], Trace], pools: PoolsSpec | None = None,
    card: str = "h100", **changes: object,
) -> Row:  # fmt: skip
    fleet = replace(fleet_of(card), **changes)
    return Row(name=name, kind=kind, fleet=fleet, traffic=traffic, pools=pools)


_PATH = PoolsSpec(
    prefill=FleetSpec(engine=LARGE, max_replicas=20),
    decode=FleetSpec(engine=LARGE, max_replicas=20),
)
_IMPATIENT = ClientSpec(first_token_timeout_seconds=10.0, timeout_seconds=90.0, retries=3)


BY_KIND = (
    _row("level", "level", traffic_of(lambda rng: plain_noise(rng, minutes=60, mean=60.0))),
    _row("small level", "level", traffic_of(lambda rng: points((0.0, 6.0), (60.0, 6.0)))),
    _row("hourly bursts", "burst recurring", traffic_of(lambda rng: bursts(
        rng, minutes=240, every=60.0, low=8.0, factor=7.0, lasts=(4.0, 8.0)))),
    _row("returning clients", "clients", traffic_of(lambda rng: bursts(
        rng, minutes=90, every=40.0, low=25.0, factor=5.0, lasts=(5.0, 9.0), shift=5.0))),
    _row("clients that retry", "clients", traffic_of(lambda rng: bursts(
        rng, minutes=90, every=40.0, low=25.0, factor=4.0, lasts=(5.0, 9.0), shift=5.0)),
        clients=_IMPATIENT),
    _row("launch", "rise", traffic_of(lambda rng: climb(
        rng, low=12.0, factor=12.0, at=20.0, over=9.0, minutes=50))),
    _row("night", "rise", traffic_of(lambda rng: climb(
        rng, low=8.0, factor=10.0, at=30.0, over=3.0, minutes=60))),
    _row("wall", "rise", traffic_of(lambda rng: climb(
        rng, low=15.0, factor=4.0, at=20.0, over=4.0, minutes=50))),
    _row("burst once", "burst once", traffic_of(lambda rng: bursts(
        rng, minutes=60, every=60.0, low=18.0, factor=8.0, lasts=(8.0, 14.0)))),
    _row("20,000 at once", "burst once", at_once(20_000, 50.0, 25.0)),
    _row("cache collapse", "mix", collapse(60.0, 60.0), routing=Routing.PREFIX_AFFINE),
    _row("fan out", "burst recurring", fan_out(60.0, 24.0, (8, 30)), routing=Routing.PREFIX_AFFINE),
    _row("prompts, then answers", "pools", shifting(75, 25.0, 3), _PATH),
    _row("climb of two pools", "pools", traffic_of(lambda rng: climb(
        rng, low=15.0, factor=4.0, at=20.0, over=8.0, minutes=60)), _PATH),
)  # fmt: skip
