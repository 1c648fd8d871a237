"""A fixed small part of the grid of `make validate`: the models beside the simulation.

Bounds are those promised where the KV cache does not bind and the work ratio is at most 0.85, plus
two standard errors of the simulated percentile, from batch means. Where prompts share steps by a
token budget, no less latency is promised, and more is allowed.
"""

import math

import numpy as np
import pytest
from tests.validation.grid import A100, H100, L4, Case, Comparison, Lengths, compare

pytestmark = pytest.mark.slow("servingslo.models", "servingslo_lab.sim")

BATCH_COUNT = 20
MEAN_BOUND = 0.03
TTFT_BOUNDS = {50.0: 0.07, 95.0: 0.07, 99.0: 0.12}
TPOT_BOUNDS = {95.0: 0.10, 99.0: 0.12}


def noise(values: np.ndarray, percentile: float) -> float:
    """Two relative standard errors of a percentile, from batch means over time."""
    high = [np.percentile(part, percentile) for part in np.array_split(values, BATCH_COUNT)]
    return float(2.0 * np.std(high) / np.mean(high) / math.sqrt(BATCH_COUNT))


def assert_within(
    result: Comparison, metric: str, bounds: dict[float, float], *, most: float = 0.0
) -> None:
    """The predicted percentiles lie within the bounds of the simulated ones.

    most: how far above they may lie, where the law is a bound.
    """
    for percentile, bound in bounds.items():
        allowed = bound + noise(getattr(result.outcome, metric), percentile)
        error = result.ratio(metric, percentile) - 1.0
        assert -allowed <= error <= max(allowed, most), f"{metric} p{percentile:g}: {error:+.3f}"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(card=H100, rate_per_second=5), id="h100-light"),
        pytest.param(Case(card=H100, rate_per_second=14), id="h100-busy"),
        pytest.param(Case(card=A100, rate_per_second=6), id="a100"),
        pytest.param(Case(card=L4, rate_per_second=2), id="l4"),
        pytest.param(Case(card=H100, rate_per_second=18, cached_ratio=0.5), id="prefix-cache"),
        pytest.param(
            Case(card=H100, rate_per_second=12, replica_count=4, least_loaded=False),
            id="random-routing",
        ),
        pytest.param(Case(card=H100, rate_per_second=8, replica_count=8), id="least-loaded"),
        pytest.param(
            Case(card=H100, rate_per_second=9, lengths=Lengths.SHORT_OUTPUTS), id="short-outputs"
        ),
    ],
)
def test_percentiles_match_the_simulation(case):
    """Means within 3 %, TTFT within 7 and 12 %, TPOT within 10 and 12 % of the simulation."""
    result = compare(case)
    running_noise = noise(result.outcome.latency, 50.0)
    assert abs(result.running_ratio - 1.0) <= MEAN_BOUND + running_noise
    assert abs(result.itl_ratio - 1.0) <= MEAN_BOUND + running_noise
    assert_within(result, "ttft", TTFT_BOUNDS)
    assert_within(result, "tpot", TPOT_BOUNDS)


@pytest.mark.parametrize(
    ("case", "most"),
    [
        pytest.param(Case(card=H100, rate_per_second=10, budget_tokens=1024), 0.40, id="budget"),
        pytest.param(
            Case(card=H100, rate_per_second=14.5, budget_tokens=1024), 3.0, id="full-budget"
        ),
        pytest.param(
            Case(card=H100, rate_per_second=9, replica_count=2, lengths=Lengths.SHORT_OUTPUTS),
            0.30,
            id="short-outputs-of-two",
        ),
        pytest.param(
            Case(card=H100, rate_per_second=13, replica_count=8, lengths=Lengths.SHORT_OUTPUTS),
            0.30,
            id="short-outputs",
        ),
        *(
            pytest.param(
                Case(
                    card=H100,
                    rate_per_second=rate,
                    replica_count=count,
                    budget_tokens=budget,
                    lengths=Lengths.LONG_PROMPTS,
                    request_count=100_000,
                ),
                0.45,
                id=f"long-prompts-{budget}",
            )
            for rate, count, budget in (
                (1.5, 12, 2048),
                (1.9, 6, 4096),
                (2, 12, 1024),
                (2.8, 12, 8192),
            )
        ),
    ],
)
def test_percentiles_are_a_bound_where_prompts_share_steps(case, most):
    """No less than simulated by more than the usual bounds, nor far above."""
    result = compare(case)
    assert result.running_ratio >= 1.0 - MEAN_BOUND
    assert result.itl_ratio >= 1.0 - MEAN_BOUND
    assert_within(result, "ttft", TTFT_BOUNDS, most=most)
    assert_within(result, "tpot", TPOT_BOUNDS, most=most)


@pytest.mark.parametrize("rate", [2.8, 3.0])
def test_first_token_matches_where_the_kv_cache_binds(rate):
    """TTFT p95 within 20 % with sequences waiting for KV blocks."""
    result = compare(Case(card=L4, rate_per_second=rate, request_count=800_000))
    assert result.prediction.laws.running.wait_probability > 0.01
    assert_within(result, "ttft", {95.0: 0.20})


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(card=H100, rate_per_second=30, request_count=60_000), id="slots"),
        pytest.param(
            Case(card=H100, rate_per_second=30, budget_tokens=512, request_count=60_000),
            id="token-budget",
        ),
        pytest.param(Case(card=L4, rate_per_second=6, request_count=60_000), id="kv-cache"),
        pytest.param(Case(card=A100, rate_per_second=14, request_count=60_000), id="kv-large"),
    ],
)
def test_saturation_throughput_matches_the_simulation(case):
    """An overloaded replica completes the predicted rate within 3 %, whatever binds."""
    assert compare(case).saturation_ratio == pytest.approx(1.0, abs=0.03)


def test_token_budget_has_a_cliff_where_the_model_says():
    """At 9/s prompts of 2,000 tokens, M = 256 never keeps up and M = 512 does."""
    for budget, keeps_up in ((256, False), (512, True)):
        case = Case(
            card=H100, rate_per_second=9, budget_tokens=budget, lengths=Lengths.SHORT_OUTPUTS,
            request_count=60_000,
        )  # fmt: skip
        result = compare(case)
        assert result.prediction.stable is keeps_up
        late = np.array_split(result.outcome.ttft, 4)
        assert bool(late[-1].mean() > 2.0 * late[0].mean()) is not keeps_up
