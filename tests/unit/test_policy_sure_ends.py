"""A percentile is known up to its bucket: what is decided rests on the edge that is sure."""

from dataclasses import replace

import pytest
from tests.golden.decisions import SCALE_UP
from tests.unit.engine_pages import histogram, vllm_page
from tests.unit.page_plans import conditions, decisions, of_pods

from servingslo.estimation.requests.histograms import HistogramDelta, of_quantiles
from servingslo.estimation.requests.misses import Misses
from servingslo.explain.text import text
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.decision_parts import PromiseReport
from servingslo.policy.knobs.trial.comparison import Sample, worse_in_words
from servingslo.policy.replicas.promise import PromiseState, after_window

TTFT = "vllm:time_to_first_token_seconds"
# Edges of vLLM around these thresholds.
EDGES = (0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)


def _page(requests: float, seconds: float, edges: tuple[float, ...]) -> str:
    """A vLLM whose requests all have this time to first token."""
    kept = "".join(f"{x}\n" for x in vllm_page(requests).splitlines() if not x.startswith(TTFT))
    own = 'engine="0"'
    buckets = "".join(
        f'{TTFT}_bucket{{{own},le="{edge}"}} {requests if seconds <= edge else 0.0}\n'
        for edge in edges
    )
    rest = histogram(TTFT, own, seconds, requests).splitlines()
    return kept + buckets + "".join(f"{x}\n" for x in rest if "+Inf" in x or "_bucket" not in x)


def _wanted(seconds: float, threshold: float, edges: tuple[float, ...] = EDGES):
    """The last decision of two pods with this latency."""
    objective = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=threshold)
    page = [lambda at: _page(2.0 * at, seconds, edges)] * 2
    return decisions(of_pods(*page), 2, (objective,))[-1]


@pytest.mark.parametrize(
    ("seconds", "threshold", "edges", "replicas", "reason"),
    [
        pytest.param(0.28, 0.3, EDGES, 2, "BelowBucketResolution", id="in the bucket"),
        pytest.param(0.15, 0.3, (1.0, 5.0), 2, "BelowBucketResolution", id="few edges"),
        pytest.param(7.0, 9.0, EDGES, 2, "BelowBucketResolution", id="in the open bucket"),
        pytest.param(0.2, 0.25, EDGES, 2, "WithinObjectives", id="met at an edge"),
        pytest.param(0.3, 0.25, EDGES, 3, "ObjectivesMissed", id="above its edge"),
        pytest.param(0.6, 0.3, EDGES, 4, "ObjectivesMissed", id="in a bucket above"),
    ],
)
def test_a_threshold_in_the_bucket_of_the_percentile_orders_nothing(
    seconds, threshold, edges, replicas, reason
):
    """It is neither met nor missed; a sure miss orders in proportion to its sure edge."""
    last = _wanted(seconds, threshold, edges)
    assert last.recommended_replicas == replicas
    assert conditions(last)["SLOMet"][1] == reason


def test_a_percentile_is_told_by_its_bound_while_nothing_is_known_of_the_objective():
    """No interpolated value beside the threshold."""
    assert "observed 0.25s or more, 0.0 % to 100.0 %" in text(_wanted(0.28, 0.3))
    assert "or more" not in text(_wanted(0.2, 0.25))


def test_requests_in_the_thresholds_bucket_are_neither_missed_nor_in_time():
    """Both ends of the share are told."""
    state = PromiseState(at_seconds=0.0)
    for tick in range(1, 20):
        seen = Misses(requests=100.0, least=0.0, most=100.0)
        state = after_window(state, seen, period_seconds=1e5, now_seconds=15.0 * tick)
    assert (state.missed, state.unsure) == (0.0, pytest.approx(1900.0, rel=0.01))
    report = PromiseReport(
        attained_ratio=0.0, attained_most_ratio=1.0, target_ratio=0.95, period_seconds=3600.0,
        observed_seconds=3600.0,
    )  # fmt: skip
    assert "0.0 % to 100.0 % of requests attained" in text(replace(SCALE_UP, promise=report))


def test_limits_are_not_worse_by_requests_in_the_bucket_of_the_threshold():
    """All below before, all in the bucket after: nobody knows; all beyond it: they are worse."""
    objective = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.3)

    def sample(place: int) -> Sample:
        counts = tuple(400.0 * (place == i) for i in range(len(EDGES) + 1))
        delta = HistogramDelta(upper_bounds=EDGES, counts=counts, sum=100.0)
        return Sample(deltas={LatencyMetric.TTFT: delta}, engines=1, mean_seconds=0.02)

    assert worse_in_words((objective,), sample(2), sample(1)) == ""
    assert "missed: 100.0%" in worse_in_words((objective,), sample(3), sample(1))


def test_quantiles_of_a_summary_are_exact():
    """A server that states its p95 is known at p95, and between two quantiles only by both."""
    seen = of_quantiles({0.5: 0.1, 0.95: 0.3, 0.99: 0.9}, 1000.0, 150.0)
    lower, upper, _ = seen.bucket_of(95.0)
    assert (lower, upper) == (pytest.approx(0.3), 0.3)
    low, high = seen.share_within(0.29)
    assert low <= high < 0.95
    assert seen.share_within(0.3)[0] >= 0.95
    assert seen.bucket_of(97.0)[:2] == (0.3, pytest.approx(0.9))
