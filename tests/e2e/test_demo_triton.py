"""The demo of limits of real Triton servers as a user starts it, judged at full length."""

from pathlib import Path

import pytest
from tests.e2e.full_demo import demo

from servingslo_lab.rig.triton import missing_for_triton

FULL_SECONDS = 900


@pytest.mark.acceptance
@pytest.mark.timeout(FULL_SECONDS + 60)
def test_limits_too_low_are_put_right_with_no_request_failed(tmp_path: Path) -> None:
    """The objective that was missed is met, and replicas follow a surge."""
    if missing := missing_for_triton():
        pytest.skip(missing)
    done = demo(tmp_path, "--scenario=triton", "--minutes=8", seconds=FULL_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
