"""Worked numbers of capacity planning, as the planner counts them."""

import pytest

from servingslo.policy.replicas.sizing import counted

LARGEST = 4096


@pytest.mark.parametrize(
    ("rate", "replica_rate", "target", "expected"),
    [
        pytest.param(180.0, 40.0, 0.7, 7, id="serving-and-systems-tradeoffs"),
        pytest.param(5000.0, 1143.0, 0.72, 7, id="model-serving-capacity-plan"),
        pytest.param(5000.0 * 1.3, 1143.0, 0.72, 8, id="with-headroom-in-the-demand"),
        pytest.param(120.0, 40.0, 1.0, 3, id="exactly-full"),
        pytest.param(0.0, 40.0, 0.7, 1, id="nothing"),
    ],
)
def test_replicas_are_rate_over_target_capacity_rounded_up(rate, replica_rate, target, expected):
    """⌈λ/(ρ*·μ)⌉, at least one.

    Source: "Serving and Systems Tradeoffs" (λ = 180, μ = 40, ρ* = 0.7); Machine Learning Systems
    (V. J. Reddi), chapter "Model Serving" (5,000/s, μ = 1,143/s, ρ* = 0.72).
    """
    assert counted(rate / (target * replica_rate), LARGEST) == expected


def test_a_demand_without_end_asks_for_the_largest_count():
    """Infinity is not an overflow."""
    assert counted(float("inf"), LARGEST) == LARGEST
    assert counted(float("nan"), LARGEST) == LARGEST
