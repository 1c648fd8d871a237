"""What a reading's own clock says of how old the reading is, in virtual seconds."""

import math

import pytest

from servingslo.adapters.prometheus.reading.server_clock import AGREEING_READINGS, ServerClock
from servingslo.errors import ImplausibleMetricsError

AHEAD = 1_000_000.0


def _asked(
    clock: ServerClock, at: float, *, way: float = 0.0, back: float = 0.0, off: float = 0.0
) -> float:
    """The difference of the clocks after a request at a time, long on its way there or back."""
    return clock.ahead_seconds(at, at + way + back, AHEAD + off + at + way)


def test_a_late_answer_is_as_old_as_its_request() -> None:
    """The first answer lay for two minutes: the server's clock is no further than when asked."""
    assert _asked(ServerClock(), 0.0, back=120.0) == AHEAD
    assert _asked(ServerClock(), 0.0, way=120.0) == AHEAD + 120.0


@pytest.mark.parametrize(("way", "back"), [(4.5, 0.0), (0.0, 4.5)])
def test_a_slow_query_does_not_move_the_moment_of_a_scrape(way: float, back: float) -> None:
    """Readings before know the clock to milliseconds, wherever this one lost its time."""
    clock = ServerClock()
    _asked(clock, 0.0, way=0.002, back=0.002)
    assert _asked(clock, 15.0, way=way, back=back) == pytest.approx(AHEAD, abs=0.02)


@pytest.mark.parametrize(("off", "said"), [(-20.0, "20.0 s behind"), (20.0, "20.0 s ahead")])
def test_a_clock_elsewhere_is_refused_with_how_far(off: float, said: str) -> None:
    """What was cached, or came from another server, has no ages that can be believed."""
    clock = ServerClock()
    _asked(clock, 0.0)
    with pytest.raises(ImplausibleMetricsError, match=said):
        _asked(clock, 15.0, off=off)
    assert _asked(clock, 30.0) == pytest.approx(AHEAD, abs=0.05)


def test_two_servers_in_turns_are_read_as_one_of_them() -> None:
    """Behind one balancer, 20 s apart: every other reading is refused, the others go on."""
    clock = ServerClock()
    read = 0
    for number in range(40):
        try:
            ahead = _asked(clock, 15.0 * number, off=-20.0 * (number % 2))
        except ImplausibleMetricsError:
            continue
        read += 1
        assert ahead == pytest.approx(AHEAD, abs=0.05)
    assert read == 20


def test_a_clock_that_was_set_is_believed_after_it_said_so_often_enough() -> None:
    """A clock that stays where it went is the clock; a small step is no matter."""
    clock = ServerClock()
    _asked(clock, 0.0)
    assert _asked(clock, 15.0, off=0.3) == pytest.approx(AHEAD + 0.3)
    for number in range(1, AGREEING_READINGS):
        with pytest.raises(ImplausibleMetricsError):
            _asked(clock, 15.0 + 15.0 * number, off=-3600.0)
    assert _asked(clock, 100.0, off=-3600.0) == pytest.approx(AHEAD - 3600.0, abs=0.05)


def test_samples_of_the_clock_before_a_step_are_not_sure() -> None:
    """Until the later of them is past, by the old clock at the first reading that told the step."""
    clock = ServerClock()
    _asked(clock, 0.0)
    assert clock.sure_after_seconds == -math.inf
    for at in (15.0, 30.0):
        with pytest.raises(ImplausibleMetricsError):
            _asked(clock, at, off=-45.0)
    assert clock.sure_after_seconds == -math.inf
    _asked(clock, 45.0, off=-45.0)
    assert clock.sure_after_seconds == pytest.approx(AHEAD + 15.0, abs=0.05)


def test_another_server_in_between_is_not_the_moment_of_a_step() -> None:
    """The clock was right when the other one was heard."""
    clock = ServerClock()
    _asked(clock, 0.0)
    for at, off in ((15.0, -20.0), (30.0, 45.0), (45.0, 45.0)):
        with pytest.raises(ImplausibleMetricsError):
            _asked(clock, at, off=off)
    _asked(clock, 60.0, off=45.0)
    assert clock.sure_after_seconds == pytest.approx(AHEAD + 30.0, abs=0.05)


@pytest.mark.parametrize(("jump", "times"), [(0.3, 0), (60.0, 1), (-60.0, 1), (3600.0, 1)])
def test_a_wall_clock_of_ours_that_is_set_is_noticed(jump: float, times: int) -> None:
    """What is remembered by it is not to be set against what comes after."""
    clock = ServerClock()
    for number in range(6):
        clock.compare_own(1e9 + 15.0 * number + (jump if number >= 3 else 0.0), 15.0 * number)
    assert clock.times_set == times
