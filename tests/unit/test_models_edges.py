"""Models at the ends of their ranges: an error that names the field, or the limit itself."""

import pytest
from tests.textbook import batching
from tests.textbook.batching import BatchLaw

from servingslo.errors import InvalidInputError

LAW = BatchLaw(fixed_seconds=0.05, per_request_seconds=0.0005)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: batching.batch_response(LAW, 0.0, 8), "arrival_rate_per_second"),
        (lambda: batching.greedy_batch_response(LAW, 0.0, 8), "arrival_rate_per_second"),
        (lambda: batching.adaptive_window_seconds(1.0, 8.0, 0.0, 1.0), "arrival_rate_per_second"),
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
