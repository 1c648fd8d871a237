"""How arrivals of a pool meet steps, cycles of prefill, and running sequences behind a queue."""

import numpy as np
import pytest

from servingslo.models.long_prompts import Found, shared_prefill
from servingslo.models.paces import cycle_of_prefill
from servingslo.models.pools import age_met
from servingslo.models.prompt_work import mean_steps, prompt_work
from servingslo.models.service_time import ServiceLaw, request_demand
from servingslo.models.widening import BudgetQueue, factors_by_running
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


def test_steps_that_are_met_are_longer_than_steps():
    """Half of E[D³]/E[D²] is half of a step where all are equal, and more where they differ."""
    assert age_met(DEMAND, 1e-9, 0.02, 0.0, 1.0) == pytest.approx(0.01, rel=1e-3)
    assert age_met(DEMAND, 10.0, 0.02, 0.0, 1.0) > 0.02


@pytest.mark.parametrize("room_tokens", [300.0, 700.0, 2000.0])
def test_a_prompt_alone_in_its_cycle_takes_whole_steps(room_tokens):
    """First and one further are ⌈I/room⌉ steps on average, at any load."""
    for rate in (0.1, 4.0):
        cycle = cycle_of_prefill(DEMAND, PROMPTS, rate, 0.012, room_tokens)
        steps = cycle.first_ratio + cycle.further / 0.012
        assert steps == pytest.approx(mean_steps(PROMPTS, room_tokens), rel=1e-9)


def test_the_work_of_prompts_diverges_at_the_frontier_of_the_budget():
    """λ·Ī·(c + s/room) = 1: what is left of a cycle goes to nothing there, and not before."""
    step, room = 0.012, 400.0
    per_token = LAW.prefill_per_token_seconds + step / room
    frontier = 1.0 / (DEMAND.uncached_mean_tokens * per_token)
    left = [
        1.0 - share * frontier * (DEMAND.prefill_mean_seconds + cycle.further)
        for share in (0.5, 0.8, 0.95)
        for cycle in [cycle_of_prefill(DEMAND, PROMPTS, share * frontier, step, room)]
    ]
    assert left == pytest.approx([0.5, 0.2, 0.05], abs=0.04)


def test_clusters_are_passed_on_whole_without_a_limit_and_not_where_the_budget_is_full():
    """F stays that of clusters with much room, and is that of prompts where u is 1."""
    running = np.array([0.0, 50.0, 100.0])
    free = BudgetQueue(8.0, 4.0, 1, 1e7, 50.0)
    assert factors_by_running(DEMAND, free, running) == pytest.approx([4.0, 4.0, 4.0], rel=0.01)
    full = BudgetQueue(8.0, 4.0, 1, 220.0, 50.0)
    lengths = DEMAND.output_dispersion
    prompts = DEMAND.uncached_second_moment_tokens2 / DEMAND.uncached_mean_tokens**2 - 1.0
    least = (prompts + lengths) / (1.0 + lengths)
    assert factors_by_running(DEMAND, full, running)[-1] == pytest.approx(least, rel=0.01)


@pytest.mark.parametrize("count", [0.3, 1.5, 4.0])
def test_prompts_that_share_a_step_are_cut_to_what_is_left(count):
    """Mean of their prefill against 40,000 draws of lengths that are far from a gamma law."""
    rng = np.random.default_rng(3)
    drawn = rng.choice(MIXED.prompt.tokens, (40_000, 20), p=MIXED.prompt.weights)
    drawn *= np.arange(20) < rng.poisson(count, 40_000)[:, None]
    left = 1500.0
    mean = np.minimum(drawn.sum(axis=1), left).mean() * LAW.prefill_per_token_seconds
    small = np.full((1, 1), 1e-3j)
    transform = shared_prefill(DEMAND, [Found(count, left, 0.0)], small)
    assert transform[0, 0].imag / 1e-3 == pytest.approx(mean, rel=0.12)
