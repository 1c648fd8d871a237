"""Times per output token of requests that meet few prompts, against drawn ones."""

import numpy as np
import pytest

from servingslo.models.engine.service_time import ServiceLaw, request_demand
from servingslo.models.running.bursts import STEADY
from servingslo.models.running.occupancy_levels import Found
from servingslo.models.tokens.gap_loads import GapLoad
from servingslo.models.tokens.light_traffic import LightLoad, light_load, mixed_with_bare
from servingslo.models.tokens.output_laws import Moments
from servingslo.models.workload import LengthDistribution, Workload

STEP, GAPS = 0.007, 12.0
WORKS = np.array([0.05, 0.2, 0.4])
LOAD = LightLoad(
    few=1.0,
    step=STEP,
    deviation=0.0,
    once=0.3,
    in_gap=0.05,
    work=float(WORKS.mean()),
    square=float((WORKS**2).mean()),
)
USUAL = Moments(np.array([0.02]), np.array([0.004]))


def moments_of(drawn: np.ndarray) -> tuple[float, float]:
    """Mean and deviation."""
    return float(drawn.mean()), float(drawn.std())


def test_moments_are_those_of_a_drawn_number_of_prompts() -> None:
    """A Poisson number, each with its whole work, over the gaps."""
    rng = np.random.default_rng(3)
    mean = LOAD.once + LOAD.in_gap * GAPS
    numbers = rng.poisson(mean, 400_000)
    work = np.zeros(len(numbers))
    for prompt in range(int(numbers.max())):
        work += np.where(numbers > prompt, rng.choice(WORKS, len(numbers)), 0.0)
    drawn = STEP + work / GAPS
    share, others, every = mixed_with_bare(USUAL, np.array([GAPS]), LOAD)
    assert share[0] == pytest.approx(float((numbers == 0).mean()), abs=2e-3)
    for found, expected in zip(others, moments_of(drawn[numbers > 0]), strict=True):
        assert found[0] == pytest.approx(expected, rel=0.02)
    for found, expected in zip(every, moments_of(drawn), strict=True):
        assert found[0] == pytest.approx(expected, rel=0.02)


def test_where_many_run_the_usual_law_stays() -> None:
    """No requests without prefill are told apart, and no moment changes."""
    share, others, every = mixed_with_bare(USUAL, np.array([GAPS]), LOAD._replace(few=0.0))
    assert share[0] == 0.0
    for part in (others, every):
        for found, expected in zip(part, USUAL, strict=True):
            assert found[0] == pytest.approx(expected[0], rel=1e-9)


def test_parts_in_between_have_the_mean_of_both() -> None:
    """All are the share without prefill and the others, whatever the weight of each law."""
    for few in (0.2, 0.7):
        share, others, every = mixed_with_bare(USUAL, np.array([GAPS]), LOAD._replace(few=few))
        mean = share * STEP + (1.0 - share) * others.mean
        assert every.mean[0] == pytest.approx(mean[0])
        alone = mixed_with_bare(USUAL, np.array([GAPS]), LOAD)[2].mean
        assert every.mean[0] == pytest.approx((1 - few) * USUAL.mean[0] + few * alone[0])


@pytest.mark.parametrize(("budget", "together"), [(3000.0, 0.0), (2000.0, 1.0), (1500.0, 0.0)])
def test_prompts_share_the_last_step_of_a_long_one(budget: float, together: float) -> None:
    """A prompt of 3,000 tokens in steps of 2,000 leaves room for a third of another.

    In one step it leaves none, and in two full ones neither.
    """
    mix = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.constant(3000.0),
        output=LengthDistribution.constant(21.0),
    )
    law = ServiceLaw(
        step_fixed_seconds=1e-6, step_per_sequence_seconds=0.0, prefill_per_token_seconds=1e-4
    )
    steps = float(np.ceil(3000.0 / budget))
    load = GapLoad(1.0, 0.5, 0.1, 4, STEADY, steps)
    found = Found(0.5, 0.6, 0.5, 1.0)
    few = light_load(request_demand(mix, law), load, 1e-6, found, budget)
    # Two thirds of the prefill is the full step, and the room a third of a prompt.
    expected = 0.3 * (1.0 - (2.0 / 3.0) * (1.0 / 3.0) * together)
    assert few.once == pytest.approx(expected, rel=1e-3)
    assert few.in_gap * 20.0 == pytest.approx(0.3)
