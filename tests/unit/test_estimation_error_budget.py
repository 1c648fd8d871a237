"""Misses of any objective as an interval, from histograms of single objectives."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.estimation.requests.misses import Misses, Within, misses, over, within_threshold

EDGES = ((0.25, 60.0), (0.5, 80.0), (1.0, 95.0), (math.inf, 100.0))


@pytest.mark.parametrize(
    ("threshold", "least", "most"),
    [
        pytest.param(0.5, 80.0, 80.0, id="on-an-edge"),
        pytest.param(0.7, 80.0, 95.0, id="between-edges"),
        pytest.param(0.1, 0.0, 60.0, id="below-the-first"),
        pytest.param(5.0, 95.0, 100.0, id="in-the-open-bucket"),
    ],
)
def test_a_threshold_between_edges_is_an_interval(threshold, least, most):
    """Only an edge says exactly how many were within it."""
    found = within_threshold(EDGES, threshold)
    assert (found.requests, found.least, found.most) == (100.0, least, most)


def test_edges_of_several_pods_that_differ_keep_the_order():
    """Where a rollout changed the edges, sums are not monotone; the ends still are."""
    mixed = ((0.5, 80.0), (0.6, 10.0), (1.0, 90.0), (math.inf, 100.0))
    found = within_threshold(mixed, 0.6)
    assert 0 <= found.least <= found.most <= found.requests


@given(
    requests=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=200
    ),
    refused=st.integers(0, 50),
)
def test_what_really_missed_lies_within_the_interval(requests, refused):
    """Requests that meet or miss each of three objectives, in any combination."""
    columns = list(zip(*requests, strict=True))
    each = [
        Within(requests=float(len(column)), least=float(sum(column)), most=float(sum(column)))
        for column in columns
    ]
    found = misses(each, float(refused))
    truth = sum(not all(one) for one in requests) + refused
    assert found.least <= truth <= found.most
    assert found.requests == len(requests) + refused
    assert found.most <= found.requests


def test_windows_add_up():
    """A window is the sum of its parts; none is a window of nothing."""
    parts = [Misses(requests=10.0, least=1.0, most=2.0)] * 3
    total = over(3600.0, parts)
    assert (total.requests, total.least, total.most) == (30.0, 3.0, 6.0)
    assert over(300.0, ()).requests == 0.0
