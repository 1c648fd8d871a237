"""Fleets with every feature at random: both backends agree, and nothing is lost or made up.

1. Interpreted and compiled runs are equal to the last bit.
2. Every request ends, or is still in the fleet when the run ends; none is sent too often.
3. Times are in order: no first token before the arrival, no end before the first token.
4. A fleet that has nothing left holds no memory, no slots and no context.
5. Nothing happens to engines twice: counters of engines add up to what became of requests.
6. No column is read or written outside of it, which compiled code would not notice.
"""

import dataclasses

import numpy as np
import pytest
from sim_fleets import Script, agreeing, with_sessions

from servingslo.models.engine.service_time import EngineLimits
from servingslo_lab.sim.fleets.cluster import Cluster, Wanted
from servingslo_lab.sim.fleets.fleet import (
    ClientSpec,
    ColdStart,
    DynamicBatching,
    FleetSpec,
    SlowPods,
)
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import INTERPRETED
from servingslo_lab.sim.replicas.engine import Scheduling
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import constant, generated, uniform_lengths

SECONDS = 60.0


class Guarded(list):
    """A column that refuses places before its beginning; lists refuse those behind the end."""

    def __getitem__(self, place):
        """What is there."""
        assert isinstance(place, slice) or place >= 0
        return super().__getitem__(place)

    def __setitem__(self, place, value):
        """Write there."""
        assert isinstance(place, slice) or place >= 0
        super().__setitem__(place, value)


def guarded(table):
    """The same table with guarded columns."""
    return type(table)(*map(Guarded, table))


GUARDED = dataclasses.replace(
    INTERPRETED,
    requests=lambda columns: guarded(INTERPRETED.requests(columns)),
    clients=lambda columns: guarded(INTERPRETED.clients(columns)),
    row=guarded,
    rows=Guarded,
    integers=Guarded,
)


def random_limits(rng: np.random.Generator) -> EngineLimits:
    """From a few sequences with hardly any memory to many with plenty."""
    seqs = int(rng.integers(1, 48))
    return EngineLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=int(rng.integers(max(seqs, 32), 2048)),
        kv_capacity_tokens=int(rng.integers(1_500, 30_000)),
    )


def random_fleet(rng: np.random.Generator) -> FleetSpec:
    """Any combination of features."""

    def sometimes(value: object) -> object:
        return value if rng.random() < 0.5 else None

    clients = ClientSpec(
        first_token_timeout_seconds=sometimes(float(rng.uniform(0.1, 5.0))),
        timeout_seconds=sometimes(float(rng.uniform(0.5, 15.0))),
        retries=int(rng.integers(0, 5)),
        backoff_seconds=float(rng.uniform(0.01, 2.0)),
        jitter_ratio=float(rng.random()),
    )
    batching = DynamicBatching(
        instances=int(rng.integers(1, 4)), max_queue_delay_seconds=float(rng.uniform(0.0, 0.1))
    )
    return FleetSpec(
        engine="l4-small",
        limits=random_limits(rng),
        max_queued=sometimes(int(rng.integers(1, 60))),
        cached_ratio=float(rng.random()),
        initial_replicas=int(rng.integers(1, 5)),
        gpu_quota=sometimes(int(rng.integers(4, 8))),
        cold_start=ColdStart(mean_seconds=float(rng.uniform(1.0, 20.0))),
        routing=list(Routing)[int(rng.integers(0, len(Routing)))],
        scheduling=list(Scheduling)[int(rng.integers(0, len(Scheduling)))],
        dynamic_batching=batching if rng.random() < 0.3 else None,
        clients=sometimes(clients),
        slow_pods=SlowPods(share_ratio=float(rng.random()), factor=2.0),
        drain=bool(rng.random() < 0.7),
        drain_seconds=sometimes(float(rng.uniform(0.0, 5.0))),
        mean_seconds_to_failure=sometimes(float(rng.uniform(5.0, 60.0))),
        scrape_interval_seconds=float(rng.uniform(2.0, 10.0)),
        scrape_lag_seconds=float(rng.uniform(0.0, 2.0)),
    )


def random_trace(rng: np.random.Generator) -> Trace:
    """Up to a few hundred requests, some at the same moment, perhaps with sessions and classes."""
    lengths = uniform_lengths((1, 1200), (1, 150))
    load = generated(constant(float(rng.uniform(1.0, 12.0)), SECONDS), lengths, rng)
    grain = 10.0 ** -int(rng.integers(0, 4))
    load = dataclasses.replace(load, arrival_seconds=np.floor(load.arrival_seconds / grain) * grain)
    if rng.random() < 0.5:
        load = dataclasses.replace(load, priorities=rng.integers(0, 3, len(load)))
    if rng.random() < 0.5:
        load = with_sessions(load, int(rng.integers(1, 30)), int(rng.integers(1, 300)), rng)
    return load


def random_script(rng: np.random.Generator) -> Script:
    """Wishes that come and go, limits and bounds among them."""
    steps = [
        (
            float(rng.uniform(0.0, SECONDS)),
            Wanted(
                replicas=int(rng.integers(0, 7)),
                limits=random_limits(rng) if rng.random() < 0.4 else None,
                max_queued=int(rng.integers(1, 60)) if rng.random() < 0.3 else None,
            ),
        )
        for _ in range(4)
    ]
    return Script(*sorted(steps, key=lambda step: step[0]))


@pytest.mark.parametrize("seed", range(25))
def test_both_backends_agree_and_requests_are_conserved(seed):
    """Invariants 1 to 3."""
    rng = np.random.default_rng([77, seed])
    fleet, load, script = random_fleet(rng), random_trace(rng), random_script(rng)
    result = agreeing(script, fleet, trace=load, seed=seed)

    assert len(result.status) == len(load)
    assert (result.status != layout.PENDING).all()
    attempts = np.ones(len(load)) if result.attempts is None else result.attempts
    retries = 0 if fleet.clients is None else fleet.clients.retries
    assert attempts.min() >= 1
    assert attempts.max() <= retries + 1
    done = result.status == layout.FINISHED
    assert (result.ttft_seconds[done] >= 0).all()
    assert (result.latency_seconds[done] >= result.ttft_seconds[done] - 1e-9).all()
    assert np.isfinite(result.tpot_seconds[done]).all()


@pytest.mark.parametrize("seed", range(25))
def test_fleet_that_is_done_holds_nothing(seed):
    """Invariants 4 to 6, long after the last request."""
    rng = np.random.default_rng([78, seed])
    fleet, load = random_fleet(rng), random_trace(rng)
    cluster = Cluster(fleet, load, seed, GUARDED)
    cluster.warm_start(fleet.initial_replicas)
    for place, (_, wanted) in enumerate(random_script(rng).steps):
        cluster.run_until(10.0 * (place + 1))
        cluster.scale(max(wanted.replicas or 0, 1))
        if wanted.limits is not None:
            cluster.change_limits(wanted.limits)
    cluster.run_until(SECONDS + 20_000.0)
    q, rows = cluster.requests, cluster.rows
    final = {layout.FINISHED, layout.REJECTED, layout.ABORTED, layout.FAILED, layout.INVALID}

    assert set(q.status) <= final
    for row in rows:
        ints = row.ints
        held = (layout.RUNNING, layout.WAITING_COUNT, layout.HEAP_SIZE, layout.CONTEXT)
        assert [ints[place] for place in held] == [0] * len(held)
        assert ints[layout.FREE_BLOCKS] == ints[layout.BLOCKS]
        assert sum(row.phases) == 0
        assert [ints[layout.RUN_HEAD], ints[layout.WAIT_HEAD]] == [layout.NONE] * 2
    served = sum(row.ints[layout.SUCCESSES] for row in rows)
    assert served == q.status.count(layout.FINISHED)
    if cluster.clients is not None:
        assert cluster.clients.ints[0] == 0
