"""Misses of any objective as an interval, from histograms of single objectives."""

import math

import pytest

from servingslo.estimation.requests.misses import Misses
from servingslo.features.error_budget.report import (
    budget_left_ratio,
    burn_rate,
    of_classes,
    over,
    within_threshold,
)

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


def test_windows_add_up():
    """A window is the sum of its parts; none is a window of nothing."""
    parts = [Misses(requests=10.0, least=1.0, most=2.0)] * 3
    total = over(3600.0, parts)
    assert (total.requests, total.least, total.most) == (30.0, 3.0, 6.0)
    assert over(300.0, ()).requests == 0.0


def test_each_class_has_an_error_budget_of_its_own():
    """Engines do not tell classes apart: what they missed is shared, refusals are the class's."""
    served = Misses(requests=100.0, least=10.0, most=20.0)
    told = of_classes(served, {"chat": (60.0, 0.0), "job": (80.0, 40.0)}, {"chat"})
    assert (told.requests, told.least, told.most) == (60.0, 6.0, 12.0)
    job = told.classes["job"]
    assert (job.requests, job.least, job.most) == (80.0, 44.0, 48.0)
    window = over(60.0, (told, told))
    assert (window.requests, window.classes["job"].most) == (120.0, 96.0)
    assert of_classes(served, {}, set()) == served


def test_what_is_left_of_a_budget_and_how_fast_it_burns():
    """99.5 % of 2,000,000 in 28 days: 2,500 misses leave three quarters."""
    left = budget_left_ratio(2_500, 2_000_000, 0.995)
    assert left == pytest.approx(0.75)
    assert burn_rate(0.06, 0.995) == pytest.approx(12.0)
    assert budget_left_ratio(0, 0, 0.995) == 1.0
    assert budget_left_ratio(20_000, 2_000_000, 0.995) == pytest.approx(-1.0)
