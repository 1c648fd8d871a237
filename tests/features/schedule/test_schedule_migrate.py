"""The commands: `migrate` makes windows of others' schedules, `backtest` needs dates for them."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli_backtests import backtest_of, chat_trace
from tests.unit.cli_calls import CLI
from tests.unit.test_migrate import SCALED_OBJECT, called, changed, spec_of

POD_AUTOSCALER: dict[str, Any] = {
    "apiVersion": "autoscaling.aibrix.ai/v1alpha1",
    "kind": "PodAutoscaler",
    "metadata": {"name": "llama-chat", "namespace": "inference"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama-chat"},
        "minReplicas": 2,
        "maxReplicas": 16,
        "scalingStrategy": "KPA",
        "metricsSources": [{"metricSourceType": "pod", "targetMetric": "kv", "targetValue": "50"}],
        "schedules": [
            {
                "name": "office", "timezone": "Europe/Berlin", "daysOfWeek": ["Mon", "fri"],
                "startTime": "08:30", "endTime": "17:00", "minReplicas": 8,
            },
            {"name": "night", "startTime": "00:00", "endTime": "06:00", "maxReplicas": 3},
        ],
    },
}  # fmt: skip


def cron(start: str, end: str, replicas: str = "10", **more: str) -> dict[str, Any]:
    """A trigger of KEDA."""
    wanted = {"timezone": "Asia/Kolkata", "start": start, "end": end, "desiredReplicas": replicas}
    return {"type": "cron", "metadata": wanted | more}


def keda(*triggers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A ScaledObject with these triggers."""
    return changed(SCALED_OBJECT, triggers=[*triggers], minReplicaCount=2, **spec)


@pytest.mark.parametrize(
    ("start", "end", "duration"),
    [
        pytest.param("0 6 * * *", "30 18 * * *", "12h30m", id="each-day"),
        pytest.param("0 22 * * 1-5", "0 6 * * 2-6", "8h", id="over-midnight"),
        pytest.param("0 8 * * MON", "0 20 * * FRI", "108h", id="for-days"),
        pytest.param("30 * * * *", "45 * * * *", "15m", id="each-hour"),
    ],
)
def test_a_cron_trigger_becomes_a_window(cli: CLI, start: str, end: str, duration: str) -> None:
    """Its start, zone, and time to its end; a minimum, as other triggers may want more."""
    found = spec_of(cli, keda(cron(start, end)))["replicas"]
    assert found["schedule"] == [
        {"cron": start, "timeZone": "Asia/Kolkata", "duration": duration, "min": 10}
    ]


@pytest.mark.parametrize(
    ("trigger", "why"),
    [
        pytest.param(cron("0 8 * * *", "0 18 * * 1-5"), "differ in length", id="uneven"),
        pytest.param(cron("0 8,12 * * *", "0 18 * * *"), "differ in length", id="twice"),
        pytest.param(cron("0 8 * * *", "0 8 * * *"), "start and end are equal", id="equal"),
        pytest.param(cron("@daily", "0 18 * * *"), "no cron of five fields", id="descriptor"),
        pytest.param(cron("0 8 * * *", "0 18 * * *", "2"), "replicas.min is no less", id="low"),
        pytest.param(cron("0 8 * * *", "0 18 * * *", "x"), "is no count", id="no-count"),
        pytest.param(
            cron("0 8 * * *", "0 18 * * *", timezone="Mars"), "a time zone of the IANA", id="zone"
        ),
    ],
)
def test_a_cron_trigger_that_is_no_window_is_reported(cli: CLI, trigger: Any, why: str) -> None:
    """With the reason, and nothing is written for it."""
    done = called(cli, keda(trigger))
    assert why in done.out
    assert "schedule:" not in done.out


def test_a_cron_is_written_in_the_words_of_the_api(cli: CLI) -> None:
    """KEDA also reads more blanks, and `?` for any day."""
    (found,) = spec_of(cli, keda(cron(" 0  8 ? * 1-5", "0 18 ? * 1-5 ")))["replicas"]["schedule"]
    assert (found["cron"], found["duration"]) == ("0 8 * * 1-5", "10h")


def test_a_count_above_the_maximum_is_cut_as_keda_does(cli: CLI) -> None:
    """And the cut is reported."""
    done = called(cli, keda(cron("0 8 * * *", "0 18 * * *", "200")))
    assert "desiredReplicas 200: at most replicas.max, 100" in done.out
    assert "min: 100" in done.out


def test_a_backtest_of_undated_requests_is_refused(cli: CLI, tmp_path: Path) -> None:
    """Its bounds would follow a clock that begins in 1970."""
    trace = chat_trace(tmp_path / "chat.csv", 60, 60)
    manifest = Path("examples/21-schedule/servingslo.yaml")
    done = backtest_of(cli, trace, "l4-small", tmp_path)("-f", manifest)
    assert done.refuses("--trace", "chat.csv", "dated requests"), done.err


def test_schedules_of_aibrix_become_windows(cli: CLI) -> None:
    """Their bounds take the place of the usual ones there too."""
    found = spec_of(cli, POD_AUTOSCALER)["replicas"]
    assert (found["min"], found["max"]) == (2, 16)
    assert found["schedule"] == [
        {"cron": "30 8 * * MON,FRI", "timeZone": "Europe/Berlin", "duration": "8h30m", "min": 8},
        {"cron": "0 0 * * *", "timeZone": "UTC", "duration": "6h", "max": 3},
    ]
    assert "spec.metricsSources[0] kv, 50" in called(cli, POD_AUTOSCALER).out


def test_a_bad_schedule_of_aibrix_is_refused_with_its_field(cli: CLI) -> None:
    """As AIBrix refuses it: windows over midnight are two."""
    bad = {"name": "night", "startTime": "22:00", "endTime": "06:00", "minReplicas": 1}
    done = called(cli, changed(POD_AUTOSCALER, schedules=[bad]))
    assert done.refuses("schedules[0].endTime", "'06:00'", "later than startTime, 22:00"), done.err
