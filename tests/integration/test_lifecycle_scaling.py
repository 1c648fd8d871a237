"""Replicas follow the load, up and down."""

from pathlib import Path

import pytest
from tests.integration.operator_under_test import (
    Operator,
    Tenant,
    steady_trace,
)

# One replica of these engines serves about six such requests per second.
SURGE_PER_SECOND = 12.0


def wait_line(tenant: Tenant, operator: Operator, needle: str) -> None:
    """Wait for a decision's line with this in it: counts and events are written before it."""
    tenant.wait(
        lambda: bool(operator.log_lines("decided", tenant.namespace, needle)),
        what=f"a line with {needle!r}",
    )


@pytest.mark.slow(
    "servingslo.policy.replicas",
    "servingslo.policy.rules",
    "servingslo.estimation",
    "servingslo.controller",
)
def test_replicas_follow_the_load(tenant: Tenant, operator: Operator, tmp_path: Path) -> None:
    """Under load replicas are added, and taken away after it; each with a log line."""
    tenant.create_deployment(replicas=1)
    tenant.create_slo()
    tenant.wait_condition("MetricsFresh", "True")
    surge = steady_trace(tmp_path / "surge.csv", rate=SURGE_PER_SECOND, seconds=30)
    tenant.begin_traffic(surge, duration_seconds=600)
    tenant.wait(lambda: tenant.replicas() > 1, what="a scale-up", timeout_seconds=120)
    wait_line(tenant, operator, "action=scale-up")
    tenant.end_traffic()
    peak = tenant.replicas()
    tenant.wait(lambda: tenant.replicas() < peak, what="a scale-down", timeout_seconds=240)
    wait_line(tenant, operator, "action=scale-down")
