"""The flash crowd as a user starts it: judged at full length, and a control that must fail."""

import subprocess
import sys
from pathlib import Path

import pytest

FULL_SECONDS = 1500


def _demo(out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "servingslo.cli", "demo", "--scenario=flash-crowd"]
    return subprocess.run(
        [*command, f"--out={out}", *flags],
        capture_output=True,
        text=True,
        timeout=FULL_SECONDS,
        check=False,
    )


@pytest.mark.acceptance
@pytest.mark.timeout(FULL_SECONDS + 60)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_admission_keeps_its_promises_in_a_crowd(tmp_path: Path, seed: int) -> None:
    """Let in: 98 % in SLO; of all, more than without a bound; at no more replica-hours."""
    done = _demo(tmp_path, "--minutes=12", f"--seed={seed}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.acceptance
@pytest.mark.timeout(FULL_SECONDS + 60)
def test_a_policy_that_never_reaches_envoy_is_an_error(tmp_path: Path) -> None:
    """The control: the operator writes the bound, and nothing enforces it."""
    done = _demo(tmp_path, "--minutes=5", "--no-policy")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "never reached Envoy" in done.stdout + done.stderr
