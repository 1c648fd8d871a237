"""The demo of classes as a user starts it, judged at full length."""

from pathlib import Path

import pytest
from tests.e2e.full_demo import demo

FULL_SECONDS = 3600


@pytest.mark.acceptance
@pytest.mark.timeout(FULL_SECONDS + 60)
@pytest.mark.parametrize("seed", [0, 1])
def test_chat_is_kept_and_the_job_takes_what_is_left(tmp_path: Path, seed: int) -> None:
    """Chat's objective, the job's time over the least possible, and the price of chat alone."""
    flags = "--scenario=classes", "--minutes=32", f"--seed={seed}"
    done = demo(tmp_path, *flags, seconds=FULL_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
