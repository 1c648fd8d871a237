"""Properties of the demand bound and of what is remembered of a queue.

1. The least count never falls as work grows, and never rises as a deadline moves away.
2. At the least count no more is late than allowed; at one fewer more is.
3. More live demand never lowers the least count.
4. What is late is at most all of the work, and at least what is late already.
5. What is remembered adds up to the length of the queue, oldest first, in a bounded list.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.features.backlog.deadlines import (
    MOST_COHORTS,
    BacklogReading,
    Cohort,
    Deadline,
    Work,
    remember,
    work_of,
)
from servingslo.features.backlog.demand_bound import (
    Outlook,
    late_requests,
    least_count,
    least_late_count,
    served_by,
    times_ahead,
)

MOST, LEAD, EACH = 50, 120.0, 2.0
WORK = st.lists(
    st.builds(
        Work,
        due_seconds=st.floats(60.0, 7 * 86400.0),
        requests=st.floats(0.01, 1e6),
        late=st.booleans(),
    ),
    min_size=1,
    max_size=8,
).map(tuple)
LIVE, SERVING = st.floats(0.0, 80.0), st.integers(1, MOST)


def outlook(work, live):
    """A constant live demand until the last deadline."""
    times = times_ahead(work, LEAD)
    return Outlook(times_seconds=times, live_per_second=(live,) * len(times), lead_seconds=LEAD)


def least(work, live=10.0, serving=6, allowed=0.0):
    """The least count at which each replica carries so much; one more than MOST for none."""
    found = least_count(
        work,
        outlook(work, live),
        allowed=allowed,
        carried=lambda count: EACH * count,
        serving=serving,
        most=MOST,
    )
    return MOST + 1 if found is None else found


@given(WORK, LIVE, SERVING, st.floats(1.0, 10.0))
def test_more_work_never_needs_fewer(work, live, serving, ratio):
    """Nor does one more piece of it."""
    more = tuple(replace(one, requests=one.requests * ratio) for one in work)
    assert least(more, live, serving) >= least(work, live, serving)
    assert least((*work, work[0]), live, serving) >= least(work, live, serving)


@given(WORK, LIVE, SERVING, st.floats(0.0, 86400.0))
def test_later_deadlines_never_need_more(work, live, serving, later):
    """All of them moved by the same time, so that their order stays."""
    moved = tuple(replace(one, due_seconds=one.due_seconds + later) for one in work)
    assert least(moved, live, serving) <= least(work, live, serving)


@given(WORK, LIVE, SERVING, st.floats(0.0, 20.0))
def test_more_live_demand_never_needs_fewer(work, live, serving, more):
    """It has its replicas first."""
    assert least(work, live + more, serving) >= least(work, live, serving)


@given(WORK, LIVE, SERVING, st.floats(0.0, 1e5))
def test_the_least_count_is_enough_and_one_fewer_is_not(work, live, serving, allowed):
    """By what it serves until each deadline."""
    count = least(work, live, serving, allowed)
    ahead = outlook(work, live)
    again = tuple(replace(one, late=False) for one in work)
    now = EACH * serving

    def late(n):
        return late_requests(again, ahead, served_by(ahead, now, EACH * n))

    if count <= MOST:
        assert late(count) <= allowed
    if 1 < count <= MOST + 1:
        assert late(count - 1) > allowed


@given(WORK, LIVE, SERVING, st.integers(0, MOST))
def test_what_is_late_is_bounded(work, live, serving, count):
    """Between what is late already and all of it."""
    ahead = outlook(work, live)
    late = late_requests(work, ahead, served_by(ahead, EACH * serving, EACH * count))
    whole = sum(one.requests for one in sorted(work, key=lambda one: one.due_seconds))
    already = sum(one.requests for one in work if one.late)
    assert min(already, whole) <= late * (1 + 1e-9)
    assert late <= whole * (1 + 1e-9)


@given(
    st.lists(
        st.tuples(st.floats(1.0, 4000.0), st.floats(0.0, 1e6), st.floats(0.0, 1e5)), max_size=150
    )
)
def test_what_is_remembered_is_the_queue(readings):
    """Whatever was sent and came in between."""
    memory, now = None, 0.0
    for seconds, left, sent in readings:
        now += seconds
        reading = BacklogReading(time_seconds=now, left=left)
        memory = remember(memory, reading, sent, 3600.0)
        assert sum(one.left for one in memory.cohorts) == pytest.approx(left, rel=1e-6, abs=1e-3)
        assert len(memory.cohorts) <= MOST_COHORTS
        arrived = [one.arrived_seconds for one in memory.cohorts]
        assert arrived == sorted(arrived)


def test_the_oldest_work_is_sent_first():
    """Of 100 and then 60 more, 120 were sent: 40 of the newer are left."""
    first = remember(None, BacklogReading(time_seconds=0.0, left=100.0), 0.0, 3600.0)
    second = remember(first, BacklogReading(time_seconds=600.0, left=160.0), 0.0, 3600.0)
    third = remember(second, BacklogReading(time_seconds=615.0, left=40.0), 120.0, 3600.0)
    assert [(one.arrived_seconds, one.left) for one in second.cohorts] == [
        (0.0, 100.0),
        (600.0, 60.0),
    ]
    assert [(one.arrived_seconds, one.left) for one in third.cohorts] == [(600.0, 40.0)]


def test_a_passed_deadline_is_late_and_due_soon():
    """In four minutes, however long ago it passed."""
    memory = remember(None, BacklogReading(time_seconds=0.0, left=10.0), 0.0, 28800.0)
    deadline = Deadline(within_seconds=28800.0)
    assert work_of(memory.cohorts, deadline, 1.0, 3600.0, 240.0) == (
        Work(due_seconds=25200.0, requests=10.0),
    )
    for now in (30000.0, 90000.0):
        assert work_of(memory.cohorts, deadline, 0.5, now, 240.0) == (
            Work(due_seconds=240.0, requests=5.0, late=True),
        )


@pytest.mark.parametrize(
    ("arrived", "hours"),
    [
        # 2026-03-28T12:00Z is 13:00 in Berlin; at 03:00 UTC+2 of the 29th summer time has begun.
        pytest.param(1774699200.0, 16.0, id="over-the-spring-change"),
        pytest.param(1774785600.0, 16.0, id="the-day-after"),
        # 2026-10-24T12:00Z is 14:00 in Berlin; an hour comes twice that night.
        pytest.param(1792843200.0, 17.0, id="over-the-autumn-change"),
    ],
)
def test_a_time_of_day_follows_its_zone(arrived, hours):
    """Six in the morning of Berlin, over changes of its clock."""
    deadline = Deadline(hour=6, zone="Europe/Berlin")
    assert deadline.due_seconds(arrived) - arrived == pytest.approx(hours * 3600.0)


def test_a_time_of_day_that_is_now_is_that_of_tomorrow():
    """Work that arrives at the deadline has a day."""
    deadline = Deadline(hour=6, zone="UTC")
    assert deadline.due_seconds(6 * 3600.0) == 30 * 3600.0
    assert Deadline(within_seconds=60.0, hour=6, zone="UTC").due_seconds(0.0) == 60.0


def test_noise_of_what_was_sent_does_not_make_old_work_young():
    """A tenth too much is known to be sent, then a tenth too little, for an hour."""
    memory, left = remember(None, BacklogReading(time_seconds=0.0, left=30_000.0), 0.0, 7200.0), 3e4
    for tick in range(1, 241):
        left -= 100.0
        sent = 110.0 if tick % 2 else 90.0
        reading = BacklogReading(time_seconds=15.0 * tick, left=left)
        memory = remember(memory, reading, sent, 7200.0)
    assert sum(one.left for one in memory.cohorts if one.arrived_seconds > 0.0) <= 20.0


def test_noise_of_the_length_does_not_make_old_work_young():
    """Two exporters in turn, one of them behind, and nothing is sent."""
    memory = None
    for tick in range(240):
        reading = BacklogReading(time_seconds=15.0 * tick, left=1000.0 - 20.0 * (tick % 2))
        memory = remember(memory, reading, 0.0, 7200.0)
    assert [one.arrived_seconds for one in memory.cohorts] == [0.0]


def quiet_memory(readings, length=1000.0):
    """After readings of (seconds since the last one, what might have been sent per second)."""
    now, memory = 0.0, remember(None, BacklogReading(time_seconds=0.0, left=length), 0.0, 7200.0)
    for seconds, rate in readings:
        now += seconds
        memory = remember(memory, BacklogReading(time_seconds=now, left=length), 0.0, 7200.0, rate)
    return memory


@pytest.mark.parametrize(
    ("readings", "silent"),
    [
        pytest.param([(15.0, 5.0)] * 20, True, id="five-minutes-of-a-rate"),
        pytest.param([(15.0, 5.0)] * 19, False, id="less"),
        pytest.param([(15.0, 0.0)] * 100, False, id="nothing-might-have-been-sent"),
        pytest.param([(15.0, 0.0)] * 100 + [(15.0, 5.0)] * 2, False, id="a-rate-since-just-now"),
        pytest.param([(15.0, 5.0)] * 2 + [(600.0, 5.0)], False, id="readings-were-missing"),
        pytest.param([(15.0, 0.01)] * 40, False, id="fewer-than-ten-requests"),
    ],
)
def test_a_dispatcher_is_away_only_if_it_might_have_sent(readings, silent):
    """For five minutes that are known, and ten requests."""
    assert quiet_memory(readings).is_silent(1.0) is silent


def test_work_that_is_late_is_due_before_what_waits_behind_it():
    """It is sent first: the newer work waits for it."""
    cohorts = (Cohort(arrived_seconds=0.0, left=100.0), Cohort(arrived_seconds=600.0, left=50.0))
    assert work_of(cohorts, Deadline(within_seconds=3600.0), 1.0, 3900.0, 900.0) == (
        Work(due_seconds=300.0, requests=100.0, late=True),
        Work(due_seconds=300.0, requests=50.0),
    )


@given(WORK, LIVE, SERVING)
def test_no_replica_is_ordered_that_makes_no_work_less_late(work, live, serving):
    """At the least of these counts no more is late than at all of them; at one fewer more is."""
    again, ahead = tuple(replace(one, late=False) for one in work), outlook(work, live)

    def late(n):
        return late_requests(again, ahead, served_by(ahead, EACH * serving, EACH * n))

    def carried(n):
        return EACH * n

    count = least_late_count(work, ahead, carried=carried, serving=serving, most=MOST)
    assert late(count) <= late(MOST)
    assert count == 1 or late(count - 1) > late(MOST)
