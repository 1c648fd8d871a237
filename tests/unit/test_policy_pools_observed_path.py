"""Objectives over prefill and decode are reported for the whole path, with its own threshold."""

import json

import pytest
from tests.unit.test_policy_pools_path import decided

from servingslo.cli.decision_document import fleet_of
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.pools import fleet_document, fleet_lines, fleet_verdicts
from servingslo.policy.pools.observed_path import quantile_of_sum, share_of_sum

WHOLE_TTFT_SECONDS = 2.0
FIRST = HistogramDelta(upper_bounds=(0.2, 0.4), counts=(50.0, 40.0, 10.0), sum=30.0)
SECOND = HistogramDelta(upper_bounds=(0.05, 0.1), counts=(80.0, 20.0, 0.0), sum=4.0)


def test_shares_of_the_sum_are_an_interval():
    """A bucket counts at its upper edge at least, and at its lower edge at most."""
    # The open bucket counts from 0.4 on, or from 0.45 on, and never as a whole.
    assert share_of_sum(FIRST, SECOND, 0.03, 0.475) == pytest.approx((0.5, 0.9 + 0.1 * 0.8))
    # 0.4 + 0.05 + 0.03 at most: that pair of buckets is within it as a whole.
    assert share_of_sum(FIRST, SECOND, 0.03, 0.481) == pytest.approx((0.5 + 0.4 * 0.8, 1.0))
    assert share_of_sum(FIRST, SECOND, 0.03, 10.0) == pytest.approx((0.9, 1.0))
    assert share_of_sum(FIRST, SECOND, 0.5, 0.4) == (0.0, 0.0)


def test_a_percentile_of_the_sum_is_less_than_the_sum_of_percentiles():
    """Both pools are rarely slow at once."""
    first = HistogramDelta(upper_bounds=(0.1, 1.0), counts=(90.0, 10.0, 0.0), sum=10.0)
    found = quantile_of_sum(first, first, 0.0, 95.0)
    assert found < 2 * first.quantile(95.0)
    # Each value of the first with each of the second, by enumeration.
    points = [(place * 0.1, 0.18) for place in (0.1, 0.3, 0.5, 0.7, 0.9)]
    points += [(0.1 + place * 0.9, 0.02) for place in (0.1, 0.3, 0.5, 0.7, 0.9)]
    below = [
        sum(p * q for x, p in points for y, q in points if x + y <= found + moved)
        for moved in (-1e-6, 1e-6)
    ]
    assert below[0] < 0.95 <= below[1]
    assert quantile_of_sum(first, first, 0.25, 95.0) == pytest.approx(found + 0.25)


def test_a_percentile_counts_requests_that_skip_prefill():
    """Half of them have decode's time alone, as in the shares."""
    first = HistogramDelta(upper_bounds=(1.0, 2.0), counts=(0.0, 10.0, 0.0), sum=15.0)
    second = HistogramDelta(upper_bounds=(0.1,), counts=(10.0, 0.0), sum=0.5)
    for percentile, wanted in ((40.0, 0.1), (60.0, 2.3)):
        found = quantile_of_sum(first, second, 0.2, percentile, (1.0,), through_ratio=0.5)
        assert found == pytest.approx(wanted)


def test_a_percentile_in_an_open_bucket_is_its_lower_edge():
    """As of one histogram: a lower bound."""
    slow = HistogramDelta(upper_bounds=(0.1,), counts=(0.0, 10.0), sum=10.0)
    assert quantile_of_sum(slow, slow, 0.0, 95.0) == pytest.approx(0.2)


def test_the_whole_path_is_reported_with_its_own_threshold():
    """Each pool reports its part; the resource reports the sum of both."""
    fleet = decided()[-1]
    (ttft, *_) = fleet.objectives
    assert (ttft.metric, ttft.threshold_seconds) == ("ttft", WHOLE_TTFT_SECONDS)
    parts = [
        next(one for one in fleet.pools[name].objectives if one.metric == "ttft")
        for name in ("prefill", "decode")
    ]
    assert all(part.threshold_seconds < WHOLE_TTFT_SECONDS for part in parts)
    assert ttft.observed_seconds > max(part.observed_seconds for part in parts)
    verdict = fleet_verdicts(fleet, {n: verdicts(one) for n, one in fleet.pools.items()})[
        ConditionType.SLO_MET
    ]
    assert f"ttft p95 ≤ {WHOLE_TTFT_SECONDS:g}s" in verdict.message
    assert "≤" not in verdict.message.replace(f"≤ {WHOLE_TTFT_SECONDS:g}s", "", 1).split(";")[0]
    (line, *_) = [one for one in fleet_lines(fleet) if one.startswith("Objective")]
    assert f"≤ {WHOLE_TTFT_SECONDS:g}s" in line
    document = json.loads(json.dumps(fleet_document(fleet)))
    read = fleet_of(document, fleet.namespace, fleet.name)
    assert read.objectives[0].threshold_seconds == WHOLE_TTFT_SECONDS


def test_a_transfer_that_nothing_measures_is_not_added_twice():
    """Decode has a request from the beginning of its transfer on: its own time contains it."""
    fleet = decided()[-1]
    assert fleet.path.transfer_source in {"stated", "assumed"}
    ttft = fleet.objectives[0]
    parts = [
        next(one for one in fleet.pools[name].objectives if one.metric == "ttft")
        for name in ("prefill", "decode")
    ]
    # A percentile of a sum is at most the sum of percentiles, with nothing on top.
    assert ttft.observed_seconds <= sum(part.observed_seconds for part in parts)
