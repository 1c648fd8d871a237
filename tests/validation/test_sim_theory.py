"""The simulated engine against queues whose answers are known exactly.

An engine becomes a textbook queue when its service law is reduced to what the queue has: with one
sequence and no costs but `a` it is a single server, with c sequences it is c servers, with only
`b` it shares one processor. Steps are short against a service, so that their grain adds at most
one step to any time; that step is allowed for, beyond the confidence interval over replications.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import stdtrit
from tests.textbook import queueing

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine, Outcome, RequestRecord
from servingslo_lab.sim.traces.workloads import constant, generated

pytestmark = pytest.mark.slow("servingslo.models", "servingslo_lab.sim")

REPLICATIONS = 8
CONFIDENCE = 0.999
STEP_SECONDS = 0.002
MEAN_TOKENS = 400
SERVICE_SECONDS = STEP_SECONDS * MEAN_TOKENS
Lengths = Callable[[np.random.Generator, int], np.ndarray]


def geometric(rng: np.random.Generator, count: int) -> np.ndarray:
    """Memoryless lengths: exponential service."""
    return rng.geometric(1.0 / MEAN_TOKENS, count)


def fixed(_: np.random.Generator, count: int) -> np.ndarray:
    """Equal lengths: deterministic service."""
    return np.full(count, MEAN_TOKENS)


def two_point(rng: np.random.Generator, count: int) -> np.ndarray:
    """Very different lengths with the same mean: squared coefficient of variation 3.2."""
    short = MEAN_TOKENS // 5
    long = MEAN_TOKENS * 5
    return np.where(rng.random(count) < 1 / 6, long, short)


def law(*, a: float = 0.0, b: float = 0.0) -> ServiceLaw:
    """A law without costs of prompts and context."""
    return ServiceLaw(
        step_fixed_seconds=a, step_per_sequence_seconds=b, prefill_per_token_seconds=0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """An engine as a queue: its law, its places in service and in the system."""

    law: ServiceLaw
    servers: int
    room: int | None = None

    def run(
        self, rate: float, lengths: Lengths, count: int, seed: int
    ) -> tuple[list[RequestRecord], Engine]:
        """Records of requests after a warm-up of one fifth, and the engine at the end."""
        rng = np.random.default_rng(seed)
        limits = EngineLimits(
            max_num_seqs=self.servers,
            max_num_batched_tokens=100_000,
            kv_capacity_tokens=100_000_000,
        )
        engine = Engine(law=self.law, limits=limits, max_queued=self.room)
        records = []
        now = 0.0
        for gap, output in zip(
            rng.exponential(1 / rate, count), lengths(rng, count).tolist(), strict=True
        ):
            now += float(gap)
            request = engine.requests.add(arrival=now, prompt_tokens=1, output_tokens=output)
            if not engine.submit(request, now):
                records.append(engine.requests.take(request))
            records += map(engine.requests.take, engine.collect())
        records += map(engine.requests.take, engine.advance(now + 1e6))
        records.sort(key=lambda record: record.arrival_seconds)
        return records[count // 5 :], engine


def replicated(
    station: Station,
    rate: float,
    lengths: Lengths,
    value: Callable[[list[RequestRecord]], float],
    count: int = 4000,
) -> tuple[float, float]:
    """Mean of a value over replications, and half of its confidence interval."""
    values = [value(station.run(rate, lengths, count, seed)[0]) for seed in range(REPLICATIONS)]
    quantile = float(stdtrit(REPLICATIONS - 1, (1 + CONFIDENCE) / 2))
    half = quantile * float(np.std(values, ddof=1)) / REPLICATIONS**0.5
    return float(np.mean(values)), half


def mean_response(records: list[RequestRecord]) -> float:
    """Mean time in the system."""
    return float(np.mean([r.finish_seconds - r.arrival_seconds for r in records]))


def blocked_share(records: list[RequestRecord]) -> float:
    """Share of arrivals that found the system full."""
    return float(np.mean([r.outcome is Outcome.REJECTED for r in records]))


def test_one_sequence_with_uneven_lengths_is_an_mg1_queue():
    """Wait by Pollaczek and Khinchine."""
    station = Station(law=law(a=STEP_SECONDS), servers=1)
    mean, half = replicated(station, 0.5 / SERVICE_SECONDS, two_point, mean_response)
    sizes = np.array([MEAN_TOKENS // 5, MEAN_TOKENS * 5]) * STEP_SECONDS
    second_moment = float((sizes**2 * np.array([5 / 6, 1 / 6])).sum())
    theory = SERVICE_SECONDS + 0.5 / SERVICE_SECONDS * second_moment / (2 * 0.5)

    assert half < 0.4 * theory
    assert mean == pytest.approx(theory, abs=half + STEP_SECONDS)


@pytest.mark.parametrize(("servers", "utilization"), [(2, 0.7), (16, 0.85)])
def test_a_batch_of_equal_speed_is_an_mmc_queue(servers, utilization):
    """Wait by Erlang C, when a step takes the same time for any number of sequences."""
    station = Station(law=law(a=STEP_SECONDS), servers=servers)
    load = utilization * servers
    mean, half = replicated(station, load / SERVICE_SECONDS, geometric, mean_response, count=6_000)
    theory = SERVICE_SECONDS + queueing.mmc_wait_seconds(SERVICE_SECONDS, load, servers)

    assert half < 0.4 * theory
    assert mean == pytest.approx(theory, abs=half + STEP_SECONDS)


@pytest.mark.parametrize(("servers", "room", "load"), [(1, 4, 0.9), (4, 4, 3.0), (4, 10, 5.0)])
def test_a_queue_bound_blocks_as_mmck_does(servers, room, load):
    """Blocking probability of M/M/c/K, and Erlang B for K = c."""
    station = Station(law=law(a=STEP_SECONDS), servers=servers, room=room)
    mean, half = replicated(station, load / SERVICE_SECONDS, geometric, blocked_share)
    weights = [1.0]
    for j in range(1, room + 1):
        weights.append(weights[-1] * load / min(j, servers))
    theory = weights[-1] / sum(weights)

    assert half < 0.25 * theory
    assert mean == pytest.approx(theory, abs=half + 0.002)


@pytest.mark.parametrize("lengths", [fixed, geometric, two_point], ids=lambda f: f.__name__)
def test_steps_that_grow_with_the_batch_share_one_processor(lengths):
    """M/G/1 processor sharing: the mean response depends on the mean length alone."""
    utilization = 0.7
    station = Station(law=law(b=STEP_SECONDS), servers=4096)
    mean, half = replicated(station, utilization / SERVICE_SECONDS, lengths, mean_response)
    theory = SERVICE_SECONDS / (1 - utilization)

    assert half < 0.4 * theory
    assert mean == pytest.approx(theory, abs=half + 4 * STEP_SECONDS)


def test_number_running_is_negative_binomial_below_the_cap():
    """Mean response by Little's law from the closed form of continuous batching."""
    fixed_step, per_sequence = 0.006, 0.00005
    service = law(a=fixed_step, b=per_sequence)
    per_request = MEAN_TOKENS * per_sequence
    work_ratio = 0.6
    rate = work_ratio / per_request
    in_system = (MEAN_TOKENS * fixed_step / per_request + 1) * work_ratio / (1 - work_ratio)
    station = Station(law=service, servers=4096)
    mean, half = replicated(station, rate, geometric, mean_response, count=6_000)

    assert half < 0.1 * mean
    # A request runs from the first step that begins after its arrival.
    join = in_system * per_sequence + fixed_step
    assert mean == pytest.approx(in_system / rate, abs=half + join)


@pytest.mark.parametrize("sequences", [1, 8, 64])
def test_saturated_engine_completes_as_many_as_the_closed_form_says(sequences):
    """λ_sat = N / (O·a + N·t_req), with every kind of cost in t_req."""
    output, prompt = 200, 320
    service = ServiceLaw(
        step_fixed_seconds=0.01,
        step_per_sequence_seconds=0.0002,
        prefill_per_token_seconds=0.00005,
        context_per_token_seconds=0.0000004,
    )
    limits = EngineLimits(
        max_num_seqs=sequences, max_num_batched_tokens=65536, kv_capacity_tokens=10_000_000
    )
    engine = Engine(law=service, limits=limits)
    rng = np.random.default_rng(5)
    count = 40 * sequences
    for length in rng.geometric(1 / output, count):
        request = engine.requests.add(arrival=0.0, prompt_tokens=prompt, output_tokens=int(length))
        engine.submit(request, 0.0)
    records = [engine.requests.take(request) for request in engine.advance(1e9)]
    # While the queue is not empty all places are taken; the tail is left out.
    ends = sorted(record.finish_seconds for record in records)[: count - sequences]
    lengths = np.array([record.output_tokens for record in records], dtype=float)
    mean = lengths.mean()
    context = ((lengths - 1) * (prompt + lengths / 2)).mean()
    per_request = mean * 0.0002 + prompt * 0.00005 + 0.0000004 * context
    theory = sequences / (mean * 0.01 + sequences * per_request)

    assert len(ends) / ends[-1] == pytest.approx(theory, rel=0.06)


def test_inter_token_time_follows_the_service_law_of_the_running_batch():
    """Step times at a constant batch are a + b·n, as measured on a real server."""
    for sequences in (4, 8, 16, 32):
        service = law(a=0.012, b=0.00129)
        limits = EngineLimits(
            max_num_seqs=sequences, max_num_batched_tokens=4096, kv_capacity_tokens=1_000_000
        )
        engine = Engine(law=service, limits=limits)
        for _ in range(sequences):
            request = engine.requests.add(arrival=0.0, prompt_tokens=16, output_tokens=500)
            engine.submit(request, 0.0)
        engine.advance(1e6)
        gaps = engine.histogram(layout.ITL)

        assert gaps.sum / gaps.count == pytest.approx(0.012 + 0.00129 * sequences)


def test_generated_poisson_arrivals_have_the_rate_and_dispersion_of_their_course():
    """Mean count and index of dispersion 1, in windows of ten seconds."""
    rng = np.random.default_rng(2)
    trace = generated(
        constant(20.0, 5000.0), lambda r, n: (np.ones(n, int), r.integers(1, 9, n)), rng
    )
    counts = np.histogram(trace.arrival_seconds, bins=np.arange(0, 5001, 10))[0]

    assert counts.mean() == pytest.approx(200, abs=4 * (200 / len(counts)) ** 0.5)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=4 * (2 / len(counts)) ** 0.5)
