"""The requests of a decode pool, from what its own counters show."""

from dataclasses import replace

import pytest

from servingslo.models.decode_workload import decode_workload
from servingslo.models.workload import LengthDistribution, Workload

WORKLOAD = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution(tokens=(200.0, 1000.0, 3000.0), weights=(0.4, 0.4, 0.2)),
    output=LengthDistribution(tokens=(50.0, 200.0, 500.0), weights=(0.3, 0.5, 0.2)),
)


@pytest.mark.parametrize("through", [0.7, 0.2])
def test_direct_requests_compute_what_was_computed_beyond_one_token_each(through):
    """Prompts that come directly have their whole length, the others one token."""
    computed = through + (1.0 - through) * WORKLOAD.prompt.mean_tokens
    share = 1.0 - computed / WORKLOAD.prompt.mean_tokens
    load = decode_workload(replace(WORKLOAD, cached_ratio=share), through)
    assert load.uncached.tokens == pytest.approx((1.0, 200.0, 1000.0, 3000.0))
    assert load.uncached.weights[0] == pytest.approx(through)
    assert load.held_tokens_per_sequence == WORKLOAD.held_tokens_per_sequence


@pytest.mark.parametrize("through", [1.0, 0.5])
def test_a_decode_pool_may_compute_less_than_a_token_of_each_request(through):
    """Counters that disagree with the share leave direct requests their one token."""
    load = decode_workload(replace(WORKLOAD, cached_ratio=1.0), through)
    assert load.uncached.tokens == (1.0,)
