"""Prefill that the gaps of a request meet, beside the exact cumulants of its steps."""

import numpy as np
import pytest

from servingslo.models.engine.service_time import ServiceLaw, request_demand
from servingslo.models.running.bursts import STEADY
from servingslo.models.tokens.gap_loads import GapLoad
from servingslo.models.tokens.inter_token import gap_moments
from servingslo.models.tokens.output_laws import output_gaps
from servingslo.models.workload import LengthDistribution, Workload

STEP = 7.5e-3
PER_TOKEN = 3e-5
NO_LIMIT = 1e9
PROMPTS = (500.0, 1500.0, 4000.0)
SHARES = (0.3, 0.5, 0.2)
OUTPUT = LengthDistribution(tokens=(2.0, 4.0, 9.0, 30.0, 80.0), weights=(0.2,) * 5)
DEMAND = request_demand(
    Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution(tokens=PROMPTS, weights=SHARES),
        output=OUTPUT,
    ),
    ServiceLaw(
        step_fixed_seconds=STEP,
        step_per_sequence_seconds=0.0,
        prefill_per_token_seconds=PER_TOKEN,
        context_per_token_seconds=0.0,
    ),
)
SECONDS = PER_TOKEN * np.array(PROMPTS)
WORK = [float(np.array(SHARES) @ SECONDS**power) for power in (1, 2)]


def load(rate_per_second: float, pool_count: int = 1) -> GapLoad:
    """A load whose steps do not depend on what runs."""
    return GapLoad(
        rate_per_second=rate_per_second,
        mean=40.0,
        variance=0.0,
        pool_count=pool_count,
        bursts=STEADY,
        prefill_steps=1.0,
    )


def exact(rate_per_second: float, gap_count: int) -> tuple[float, float]:
    """Mean and variance of the time of these gaps: steps D′ = s + W(D), step by step.

    W is compound Poisson. The step before the first is s, the own prompt and what came in one that
    an arrival met, as long as these are on average.
    """
    ratio, second = (rate_per_second * moment for moment in WORK)
    mean = STEP / (1.0 - ratio)
    met = mean + second / (1.0 - ratio**2)
    first = STEP + WORK[0] + ratio * met
    first_variance = WORK[1] - WORK[0] ** 2 + second * met
    one = two = 0.0
    sums = np.zeros(2)
    for _ in range(gap_count):
        two = ratio * two + second * one**2
        one = 1.0 + ratio * one
        sums += (one, two)
    into = ratio * one, ratio * two + second * one**2
    return (
        STEP * sums[0] + into[0] * first,
        STEP * sums[1] + into[1] * first + into[0] ** 2 * first_variance,
    )


@pytest.mark.parametrize("rate", [0.5, 4.0, 9.0, 14.0])
def test_moments_of_one_replica_are_those_of_its_steps(rate):
    """Mean and deviation are exact at every output length."""
    output = output_gaps(OUTPUT)
    (found,) = gap_moments(DEMAND, output, [load(rate)], NO_LIMIT)
    for place, gaps in enumerate(output.gaps):
        mean, variance = exact(rate, int(gaps))
        assert found.every.mean[place] * gaps == pytest.approx(mean, rel=1e-9)
        assert found.every.deviation[place] * gaps == pytest.approx(variance**0.5, rel=1e-9)


def test_a_request_of_many_gaps_sees_all_of_a_pool_but_a_share_of_its_variance():
    """In the end what all replicas have in common feeds itself, and the rest acts once."""
    count, rate = 8, 14.0
    output = output_gaps(LengthDistribution(tokens=(200_001.0,), weights=(1.0,)))
    (found,) = gap_moments(DEMAND, output, [load(rate, count)], NO_LIMIT)
    ratio, second = (rate * moment for moment in WORK)
    share = 1.0 / count / (1.0 - ratio) ** 2 + 1.0 - 1.0 / count
    expected = STEP / (1.0 - ratio) * second * share
    assert float(found.every.deviation[0]) ** 2 * 200_000 == pytest.approx(expected, rel=1e-3)


def test_pools_lie_between_one_replica_and_very_many():
    """Deviation over several gaps, and what first gaps take longer, fall with the replicas."""
    output = output_gaps(OUTPUT)
    pools = [
        gap_moments(DEMAND, output, [load(12.0, count)], NO_LIMIT)[0] for count in (1, 2, 4, 8, 64)
    ]
    assert np.all(np.diff([pool.every.deviation[1:] for pool in pools], axis=0) < 0.0)
    late = np.diff([pool.every.mean[1] - pool.every.mean[-1] for pool in pools])
    assert np.all(late < 0.0)
