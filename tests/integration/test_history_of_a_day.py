"""A day of what an operator exported, as promtool makes blocks of it: what `history` tells of it.

One replica at night and five by day, an hour without an operator and another pod after it, two
hours at the greatest count, and an hour without metrics.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.integration.prometheus_world import running_prometheus

from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.programs import versions

HOUR = 3600
SAMPLE_SECONDS = 30
# The day goes on for as long as the blocks may take to be made.
LATER = 600
# Hours ago.
DAY_BEGAN, DOWN_BEGAN, DOWN_ENDED, LIMITED, BLIND = 16, 12, 11, (8, 6), (3, 2)
CHOSEN = 'namespace="inference",name="llama-chat"'


def _at(hours_ago: float) -> Mapping[str, float]:
    """Gauges of one scrape, by name and further labels."""
    by_day = hours_ago < DAY_BEGAN
    limited = LIMITED[1] <= hours_ago < LIMITED[0]
    blind = BLIND[1] <= hours_ago < BLIND[0]
    found: dict[str, float] = {
        "replicas_current": 5 if by_day else 1,
        "replicas_ready": 5 if hours_ago < DAY_BEGAN - 0.05 else 1,
    }
    if blind:
        return {**found, 'not_ready,reason="MetricsStale"': 1}
    found |= {
        "arrivals_per_second": 12.5 if by_day else 0.25,
        'binding_constraint,constraint="ttft"' if by_day else
        'binding_constraint,constraint="minimum"': 1,
        'within_objective_ratio,metric="ttft",percentile="99"': 0.95 if limited else 0.998,
        'within_objective_ratio,metric="tpot",percentile="95"': 1.0,
    }  # fmt: skip
    if limited:
        found['limited_by,reason="MaxReplicas"'] = 1
    elif DAY_BEGAN - 0.1 <= hours_ago < DAY_BEGAN:
        found['limited_by,reason="PendingPods"'] = 1
    return found


def _page(now: int) -> Iterator[str]:
    series: dict[str, list[str]] = {}
    for at in range(now - 24 * HOUR, now + LATER, SAMPLE_SECONDS):
        hours_ago = (now - at) / HOUR
        if DOWN_ENDED <= hours_ago < DOWN_BEGAN:
            continue
        pod = "operator-a" if hours_ago >= DOWN_BEGAN else "operator-b"
        for key, value in _at(hours_ago).items():
            name, _, more = key.partition(",")
            labels = ",".join(filter(None, (CHOSEN, f'pod="{pod}"', more)))
            line = f"servingslo_{name}{{{labels}}} {value} {at}"
            series.setdefault(line.partition("} ")[0], []).append(line)
    for lines in series.values():
        yield from lines
    yield "# EOF"


@pytest.fixture(scope="module")
def remembered() -> Iterator[str]:
    """The address of a Prometheus with that day on its disk."""
    promtool = ensure_tools((versions.PROMTOOL,))[versions.PROMTOOL.name]
    now = int(time.time())  # noqa: TID251 - times of samples

    def fill(data: Path) -> None:
        with TemporaryDirectory(prefix="servingslo-test-") as directory:
            page = Path(directory) / "page.txt"
            page.write_text("\n".join(_page(now)) + "\n", encoding="utf-8")
            command = (promtool, "tsdb", "create-blocks-from", "openmetrics", "-q", page, data)
            subprocess.run(command, check=True, timeout=120, capture_output=True)

    with running_prometheus(None, fill=fill, retention_days=3) as prometheus:
        yield prometheus.url


def _history(url: str, *arguments: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "servingslo.cli", "history", "inference/llama-chat"),
            *(f"--prometheus-url={url}", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_half_hour_tells_what_was(remembered: str) -> None:
    """The hole, the share of a limit, and a time without metrics are told as what they are."""
    rows = json.loads(_history(remembered, "-o", "json"))
    assert len(rows) == 48
    end = rows[-1]["end_seconds"]
    by_age = {round(2 * (end - row["end_seconds"]) / HOUR) / 2: row for row in rows}
    night, noon = by_age[20], by_age[9.5]
    assert (night["replicas_greatest"], night["arrivals_per_second"]) == (1, 0.25)
    assert (night["binding"], night["limited_by"]) == ("minimum", None)
    assert (noon["replicas_least"], noon["ready_replicas"], noon["binding"]) == (5, 5, "ttft")
    rise = by_age[15.5]
    assert rise["limited_by"] == "PendingPods"
    assert 0.1 <= rise["limited_ratio"] <= 0.3
    hole = by_age[11]
    assert hole["replicas_greatest"] is None
    assert hole["within_ratio"] == {}
    assert (by_age[6.5]["limited_by"], by_age[6.5]["limited_ratio"]) == ("MaxReplicas", 1.0)
    assert by_age[6.5]["within_ratio"] == {"ttft p99": 0.95, "tpot p95": 1.0}
    blind = by_age[2]
    assert (blind["limited_by"], blind["arrivals_per_second"]) == ("MetricsStale", None)
    assert sum(row["replica_changes"] or 0 for row in rows) == 1


def test_a_day_fits_a_screen(remembered: str) -> None:
    """Its lines are aligned, and words are told as the table of all resources tells them."""
    head, *rows = _history(remembered).splitlines()
    assert len(rows) == 48
    assert max(map(len, [head, *rows])) <= 120
    assert head.split()[:2] == ["UNTIL", "REPLICAS"]
    assert sum("MetricsStale" in row for row in rows) in {2, 3}
    assert sum(row.split()[1:] == ["-"] * 8 for row in rows) in {1, 2}
