"""How arrivals of a pool meet steps, and prompts the steps of a token budget."""

import numpy as np
import pytest

from servingslo.models.engine.service_time import ServiceLaw, request_demand
from servingslo.models.waits.arrival_states import further_steps
from servingslo.models.waits.pool_vacancies import empty_ratio, even_arrivals
from servingslo.models.waits.prompt_work import (
    RANGE_RATIO,
    OwnPrefill,
    mean_steps,
    own_prefill,
    prompt_work,
)
from servingslo.models.workload import LengthDistribution, Workload

LAW = ServiceLaw(
    step_fixed_seconds=0.01, step_per_sequence_seconds=5e-5, prefill_per_token_seconds=3e-5
)
MIXED = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution(tokens=(200.0, 900.0, 3000.0), weights=(0.5, 0.3, 0.2)),
    output=LengthDistribution(tokens=(50.0, 300.0), weights=(0.5, 0.5)),
)
DEMAND = request_demand(MIXED, LAW)
PROMPTS = prompt_work(MIXED.prompt, 0.0, LAW.prefill_per_token_seconds)


@pytest.mark.parametrize("count", [2, 4, 16])
def test_arrivals_of_a_pool_come_evenly_in_part(count):
    """From all of them in short steps to 1/c in very long ones; a replica by itself has all."""
    even = even_arrivals(DEMAND, 12.0, 0.03, count)
    assert 1.0 / count < even < 1.0
    assert even_arrivals(DEMAND, 1e-5, 0.03, count) == pytest.approx(1.0, abs=1e-3)
    assert even_arrivals(DEMAND, 12.0, 0.03, 1) == 1.0


@pytest.mark.parametrize("seconds", [0.05, 0.5])
def test_the_level_of_a_pool_is_a_transient_queue(seconds):
    """Chance that a walk, cλ up and (c − 1)λ down, is at its maximum, against 20,000 drawn."""
    rng, count, rate = np.random.default_rng(3), 4, 10.0
    ends = rng.exponential(seconds, 20_000)
    at_maximum = 0
    for moves in rng.poisson((2 * count - 1) * rate * ends):
        walk = np.cumsum(np.where(rng.random(moves) < count / (2 * count - 1), 1, -1))
        at_maximum += moves == 0 or walk[-1] == max(walk.max(), 0)
    assert empty_ratio(rate, seconds, count) == pytest.approx(at_maximum / 20_000, abs=0.01)


@pytest.mark.parametrize("room_tokens", [300.0, 700.0, 2000.0])
def test_a_prompt_takes_whole_steps_at_least(room_tokens):
    """By itself ⌈I/room⌉; one that fits adds none where two of them fit."""
    further = further_steps(DEMAND, PROMPTS, room_tokens)
    assert further >= mean_steps(PROMPTS, room_tokens) - 1.0
    assert further_steps(DEMAND, PROMPTS, 1e5) == 0.0


def test_the_work_of_prompts_diverges_at_the_frontier_of_the_budget():
    """λ·Ī·(c + s/room) = 1 where prompts are many to a step: each adds its share of one."""
    short = prompt_work(LengthDistribution.constant(100.0), 0.0, LAW.prefill_per_token_seconds)
    demand = request_demand(
        Workload(
            arrival_rate_per_second=1.0,
            prompt=LengthDistribution.constant(100.0),
            output=LengthDistribution.constant(50.0),
        ),
        LAW,
    )
    assert further_steps(demand, short, 150.0) == pytest.approx(100.0 / 150.0)


@pytest.mark.parametrize("arriving", [0.0, 0.3, 2.0])
def test_a_long_prompt_takes_its_steps_and_what_shares_the_last(arriving):
    """Mean of the own prefill against 40,000 draws of an exponential amount behind each prompt."""
    rng, room, step, level = np.random.default_rng(3), 700.0, 0.012, 8
    prompts = rng.choice(MIXED.prompt.tokens, 40_000, p=MIXED.prompt.weights)
    full = np.ceil(prompts / room) - 1.0
    behind = rng.exponential(1.0, 40_000) * full * arriving * DEMAND.uncached_mean_tokens
    shared = np.minimum(behind, (full + 1.0) * room - prompts)
    mean = (LAW.prefill_per_token_seconds * (prompts + shared) + full * step).mean()
    transform = own_prefill(DEMAND, PROMPTS, level, OwnPrefill(step, room, arriving))
    omega = np.pi / RANGE_RATIO**level
    assert np.angle(transform[1]) / omega == pytest.approx(mean, rel=0.02)
