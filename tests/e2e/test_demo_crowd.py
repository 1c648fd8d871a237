"""The flash crowd as a user starts it: judged at full length, and a control that must fail."""

from pathlib import Path

import pytest
from tests.e2e.full_demo import demo

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1560)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_admission_keeps_its_promises_in_a_crowd(tmp_path: Path, seed: int) -> None:
    """Let in: 98 % in SLO; of all, more than without a bound; at no more replica-hours."""
    done = demo(tmp_path, "--scenario=flash-crowd", "--minutes=12", f"--seed={seed}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_policy_that_never_reaches_envoy_is_an_error(tmp_path: Path) -> None:
    """The control: the operator writes the bound, and nothing enforces it."""
    done = demo(tmp_path, "--scenario=flash-crowd", "--minutes=5", "--no-policy")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "never reached Envoy" in done.stdout + done.stderr
