"""The demo of batch limits as a user starts it, judged at full length."""

from pathlib import Path

import pytest
from tests.e2e.full_demo import demo


@pytest.mark.acceptance
@pytest.mark.timeout(1560)
def test_limits_are_put_right_and_a_harmful_change_is_taken_back(tmp_path: Path) -> None:
    """Too low and too high ones reach the objective at the same replicas, one pod first."""
    done = demo(tmp_path, "--scenario=batch-limits", "--minutes=12")
    assert done.returncode == 0, done.stdout + done.stderr
