"""Requests in flight that grow by more than chance, and to what they grow."""

from dataclasses import replace

import pytest

from servingslo.estimation.requests.in_flight import LARGEST_GROWTH_RATIO, growth_of
from servingslo.estimation.windows.counters import Window


def _window(before: float, after: float, ended: float, *, waiting: float = 0.0) -> Window:
    return Window(
        pod="a",
        engine="0",
        seconds=15.0,
        running_before=before,
        running_after=after,
        waiting_before=0.0,
        waiting_after=waiting,
        finished=ended,
    )


def test_traffic_that_begins_grows_until_as_many_end_as_arrive():
    """Of 73 that arrived 21 have ended: 26 were in flight on average, and 92 will be."""
    growth = growth_of([_window(0.0, 26.0, 10.0), _window(0.0, 26.0, 11.0)], engines=2)
    assert growth is not None
    assert growth.arrived == 73.0
    assert growth.sure
    assert growth.ratio == pytest.approx(26.0 * 73.0 / 21.0 / 52.0)


def test_requests_that_wait_are_in_flight():
    """A queue behind full engines grows as well."""
    full = [_window(64.0, 64.0, 30.0, waiting=40.0)]
    growth = growth_of(full, engines=1)
    assert growth is not None
    assert growth.sure
    assert growth.ratio > 1.0


@pytest.mark.parametrize(
    ("before", "after", "ended"),
    [(0.0, 4.0, 0.0), (0.0, 1.0, 0.0), (50.0, 70.0, 60.0), (60.0, 50.0, 80.0), (0.0, 0.0, 0.0)],
)
def test_chance_is_no_growth(before: float, after: float, ended: float):
    """Few requests, one that waits, a window with more arrivals than ends, and silence."""
    growth = growth_of([_window(before, after, ended)], engines=1)
    assert growth is not None
    assert not growth.sure
    assert growth.ratio == 1.0


def test_a_burst_that_has_just_arrived_is_at_most_doubled():
    """None of sixty has ended yet: nothing is known of how long they take."""
    growth = growth_of([_window(0.0, 60.0, 0.0)], engines=1)
    assert growth is not None
    assert growth.ratio == LARGEST_GROWTH_RATIO


def test_part_of_the_engines_shows_no_growth_of_all():
    """Requests that went to other engines look like growth there; a restart loses counts."""
    window = _window(0.0, 60.0, 0.0)
    assert growth_of([window], engines=2) is None
    assert growth_of([], engines=0) is None
    assert growth_of([replace(window, restarted=True)], engines=1) is None
    assert growth_of([replace(window, finished=None)], engines=1) is None
    assert growth_of([replace(window, running_after=None)], engines=1) is None
