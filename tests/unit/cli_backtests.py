"""Backtests from the command line: the requests and the call that their tests share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.unit.cli_calls import CLI, Called

OBJECTIVES = ("--objective", "ttft:p99:1s", "--objective", "tpot:p99:50ms")


def chat_trace(path: Path, slow_count: int, fast_count: int) -> Path:
    """So many requests of chat in three minutes, then so many in three more."""
    rng = np.random.default_rng(7)
    slow, fast = rng.uniform(0, 180, slow_count), rng.uniform(180, 360, fast_count)
    times = np.sort(np.concatenate([slow, fast, [0.0, 359.5]]))
    rows = (f"{at:.3f},{rng.integers(100, 900)},{rng.integers(20, 200)}" for at in times)
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


def backtest_of(cli: CLI, trace: Path, fleet: str | Path, folder: Path) -> Callable[..., Called]:
    """A backtest of the trace on the fleet, whose runs are kept in the test's folder."""

    def called(*arguments: str | Path) -> Called:
        return cli(
            "backtest", "--trace", trace, "--fleet", fleet, "--processes", "1",
            "--cache", folder / "kept", *arguments,
        )  # fmt: skip

    return called
