"""The demo's summary: what it says of the prediction."""

from dataclasses import replace
from pathlib import Path

import pytest

from servingslo_lab.cli.demo.report import PAGE_NAME, Truth, summary, write
from servingslo_lab.cli.demo.timeline import DemoObjective, DemoSample, Timeline

SERVED = DemoSample(
    elapsed_seconds=60.0,
    arrival_rate_per_second=5.0,
    running_requests=30.0,
    waiting_requests=0.0,
    kv_usage_ratio=0.2,
    ttft_p99_seconds=0.5,
    observed_ttft_seconds=0.63,
    predicted_ttft_seconds=0.45,
    desired_replicas=4,
    ready_replicas=4,
    binding="ttft",
)
STARTING = replace(SERVED, ttft_p99_seconds=3.0, observed_ttft_seconds=2.4, ready_replicas=3)


def said_of_the_prediction(*samples: DemoSample) -> str:
    """The line of the summary that sets prediction beside observation."""
    timeline = Timeline(
        objectives=(),
        surge_start_seconds=90.0,
        surge_end_seconds=180.0,
        tick_seconds=5.0,
        samples=list(samples),
    )
    truth = Truth(
        request_count=1, share_in_slo_ratio=1.0, minute_shares=(1.0,), minute_target_ratio=0.95
    )
    lines = summary(timeline, truth, None).splitlines()
    return next(line for line in lines if line.startswith("TTFT prediction"))


def test_a_prediction_stands_beside_what_the_count_it_is_for_has_shown() -> None:
    """Requests served while the decided count was still coming say nothing about it."""
    line = said_of_the_prediction(STARTING, STARTING, SERVED)
    assert "0.45s predicted, 0.5s in the requests' own records of 30 s, 0.63s by" in line
    assert "1 moments" in line


def test_without_a_moment_of_both_it_says_so() -> None:
    """No figure is made up where the decided count never served."""
    unknown = replace(SERVED, predicted_ttft_seconds=None)
    assert "no moment with both" in said_of_the_prediction(STARTING, unknown)


def surged() -> Timeline:
    """Six minutes with a surge in the third and fourth; a fifth replica is ready 40 s into it."""
    later = [
        replace(SERVED, elapsed_seconds=120.0 + 20.0 * place, ready_replicas=4 + (place >= 2))
        for place in range(10)
    ]
    return Timeline(
        objectives=(
            DemoObjective(metric="ttft", percentile=99.0, threshold_seconds=1.0),
            DemoObjective(metric="tpot", percentile=95.0, threshold_seconds=0.05),
        ),
        surge_start_seconds=120.0, surge_end_seconds=230.0, tick_seconds=5.0,
        samples=[SERVED, *later],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        pytest.param((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), "99 %: kept", id="kept"),
        pytest.param(
            (1.0, 1.0, 0.9, 0.96, 1.0, None),
            "99 %: missed in minutes 3, 4, all in the surge, whose first new replica was ready 40s "
            "after it began",
            id="surge",
        ),
        pytest.param(
            (0.9, 1.0, 0.9, 1.0, 1.0, 1.0), "in minutes 1, 3, 1 of them in the surge", id="both"
        ),
        pytest.param((0.9, 1.0, 1.0, 1.0, 1.0, 1.0), "99 %: missed in minute 1", id="outside"),
    ],
)
def test_a_missed_target_says_where(minutes: tuple[float | None, ...], said: str) -> None:
    """The share stands beside what was asked for, and the surge is named where it is the cause."""
    known = [share for share in minutes if share is not None]
    truth = Truth(
        request_count=600, share_in_slo_ratio=sum(known) / len(known), minute_shares=minutes,
        minute_target_ratio=0.95,
    )  # fmt: skip
    (line,) = (x for x in summary(surged(), truth, None).splitlines() if x.startswith("target"))
    assert said in line
    assert line.endswith("after it began") == ("surge" in said)


def test_no_line_of_the_page_is_wider_than_the_page(tmp_path: Path) -> None:
    """Summary and decisions wrap: a log line is several times as long as the page is wide."""
    timeline = surged()
    timeline.decisions.append((130.0, "decided " + "key=value " * 60))
    text = "share in SLO     97.76% of requests\ntarget           99 %: missed <in> minute 3"
    write(tmp_path, timeline, text)
    page = (tmp_path / PAGE_NAME).read_text(encoding="utf-8")
    assert "white-space: pre-wrap" in page
    assert "<th>target</th><td>99 %: missed &lt;in&gt; minute 3</td>" in page
