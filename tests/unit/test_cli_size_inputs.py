"""What `servingslo size` reads: a live decision, a trace, stated lengths and a law."""

import math
from dataclasses import replace

import pytest
from tests.golden.decisions import SCALE_UP

from servingslo.policy.decision_parts import ColdStartReport, DemandReport
from servingslo.units import format_short_duration, parse_short_duration_seconds
from servingslo_lab.cli.sizing.inputs import (
    busiest_minute_per_second,
    parse_law,
    spread_lengths,
    traced_workload,
)
from servingslo_lab.cli.sizing.live import course_of
from servingslo_lab.sim.traces.trace import read_trace


@pytest.mark.parametrize(
    ("now", "planned", "seconds", "rate", "growth"),
    [
        pytest.param(10.0, 16.0, 90.0, 10.0, 6.0 / 120.0, id="rising"),
        pytest.param(10.0, 8.0, 90.0, 8.0, 0.0, id="falling"),
        pytest.param(10.0, 16.0, None, 16.0, 0.0, id="cold-start-unknown"),
        pytest.param(None, 16.0, 90.0, 16.0, 0.0, id="rate-unknown"),
    ],
)
def test_a_live_sweep_sizes_for_the_planned_rate_and_prices_the_cold_start(
    now, planned, seconds, rate, growth
):
    """A straight line from now to what was planned for: another cold start meets another rate."""
    start = None if seconds is None else ColdStartReport(seconds=seconds, source="measured")
    demand = DemandReport(arrival_rate_per_second=now, forecast_rate_per_second=planned)
    course = course_of(replace(SCALE_UP, demand=demand, cold_start=start))
    assert (course.rate_per_second, course.growth_per_second2) == pytest.approx((rate, growth))
    lead = course.cold_start_seconds + 30.0
    assert course.rate_per_second + course.growth_per_second2 * lead == pytest.approx(planned)
    assert course.dispersion == 1.0
    bursty = replace(SCALE_UP, demand=replace(demand, scrape_dispersion=3.5), cold_start=start)
    assert course_of(bursty).dispersion == 3.5
    assert course_of(replace(SCALE_UP, demand=DemandReport())) is None


def test_a_trace_brings_lengths_and_its_busiest_minute(tmp_path):
    """Prompt and output of a request stay together in what a sequence holds."""
    path = tmp_path / "trace.csv"
    rows = [f"{i},{100 * (1 + i % 2)},{10 * (1 + i % 2)}" for i in range(60)]
    rows += [f"{60 + i / 2},100,10" for i in range(120)]
    path.write_text("\n".join(["arrival_seconds,prompt_tokens,output_tokens", *rows]) + "\n")
    workload = traced_workload(path, None, cached_ratio=0.0, dispersion=1.0)
    assert workload.arrival_rate_per_second == pytest.approx(2.0)
    assert workload.prompt.mean_tokens == pytest.approx((150 * 100 + 30 * 200) / 180)
    held = (150 * 10 * (100 + 5) + 30 * 20 * (200 + 10)) / (150 * 10 + 30 * 20)
    assert workload.context_tokens_per_sequence == pytest.approx(held)


@pytest.mark.parametrize("variation", [0.3, 0.77, 0.96, 1.5])
def test_stated_lengths_keep_mean_and_variation(variation):
    """The points have the stated mean, and lose little of the spread."""
    lengths = spread_lengths(1155.0, variation)
    mean = lengths.mean_tokens
    deviation = math.sqrt(lengths.second_moment_tokens2 - mean**2)
    assert mean == pytest.approx(1155.0, rel=0.01)
    assert deviation / mean == pytest.approx(variation, rel=0.05)


def test_a_law_survives_being_written_and_read():
    """What `fit` prints, `size` reads."""
    law = parse_law("a=6.5ms,b=0.04ms,c=0.03ms,d=0.05us")
    assert law.step_fixed_seconds == pytest.approx(0.0065)
    assert law.context_per_token_seconds == pytest.approx(5e-8)
    for seconds in (3.2e-9, 5e-8, 4e-5, 6.5e-3, 1.25):
        text = format_short_duration(seconds)
        assert parse_short_duration_seconds(text) == pytest.approx(seconds)


def test_two_requests_within_a_tenth_of_a_second_are_no_twenty_a_second(tmp_path):
    """A trace shorter than a second has the rate of a second."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,1,1\n0.1,1,1\n")
    assert busiest_minute_per_second(read_trace(path)) == 2.0
