"""The demo of llm-d-inference-sim as a user starts it, judged at full length."""

import subprocess
import sys
from pathlib import Path

import pytest

# Six minutes of traffic, and the build of one program where it is missing.
FULL_SECONDS = 1500


@pytest.mark.acceptance
@pytest.mark.timeout(FULL_SECONDS + 60)
def test_replicas_of_an_engine_that_is_not_ours_follow_a_surge(tmp_path: Path) -> None:
    """They rise in the surge and come back, and no request fails."""
    command = [sys.executable, "-m", "servingslo.cli", "demo", "--engine=llm-d-sim"]
    done = subprocess.run(
        [*command, f"--out={tmp_path}", "--minutes=6"],
        capture_output=True,
        text=True,
        timeout=FULL_SECONDS,
        check=False,
    )
    print(done.stdout)  # noqa: T201 - what a reader of the run wants
    assert done.returncode == 0, done.stdout + done.stderr
