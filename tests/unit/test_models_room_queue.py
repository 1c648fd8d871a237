"""Prompts that queue for room in the token budget, with the number of running sequences fixed."""

import numpy as np
import pytest

from servingslo.models.bursts import STEADY
from servingslo.models.first_token import first_token_laws
from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import paces_met
from servingslo.models.prompt_work import prompt_work
from servingslo.models.room_queue import LARGEST_LOAD, partial_steps
from servingslo.models.service_time import ServiceLaw, request_demand
from servingslo.models.workload import LengthDistribution, Workload

LAW = ServiceLaw(
    step_fixed_seconds=0.012, step_per_sequence_seconds=5e-5, prefill_per_token_seconds=3e-5
)
MIXED = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution(
        tokens=(120.0, 420.0, 900.0, 1700.0, 3900.0), weights=(0.2, 0.25, 0.25, 0.2, 0.1)
    ),
    output=LengthDistribution(tokens=(50.0, 300.0), weights=(0.5, 0.5)),
)
DEMAND = request_demand(MIXED, LAW)
PROMPTS = prompt_work(MIXED.prompt, 0.0, LAW.prefill_per_token_seconds)
RUNNING = 100.0
STEP = LAW.step_fixed_seconds + DEMAND.step_growth_seconds * RUNNING
FIXED = Occupancy(
    weights=np.array([1.0]), lowest=RUNNING, spacing=1.0, cap=1e9, wait_probability=0.0,
    wait_rate_per_second=1.0, mean=RUNNING, variance=0.0, third_moment=0.0, pool_count=1,
    bursts=STEADY, below_cap=1.0,
)  # fmt: skip


def rate_at(load: float, room: float) -> float:
    """Requests per second that ask for this share of the budget."""
    per_token = LAW.prefill_per_token_seconds + STEP / room
    return load / (DEMAND.uncached_mean_tokens * per_token)


def simulated_seconds(rate: float, room: float, count: int) -> np.ndarray:
    """Times to first token, step by step, first come first served, of Poisson arrivals."""
    rng = np.random.default_rng(7)
    arrivals = np.cumsum(rng.exponential(1.0 / rate, count)).tolist()
    left = rng.choice(MIXED.prompt.tokens, count, p=MIXED.prompt.weights).tolist()
    first, now, head = [], 0.0, 0
    while head < count:
        free, ended = room, head
        while ended < count and arrivals[ended] <= now and free > 0.0:
            taken = min(left[ended], free)
            left[ended] -= taken
            free -= taken
            if left[ended] > 0.0:
                break
            ended += 1
        now += STEP + LAW.prefill_per_token_seconds * (room - free)
        first += [now - arrivals[request] for request in range(head, ended)]
        head = ended
    return np.array(first[count // 10 :])


@pytest.mark.parametrize("room", [400.0, 900.0, 1900.0])
@pytest.mark.parametrize("load", [0.6, 0.8])
def test_the_law_of_a_queue_for_room_is_that_of_its_steps(room, load):
    """Median and tail of 120,000 requests, of which a tail of 1 % scatters by some percent."""
    rate = rate_at(load, room)
    (law,) = first_token_laws(DEMAND, PROMPTS, [FIXED], [rate], room + RUNNING)
    seconds = simulated_seconds(rate, room, 120_000)
    for percent, tolerance in ((50.0, 0.08), (75.0, 0.05), (95.0, 0.07), (99.0, 0.10)):
        expected = np.percentile(seconds, percent)
        assert law.quantile(percent / 100.0) == pytest.approx(expected, rel=tolerance), percent


@pytest.mark.parametrize("load", [0.2, 0.7, 0.95])
def test_partial_steps_leave_the_time_that_full_steps_do_not_take(load):
    """Their shares are whole, and r·E[V] = 1 − u."""
    room = 700.0
    rate = rate_at(load, room)
    pace = paces_met(DEMAND, PROMPTS, FIXED, rate, room + RUNNING)[0]
    (steps,) = partial_steps(DEMAND, [pace])
    held = steps.some * steps.mean_tokens + 0.5 * room * steps.rest
    assert steps.none + steps.some + steps.rest == pytest.approx(1.0)
    assert 0.0 < steps.mean_tokens < room
    assert steps.per_second * STEP * (1.0 - held / room) == pytest.approx(1.0 - load)
    assert 0.0 < steps.ended_ratio < steps.time_ratio < 1.0


def test_a_queue_beyond_its_budget_is_taken_as_one_just_below_it():
    """No law grows without end: more running than at saturation are met for a while only."""
    room = 700.0
    rate = rate_at(1.2, room)
    pace = paces_met(DEMAND, PROMPTS, FIXED, rate, room + RUNNING)[0]
    (steps,) = partial_steps(DEMAND, [pace])
    per_token = LAW.prefill_per_token_seconds
    assert steps.stretch * rate * DEMAND.uncached_mean_tokens * per_token == pytest.approx(
        LARGEST_LOAD
    )
    assert 0.0 < steps.per_second < 1.0 / STEP


def test_changes_of_running_sequences_last_less_where_the_queue_remembers_longer():
    """The points of n keep its mean, and the higher one lies closer to it."""
    room, spread = 900.0, 30.0
    moving = FIXED._replace(variance=spread**2)
    paces = paces_met(DEMAND, PROMPTS, moving, rate_at(0.85, room), room + RUNNING)
    assert len(paces) == 6
    low, middle, high = (pace.shift for pace in paces[:3])
    assert middle - low > high - middle > 0.0
    assert sum(pace.share * pace.shift for pace in paces[:3]) == pytest.approx(0.0, abs=1e-9)
    assert high - middle < np.sqrt(3.0) * spread
    assert all(pace.alone for pace in paces)
