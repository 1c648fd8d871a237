"""Bounds at a moment: overlaps, contradictions, the lead; and what every schedule keeps.

1. Without a window in force or within the lead the usual bounds hold.
2. The minimum is never above the maximum.
3. What holds follows from the moment alone.
4. A longer lead never lowers a minimum.
"""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policy_world import TARGETS

from servingslo.features.schedule.bounds import SCHEDULE, Schedule, around, bounds_at
from servingslo.features.schedule.windows import Window, in_force
from servingslo.policy.inputs import ReplicaTargets
from servingslo.policy.replicas.bounds_in_force import (
    Moment,
    greatest_maximum,
    with_bounds_in_force,
)

USUAL = ReplicaTargets(minimum=2, maximum=10)
DAY = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
HOUR, LEAD = 3600.0, 300.0


def window(hour: int, hours: float, *, least: int | None = None, most: int | None = None) -> Window:
    """A window of every day from this hour on."""
    return Window(
        cron=f"0 {hour} * * *", zone="UTC", duration_seconds=hours * HOUR, minimum=least,
        maximum=most,
    )  # fmt: skip


def held(
    hour: float, *windows: Window, lead: float = LEAD, usual: ReplicaTargets = USUAL
) -> tuple[int, int | None]:
    """The bounds at this hour of the day."""
    moment = Moment(now_seconds=DAY + hour * HOUR, lead_seconds=lead)
    found = bounds_at(Schedule(windows=windows), usual, moment)
    return found.minimum, found.maximum


@pytest.mark.parametrize(
    ("hour", "bounds"),
    [
        pytest.param(7.0, (2, 10), id="the-usual-ones-before"),
        pytest.param(7.91, (2, 10), id="not-before-the-lead"),
        pytest.param(7.92, (20, 20), id="one-lead-ahead-the-usual-max-gives-way"),
        pytest.param(8.0, (20, 30), id="inside"),
        pytest.param(16.99, (20, 30), id="to-the-end"),
        pytest.param(17.0, (2, 10), id="the-usual-ones-after"),
    ],
)
def test_a_window_holds_from_a_lead_before_it_to_its_end(
    hour: float, bounds: tuple[int, int]
) -> None:
    """Its min may exceed the usual max, and is ordered so that it is ready when it begins."""
    assert held(hour, window(8, 9.0, least=20, most=30)) == bounds


def test_bounds_of_a_window_may_be_lower_than_the_usual_ones() -> None:
    """At night one replica is enough; the usual min is ordered a lead before it returns."""
    night = window(22, 8.0, least=1)
    assert held(23.0, night) == (1, 10)
    assert held(5.91, night) == (1, 10)
    assert held(5.92, night) == (2, 10)


def test_the_usual_min_is_ordered_a_lead_before_the_last_of_short_windows_ends() -> None:
    """A window that begins and ends within the lead keeps nothing from being ready after it."""
    night, shift = window(22, 8.0, least=1), window(6, 0.05, least=1)
    assert held(5.96, night, shift) == (1, 10)
    assert held(5.97, night, shift) == (2, 10)


def test_a_max_of_a_window_holds_to_its_end() -> None:
    """What comes after waits for it: somebody else may have the GPUs until then."""
    night, day = window(22, 8.0, least=1, most=3), window(6, 4.0, least=8)
    assert held(5.95, night, day) == (3, 3)
    assert held(6.0, night, day) == (8, 10)


def test_of_overlapping_windows_the_greatest_min_and_the_least_max_hold() -> None:
    """In whatever order they are listed."""
    windows = (window(8, 8.0, least=4, most=9), window(10, 2.0, least=6, most=12))
    assert held(11.0, *windows) == held(11.0, *windows[::-1]) == (6, 9)
    assert held(13.0, *windows) == (4, 9)


def test_the_max_holds_if_windows_contradict_and_the_cut_min_is_known() -> None:
    """No min of one is kept against the max of the other."""
    windows = (window(8, 8.0, least=8), window(10, 2.0, most=5))
    assert held(11.0, *windows) == (5, 5)
    moment = Moment(now_seconds=DAY + 11.0 * HOUR, lead_seconds=LEAD)
    assert bounds_at(Schedule(windows=windows), USUAL, moment).lowered_from == 8
    assert bounds_at(Schedule(windows=windows[1:]), USUAL, moment).lowered_from is None
    high = replace(USUAL, minimum=6)
    assert bounds_at(Schedule(windows=windows[1:]), high, moment).lowered_from == 6
    assert held(13.0, *windows) == (8, 10)


def test_a_min_is_ordered_ahead_only_up_to_the_max_that_begins_with_it() -> None:
    """What is cut at the beginning is not started for it."""
    windows = (window(8, 8.0, least=8), window(8, 2.0, most=5))
    assert held(7.95, *windows) == (5, 10)
    assert held(8.0, *windows) == (5, 5)
    assert held(9.95, *windows) == (5, 5)
    assert held(10.0, *windows) == (8, 10)


def test_a_backtest_has_room_for_the_greatest_max_of_any_time() -> None:
    """The bound of its fleet is no bound of one window."""
    windows = (window(8, 8.0, least=4, most=20), window(22, 8.0, most=3))
    targets = replace(TARGETS, features={SCHEDULE.name: Schedule(windows=windows)})
    assert greatest_maximum(targets) == 20
    assert greatest_maximum(replace(targets, replicas=ReplicaTargets())) is None
    assert greatest_maximum(TARGETS) == TARGETS.replicas.maximum


def test_a_target_may_be_at_zero_at_some_times_only() -> None:
    """At zero before a window it is asleep, and not switched off by a user; else also."""
    sleepy = replace(USUAL, minimum=0, idle_seconds=600.0)
    office = Schedule(windows=(window(8, 9.0, least=2),))
    found = bounds_at(office, sleepy, Moment(now_seconds=DAY + 9.0 * HOUR, lead_seconds=LEAD))
    assert (found.minimum, found.may_sleep) == (2, True)


COUNTS = st.integers(1, 30)
WINDOWS = st.builds(
    lambda hour, hours, pair, kept: window(
        hour,
        hours,
        least=min(pair) if kept != "max" else None,
        most=max(pair) if kept != "min" else None,
    ),
    st.integers(0, 23),
    st.floats(0.05, 30.0),
    st.tuples(COUNTS, COUNTS),
    st.sampled_from(("min", "max", "both")),
)


@given(
    windows=st.lists(WINDOWS, min_size=1, max_size=5),
    hour=st.floats(0.0, 48.0),
    leads=st.tuples(st.floats(0.0, 7200.0), st.floats(0.0, 7200.0)),
    usual=st.tuples(COUNTS, COUNTS),
)
def test_what_every_schedule_keeps(
    windows: list[Window], hour: float, leads: tuple[float, float], usual: tuple[int, int]
) -> None:
    """The four promises of this module."""
    stated = ReplicaTargets(minimum=min(usual), maximum=max(usual))
    schedule, now_seconds = Schedule(windows=tuple(windows)), DAY + hour * HOUR
    moments = [Moment(now_seconds=now_seconds, lead_seconds=lead) for lead in sorted(leads)]
    short, long = (bounds_at(schedule, stated, moment) for moment in moments)
    assert bounds_at(schedule, stated, moments[0]) == short
    for found in (short, long):
        assert found.maximum is not None
        assert found.minimum <= found.maximum
    assert short.minimum <= long.minimum
    first = around(schedule, moments[0])
    if not in_force(schedule.windows, now_seconds) and not first.ordered:
        assert (short.minimum, short.maximum) == (stated.minimum, stated.maximum)


def test_bounds_of_another_moment_start_from_the_usual_ones() -> None:
    """Targets in a window, asked for a moment after it: the usual bounds are back."""
    schedule = Schedule(windows=(window(8, 2.0, least=1, most=1),))
    stated = replace(TARGETS, replicas=USUAL, features={SCHEDULE.name: schedule})
    inside = with_bounds_in_force(stated, LEAD, DAY + 9 * HOUR)
    assert (inside.replicas.minimum, inside.replicas.maximum) == (1, 1)
    after = with_bounds_in_force(inside, LEAD, DAY + 10 * HOUR).replicas
    assert (after.minimum, after.maximum) == (USUAL.minimum, USUAL.maximum)
