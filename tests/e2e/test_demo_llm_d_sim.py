"""The demo of llm-d-inference-sim as a user starts it, judged at full length."""

from pathlib import Path

import pytest
from tests.e2e.full_demo import demo


# Six minutes of traffic, and the build of one program where it is missing.
@pytest.mark.acceptance
@pytest.mark.timeout(1560)
def test_replicas_of_an_engine_that_is_not_ours_follow_a_surge(tmp_path: Path) -> None:
    """They rise in the surge and come back, and no request fails."""
    done = demo(tmp_path, "--engine=llm-d-sim", "--minutes=6")
    print(done.stdout)  # noqa: T201 - what a reader of the run wants
    assert done.returncode == 0, done.stdout + done.stderr
