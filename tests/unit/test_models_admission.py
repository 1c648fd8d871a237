"""The bound on what runs in one engine."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from servingslo.models.engine.admission import (
    RUNNING_PERCENTILE,
    EngineBound,
    in_flight_bound,
    prefilling_count,
    running_bound,
)
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw, request_demand
from servingslo.models.workload import LengthDistribution, Workload
from servingslo_lab.sim.baselines.clairvoyant import Static
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.traces.workloads import constant, generated

DEMAND = request_demand(
    Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples([1000.0]),
        output=LengthDistribution.from_samples([200.0]),
    ),
    ServiceLaw(
        step_fixed_seconds=0.015, step_per_sequence_seconds=1.5e-4, prefill_per_token_seconds=8e-5
    ),
)


@pytest.mark.parametrize("work_ratio", [0.2, 0.6, 0.9])
def test_the_bound_is_a_quantile_of_what_runs(work_ratio):
    """SciPy's negative binomial of mean λ·t_fixed/(1 − ρ) and 1/(1 − ρ) times that variance."""
    rate = work_ratio / DEMAND.marginal_seconds
    running = stats.nbinom(rate * DEMAND.fixed_seconds / work_ratio, 1.0 - work_ratio)
    assert running.mean() == pytest.approx(rate * DEMAND.fixed_seconds / (1.0 - work_ratio))
    assert running.var() == pytest.approx(running.mean() / (1.0 - work_ratio))
    quantile = running.ppf(RUNNING_PERCENTILE / 100.0)
    assert running_bound(DEMAND, rate, 10_000) == quantile
    assert running_bound(DEMAND, rate, 5) == min(quantile, 5)


@pytest.mark.parametrize(
    "rate_per_second",
    [
        pytest.param(1.0 / DEMAND.marginal_seconds, id="at saturation"),
        pytest.param(0.0, id="where nothing may be admitted"),
    ],
)
def test_all_slots_may_be_taken_where_no_law_says_fewer(rate_per_second):
    """The engine's own limit stands."""
    assert running_bound(DEMAND, rate_per_second, 64) == 64


LONG = ServiceLaw(
    step_fixed_seconds=6.5e-3, step_per_sequence_seconds=4e-4, prefill_per_token_seconds=3e-5
)


@pytest.mark.parametrize("budget", [1024, 8192])
def test_prompts_in_progress_follow_from_what_a_prompt_takes(budget):
    """Little's law: arrivals × mean time to first token of a simulated engine at light load."""
    rate, prompt, output = 0.4, 6000.0, 30.0

    def lengths(_, count):
        return np.full(count, int(prompt)), np.full(count, int(output))

    limits = EngineLimits(
        max_num_seqs=64, max_num_batched_tokens=budget, kv_capacity_tokens=400_000.0
    )
    trace = generated(constant(rate, 3000.0), lengths, np.random.default_rng(3))
    result = simulate(FleetSpec(law=LONG, limits=limits), trace, Static(1), seed=1)
    seen = len(trace) / trace.duration_seconds * float(result.ttft_seconds.mean())
    workload = Workload(
        arrival_rate_per_second=rate,
        prompt=LengthDistribution.from_samples([prompt]),
        output=LengthDistribution.from_samples([output]),
    )
    counted = prefilling_count(request_demand(workload, LONG), rate, budget)
    assert counted == pytest.approx(seen, rel=0.15)


@pytest.mark.parametrize("slots", [4, 10_000])
def test_what_is_in_flight_decodes_or_prefills_or_waits(slots):
    """All three add up; what decodes and prefills holds slots and cannot be more than there are."""
    rate = 0.6 / DEMAND.marginal_seconds
    bound = EngineBound(
        max_num_seqs=slots,
        max_num_batched_tokens=2048,
        saturation_rate_per_second=8.0,
        wait_budget_seconds=0.5,
        engine_count=2,
    )
    decoding = running_bound(DEMAND, rate, slots)
    running = min(decoding + np.ceil(prefilling_count(DEMAND, rate, 2048)), slots)
    assert in_flight_bound(DEMAND, rate, bound) == 2 * running + 8


RATE = 0.6 / DEMAND.marginal_seconds
# 8/s for half a second: a queue of 4 an engine.
WIDE = EngineBound(
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    saturation_rate_per_second=8.0,
    wait_budget_seconds=0.5,
    engine_count=2,
)
PREFILLING = int(np.ceil(prefilling_count(DEMAND, RATE, 2048)))


@pytest.mark.parametrize("full_batch", [1, 4, 8])
def test_no_more_is_in_flight_than_a_full_batch_and_its_prompts_when_slots_are_left(full_batch):
    """Nobody waits for a slot: what waits beside the batch is none."""
    bound = replace(WIDE, full_batch=full_batch)
    assert in_flight_bound(DEMAND, RATE, bound) == 2 * (full_batch + PREFILLING)
    assert in_flight_bound(DEMAND, RATE, bound) < in_flight_bound(DEMAND, RATE, WIDE)


def test_a_full_batch_beyond_what_is_admitted_allows_no_more():
    """The bound is the lesser of both."""
    bound = replace(WIDE, full_batch=200)
    assert in_flight_bound(DEMAND, RATE, bound) == in_flight_bound(DEMAND, RATE, WIDE)


@pytest.mark.parametrize(
    ("spare_slots", "bounded"),
    [
        pytest.param(1, True, id="a slot more than the batch and its prompts"),
        pytest.param(0, False, id="as many slots"),
        pytest.param(-3, False, id="fewer slots"),
    ],
)
def test_what_waits_for_a_slot_counts_when_a_full_batch_takes_them_all(spare_slots, bounded):
    """Slots that end before the batch is too large bound what runs, and a queue is beside it."""
    bound = replace(WIDE, full_batch=6, max_num_seqs=6 + PREFILLING + spare_slots)
    alone = in_flight_bound(DEMAND, RATE, replace(bound, full_batch=None))
    found = in_flight_bound(DEMAND, RATE, bound)
    assert (found < alone) is bounded
    assert found == (2 * (6 + PREFILLING) if bounded else alone)
