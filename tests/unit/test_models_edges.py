"""Models at the ends of their ranges: an error that names the field, or the limit itself."""

import pytest
from tests.textbook import batching, queueing
from tests.textbook.batching import BatchLaw

from servingslo.errors import InvalidInputError

LAW = BatchLaw(fixed_seconds=0.05, per_request_seconds=0.0005)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: batching.batch_response(LAW, 0.0, 8), "arrival_rate_per_second"),
        (lambda: batching.greedy_batch_response(LAW, 0.0, 8), "arrival_rate_per_second"),
        (lambda: batching.optimal_window_seconds(1.0, 0.1, 0.0), "arrival_rate_per_second"),
        (lambda: batching.adaptive_window_seconds(1.0, 8.0, 0.0, 1.0), "arrival_rate_per_second"),
        (lambda: batching.largest_dynamic_batch(LAW, 100.0, 1.0, 8, 100.0), "percentile"),
        (lambda: queueing.mm1_response_quantile_seconds(0.1, 0.5, 100.0), "percentile"),
        (lambda: queueing.mmc_wait_quantile_seconds(0.1, 0.5, 1, 100.0), "percentile"),
        (lambda: queueing.capacity_plan(100.0, 10.0, 0.7, 0.5), "headroom_ratio"),
    ],
)
def test_what_no_law_is_defined_for_is_named(call, field):
    """Never a division by zero."""
    with pytest.raises(InvalidInputError, match=field):
        call()


@pytest.mark.parametrize("batch_count", [4, 16])
def test_a_greedy_server_is_followed_close_to_saturation(batch_count, monkeypatch):
    """At a utilization of 0.98 hundreds wait at times, however small a batch is."""
    rate = 0.98 * batch_count / LAW.service_seconds(batch_count)
    found = batching.greedy_batch_response(LAW, rate, batch_count).response_seconds
    monkeypatch.setattr(batching, "_GREEDY_LEAST_STATES", 800)
    exact = batching.greedy_batch_response(LAW, rate, batch_count).response_seconds
    assert found == pytest.approx(exact, rel=0.01)
