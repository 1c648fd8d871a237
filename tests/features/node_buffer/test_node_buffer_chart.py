"""What the chart makes of the most replicas of a node buffer."""

import pytest
from tests.e2e.chart_matrix import flags, rendered_with


@pytest.mark.rig
def test_the_operator_starts_with_the_most_replicas() -> None:
    """As the command takes it."""
    assert flags(rendered_with("nodeBuffer.maxReplicas=8"))["node_buffer_max_replicas"] == 8
