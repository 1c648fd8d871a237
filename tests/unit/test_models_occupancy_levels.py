"""What arrivals of a pool find: held against a simulated pool and against exact cases."""

import heapq

import numpy as np
import pytest

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw, request_demand
from servingslo.models.fleet.latency import LatencyModel, Routing
from servingslo.models.running.bursts import STEADY
from servingslo.models.running.occupancy_levels import (
    NEVER_IDLE,
    Pool,
    Requests,
    found_at,
    law_of_number,
    level_at_arrival,
)
from servingslo.models.tokens.gap_loads import GapLoad, own_step
from servingslo.models.workload import LengthDistribution, Workload

LAW = ServiceLaw(
    step_fixed_seconds=4e-3, step_per_sequence_seconds=1e-5, prefill_per_token_seconds=1e-4
)
STEP = LAW.step_fixed_seconds + LAW.step_per_sequence_seconds


def workload(rate: float, prompt: float = 1500.0, output: float = 20.0) -> Workload:
    """Two lengths of prompts and of outputs."""
    return Workload(
        arrival_rate_per_second=rate,
        prompt=LengthDistribution(tokens=(0.7 * prompt, 1.3 * prompt), weights=(0.5, 0.5)),
        output=LengthDistribution(tokens=(0.75 * output, 1.25 * output), weights=(0.5, 0.5)),
    )


def simulated(
    count: int, rate: float, prefill: float, steps: float
) -> tuple[float, float, np.ndarray]:
    """Share that finds an idle replica, mean number found, and law of those in the whole pool.

    A replica with k requests loses one at the rate k/(k·prefill + steps). Every arrival goes to one
    of those with the fewest.
    """
    rng = np.random.default_rng(5)
    held = [0] * count
    version = [0] * count
    departures: list[tuple[float, int, int]] = []

    def schedule(replica: int, now: float) -> None:
        version[replica] += 1
        k = held[replica]
        if k:
            wait = rng.exponential((k * prefill + steps) / k)
            heapq.heappush(departures, (now + wait, replica, version[replica]))

    arrivals = np.cumsum(rng.exponential(1.0 / (count * rate), 60_000))
    idle, found, numbers = 0, 0, np.zeros(len(arrivals))
    for now in arrivals.tolist():
        while departures and departures[0][0] <= now:
            at, replica, stamp = heapq.heappop(departures)
            if stamp == version[replica]:
                held[replica] -= 1
                schedule(replica, at)
        fewest = min(held)
        replica = int(rng.choice([r for r in range(count) if held[r] == fewest]))
        numbers[sum(held)] += 1.0
        idle += fewest == 0
        found += fewest
        held[replica] += 1
        schedule(replica, now)
    shares = np.trim_zeros(numbers, "b") / len(arrivals)
    return idle / len(arrivals), found / len(arrivals), shares


@pytest.mark.parametrize("count", [2, 4, 12])
@pytest.mark.parametrize("rate", [2.0, 4.0, 6.0])
def test_an_arrival_finds_what_a_simulated_pool_has(count: int, rate: float) -> None:
    """Idle replicas and the number at the least loaded one, over the numbers that the pool had."""
    prefill, steps = 0.05, 0.25
    idle, found, shares = simulated(count, rate, prefill, steps)
    requests = Requests(0.0, 0.0, count * rate, prefill, prefill, prefill + steps)
    met, alone = found_at(np.arange(float(len(shares))), float(count), requests)
    assert shares @ alone == pytest.approx(idle, abs=0.045)
    assert shares @ met == pytest.approx(found, abs=0.08)


def test_few_requests_meet_one_prompt_or_none() -> None:
    """The median meets none, and the tail a whole prompt over its few gaps."""
    model = LatencyModel(workload(1.0), LAW, limits())
    prediction = model.predict(60.0, 18, Routing.POOLED)
    prompt = 1500.0 * LAW.prefill_per_token_seconds
    assert prediction.tpot_seconds(50.0) == pytest.approx(STEP, rel=0.03)
    assert prediction.tpot_seconds(99.0) > STEP + 0.7 * prompt / 24.0


def test_a_pool_that_is_full_is_never_idle() -> None:
    """Nor is one without arrivals asked."""
    demand = request_demand(workload(1.0), LAW)
    assert level_at_arrival(demand, Pool(4, 8.0, 12.0, 1.0, STEP, 1.0)) == NEVER_IDLE
    assert level_at_arrival(demand, Pool(4, 0.0, 0.0, 0.0, STEP, 1.0)) == NEVER_IDLE


def test_the_number_has_the_mean_and_the_excess_that_were_asked_for() -> None:
    """A negative binomial law: mean r(1 − q)/q, variance that over q."""
    shape, success = law_of_number(7.0, 0.6)
    mean = shape * (1.0 - success) / success
    assert mean == pytest.approx(7.0)
    assert mean / success == pytest.approx(7.0 * 1.6)


def limits() -> EngineLimits:
    """A large card."""
    return EngineLimits(max_num_seqs=64, max_num_batched_tokens=8192, kv_capacity_tokens=400_000.0)


def test_a_request_decodes_in_steps_of_itself_at_least() -> None:
    """Also in a pool that has less than one request for each replica."""
    demand = request_demand(workload(1.0), LAW)
    load = GapLoad(1.0, 0.2, 0.1, 12, STEADY, 1.0)
    assert own_step(demand, load) == pytest.approx(STEP)
    assert own_step(demand, load._replace(mean=3.0)) > STEP
