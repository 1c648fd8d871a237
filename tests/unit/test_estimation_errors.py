"""Short windows are put together until a forecast can be scored by them."""

import pytest

from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.realized_errors import with_window


def window(rate_per_second, seconds, **more):
    """A window of arrivals."""
    return RateWindow(rate_per_second=rate_per_second, seconds=seconds, **more)


@pytest.mark.parametrize("gap_seconds", [14.2, 15.0, 30.0])
def test_windows_of_15_seconds_stand_alone(gap_seconds):
    """They are what judges were made for, also where ticks jitter or one was missed."""
    joined, ended = with_window(None, window(7.0, 15.0), gap_seconds)
    assert ended
    assert joined == window(7.0, 15.0)


def test_three_windows_of_5_seconds_are_one():
    """Their mean rate, with the noise of as long a window and the newest dispersion."""
    joined, ended = with_window(None, window(4.0, 5.0, error_ratio=0.02), 5.0)
    assert not ended
    joined, ended = with_window(joined, window(6.0, 5.0, error_ratio=0.08), 5.0)
    assert not ended
    joined, ended = with_window(joined, window(11.0, 5.0, dispersion=2.0, error_ratio=0.02), 5.0)
    assert ended
    assert joined.rate_per_second == pytest.approx(7.0)
    assert joined.seconds == pytest.approx(15.0)
    assert joined.dispersion == 2.0
    assert joined.error_ratio == pytest.approx(0.04)


def test_longer_windows_count_for_more():
    """Ticks of 5 s on scrapes of 2 s give windows of 4 and 6 s."""
    joined, _ = with_window(None, window(3.0, 4.0), 4.0)
    joined, _ = with_window(joined, window(8.0, 6.0), 6.0)
    assert joined.rate_per_second == pytest.approx(6.0)


def test_windows_that_overlap_count_for_the_time_that_has_passed():
    """Engines scraped every 15 s at different moments, and a tick every 5 s."""
    joined, ended = with_window(None, window(6.0, 15.0), 5.0)
    assert not ended
    joined, ended = with_window(joined, window(9.0, 15.0), 5.0)
    assert not ended
    joined, ended = with_window(joined, window(12.0, 15.0), 5.0)
    assert ended
    assert joined.rate_per_second == pytest.approx(9.0)
    assert joined.seconds == pytest.approx(15.0)


def test_what_was_begun_before_a_hole_is_left_out():
    """What came before it says nothing of the rate now."""
    joined, ended = with_window(window(50.0, 10.0), window(6.0, 5.0), 20.0)
    assert not ended
    assert joined == window(6.0, 5.0)
