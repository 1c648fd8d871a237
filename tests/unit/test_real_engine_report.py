"""When a run of real engines counts as shown."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.validation.engine_requests import Served, write_served
from tests.validation.real_engine_report import PICTURE, report


def _folder(folder: Path, counts: list[int], *, failed: int = 0, **changed: Any) -> Path:
    """A run whose count was asked for in this order, with ten requests."""
    samples = [
        {
            "seconds": 5.0 * number, "replicas": count, "ready": count, "in_flight": 0,
            "load_average": 1.0, "core_ran_seconds": 1.0, "core_waited_seconds": 0.1,
            "status": {},
        }
        for number, count in enumerate(counts)
    ]  # fmt: skip
    pod = dict.fromkeys(("ready", "deleted", "terminated", "ended", "exit_status"))
    pod |= {"name": "tiny-1", "started": 0.0, "served": 10, "broken": 0, "drained": 0}
    run = {
        "phase_seconds": 30.0,
        "rates_per_second": [0.3],
        "measured": {"ttft_seconds": 0.5, "tpot_seconds": 0.1, "saturation_per_second": 1.0},
        "objectives": [],
        "arguments": ["serve", "--enforce-eager"],
        "core_share": 0.15,
        "aborted": 0.0,
        "pods": [pod],
        "samples": samples,
    }
    (folder / "run.json").write_text(json.dumps({**run, **changed}), encoding="utf-8")
    served = [
        Served(
            arrival_seconds=20.0 + number,
            phase=0,
            prompt_tokens=10,
            output_tokens=5,
            ttft_seconds=None if number < failed else 0.5,
            latency_seconds=None if number < failed else 1.0,
        )
        for number in range(10)
    ]
    write_served(served, folder / "requests.csv")
    return folder


@pytest.mark.parametrize(
    ("counts", "changed", "status"),
    [
        pytest.param([1, 1, 2, 2, 1], {}, 0, id="one-two-one"),
        pytest.param([1, 2, 3, 2, 1], {}, 0, id="three-in-between"),
        pytest.param([1, 1, 1], {}, 1, id="never-more"),
        pytest.param([1, 2, 2], {}, 1, id="never-back"),
        pytest.param([1, 2, 1], {"failed": 1}, 1, id="a-request-failed"),
        pytest.param([1, 2, 1], {"aborted": 2.0}, 1, id="an-engine-aborted"),
    ],
)
def test_a_run_shows_what_it_is_for(
    tmp_path: Path, counts: list[int], changed: dict[str, Any], status: int
) -> None:
    """More where more are needed, fewer afterwards, and every answer whole."""
    folder = _folder(tmp_path, counts, **changed)
    assert report(folder) == status
    assert "<svg" in (folder / PICTURE).read_text(encoding="utf-8")
