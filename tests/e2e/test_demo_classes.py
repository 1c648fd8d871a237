"""The demo of classes as a user starts it, judged at full length."""

import subprocess
import sys
from pathlib import Path

import pytest

FULL_SECONDS = 3600


@pytest.mark.acceptance
@pytest.mark.timeout(FULL_SECONDS + 60)
@pytest.mark.parametrize("seed", [0, 1])
def test_chat_is_kept_and_the_job_takes_what_is_left(tmp_path: Path, seed: int) -> None:
    """Chat's objective, the job's time over the least possible, and the price of chat alone."""
    command = [sys.executable, "-m", "servingslo.cli", "demo", "--scenario=classes"]
    done = subprocess.run(
        [*command, f"--out={tmp_path}", "--minutes=32", f"--seed={seed}"],
        capture_output=True,
        text=True,
        timeout=FULL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
