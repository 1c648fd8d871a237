"""A handful of ends changes no lengths; a change that many requests show is followed at once."""

import pytest

from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.forecast import demand as forecast
from servingslo.estimation.forecast.demand import ForecastState
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.lengths import Lengths, LengthState, observe, publish
from servingslo.estimation.stored_estimator import learned, restore
from servingslo.estimation.windows.counters import Window

RATE = 14.0
OUTPUT = 128.0
PODS = ("a", "b", "c")
# Outputs with this mean, of which few are much longer, as shares of buckets.
EDGES = (32.0, 64.0, 128.0, 256.0, 512.0)
SHARES = (0.05, 0.2, 0.35, 0.3, 0.09, 0.01)


def _windows(
    seconds: float,
    *,
    started: float,
    tokens: float,
    finished: float | None = None,
    pods: tuple[str, ...] = PODS,
    restarted: bool = False,
) -> list[Window]:
    """What these pods did together, in equal parts."""
    part = 1.0 / len(pods)
    return [
        Window(
            pod=pod,
            engine="0",
            seconds=seconds,
            restarted=restarted,
            running_before=20.0,
            running_after=20.0,
            first_tokens=started * part,
            prompt_tokens=400.0 * started * part,
            generated_tokens=tokens * part,
            finished=(started if finished is None else finished) * part,
            aborted=0.0,
        )
        for pod in pods
    ]


def _after(
    state: LengthState, *ticks: list[Window], unbroken: bool = True
) -> tuple[LengthState, Lengths]:
    found = Lengths()
    for windows in ticks:
        ended = sum(w.finished or 0.0 for w in windows)
        output = HistogramDelta(
            upper_bounds=EDGES, counts=tuple(s * ended for s in SHARES), sum=OUTPUT * ended
        )
        state, found = publish(observe(state, windows, None, output, unbroken=unbroken))
    return state, found


def _even(seconds: float, *, times: float = 1.0, rate: float = RATE) -> list[Window]:
    """An even rate of requests, with outputs so many times as long."""
    started = rate * seconds
    return _windows(seconds, started=started, tokens=times * OUTPUT * started)


@pytest.fixture
def usual() -> LengthState:
    """Ten minutes of an even 14/s."""
    return _after(LengthState(), *[_even(15.0)] * 40)[0]


def test_requests_that_died_with_their_engine_were_not_given_up(usual: LengthState) -> None:
    """What began since is in no counter of those that ended, and no client left."""
    anew = _windows(15.0, started=150.0, tokens=9000.0, finished=40.0, restarted=True)
    _, found = _after(usual, anew, _even(15.0), unbroken=False)
    assert found.abort_ratio == 0.0
    assert found.output_tokens_mean == pytest.approx(OUTPUT, rel=0.03)


@pytest.mark.parametrize(
    ("seconds", "rate", "within"),
    [
        pytest.param(15.0, 14.0, 15.0, id="at-one-scrape"),
        pytest.param(1.0, 14.0, 30.0, id="scraped-every-second"),
        pytest.param(15.0, 1.0, 90.0, id="one-a-second"),
    ],
)
def test_outputs_four_times_as_long_are_known_soon(
    seconds: float, rate: float, within: float
) -> None:
    """As soon as so many requests ended that chance does not explain it."""
    state, found = LengthState(), Lengths()
    longer = [_even(seconds, times=4.0, rate=rate)] * int(within / seconds)
    for windows in (*[_even(15.0, rate=rate)] * 40, *longer):
        state, found = publish(observe(state, windows, None, None))
    assert found.output_tokens_mean == pytest.approx(4.0 * OUTPUT, rel=0.35)


def test_a_share_of_fewer_than_twenty_ends_is_not_known() -> None:
    """One of eight that is in no counter is no eighth."""
    few = _windows(1.0, started=8.0, tokens=800.0, finished=7.0)
    assert _after(LengthState(), few)[1].abort_ratio is None


def test_what_was_given_up_and_what_runs_survives_a_restart() -> None:
    """A hundred still run: without them in memory they would pass for given up."""
    lengths = LengthState(
        started=1000.0, finished=900.0, running_change=100.0, aborted=45.0, generated_tokens=1e5
    )
    stored = learned(EstimatorState(lengths=lengths))
    back = restore(stored).lengths
    assert (back.running_change, back.aborted) == (100.0, 45.0)
    assert publish(back)[1].abort_ratio == pytest.approx(0.05)
    del stored["lengths"]["ends"]
    assert restore(stored).lengths.started == 1000.0


def _demand(*windows: tuple[float, float, float]) -> float:
    """The level after windows: when each ended, how long it was, and its rate."""
    state = ForecastState()
    for at, seconds, rate in windows:
        state = forecast.observe(state, RateWindow(rate_per_second=rate, seconds=seconds), at)
    return forecast.forecast(state, windows[-1][0]).mean_per_second(0.0)


MINUTES = tuple((15.0 * number, 15.0, 1.5) for number in range(1, 41))
THAWED = 600.0 + 1200.0


def test_a_second_counted_after_a_long_pause_is_no_level() -> None:
    """Four requests in one second, where three came in two before: the level hardly moves."""
    assert _demand(*MINUTES, (THAWED, 1.0, 4.0)) < 2.0


def test_demand_that_changed_in_a_pause_is_known_soon_after_it() -> None:
    """At once from a scrape of 15 s; from scrapes of a second about as soon as without a pause."""
    assert _demand(*MINUTES, (THAWED, 15.0, 6.0)) == pytest.approx(6.0)
    paused = _demand(*MINUTES, *((THAWED + number, 1.0, 6.0) for number in range(30)))
    at_once = _demand(*MINUTES, *((600.0 + number, 1.0, 6.0) for number in range(1, 31)))
    assert paused == pytest.approx(at_once, rel=0.15)
