"""The demo's summary and its live view: what they say, and of what."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from servingslo_lab.cli.demo.report import PAGE_NAME, Truth, summary, write
from servingslo_lab.cli.demo.timeline import DemoObjective, DemoSample, Timeline
from servingslo_lab.cli.demo.view import render, shortened

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


def test_the_declared_share_of_each_objective_is_named() -> None:
    """And the one that `explain` takes, so that no two outputs seem to differ."""
    truth = of((1.0, 0.9))
    assert row("declared", surged(), truth) == (
        "99 % ttft ≤ 1s, 95 % tpot ≤ 0.05s; `explain` takes 95 % for all"
    )
    assert row("share in SLO", surged(), truth) == "95 % of requests met all objectives"


def test_a_share_is_not_rounded_up_to_the_declared_one() -> None:
    """98.9999 % is below 99 %."""
    truth = replace(of((1.0,)), share_in_slo_ratio=0.989999)
    assert row("share in SLO", surged(), truth).startswith("98.99 %")


def test_without_a_surge_none_is_named() -> None:
    """A user's trace has no surge of the demo."""
    timeline = replace(surged(), surge_start_seconds=None, surge_end_seconds=None)
    timeline.decisions.append((20.0, DECISION.replace("hold", "scale-up")))
    truth = of((1.0, 0.9, 1.0))
    assert "surge" not in summary(timeline, truth, None)
    assert row("below 99 %", timeline, truth) == "1 of 3 minutes: 2"
    assert row("first scale-up", timeline, truth) == "20s after traffic began (4.0 ticks)"
    assert "surge" not in shown(timeline)


DECISION = (
    "decided namespace=inference name=llama-chat action=hold replicas=8 reason=StepDownUnsafe "
    'binding=utilization need="utilization:4 kv-cache:4 ttft:4 tpot:3" arrival=6.58/s age=2s'
)


def test_more_replicas_than_needed_at_the_end_are_explained() -> None:
    """The last reason to hold stands beside the count."""
    timeline = surged()
    timeline.samples.append(replace(SERVED, elapsed_seconds=330.0, desired_replicas=8))
    timeline.decisions.append((325.0, DECISION))
    assert row("replicas  ", timeline, of((1.0,))).endswith(
        "8 at the end (held by StepDownUnsafe, last need 4)"
    )
    timeline.decisions.append((326.0, DECISION.replace(":4", ":8")))
    assert row("replicas  ", timeline, of((1.0,))).endswith("8 at the end")


def shown(timeline: Timeline) -> str:
    """The live view on a terminal of 80 columns."""
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(render(timeline, total_seconds=360.0))
    return captured.get()


def test_a_decision_in_the_view_begins_with_its_reason_and_need() -> None:
    """Both are within 80 columns; what follows keeps the log's words."""
    assert shortened(DECISION) == (
        "hold 8 StepDownUnsafe need utilization:4 kv-cache:4 ttft:4 tpot:3 binding=utilization "
        "arrival=6.58/s age=2s"
    )
    timeline = surged()
    timeline.samples *= 10
    timeline.decisions.append((325.0, DECISION))
    lines = shown(timeline).splitlines()
    assert {len(line) for line in lines} == {80}
    assert any("0.5s ≤ 1s" in line for line in lines)
    assert any("hold 8 StepDownUnsafe need utilization:4 kv-cache:4 ttft:4" in x for x in lines)


def test_no_line_of_the_page_is_wider_than_the_page(tmp_path: Path) -> None:
    """Summary and decisions wrap: a log line is several times as long as the page is wide."""
    timeline = surged()
    timeline.decisions.append((130.0, "decided " + "key=value " * 60))
    text = "share in SLO     97.76% of requests\ntarget           99 %: missed <in> minute 3"
    write(tmp_path, timeline, text)
    page = (tmp_path / PAGE_NAME).read_text(encoding="utf-8")
    assert "white-space: pre-wrap" in page
    assert "<th>target</th><td>99 %: missed &lt;in&gt; minute 3</td>" in page


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
