"""The demo of limits of real Triton servers as a user starts it, judged at full length."""

import subprocess
import sys
from pathlib import Path

import pytest

from servingslo_lab.rig.triton import missing_for_triton

FULL_SECONDS = 900


@pytest.mark.acceptance
@pytest.mark.timeout(FULL_SECONDS + 60)
def test_limits_too_low_are_put_right_with_no_request_failed(tmp_path: Path) -> None:
    """The objective that was missed is met, and replicas follow a surge."""
    if missing := missing_for_triton():
        pytest.skip(missing)
    command = [sys.executable, "-m", "servingslo.cli", "demo", "--scenario=triton"]
    done = subprocess.run(
        [*command, f"--out={tmp_path}", "--minutes=8"],
        capture_output=True,
        text=True,
        timeout=FULL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
