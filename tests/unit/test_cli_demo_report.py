"""The demo's summary: what it says of the prediction."""

from dataclasses import replace

from servingslo_lab.cli.demo.report import Truth, summary
from servingslo_lab.cli.demo.timeline import DemoSample, Timeline

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
