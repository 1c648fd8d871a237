"""Arrivals from a gateway: by instance, never from one scrape, never zero because it is silent."""

from dataclasses import replace

import pytest

from servingslo.estimation.gateway.counts import GatewayFlow, InstanceFlow
from servingslo.estimation.gateway.counts import measure as measure_gateway
from servingslo.estimation.requests.arrivals import ArrivalMeasurement, ArrivalState, measure
from servingslo.estimation.sample import EngineSample, GatewayInstance, GatewaySample, PodSample
from servingslo.estimation.windows.counters import Window
from servingslo.estimation.windows.freshness import assess
from servingslo.reasons import Reason
from servingslo.runtimes.gateways import CountedWhen

TICK_SECONDS = 15.0
ENGINE = EngineSample(engine="0", running=1.0, gauges_age_seconds=1.0)
SEEN = assess((PodSample(name="a", ready=True, engines=(ENGINE,)),), 60.0)


def _instance(name: str = "envoy-1", *, age: float = 0.0, **counters: float) -> GatewayInstance:
    return GatewayInstance(name=name, age_seconds=age, **counters)


def _flow(
    *samples: tuple[GatewayInstance, ...], counted: CountedWhen = CountedWhen.PASSED_ON
) -> GatewayFlow:
    """What is known after these samples, a tick apart."""
    flows: tuple[InstanceFlow, ...] = ()
    known = None
    for number, instances in enumerate(samples):
        sample = GatewaySample(counted=counted, instances=instances)
        flows, known = measure_gateway(flows, sample, 1000.0 + TICK_SECONDS * number, 60.0)
    assert known is not None
    return known


def test_its_own_retries_are_no_arrivals_and_its_queue_is() -> None:
    """45 attempts, 15 of them retries, and 15 more queued: 45 came in 15 s, 3 of them refused."""
    flow = _flow(
        (_instance(requests_total=100.0, retried_total=10.0, rejected_total=5.0, queued=0.0),),
        (_instance(requests_total=145.0, retried_total=25.0, rejected_total=8.0, queued=15.0),),
    )
    assert flow.requests_per_second == pytest.approx(3.0)
    assert flow.rejected_per_second == pytest.approx(0.2)


def test_instances_are_measured_apart() -> None:
    """Each between its own scrapes; one that restarted counts from zero, the sum never falls."""
    flow = _flow(
        (
            _instance("one", age=0.0, requests_total=1000.0),
            _instance("two", age=5.0, requests_total=90_000.0),
        ),
        (
            _instance("one", age=0.0, requests_total=1030.0),
            _instance("two", age=5.0, requests_total=15.0),
        ),
    )
    assert flow.requests_per_second == pytest.approx(3.0)


def test_an_instance_that_comes_or_goes_adds_nothing_it_did_not_count_now() -> None:
    """A new proxy's counter is not this tick's, and that of a gone one is not subtracted."""
    flow = _flow(
        (_instance("old", requests_total=50_000.0), _instance("stays", requests_total=100.0)),
        (_instance("new", requests_total=40_000.0), _instance("stays", requests_total=130.0)),
    )
    assert flow.requests_per_second == pytest.approx(2.0)


def test_a_refusal_counter_that_appears_counts_from_zero() -> None:
    """Series of labelled counters appear with their first event; it is not lost."""
    flow = _flow(
        (_instance(requests_total=100.0),), (_instance(requests_total=130.0, rejected_total=15.0),)
    )
    assert flow.rejected_per_second == pytest.approx(1.0)


def test_rate_stays_where_no_newer_scrape_arrived() -> None:
    """The same scrape again, 15 s older, is no window."""
    flow = _flow(
        (_instance(requests_total=100.0),),
        (_instance(requests_total=130.0),),
        (_instance(requests_total=130.0, age=TICK_SECONDS),),
    )
    assert flow.requests_per_second == pytest.approx(2.0)
    assert not flow.is_new


def _served(per_second: float, rejected: float = 0.0) -> Window:
    return Window(
        pod="a",
        engine="0",
        seconds=TICK_SECONDS,
        first_tokens=TICK_SECONDS * per_second,
        rejected=TICK_SECONDS * rejected,
    )


def _counting(
    per_second: float | None,
    rejected: float = 0.0,
    counted: CountedWhen = CountedWhen.PASSED_ON,
    problem: Reason | None = None,
) -> GatewayFlow:
    return GatewayFlow(
        counted=counted,
        requests_per_second=per_second,
        rejected_per_second=rejected,
        seconds=TICK_SECONDS,
        is_new=per_second is not None,
        problem=problem,
    )


def _after(*ticks: tuple[Window, GatewayFlow]) -> ArrivalMeasurement:
    state = ArrivalState()
    measured = ArrivalMeasurement()
    for window, flow in ticks:
        state, measured = measure(state, [window], SEEN, flow)
    return measured


def _reason(measured: ArrivalMeasurement) -> Reason:
    assert measured.gateway is not None
    return measured.gateway.reason


def test_a_gateway_counts_what_it_refused_and_what_engines_refused() -> None:
    """20/s came, it refused 8, the engine 2 of the other 12."""
    measured = _after((_served(10.0, rejected=2.0), _counting(20.0, rejected=8.0)))
    assert _reason(measured) is Reason.GATEWAY_COUNTS
    assert measured.offered_per_second == pytest.approx(20.0)
    assert measured.rejected_per_second == pytest.approx(10.0)


@pytest.mark.parametrize("problem", [Reason.GATEWAY_SILENT, Reason.GATEWAY_STALE])
def test_a_gateway_that_says_nothing_leaves_the_engines_count(problem: Reason) -> None:
    """Not zero, not unknown: what the engines got, and why."""
    silent = _counting(None, problem=problem)
    measured = _after((_served(10.0), _counting(20.0)), (_served(12.0), silent))
    assert _reason(measured) is problem
    assert measured.offered_per_second == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("instances", "problem"),
    [
        pytest.param((), Reason.GATEWAY_SILENT, id="unknown-there"),
        pytest.param((_instance(queued=3.0),), Reason.GATEWAY_SILENT, id="no-requests"),
        pytest.param((_instance(requests_total=9.0, age=61.0),), Reason.GATEWAY_STALE, id="old"),
        pytest.param(
            (GatewayInstance(name="x", requests_total=9.0),), Reason.GATEWAY_STALE, id="no-age"
        ),
    ],
)
def test_why_a_gateway_says_nothing_is_told(
    instances: tuple[GatewayInstance, ...], problem: Reason
) -> None:
    """Absent and old are different outcomes."""
    before = (_instance(requests_total=1.0),)
    assert _flow(before, instances).problem is problem


def test_a_gateway_that_restarted_does_not_hide_the_demand() -> None:
    """All its proxies are new but one: a tenth of what the engines got is not all there is."""
    steady = [(_served(40.0), _counting(40.0))] * 4
    measured = _after(*steady, (_served(40.0), _counting(4.0)))
    assert _reason(measured) is Reason.GATEWAY_UNDERCOUNTS
    assert measured.offered_per_second == pytest.approx(40.0)


def test_a_count_that_no_engine_shows_orders_nothing() -> None:
    """A counter times a million, at engines that get ten a second: their own count stands."""
    steady = [(_served(10.0), _counting(10.0))] * 3
    measured = _after(*steady, (_served(10.0), _counting(1e7)))
    assert _reason(measured) is Reason.GATEWAY_IMPLAUSIBLE
    assert measured.offered_per_second == pytest.approx(10.0)
    assert measured.gateway is not None
    assert measured.gateway.gateway_per_second == 1e7


@pytest.mark.parametrize(
    ("engines", "gateway", "refused"),
    [
        pytest.param(1.0, 60.0, 0.0, id="a-crowd-that-engines-show-a-scrape-later"),
        pytest.param(40.0, 390.0, 0.0, id="a-crowd-on-a-busy-fleet"),
        pytest.param(10.0, 5_010.0, 5_000.0, id="refused-by-the-gateway"),
    ],
)
def test_a_count_that_may_be_is_believed_before_the_engines_show_it(
    engines: float, gateway: float, refused: float
) -> None:
    """That is what a gateway is read for."""
    measured = _after(
        (_served(engines), _counting(engines)),
        (_served(engines), _counting(gateway, rejected=refused)),
    )
    assert _reason(measured) is Reason.GATEWAY_COUNTS
    assert measured.offered_per_second == pytest.approx(gateway)


def test_what_passed_before_the_gateway_was_known_passed_it() -> None:
    """Its first window is 5 s short of the engines', after half a minute of 2/s nothing comes."""
    first = replace(_counting(2.0), seconds=10.0)
    story = [(_served(2.0), first), (_served(2.0), _counting(2.0))]
    assert {_reason(_after(*story, *[_QUIET] * n)) for n in range(40)} == {Reason.GATEWAY_COUNTS}


def _story(*ticks: tuple[Window | None, GatewayFlow]) -> ArrivalMeasurement:
    """As `_after`, from no pod at all: None is a tick in which no engine is there or read."""
    state = ArrivalState()
    measured = ArrivalMeasurement()
    for window, flow in ticks:
        fresh = assess((), 60.0) if window is None else SEEN
        state, measured = measure(state, [] if window is None else [window], fresh, flow)
    return measured


_QUIET = (_served(0.0), _counting(0.0))
_FIRST_WINDOW = replace(_served(1.0), seconds=8.0, first_tokens=1.0, from_zero=True)


def test_what_passed_before_the_first_scrape_of_a_woken_pod_passed_the_gateway() -> None:
    """Four came, three were refused; the fourth the pod counts in its first window, 8 s later."""
    woken = _counting(4.0 / TICK_SECONDS, rejected=3.0 / TICK_SECONDS)
    measured = _story(
        (None, woken), (None, _counting(0.0)), (_FIRST_WINDOW, _counting(0.0)), *[_QUIET] * 40
    )
    assert _reason(measured) is Reason.GATEWAY_COUNTS


@pytest.mark.parametrize("quiet_ticks", [8, 20_000])
def test_a_request_past_the_gateway_is_not_forgotten_while_nothing_comes(quiet_ticks: int) -> None:
    """Who came past it would come past it again: it tells of no first request to this target."""
    refused = _counting(3.0 / TICK_SECONDS, rejected=3.0 / TICK_SECONDS)
    measured = _story((None, refused), (_FIRST_WINDOW, _counting(0.0)), *[_QUIET] * quiet_ticks)
    assert _reason(measured) is Reason.GATEWAY_UNDERCOUNTS


def test_requests_that_pass_the_gateway_clear_one_that_did_not() -> None:
    """Ten, one in a window."""
    passing = (_served(1.0 / TICK_SECONDS), _counting(1.0 / TICK_SECONDS))
    begin = (None, _counting(0.0)), (_FIRST_WINDOW, _counting(0.0)), *[_QUIET] * 8
    assert _reason(_story(*begin, *[passing, _QUIET] * 3)) is Reason.GATEWAY_UNDERCOUNTS
    assert _reason(_story(*begin, *[passing, _QUIET] * 10)) is Reason.GATEWAY_COUNTS


def test_counts_at_the_end_of_requests_add_refusals_alone() -> None:
    """A stream is counted a stay late, so a rise shows at the engines first."""
    measured = _after((_served(30.0), _counting(9.0, rejected=4.0, counted=CountedWhen.ENDED)))
    assert _reason(measured) is Reason.GATEWAY_REFUSALS_ADDED
    assert measured.offered_per_second == pytest.approx(34.0)
    assert measured.rejected_per_second == pytest.approx(4.0)


def test_what_a_gateway_refuses_counts_where_requests_go_past_it_too() -> None:
    """4/s pass it, it refuses 10/s, and 6/s go past it: 20/s are offered, not what engines got."""
    ticks = [(_served(10.0), _counting(14.0, rejected=10.0))] * 12
    measured = _after(*ticks)
    assert _reason(measured) is Reason.GATEWAY_UNDERCOUNTS
    assert measured.offered_per_second == pytest.approx(20.0)
    assert measured.rejected_per_second == pytest.approx(10.0)
