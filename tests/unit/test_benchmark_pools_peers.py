"""Rules of others for several pools: what they are told, and what they order."""

from dataclasses import replace

import numpy as np
import pytest
from tests.benchmarks.pools_peers import Optimizer, TokenVelocity, served_per_second

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.pools.fleet import PoolsSpec
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace

OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)
# 10 ms, 1 ms a sequence, 0.1 ms a prompt token.
FLEET = FleetSpec(
    law=ServiceLaw(
        step_fixed_seconds=0.01,
        step_per_sequence_seconds=0.001,
        prefill_per_token_seconds=1e-4,
        context_per_token_seconds=0.0,
    ),
    limits=EngineLimits(max_num_seqs=500, max_num_batched_tokens=2000, kv_capacity_tokens=1e6),
    price_per_hour=1.0,
)


def steady(rate: float, prompt: int, output: int) -> Trace:
    """Requests of one size for a minute."""
    count = round(60.0 * rate)
    return Trace(
        duration_seconds=60.0,
        arrival_seconds=(np.arange(count) + 0.5) / rate,
        prompt_tokens=np.full(count, prompt),
        output_tokens=np.full(count, output),
    )


def at(seconds: float) -> dict[str, Observation]:
    """Observations of two pools at this time."""
    seen = Observation(time_seconds=seconds, namespace="a", name="b")
    return {"prefill": seen, "decode": seen}


def test_a_replica_serves_what_the_objectives_allow():
    """100 tokens at 50 ms are 5 s, of which 1 s is fixed; a request is 0.1 s of decode and 0.1."""
    assert served_per_second(FLEET, 1000, 100, OBJECTIVES, 1.0) == pytest.approx(20.0 / 5.0)
    assert served_per_second(FLEET, 1000, 100, OBJECTIVES, 0.2) == 0.0
    assert served_per_second(FLEET, 10_001, 100, OBJECTIVES, 1.0) == 0.0


def test_tokenscale_orders_for_the_tokens_that_come_in():
    """Prefill takes 0.11 s a prompt; a batch of 40 completes 8 requests a second."""
    spec = PoolsSpec(prefill=FLEET, decode=FLEET)
    rule = TokenVelocity(spec, steady(20.0, 1000, 100), OBJECTIVES, 1.0)
    assert rule.decide(at(0.0)) == {}
    assert rule.decide(at(15.0)) == {"prefill": Wanted(replicas=3), "decode": Wanted(replicas=3)}
    half = TokenVelocity(spec, steady(20.0, 1000, 100), OBJECTIVES, 0.5)
    assert half.decide(at(15.0)) == {"prefill": Wanted(replicas=5), "decode": Wanted(replicas=5)}


def test_aibrix_takes_the_cheapest_cards_for_the_rate():
    """One card serves 4 requests a second of this size; of two equal ones the cheap one is taken.

    Each pool keeps one replica, as with ours.
    """
    pytest.importorskip("aibrix.gpu_optimizer.optimizer", reason="aibrix is not installed here")
    fleets = {"prefill": FLEET, "decode": replace(FLEET, price_per_hour=0.5)}
    rule = Optimizer(fleets, steady(20.0, 1024, 128), OBJECTIVES, 1.0)
    found = rule.decide(at(15.0))
    rate = served_per_second(FLEET, 1024, 128, OBJECTIVES, 1.0)
    assert found["prefill"] == Wanted(replicas=1)
    assert found["decode"] == Wanted(replicas=int(np.ceil(20.0 / rate)))
