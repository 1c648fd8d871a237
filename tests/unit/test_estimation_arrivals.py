"""Arrivals from balance of flow: windows, restarts, pods that come and go, gateways, retries."""

from dataclasses import replace

import pytest
from tests.unit.estimation_fleet import page_of

from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.requests.arrivals import ArrivalState, measure
from servingslo.estimation.sample import EngineSample, GatewaySample, PodSample
from servingslo.estimation.windows.balance import arrivals_of
from servingslo.estimation.windows.counters import Window
from servingslo.estimation.windows.freshness import assess


def _idle(served: float) -> EngineSample:
    """An engine that has served so many and has nothing to do: what runs would emit tokens."""
    return page_of(served, running=0.0)


def _pod(name: str, *engines: EngineSample, ready_for: float = 900.0) -> PodSample:
    return PodSample(
        name=name,
        ready=True,
        age_seconds=ready_for + 90.0,
        ready_for_seconds=ready_for,
        engines=engines,
    )


def _after(*ticks: tuple[PodSample, ...], gateway: tuple[GatewaySample, ...] = ()) -> Estimate:
    state, estimate = EstimatorState(), None
    for number, pods in enumerate(ticks):
        state, estimate = update(
            state,
            FleetSample(
                time_seconds=1000.0 + 15.0 * number,
                pods=pods,
                gateway=gateway[number] if gateway else None,
            ),
        )
    assert estimate is not None
    return estimate


def test_pods_whose_metrics_are_lost_are_no_surge() -> None:
    """Four at 1/s each; two go unseen while they serve on, and come back: 4/s at every tick."""
    ticks: list[tuple[PodSample, ...]] = []
    for number in range(8):
        seen = page_of(100.0 + 15.0 * number)
        lost = (_pod("c"), _pod("d")) if 4 <= number < 6 else (_pod("c", seen), _pod("d", seen))
        ticks.append((_pod("a", seen), _pod("b", seen), *lost))
    rates = [_after(*ticks[: last + 1]).arrival_rate_per_second for last in range(1, 8)]
    assert rates == [pytest.approx(4.0)] * 7


def test_a_scrape_with_an_impossible_page_is_no_habit() -> None:
    """Counters of one pod fell and none restarted; the page of another may be as wrong."""
    served = [100.0 + 15.0 * number for number in range(8)]
    pages = {
        "a": [
            page_of(count + (900.0 if number == 6 else 0.0)) for number, count in enumerate(served)
        ],
        "b": [
            page_of((5.0 if number == 6 else 10.0) * count) for number, count in enumerate(served)
        ],
    }
    ticks = [tuple(_pod(name, each[number]) for name, each in pages.items()) for number in range(8)]
    calm, spoiled = _after(*ticks[:6]), _after(*ticks[:7])
    assert spoiled.doubts
    assert max(spoiled.past.rates_per_second) == max(calm.past.rates_per_second)
    assert spoiled.forecast.mean_per_second(60.0) < 1.2 * calm.forecast.mean_per_second(60.0)


def test_nothing_is_known_after_one_scrape() -> None:
    """A counter alone is not a rate: unknown, not zero."""
    estimate = _after((_pod("a", page_of(500.0)),))
    assert estimate.arrival_rate_per_second is None
    assert estimate.workload is None


def test_served_and_queued_requests_are_arrivals() -> None:
    """30 served and 15 more waiting in 15 s are 3 a second, though completions say 2."""
    estimate = _after(
        (_pod("a", page_of(100.0)),),
        (_pod("a", page_of(130.0, waiting=15.0)),),
    )
    assert estimate.arrival_rate_per_second == pytest.approx(3.0)
    assert estimate.backlog_requests == 15.0


def test_no_traffic_is_zero_not_unknown() -> None:
    """Counters that stand still are known to stand still."""
    still = (_pod("a", _idle(100.0)),)
    estimate = _after(still, still, still)
    assert estimate.arrival_rate_per_second == 0.0


def test_restarted_engine_counts_from_zero() -> None:
    """A counter that fell from 100 to 30 served 30 since, it did not serve −70."""
    estimate = _after((_pod("a", page_of(100.0)),), (_pod("a", page_of(30.0)),))
    assert estimate.arrival_rate_per_second == pytest.approx(2.0)


def test_pod_that_became_ready_while_watched_counts_from_its_start() -> None:
    """Ready for 10 s at its first scrape, 15 served: they fell into this tick."""
    old = _pod("a", page_of(100.0))
    estimate = _after(
        (old,),
        (_pod("a", page_of(115.0)), _pod("b", page_of(15.0), ready_for=10.0)),
    )
    assert estimate.arrival_rate_per_second == pytest.approx(2.0)


def test_a_new_pod_that_serves_unscraped_is_no_fall_of_demand() -> None:
    """It takes all that arrives for 10 s of 15: 2/s stand, until its first scrape says so too."""
    before = (_pod("a", page_of(100.0)),), (_pod("a", page_of(130.0)),)
    relieved = _pod("a", page_of(140.0)), _pod("b", ready_for=11.0)
    scraped = _pod("a", _idle(140.0)), _pod("b", page_of(50.0), ready_for=26.0)
    held = _after(*before, relieved)
    assert held.arrival_rate_per_second == pytest.approx(2.0)
    assert held.discarded_per_second == pytest.approx(10.0 / 15.0)
    after = _after(*before, relieved, scraped)
    assert after.arrival_rate_per_second == pytest.approx(50.0 / 25.0)
    assert after.discarded_per_second is None


def test_a_fall_while_no_ready_pod_is_seen_tells_no_rate() -> None:
    """One pod ends, one is not scraped, one is new: no share of the pods counts what comes."""
    ending = replace(_pod("a", page_of(140.0)), deleting=True)
    held = _after(
        (_pod("a", page_of(100.0)),),
        (_pod("a", page_of(130.0)),),
        (ending, _pod("c"), _pod("b", ready_for=11.0)),
    )
    assert held.discarded_per_second is None


def test_more_than_before_counts_though_a_new_pod_serves_unscraped() -> None:
    """What the others count is the least that came."""
    before = (_pod("a", page_of(100.0)),), (_pod("a", page_of(130.0)),)
    more = _pod("a", page_of(190.0)), _pod("b", ready_for=11.0)
    counted = _after(*before, more)
    assert counted.arrival_rate_per_second == pytest.approx(4.0)
    assert counted.discarded_per_second is None


def test_a_new_pod_seen_for_most_of_the_window_hides_no_fall() -> None:
    """Ready 3 s before the others' scrape: a fall from 2 to 0.5/s is one."""
    before = (_pod("a", page_of(100.0)),), (_pod("a", page_of(130.0)),)
    less = _pod("a", page_of(137.5)), _pod("b", ready_for=4.0)
    assert _after(*before, less).arrival_rate_per_second == pytest.approx(0.5)


def test_long_running_pod_first_seen_adds_nothing_at_first() -> None:
    """Its counter holds a day's requests; they did not arrive in this tick."""
    estimate = _after(
        (_pod("a", page_of(100.0)),),
        (_pod("a", page_of(130.0)),),
        (_pod("a", page_of(160.0)), _pod("b", page_of(90_000.0))),
    )
    assert estimate.arrival_rate_per_second == pytest.approx(2.0)


@pytest.mark.parametrize(("again", "rate"), [(1, None), (2, 8.0), (3, 8.0), (4, 8.0)])
def test_engines_that_are_not_scraped_again_yet_are_no_fall(again: int, rate: float | None) -> None:
    """Four at 2/s each, at the first look and 8 s later, when some have had no newer scrape."""
    names = ("a", "b", "c", "d")
    first = tuple(_pod(name, page_of(100.0, age=7.5)) for name in names)
    second = (
        *(_pod(name, page_of(130.0, age=0.5)) for name in names[:again]),
        *(_pod(name, page_of(100.0, age=15.5)) for name in names[again:]),
    )
    state, _ = update(EstimatorState(), FleetSample(time_seconds=1000.0, pods=first))
    _, estimate = update(state, FleetSample(time_seconds=1008.0, pods=second))
    assert estimate.arrival_rate_per_second == (None if rate is None else pytest.approx(rate))


def test_unscraped_pod_is_taken_to_receive_as_much_as_the_others() -> None:
    """Three of four pods report 3 a second: the fleet receives 4, and the fourth is no capacity."""
    names = ("a", "b", "c")
    silent = _pod("d")
    estimate = _after(
        (*(_pod(n, page_of(100.0)) for n in names), silent),
        (*(_pod(n, page_of(115.0)) for n in names), silent),
    )
    assert estimate.arrival_rate_per_second == pytest.approx(4.0)
    assert estimate.unreliable_pods == (("d", "metrics-missing"),)


def test_gateway_that_counts_requests_wins() -> None:
    """It also sees what never reached an engine."""
    estimate = _after(
        (_pod("a", page_of(100.0)),),
        (_pod("a", page_of(130.0)),),
        gateway=(
            GatewaySample(age_seconds=0.0, requests_total=1000.0, rejected_total=0.0),
            GatewaySample(age_seconds=0.0, requests_total=1060.0, rejected_total=15.0, queued=7.0),
        ),
    )
    assert estimate.arrival_rate_per_second == pytest.approx(4.0)
    assert estimate.rejected_per_second == pytest.approx(1.0)
    assert estimate.backlog_requests == 7.0


def test_completions_and_change_in_system_stand_in_for_first_tokens() -> None:
    """20 finished while 10 more came into the system: 30 arrived."""
    window = Window(
        pod="a",
        engine="0",
        seconds=15.0,
        running_before=5.0,
        running_after=10.0,
        waiting_before=0.0,
        waiting_after=5.0,
        finished=20.0,
    )
    assert arrivals_of(window) == 30.0
    assert arrivals_of(replace(window, finished=None)) is None


def test_a_pod_that_goes_serves_its_own_queue_and_none_of_it_is_new_or_left_to_others() -> None:
    """Six wait at it and get their first token there; ten arrived at the other one in 15 s."""
    stays = [_pod("a", page_of(served, waiting=2.0)) for served in (100.0, 110.0)]
    goes = [
        replace(_pod("b", page_of(served, waiting=waiting)), deleting=deleting)
        for served, waiting, deleting in ((100.0, 12.0, False), (106.0, 6.0, True))
    ]
    estimate = _after(*zip(stays, goes, strict=True))
    assert estimate.arrival_rate_per_second == pytest.approx(10.0 / 15.0)
    assert estimate.backlog_requests == 2.0
    assert estimate.waiting_requests == 8.0
    assert estimate.running_requests == 8.0


def _rejecting(offered: float, rejected: float) -> Window:
    return Window(
        pod="a",
        engine="0",
        seconds=15.0,
        first_tokens=15.0 * (offered - rejected),
        rejected=15.0 * rejected,
    )


_ONE_POD = assess((_pod("a", page_of(100.0)),), 60.0)


def test_dispersion_is_not_moved_by_a_ramp_and_hardly_by_a_step() -> None:
    """A change of level or slope is not burstiness."""
    ramp = [(10.0 + 2.0 * k, 0.0) for k in range(40)]
    step = [(20.0 if k < 20 else 80.0, 0.0) for k in range(40)]
    for flows in (ramp, step):
        state = ArrivalState()
        for offered, rejected in flows:
            state, _ = measure(state, [_rejecting(offered, rejected)], _ONE_POD, None)
        assert state.dispersion <= 1.2


def test_dispersion_sees_lasting_bursts() -> None:
    """Windows that swing by five standard deviations of Poisson, again and again."""
    state = ArrivalState()
    for number in range(80):
        rate = 20.0 + (6.0 if number % 2 else -6.0)
        state, _ = measure(state, [_rejecting(rate, 0.0)], _ONE_POD, None)
    assert state.dispersion > 4.0
