"""Servers of dynamic batches: the law that decides, against exact queues and a simulation."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from sim_fleets import Script
from tests.model_fleets import ReplicaGroup, predict
from tests.textbook import queueing
from tests.textbook.batching import BatchLaw, greedy_batch_response

import servingslo
from servingslo.models.engine.service_time import DynamicBatcher, EngineLimits, ServiceLaw
from servingslo.models.fleet.batch_model import BatchPrediction
from servingslo.models.objectives import LatencyMetric, Routing
from servingslo.models.waits.dynamic_batches import BatchTimes, saturation_per_second
from servingslo.models.workload import LengthDistribution, Workload
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, DynamicBatching, FleetSpec
from servingslo_lab.sim.replicas.backend import compiled_backend
from servingslo_lab.sim.traces.trace import Trace

LAW = ServiceLaw(
    step_fixed_seconds=0.06, step_per_sequence_seconds=0.01, prefill_per_token_seconds=0.0
)
BOOK = BatchLaw(fixed_seconds=0.06, per_request_seconds=0.01)


def times(utilization: float, **batcher: float) -> BatchTimes:
    """One server at this share of its saturation."""
    known = DynamicBatcher(**{"largest_batch": 8, **batcher})
    return BatchTimes(LAW, known, utilization * saturation_per_second(LAW, known))


def simulated(utilization: float, **batcher: float) -> np.ndarray:
    """Latencies of the same server, simulated."""
    known = DynamicBatcher(**{"largest_batch": 8, **batcher})
    rate = utilization * saturation_per_second(LAW, known)
    moments = np.cumsum(np.random.default_rng(3).exponential(1.0 / rate, 40_000))
    trace = Trace(
        arrival_seconds=moments,
        prompt_tokens=np.ones(len(moments), dtype=int),
        output_tokens=np.ones(len(moments), dtype=int),
        duration_seconds=float(moments[-1]) + 20.0,
    )
    spec = FleetSpec(
        engine="l4-small",
        law=LAW,
        limits=EngineLimits(
            max_num_seqs=known.largest_batch, max_num_batched_tokens=8192, kv_capacity_tokens=1024
        ),
        dynamic_batching=DynamicBatching(
            instances=known.instances, max_queue_delay_seconds=known.window_seconds
        ),
        cold_start=ColdStart(mean_seconds=30.0),
    )
    return simulate(spec, trace, Script(), seed=0, backend=compiled_backend()).latency_seconds


@pytest.mark.parametrize("utilization", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("size", [1, 8, 32])
def test_mean_of_a_greedy_server_is_that_of_the_exact_chain(size, utilization):
    """Without a window and for one instance the chain is exact; times are those of its points."""
    found = times(utilization, largest_batch=size)
    rate = utilization * BOOK.throughput_per_second(size)
    exact = greedy_batch_response(BOOK, rate, size).response_seconds
    assert found.latency_seconds @ found.weight == pytest.approx(exact, rel=0.03)


def test_batches_of_one_wait_as_in_md1():
    """Pollaczek–Khinchine without variance of service."""
    found = times(0.7, largest_batch=1)
    exact = queueing.md1_wait_seconds(0.07, 0.7)
    assert found.wait_seconds @ found.weight == pytest.approx(exact, rel=0.03)


# Percentiles may be off by this much; near saturation the tail is safe, that is long.
ONE, SEVERAL = 0.06, 0.12


@pytest.mark.parametrize(
    ("utilization", "batcher", "within"),
    [
        pytest.param(0.3, {}, ONE, id="greedy"),
        pytest.param(0.85, {}, ONE, id="busy"),
        pytest.param(0.5, {"instances": 2}, SEVERAL, id="two"),
        pytest.param(0.85, {"instances": 2, "window_seconds": 0.02}, SEVERAL, id="two-busy"),
        pytest.param(0.7, {"instances": 4, "window_seconds": 0.02}, SEVERAL, id="four"),
    ],
)
def test_percentiles_are_those_of_a_simulation(utilization, batcher, within):
    """Formation, wait and batch together."""
    found, seen = times(utilization, **batcher), simulated(utilization, **batcher)
    for percentile in (50, 95):
        predicted = found.quantile(found.latency_seconds, percentile / 100)
        assert predicted == pytest.approx(np.percentile(seen, percentile), rel=within), percentile


def test_what_finds_no_room_has_no_time():
    """A percentile beyond those that are served is infinite; the others count them."""
    found = times(0.8, largest_batch=4, room=4)
    assert 0.05 < found.lost_ratio < 0.12
    assert found.quantile(found.latency_seconds, 0.99) == math.inf
    assert found.quantile(found.latency_seconds, 0.5) < math.inf


def test_saturation_is_that_of_full_batches():
    """Worked table of the book at B = 16: 58 ms, 275.9 requests per second; twice for two."""
    law = ServiceLaw(
        step_fixed_seconds=0.05, step_per_sequence_seconds=0.0005, prefill_per_token_seconds=0.0
    )
    assert law.step_seconds(16) == pytest.approx(0.058)
    one = saturation_per_second(law, DynamicBatcher(largest_batch=16))
    two = saturation_per_second(law, DynamicBatcher(largest_batch=16, instances=2))
    assert (one, two) == (pytest.approx(275.9, abs=0.1), pytest.approx(551.7, abs=0.1))


def test_a_model_of_an_engine_with_a_batcher_predicts_by_it():
    """The planner asks it as it asks any other: stable, percentiles, the admitted rate."""
    limits = EngineLimits(
        max_num_seqs=8, max_num_batched_tokens=8, kv_capacity_tokens=1e9,
        batcher=DynamicBatcher(largest_batch=8, window_seconds=0.02),
    )  # fmt: skip
    one = LengthDistribution.constant(1)
    workload = Workload(
        arrival_rate_per_second=40.0, prompt=LengthDistribution.constant(0), output=one
    )
    group = ReplicaGroup(law=LAW, limits=limits, replica_count=1)
    load = predict(workload, group)
    assert isinstance(load, BatchPrediction)
    assert load.stable
    assert load.queue_seconds(95) < load.latency_seconds(95)
    assert load.metrics == {LatencyMetric.LATENCY, LatencyMetric.QUEUE_TIME}
    assert not predict(workload.at_rate(60.0), group).stable
    seconds = load.latency_seconds(95)
    two = ReplicaGroup(law=LAW, limits=limits, replica_count=2, routing=Routing.RANDOM)
    assert predict(workload.at_rate(80.0), two).latency_seconds(95) == pytest.approx(seconds)


def test_one_place_chooses_what_predicts() -> None:
    """Whoever has a model asks it: nobody else asks whether requests are served whole."""
    package = Path(servingslo.__file__).parent
    asks = re.compile(r"(?<!stated_)limits\.batcher\b|BatchServer\(|serves_batches")
    asking = {path for path in package.rglob("*.py") if asks.search(path.read_text("utf-8"))}
    assert asking == {package / "models" / "fleet" / "latency.py"}
