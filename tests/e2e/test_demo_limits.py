"""The demo of batch limits as a user starts it, judged at full length."""

import subprocess
import sys
from pathlib import Path

import pytest

FULL_SECONDS = 1500


@pytest.mark.acceptance
@pytest.mark.timeout(FULL_SECONDS + 60)
def test_limits_are_put_right_and_a_harmful_change_is_taken_back(tmp_path: Path) -> None:
    """Too low and too high ones reach the objective at the same replicas, one pod first."""
    command = [sys.executable, "-m", "servingslo.cli", "demo", "--scenario=batch-limits"]
    done = subprocess.run(
        [*command, f"--out={tmp_path}", "--minutes=12"],
        capture_output=True,
        text=True,
        timeout=FULL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
