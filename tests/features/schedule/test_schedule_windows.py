"""When windows begin: cron in local time, daylight saving both ways, against every minute."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from servingslo.features.schedule import windows
from servingslo.features.schedule.windows import Window, coming, in_force, last_begun, next_begun

BERLIN = ZoneInfo("Europe/Berlin")
# Of 2026 in Berlin: 02:00 becomes 03:00 on 29 March, 03:00 becomes 02:00 on 25 October.
SPRING, AUTUMN = datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)
HOUR = 3600.0


def window(cron: str, hours: float = 1.0, zone: ZoneInfo = BERLIN) -> Window:
    """A window that states nothing."""
    return Window(cron=cron, zone=zone.key, duration_seconds=hours * HOUR)


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    """Seconds since the epoch at a local time."""
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def begins(cron: str, since: datetime, hours: int = 24) -> list[str]:
    """When windows of Berlin begin after this time, in UTC."""
    one, found, seconds = window(cron), [], since.timestamp() - 1.0
    until = since.timestamp() + hours * HOUR
    while (after := next_begun(one, seconds)) is not None and after.begins_seconds < until:
        seconds = after.begins_seconds
        found.append(datetime.fromtimestamp(seconds, UTC).strftime("%dT%H:%M"))
    return found


def test_a_skipped_local_time_begins_with_the_first_minute_after_the_gap() -> None:
    """02:30 does not exist on that night: the window begins at 03:00 summer time."""
    assert begins("30 2 * * *", SPRING) == ["29T01:00"]
    assert begins("0 8 * * *", SPRING - timedelta(days=1), 48) == ["28T07:00", "29T06:00"]


def test_a_local_time_that_comes_twice_begins_once() -> None:
    """02:30 comes at 00:30 and 01:30 UTC: the first one counts, also when seen from the second."""
    assert begins("30 2 * * *", AUTUMN) == ["25T00:30"]
    one = window("30 2 * * *")
    second = at("2026-10-25T02:10", fold=1)
    found = last_begun(one, second)
    assert found is not None
    assert found.begins_seconds == at("2026-10-25T02:30")
    later = next_begun(one, second)
    assert later is not None
    assert later.begins_seconds == at("2026-10-26T02:30")


def test_every_hour_begins_in_both_hours_of_the_same_name() -> None:
    """A wildcard hour is each hour that passes."""
    assert begins("0 * * * *", AUTUMN, 3) == ["25T00:00", "25T01:00", "25T02:00"]


@pytest.mark.parametrize(
    ("night", "local_end"),
    [
        pytest.param("2026-03-28", "2026-03-29T07:00", id="an-hour-later-by-the-clock"),
        pytest.param("2026-10-24", "2026-10-25T05:00", id="an-hour-earlier-by-the-clock"),
    ],
)
def test_a_duration_is_time_that_passes(night: str, local_end: str) -> None:
    """Eight hours from 22:00 are eight hours, on the nights of the change too."""
    found = last_begun(window("0 22 * * *", 8.0), at(f"{night}T23:00"))
    assert found is not None
    assert found.ends_seconds == at(local_end)


def test_a_window_is_in_force_from_its_beginning_to_before_its_end() -> None:
    """Begun at the second, over at the second; between two of them none is."""
    stated = (window("0 8 * * 1-5", 9.0),)
    begin, end = at("2026-03-02T08:00"), at("2026-03-02T17:00")
    assert in_force(stated, begin - 1.0) == ()
    assert [one.ends_seconds for one in in_force(stated, begin)] == [end]
    assert in_force(stated, end - 1.0) != ()
    assert in_force(stated, end) == ()


def test_the_next_of_several_windows_comes_first() -> None:
    """In order of their beginnings, not of the list."""
    found = coming((window("0 12 * * *"), window("0 8 * * *")), at("2026-03-02T07:00"))
    assert [one.begins_seconds for one in found] == [at("2026-03-02T08:00"), at("2026-03-02T12:00")]


def test_a_day_of_the_month_that_seldom_comes_is_found() -> None:
    """The 29th of February, four years apart."""
    found = coming((window("0 0 29 2 *"),), at("2026-03-01T00:00"))
    assert [one.begins_seconds for one in found] == [at("2028-02-29T00:00")]


@pytest.mark.parametrize("cron", ["* * * * *", "0-59 0-23 * * *", "*/5 2 * * *", "0 0 29 2 *"])
def test_the_newest_and_the_next_beginning_are_found_in_a_few_steps(
    cron: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it begins: a tick looks them up many times."""
    steps: list[datetime] = []

    class Counted(CronSim):
        def __next__(self) -> datetime:
            steps.append(super().__next__())
            return steps[-1]

    monkeypatch.setattr(windows, "CronSim", Counted)
    moment = at("2026-07-01T12:00:30")
    last_begun(window(cron), moment)
    next_begun(window(cron), moment)
    assert len(steps) <= 4


ZONES = (BERLIN, ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("UTC"))
# Minutes around the changes of all of them, and ordinary days.
MOMENTS = st.integers(int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()), 1_806_000_000)
CHANGES = st.sampled_from(
    [
        datetime(2026, month, day, tzinfo=UTC).timestamp()
        for month, day in ((3, 8), (3, 29), (4, 4), (10, 3), (10, 25), (11, 1))
    ]
).flatmap(lambda day: st.integers(int(day), int(day) + 2 * 86_400))


def local_starts(cron_minutes: set[int], cron_hours: set[int], zone: ZoneInfo, day: datetime):
    """Real times of the local times of a day: once each, those of a gap at its end."""
    for hour in sorted(cron_hours):
        for minute in sorted(cron_minutes):
            local = day.replace(hour=hour, minute=minute, tzinfo=zone)
            while local != local.astimezone(UTC).astimezone(zone):
                local = (local.replace(tzinfo=None) + timedelta(minutes=1)).replace(tzinfo=zone)
            yield local.timestamp()


@given(
    moment=MOMENTS | CHANGES,
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hours=st.sets(st.integers(0, 23), min_size=1, max_size=4),
    zone=st.sampled_from(ZONES),
)
def test_begun_and_coming_windows_are_those_of_the_calendar(
    moment: int, minutes: set[int], hours: set[int], zone: ZoneInfo
) -> None:
    """The newest start up to a moment and the first one after it, by enumerating local times."""
    cron = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"
    today = datetime.fromtimestamp(moment, zone).replace(tzinfo=None, hour=0, minute=0, second=0)
    days = [today + timedelta(days=n) for n in (-2, -1, 0, 1, 2)]
    starts = sorted(start for day in days for start in local_starts(minutes, hours, zone, day))
    before, after = (
        last_begun(window(cron, zone=zone), moment),
        next_begun(window(cron, zone=zone), moment),
    )
    assert before is not None
    assert after is not None
    assert before.begins_seconds == max(start for start in starts if start <= moment)
    assert after.begins_seconds == min(start for start in starts if start > moment)


# Of half an hour: `cronsim` passes the first `*` after such a change going forward only.
HALF_HOUR = (ZoneInfo("Australia/Lord_Howe"),)


@given(
    moment=CHANGES,
    cron=st.sampled_from(("* * * * *", "*/20 2 * * *", "0 */2 * * *", "30 * * * *", "7 1-3 * * *")),
    zone=st.sampled_from([zone for zone in ZONES if zone not in HALF_HOUR]),
)
def test_begun_and_coming_windows_are_those_of_one_sequence(
    moment: int, cron: str, zone: ZoneInfo
) -> None:
    """Wherever they are looked up from, also inside the hours of a clock change."""
    early = datetime.fromtimestamp(moment - 2 * 86_400, zone)
    found = (start.timestamp() for start in CronSim(cron, early))
    starts = [*itertools.takewhile(lambda start: start < moment + 2 * 86_400, found)]
    before, after = (
        last_begun(window(cron, zone=zone), moment),
        next_begun(window(cron, zone=zone), moment),
    )
    assert before is not None
    assert after is not None
    assert before.begins_seconds == max(start for start in starts if start <= moment)
    assert after.begins_seconds == min(start for start in starts if start > moment)
