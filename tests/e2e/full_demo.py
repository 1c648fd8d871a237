"""A demo as a user starts it, at full length."""

import subprocess
import sys
from pathlib import Path


def demo(out: Path, *flags: str, seconds: float = 1500) -> subprocess.CompletedProcess[str]:
    """How it ended, and what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "servingslo.cli", "demo", *flags, f"--out={out}"],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
