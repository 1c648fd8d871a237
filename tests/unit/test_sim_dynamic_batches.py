"""Engines of dynamic batches: Triton's batcher by its rules and against known queues."""

import dataclasses

import numpy as np
import pytest
from sim_fleets import Script, agreeing
from tests.textbook.batching import BatchLaw, greedy_batch_response

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import (
    ClientSpec,
    ColdStart,
    DynamicBatching,
    FleetSpec,
)
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import compiled_backend
from servingslo_lab.sim.traces.trace import Trace

LAW = ServiceLaw(
    step_fixed_seconds=0.010, step_per_sequence_seconds=0.002, prefill_per_token_seconds=0.0
)


def fleet(size: int, *, instances: int = 1, delay: float = 0.0, **changes: object) -> FleetSpec:
    """One server of batches of up to so many requests."""
    limits = EngineLimits(max_num_seqs=size, max_num_batched_tokens=8192, kv_capacity_tokens=1024)
    batching = DynamicBatching(instances=instances, max_queue_delay_seconds=delay)
    spec = FleetSpec(
        engine="l4-small", law=LAW, limits=limits, dynamic_batching=batching,
        cold_start=ColdStart(mean_seconds=30.0),
    )  # fmt: skip
    return dataclasses.replace(spec, **changes)


def arrivals(*times: float) -> Trace:
    """Requests at these times."""
    return Trace(
        arrival_seconds=np.array(times),
        prompt_tokens=np.full(len(times), 100_000),
        output_tokens=np.ones(len(times), dtype=int),
        duration_seconds=max(times) + 20.0,
    )


def poisson(rate: float, count: int, seed: int = 1) -> Trace:
    """Poisson arrivals."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, count)
    return arrivals(*np.cumsum(gaps).tolist())


@pytest.mark.parametrize(
    ("delay", "times", "latencies"),
    [
        pytest.param(0.0, (1.0,), (0.012,), id="alone"),
        pytest.param(0.0, (1.0, 1.0, 1.0), (0.016,) * 3, id="together"),
        pytest.param(0.0, (1.0, 1.001, 1.002), (0.012, 0.025, 0.024), id="next-batch"),
        pytest.param(0.005, (1.0, 1.004), (0.019, 0.015), id="delay-waits"),
        pytest.param(0.005, (1.0, 1.006), (0.017, 0.023), id="delay-over"),
        pytest.param(0.1, (1.0, 1.001, 1.002, 1.003), (0.021, 0.020, 0.019, 0.018), id="full"),
        pytest.param(0.0, (1.0,) * 5, (0.018,) * 4 + (0.030,), id="beyond-the-limit"),
    ],
)
def test_batch_forms_and_runs_by_the_rules(delay, times, latencies):
    """Begun when full or when the oldest has waited; all of a batch end together."""
    result = agreeing(Script(), fleet(4, delay=delay), trace=arrivals(*times))

    assert result.latency_seconds == pytest.approx(latencies)
    assert result.ttft_seconds == pytest.approx(latencies)


def quick(spec: FleetSpec, load: Trace) -> RunResult:
    """A compiled run without an autoscaler."""
    return simulate(spec, load, Script(), seed=0, backend=compiled_backend())


@pytest.mark.parametrize(
    ("size", "utilization"),
    [
        pytest.param(8, 0.5, id="half"),
        pytest.param(8, 0.85, id="busy"),
        pytest.param(32, 0.7, id="large"),
    ],
)
def test_greedy_batches_answer_as_the_embedded_chain_says(size, utilization):
    """Mean response of a server that takes all who wait whenever it is free."""
    law = BatchLaw(fixed_seconds=0.010, per_request_seconds=0.002)
    rate = utilization * law.throughput_per_second(size)
    theory = greedy_batch_response(law, rate, size).response_seconds
    means = [
        quick(fleet(size), poisson(rate, 20_000, seed)).latency_seconds.mean() for seed in range(8)
    ]
    half = 5.4 * np.std(means, ddof=1) / len(means) ** 0.5

    assert half < 0.1 * theory
    assert np.mean(means) == pytest.approx(theory, abs=half)


def test_instances_without_a_queue_block_as_erlang_says():
    """M/G/c/c: the share of refusals depends on the mean service alone."""
    load, servers = 3.0, 4
    spec = fleet(1, instances=servers, max_queued=servers)
    shares = [
        (quick(spec, poisson(load / 0.012, 20_000, seed)).status == layout.REJECTED).mean()
        for seed in range(8)
    ]
    weights = [1.0]
    for j in range(1, servers + 1):
        weights.append(weights[-1] * load / j)
    half = 5.4 * np.std(shares, ddof=1) / len(shares) ** 0.5

    assert half < 0.02
    assert np.mean(shares) == pytest.approx(weights[-1] / sum(weights), abs=half)


def test_autoscaler_sees_what_triton_shows():
    """Queue and completions, but no tokens and no memory; counters only grow."""
    script = Script((30.0, Wanted(replicas=2)))
    load = poisson(300.0, 40_000)
    agreeing(script, fleet(8), trace=load)
    engines = [pod.engines[0] for o in script.seen for pod in o.pods if pod.engines]
    done = [o.pods[0].engines[0].finished_total["success"] for o in script.seen]

    assert {engine.ttft_seconds for engine in engines} == {None}
    assert {engine.kv_usage_ratio for engine in engines} == {None}
    assert max(engine.waiting for engine in engines) > 0
    assert done == sorted(done)
    assert len(script.seen[-1].pods) == 2


def test_client_that_gives_up_frees_no_place_in_a_running_batch():
    """A batch is never broken off: its other requests end as if nobody had gone."""
    law = ServiceLaw(
        step_fixed_seconds=1.0, step_per_sequence_seconds=0.0, prefill_per_token_seconds=0.0
    )
    spec = fleet(4, law=law, clients=ClientSpec(timeout_seconds=0.5, retries=1, jitter_ratio=0.0))
    result = agreeing(Script(), spec, trace=arrivals(1.0, 1.0))

    assert result.status.tolist() == [layout.ABORTED] * 2
    assert result.attempts is not None
    assert result.attempts.tolist() == [2, 2]
