"""Rises that nothing foretold, and the rate that they keep coming back to."""

import pytest

from servingslo.estimation.forecast.surges import Surge, noted, recurrence

NO_NOISE = 0.0
LEAD_SECONDS = 90.0


def watched(rates, window_seconds=15.0):
    """The surges of a course of rates whose forecast is the rate of one lead before."""
    lag = int(LEAD_SECONDS / window_seconds)
    surges = ()
    for index, rate in enumerate(rates):
        expected = min(rates[max(index - lag, 0) : index + 1])
        now_seconds = index * window_seconds
        surges = noted(
            surges,
            rate,
            expected,
            NO_NOISE,
            now_seconds,
            expected_since_seconds=now_seconds - LEAD_SECONDS,
        )
    return surges, len(rates) * window_seconds


def bursts_on(levels, factor, every, lasting):
    """Bursts of this factor on a course of levels: each `every` windows, lasting so many."""
    return [
        level * (factor if index % every >= every - lasting else 1.0)
        for index, level in enumerate(levels)
    ]


def test_bursts_on_a_ramp_recur_on_top_of_what_there_is():
    """Demand that has doubled since bursts on top of what it is now: neither old peak is enough."""
    levels = [30.0 + 0.5 * index for index in range(120)]
    surges, now = watched(bursts_on(levels, 1.6, every=20, lasting=5)[:114])
    known = recurrence(surges, levels[113], now)
    assert known is not None
    assert known.count >= 4
    assert known.rate_per_second == pytest.approx(1.6 * levels[113], rel=0.15)


def test_a_burst_is_over_when_it_has_fallen_although_demand_has_grown():
    """On a steep ramp demand never comes back to where the first burst began."""
    surges, _ = watched([30.0] * 10 + [60.0] * 6 + [45.0] * 10 + [80.0] * 6)
    assert [s.peak_per_second for s in surges] == [60.0, 80.0]


def test_a_step_is_one_surprise_as_long_as_it_lasts():
    """What stays where it rose to is no second burst, whatever it does there."""
    surges, now = watched([30.0] * 10 + [60.0] * 40 + [62.0] * 10)
    assert len(surges) == 1
    known = recurrence(surges, 60.0, now)
    assert known is not None
    assert (known.count, known.over_seconds, known.probability) == (1, 0.0, 0.5)


def test_a_crowd_that_wavers_before_it_could_be_expected_is_one_surprise():
    """It falls by a third and rises anew four times; nothing expected by then knew of it."""
    surges, now = watched([5.0] * 18 + [18.0, 12.0, 17.0, 11.0] * 4 + [5.0] * 4, 5.0)
    assert [s.peak_per_second for s in surges] == [18.0]
    assert surges[0].over
    known = recurrence(surges, 5.0, now)
    assert known is not None
    assert known.count == 1
    assert known.rate_per_second == pytest.approx(18.0)


def test_bursts_with_rest_between_them_are_two_however_soon_the_second_comes():
    """Demand was back where it began, so what comes a minute after the first is another one."""
    surges, _ = watched([5.0] * 18 + [18.0] * 6 + [5.0] * 4 + [16.0] * 6, 5.0)
    assert [s.peak_per_second for s in surges] == [18.0, 16.0]


def test_a_crowd_that_was_expected_is_over_when_it_has_fallen():
    """What comes again after that is another one, although demand was never back at rest."""
    rates = [20.0] * 10 + [60.0] * 10 + [40.0] * 10 + [60.0] * 4
    surges, _ = watched(rates)
    assert [s.peak_per_second for s in surges] == [60.0, 60.0]


@pytest.mark.parametrize("expected", [0.0, 1e-4, 0.05, 1.0])
@pytest.mark.parametrize("level", [0.3, 5.0, 120.0])
def test_no_rate_is_kept_above_twice_the_largest_seen(expected, level):
    """After silence next to nothing is expected: a burst is countless times as much."""
    bursts = tuple(
        Surge(
            start_seconds=start,
            last_seconds=start + LEAD_SECONDS,
            peak_per_second=120.0,
            expected_per_second=expected,
            ended_seconds=start + LEAD_SECONDS,
        )
        for start in (600.0, 1200.0, 1800.0)
    )
    known = recurrence(bursts, level, 2000.0)
    assert known is not None
    assert 120.0 <= known.rate_per_second <= 2.0 * 120.0


def test_bursts_keep_what_two_of_them_reached_when_demand_has_fallen():
    """Less demand between them does not make them smaller."""
    levels = [40.0] * 60 + [25.0] * 20
    surges, now = watched(bursts_on(levels, 2.0, every=20, lasting=4)[:78])
    known = recurrence(surges, 25.0, now)
    assert known is not None
    assert known.rate_per_second == pytest.approx(80.0)


def _surge(start: float, lasted: float = 120.0) -> Surge:
    return Surge(
        start_seconds=start,
        last_seconds=start + lasted / 2,
        peak_per_second=80.0,
        expected_per_second=40.0,
        ended_seconds=start + lasted,
    )


@pytest.mark.parametrize(
    ("starts", "probability"),
    [
        pytest.param((0.0,), 1 / 2, id="one"),
        pytest.param((0.0, 600.0), 2 / 3, id="came-again"),
        pytest.param((0.0, 600.0, 1200.0), 3 / 4, id="twice"),
        pytest.param((0.0, 2400.0), 1 / 3, id="too-late-to-be-waited-for"),
    ],
)
def test_how_likely_a_return_is_is_learnt_from_the_last_hour(
    starts: tuple[float, ...], probability: float
) -> None:
    """One surge in two comes again until returns, or none of them, were seen."""
    surges = tuple(_surge(start) for start in starts)
    known = recurrence(surges, 40.0, starts[-1] + 300.0)
    assert known is not None
    assert known.probability == pytest.approx(probability)
    assert known.over_seconds == pytest.approx(180.0)


def test_a_surge_is_forgotten_an_hour_after_its_end() -> None:
    """Nothing is kept for it then."""
    assert recurrence((_surge(0.0),), 40.0, 3700.0) is not None
    assert recurrence((_surge(0.0),), 40.0, 3730.0) is None


@pytest.mark.parametrize(
    ("factor", "count"),
    [
        pytest.param(1.25, 0, id="what quantile and ceiling carry"),
        pytest.param(1.4, 3, id="what tips a fleet"),
    ],
)
def test_only_rises_beyond_the_headroom_of_a_plan_are_surges(factor, count):
    """A plan carries a rise of three tenths."""
    surges, _ = watched(bursts_on([50.0] * 60, factor, every=20, lasting=4))
    assert len(surges) == count
