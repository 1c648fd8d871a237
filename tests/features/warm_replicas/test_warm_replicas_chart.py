"""What the chart makes of the switch that lets engines sleep."""

import pytest
from tests.e2e.chart_matrix import flags, rendered_with


@pytest.mark.rig
def test_the_operator_starts_with_the_switch_and_its_ranges() -> None:
    """As the command takes them."""
    found = flags(rendered_with("warm.enabled=true", "warm.ranges={10.0.0.0/16}"))
    assert found["warm_replicas"] is True
    assert "10.0.0.0/16" in str(found["warm_range"])
