"""The demo's summary and its live view: what they say, and of what."""

from dataclasses import replace

import pytest

from servingslo_lab.cli.demo.report import Truth, summary
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
    truth = Truth(request_count=1, share_in_slo_ratio=1.0, minute_shares=(1.0,))
    lines = summary(timeline, truth, None).splitlines()
    return next(line for line in lines if line.startswith("TTFT prediction"))


def test_a_prediction_stands_beside_what_the_count_it_is_for_has_shown() -> None:
    """Requests served while the decided count was still coming say nothing about it."""
    line = said_of_the_prediction(STARTING, STARTING, SERVED)
    assert "p99 0.45s predicted, 0.5s measured (medians of 1 moments)" in line


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


def of(minutes: tuple[float | None, ...]) -> Truth:
    """Six hundred requests, so many of them in SLO in each minute."""
    known = [share for share in minutes if share is not None]
    return Truth(
        request_count=600, share_in_slo_ratio=sum(known) / len(known), minute_shares=minutes
    )


def row(name: str, timeline: Timeline, truth: Truth) -> str:
    """The value of a row of the summary."""
    lines = summary(timeline, truth, None).splitlines()
    return next(line for line in lines if line.startswith(name)).removeprefix(name).strip()


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        pytest.param((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), "none of 6 minutes", id="kept"),
        pytest.param(
            (1.0, 1.0, 0.9, 0.96, 1.0, None), "2 of 6 minutes: 3 and 4; the surge", id="surge"
        ),
        pytest.param(
            (0.9, 1.0, 0.9, 1.0, 1.0, 0.98), "3 of 6 minutes: 1, 3 and 6; the surge", id="both"
        ),
        pytest.param((0.9, 1.0, 1.0, 1.0, 1.0, 1.0), "1 of 6 minutes: 1; the surge", id="outside"),
    ],
)
def test_minutes_below_the_largest_declared_share_are_listed(
    minutes: tuple[float | None, ...], said: str
) -> None:
    """One share for all minutes; those of the surge are named apart from those that missed."""
    line = row("below 99 %", surged(), of(minutes))
    assert line.startswith(said)
    span = "the surge: minutes 3 to 4, its first new replica ready after 40s"
    assert line.endswith(span) == ("surge" in said)


def test_a_share_is_not_rounded_up_to_the_declared_one() -> None:
    """98.9999 % is below 99 %."""
    truth = replace(of((1.0,)), share_in_slo_ratio=0.989999)
    assert row("share in SLO", surged(), truth).startswith("98.99 %")


@pytest.mark.parametrize(
    ("minutes", "run", "words"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 1.0, "kept: 99 % declared; the run 100 %"),
        (
            (1.0, 0.9, 0.94, 1.0, 1.0, 1.0),
            0.995,
            "missed: 99 % declared; the run 99.5 %, before the surge 100 %, in it 90 %, after",
        ),
    ],
)
def test_the_verdict_is_a_line_by_phase(minutes: tuple[float, ...], run: float, words: str) -> None:
    """A share that was kept over the run hides no phase in which it was not."""
    objective = DemoObjective(metric="ttft", percentile=99.0, threshold_seconds=1.0)
    timeline = Timeline(
        objectives=(objective,),
        surge_start_seconds=60.0,
        surge_end_seconds=120.0,
        tick_seconds=5.0,
        samples=[SERVED],
    )
    truth = Truth(request_count=9, share_in_slo_ratio=run, minute_shares=minutes)
    (line,) = (one for one in summary(timeline, truth, None).splitlines() if "verdict" in one)
    assert words in line
