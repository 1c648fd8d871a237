"""The loop's clock never goes back, and nears a wall clock that was set."""

from dataclasses import dataclass

import pytest

from servingslo.adapters.clock import SLEW_RATIO, SteadyClock


@dataclass
class _Hands:
    """A wall clock that can be set, and a stopwatch."""

    wall: float = 1_700_000_000.0
    elapsed: float = 50.0

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds

    def clock(self) -> SteadyClock:
        return SteadyClock(wall=lambda: self.wall, monotonic=lambda: self.elapsed)


def test_it_tells_what_the_wall_clock_tells() -> None:
    """As long as nobody sets that."""
    hands = _Hands()
    clock = hands.clock()
    for _ in range(100):
        hands.wait(15.0)
        assert clock.now_seconds() == pytest.approx(hands.wall, abs=1e-6)


@pytest.mark.parametrize("back_seconds", [0.5, 60.0, 3600.0])
def test_it_goes_on_where_the_wall_clock_is_set_back(back_seconds: float) -> None:
    """By nearly the time that passes, and is right again in the end."""
    hands = _Hands()
    clock = hands.clock()
    told = clock.now_seconds()
    hands.wall -= back_seconds
    for _ in range(int(back_seconds / (SLEW_RATIO * 15.0)) + 2):
        hands.wait(15.0)
        before, told = told, clock.now_seconds()
        assert 15.0 * (1.0 - SLEW_RATIO) - 1e-3 <= told - before <= 15.001
    assert told == pytest.approx(hands.wall, abs=1e-3)


def test_a_machine_that_slept_is_late_at_once() -> None:
    """The stopwatch stood still, the wall clock did not."""
    hands = _Hands()
    clock = hands.clock()
    hands.wall += 8 * 3600.0
    assert clock.now_seconds() == pytest.approx(hands.wall)
