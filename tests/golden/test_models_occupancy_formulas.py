"""The law of running sequences and of waiting, against the formulas that it is made of.

Without prefill (c = 0) the law that decides is the published one: negative binomial below the cap
and a birth–death chain above it. With prefill it has the factor F of clusters, by hand here.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.cards import H100
from tests.model_fleets import ReplicaGroup, predict
from tests.validation.grid import conversation_lengths

from servingslo.models.engine.capacity import mu_effective_per_second
from servingslo.models.engine.service_time import (
    EngineLimits,
    RequestDemand,
    ServiceLaw,
    request_demand,
)
from servingslo.models.fleet.latency import Routing
from servingslo.models.running.occupancy import queue_factor, variability_factor
from servingslo.models.workload import LengthDistribution, Workload

# Exponential outputs, so that C_s² is 1.
DEVIATES = -np.log1p(-(np.arange(4000) + 0.5) / 4000)
OUTPUTS = LengthDistribution.from_samples((400.0 * DEVIATES).round().clip(1).tolist())
PROMPTS = LengthDistribution.constant(100.0)
LAW = ServiceLaw(
    step_fixed_seconds=0.010, step_per_sequence_seconds=0.0005, prefill_per_token_seconds=0.0
)


def without_prefill(rate: float) -> Workload:
    """Requests whose prompts cost nothing."""
    return Workload(arrival_rate_per_second=rate, prompt=PROMPTS, output=OUTPUTS)


def demand_of(workload: Workload, law: ServiceLaw = LAW) -> RequestDemand:
    """The work of a request."""
    return request_demand(workload, law)


@pytest.mark.parametrize("work_ratio", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("replicas", [1, 4])
def test_running_sequences_are_negative_binomial(work_ratio, replicas):
    """Mean rρ/(1 − ρ), variance rρ/(1 − ρ)², r = c·O·a/t_req + 1; a replica holds 1/c of it.

    Source: F. P. Kelly, Reversibility and Stochastic Networks (1979), symmetric queues.
    """
    demand = demand_of(without_prefill(1.0))
    rate = work_ratio / demand.marginal_seconds
    prediction = predict(
        without_prefill(rate * replicas),
        ReplicaGroup(
            law=LAW,
            limits=EngineLimits(
                max_num_seqs=1024, max_num_batched_tokens=65_536, kv_capacity_tokens=10**8
            ),
            replica_count=replicas,
            routing=Routing.POOLED,
        ),
    )
    shape = replicas * demand.fixed_seconds / demand.marginal_seconds + 1.0
    mean = shape * work_ratio / (1.0 - work_ratio)
    variance = mean / (1.0 - work_ratio)
    # The engine makes O − 1 gaps of O tokens, 0.25 % fewer, which is 1 % where 1 − ρ is 0.2.
    assert prediction.running_mean == pytest.approx(mean / replicas, rel=0.013)
    assert prediction.running_variance == pytest.approx(variance / replicas**2, rel=0.02)


@pytest.mark.parametrize("utilization", [0.6, 0.8, 0.9])
def test_waiting_above_the_cap_is_a_birth_death_chain(utilization):
    """Deaths mu(j) = m/(O·a + m·t_req), m = min(j, N): who waits, and for how long at p95.

    An arrival that finds j ≥ N waits for j − N + 1 departures at the rate mu(N).
    Source: birth–death chain, M. Harchol-Balter, Performance Modeling and Design (2013).
    """
    slots = 16
    demand = demand_of(without_prefill(1.0))
    # As the engine works: O − 1 gaps that grow with the batch.
    exact = replace(demand, marginal_seconds=demand.decode_seconds)
    rate = utilization * mu_effective_per_second(demand, slots)
    weights = [1.0]
    for running in range(1, 2000):
        weights.append(weights[-1] * rate / mu_effective_per_second(exact, min(running, slots)))
    law = np.array(weights) / sum(weights)
    waiting = law[slots:].sum()
    prediction = predict(
        without_prefill(rate),
        ReplicaGroup(
            law=LAW,
            limits=EngineLimits(
                max_num_seqs=slots, max_num_batched_tokens=65_536, kv_capacity_tokens=10**8
            ),
            replica_count=1,
        ),
    )
    assert prediction.laws.running.wait_probability == pytest.approx(waiting, rel=0.06)
    ratio = rate / mu_effective_per_second(exact, slots)
    drained = mu_effective_per_second(exact, slots) * (1.0 - ratio)
    wait = max(math.log(waiting / 0.05), 0.0) / drained
    assert prediction.queue_seconds(95.0) == pytest.approx(wait, rel=0.05)


def test_variability_of_the_queue_above_the_cap():
    """(C_a² + C_s²)/2. Source: Allen–Cunneen approximation (1990)."""
    assert queue_factor(3.0, 1.0) == 2.0
    assert queue_factor(1.0, 0.0) == 0.5


def test_the_factor_of_lumps_and_bursts():
    """((C_a² + λ²c²·Var I)/(1 − p)² + C_o²)/(1 + C_o²), p = λ·c·I, by hand at 14/s.

    The other form, (C_a² + 1)/2 + ½·c²·E[I²]·(λ/(1 − p))², is for a law that counts prefill in ρ;
    both have the simulated variance (test_simulated_worked_numbers.py).
    """
    prompts, outputs = conversation_lengths()
    workload = Workload(
        arrival_rate_per_second=14.0,
        prompt=LengthDistribution.from_samples(prompts.tolist()),
        output=LengthDistribution.from_samples(outputs.tolist()),
    )
    demand = request_demand(workload, H100)
    per_token = 14.0 * H100.prefill_per_token_seconds
    prefill = per_token * prompts.mean()
    outputs_squared = outputs.var() / outputs.mean() ** 2
    lumps = per_token**2 * prompts.var()
    by_hand = ((1.0 + lumps) / (1.0 - prefill) ** 2 + outputs_squared) / (1.0 + outputs_squared)
    assert variability_factor(demand, 14.0, 1.0) == pytest.approx(by_hand, rel=1e-6)
    bursty = ((3.0 + lumps) / (1.0 - prefill) ** 2 + outputs_squared) / (1.0 + outputs_squared)
    assert variability_factor(demand, 14.0, 3.0) == pytest.approx(bursty, rel=1e-6)
