"""How requests end at a gateway, from a real Envoy's page and others in upstream's form."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.managed_store import ManagedStore, series_of

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.gateway_queries import gateway_increases
from servingslo.adapters.prometheus.queries import LONGEST_QUERY_CHARACTERS
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.controller.recordings.recording import observation_line, observations
from servingslo.errors import InvalidInputError
from servingslo.estimation.gateway.classes import Sheddable, whole_sample
from servingslo.estimation.gateway.counts import measure, unanswered
from servingslo.estimation.requests.endings import endings_of
from servingslo.estimation.sample import GatewayInstance, GatewaySample, HistogramSample
from servingslo.estimation.windows.endings import Endings
from servingslo.policy.inputs import Observation
from servingslo.runtimes.gateway_catalogue import GATEWAYS, gateway_profile

ENVOY = Path(__file__).parents[1] / "golden" / "data" / "envoy_1.40.0_endings.txt"
NOW_SECONDS = 1_700_000_000.0
ISTIO = (
    ("200", "-", 90), ("0", "DC", 4), ("200", "DC", 1), ("503", "UO", 7), ("503", "UC", 2),
    ("200", "UR", 3), ("500", "-", 5), ("504", "UT", 1),
)  # fmt: skip
PICKER = """
inference_objective_request_total{model_name="m"} 50
inference_objective_request_error_total{model_name="m",error_code="ModelServerError"} 5
inference_objective_request_error_total{model_name="m",error_code="Internal"} 1
inference_objective_request_error_total{model_name="m",error_code="BadRequest"} 9
inference_objective_request_error_total{model_name="m",error_code="ServiceUnavailable"} 4
inference_objective_request_duration_seconds_bucket{model_name="m",le="1"} 10
inference_objective_request_duration_seconds_bucket{model_name="m",le="+Inf"} 50
inference_objective_request_duration_seconds_sum{model_name="m"} 75
inference_pool_ready_pods{name="chat"} 2
"""


def read(profile: str, page: str) -> dict[str, GatewayInstance]:
    """The only instance of each workload on a proxy's page, by the workload's name."""
    config = PrometheusConfig(url="http://store.test", gateway=gateway_profile(profile))
    store = ManagedStore(lambda: NOW_SECONDS, [])
    store.series = series_of(page, NOW_SECONDS - 2.0, namespace="inference", pod="proxy-0")
    reader = PrometheusReader(config, client=store, monotonic=lambda: 1e5)
    try:
        metrics = reader._read()
    finally:
        reader.close()
    assert metrics.problem is None
    assert metrics.gateways is not None
    return {name: one.instances[0] for (_, name), one in metrics.gateways.items()}


def test_endings_on_a_real_envoy_s_page() -> None:
    """As its README says what was sent: failed, aborted by clients, broken off by the server."""
    found = {
        name: (one.errors_total, one.aborted_total, one.cut_total)
        for name, one in read("envoy-gateway", ENVOY.read_text(encoding="utf-8")).items()
    }
    assert found == {
        "ok": (0.0, 0.0, 0.0),
        "fail": (3.0, 0.0, 0.0),
        # Two timeouts, and a client that left.
        "slow": (2.0, 1.0, 0.0),
        "stream": (0.0, 2.0, 0.0),
        "cut": (0.0, 0.0, 2.0),
        # Without an answer: both among the failed and among the broken off.
        "drop": (2.0, 0.0, 2.0),
        # The last of three tries of each; no client left.
        "retry": (2.0, 0.0, 0.0),
    }


def test_whole_answers_on_a_real_envoy_s_page() -> None:
    """Four of 50 ms each: what a filter before the router delayed is not in it."""
    latency = read("envoy-gateway", ENVOY.read_text(encoding="utf-8"))["ok"].latency_seconds
    assert latency is not None
    assert latency.count == 4
    assert latency.sum / latency.count == pytest.approx(0.055, abs=0.005)
    assert latency.upper_bounds[:4] == pytest.approx((0.0005, 0.001, 0.005, 0.01))


def test_endings_that_istio_counts() -> None:
    """By code and by flags; what the proxy itself refused is not failed."""
    own = 'destination_workload="chat",destination_workload_namespace="inference",reporter="source"'
    lines = [
        f'istio_requests_total{{{own},response_code="{code}",response_flags="{flags}"}} {value}'
        for code, flags, value in ISTIO
    ]
    name = "istio_request_duration_milliseconds"
    lines += [
        f'{name}_bucket{{{own},response_code="200",le="500"}} 60',
        f'{name}_bucket{{{own},response_code="200",le="+Inf"}} 90',
        f'{name}_sum{{{own},response_code="200"}} 45000',
        f'{name}_bucket{{{own},response_code="503",le="+Inf"}} 9',
        f'{name}_sum{{{own},response_code="503"}} 1',
    ]
    one = read("istio", "\n".join(lines) + "\n")["chat"]
    assert (one.rejected_total, one.errors_total) == (7.0, 2.0 + 5.0 + 1.0)
    assert (one.aborted_total, one.cut_total) == (5.0, 5.0)
    assert one.latency_seconds == HistogramSample(
        upper_bounds=(0.5, float("inf")), cumulative_counts=(60.0, 90.0), sum=45.0, count=90.0
    )


def test_endings_that_an_endpoint_picker_counts() -> None:
    """Its refusals are no failures, and bad requests are neither."""
    one = read("gateway-api-inference-extension", PICKER)["chat"]
    assert (one.rejected_total, one.errors_total, one.aborted_total) == (4.0, 6.0, None)
    assert one.latency_seconds is not None
    assert one.latency_seconds.sum == 75.0


def test_an_edge_that_is_written_in_two_ways_is_one_bucket() -> None:
    """For some minutes a store tells what an upgraded Prometheus wrote before, and since."""
    bucket = 'inference_objective_request_duration_seconds_bucket{model_name="m",le="1.0"} 12\n'
    latency = read("gateway-api-inference-extension", PICKER + bucket)["chat"].latency_seconds
    assert latency is not None
    assert latency.upper_bounds == (1.0, float("inf"))
    assert latency.cumulative_counts == (12.0, 50.0)


def test_a_broken_edge_costs_the_histogram_and_nothing_else() -> None:
    """A tenant's pod may export what it likes."""
    page = ENVOY.read_text(encoding="utf-8").replace('le="+Inf"', 'le="far"')
    one = read("envoy-gateway", page)["ok"]
    assert one.latency_seconds is None
    assert one.requests_total == 4.0


@pytest.mark.parametrize("profile", GATEWAYS, ids=lambda one: one.name)
def test_the_query_of_its_counters_is_not_too_long(profile) -> None:
    """All counters of a gateway in one query."""
    query = gateway_increases(profile, PrometheusConfig(url="http://store.test"), 3600)
    assert len(query) <= LONGEST_QUERY_CHARACTERS


def test_an_answer_broken_off_before_its_first_byte_counts_once() -> None:
    """At least: those of 5xx are taken for broken off first."""
    assert unanswered(failed=2.0, aborted=0.0, cut=2.0) == (2.0, 0.0)
    assert unanswered(failed=1.0, aborted=3.0, cut=4.0) == (1.0, 6.0)
    assert unanswered(failed=-1.0, aborted=-2.0, cut=0.0) == (0.0, 0.0)


def _sample(requests: float, failed: float | None, aborted: float = 0.0) -> GatewaySample:
    instance = GatewayInstance(
        name="proxy-0", age_seconds=0.0, requests_total=requests, errors_total=failed,
        aborted_total=aborted,
    )  # fmt: skip
    return GatewaySample(instances=(instance,))


def test_rates_are_of_a_window_and_stay_until_the_next() -> None:
    """Failures a second between two scrapes; a difference that fell is none."""
    flows, _ = measure((), _sample(100.0, 4.0, -7.0), 0.0, 60.0)
    flows, flow = measure(flows, _sample(200.0, 9.0, -5.0), 10.0, 60.0)
    assert flow is not None
    assert (flow.failed_per_second, flow.aborted_per_second) == (0.5, 0.2)
    flows, flow = measure(flows, _sample(300.0, 9.0, -8.0), 20.0, 60.0)
    assert flow is not None
    assert (flow.failed_per_second, flow.aborted_per_second) == (0.0, 0.0)


def test_a_gateway_that_counts_no_endings_leaves_them_to_the_engines() -> None:
    """Unknown is not zero."""
    flows, _ = measure((), _sample(100.0, None), 0.0, 60.0)
    _, flow = measure(flows, _sample(200.0, None), 10.0, 60.0)
    assert flow is not None
    assert flow.failed_per_second is None
    engines = [Endings(failed=None, aborted=1.0), Endings(failed=None, aborted=2.0)]
    assert endings_of(engines, flow, 0.0) == Endings(failed=None, aborted=3.0)


def test_what_engines_refused_is_not_failed_once_more() -> None:
    """The gateway passes their 503 on."""
    flows, _ = measure((), _sample(100.0, 0.0), 0.0, 60.0)
    _, flow = measure(flows, _sample(200.0, 50.0, 10.0), 10.0, 60.0)
    assert endings_of([Endings(aborted=9.0)], flow, 4.0) == Endings(failed=1.0, aborted=1.0)


def test_classes_of_a_real_envoy_keep_latency_and_endings() -> None:
    """Each route of the page as a class: the whole has the sum of both."""
    routes = read("envoy-gateway", ENVOY.read_text(encoding="utf-8"))
    classes = {name: GatewaySample(instances=(one,)) for name, one in routes.items()}
    (whole,) = whole_sample(classes.values()).instances
    assert whole.errors_total == sum(one.errors_total or 0.0 for one in routes.values()) > 0.0
    assert whole.aborted_total == sum(one.aborted_total or 0.0 for one in routes.values()) > 0.0
    timed = [one.latency_seconds for one in routes.values() if one.latency_seconds is not None]
    assert len(timed) > 1
    assert whole.latency_seconds is not None
    assert whole.latency_seconds.count == sum(one.count for one in timed)


def test_failures_of_classes_that_order_no_replicas_are_left_out() -> None:
    """By class at the gateway; by their part of the requests at engines, which know no classes."""
    flows, _ = measure((), _sample(100.0, 0.0, 0.0), 0.0, 60.0)
    _, flow = measure(flows, _sample(200.0, 50.0, 40.0), 10.0, 60.0)
    shed = Sheddable(
        offered_ratio=0.75,
        admitted_per_second=7.5,
        rejected_per_second=0.0,
        endings=Endings(failed=3.0, aborted=3.5),
    )
    assert endings_of([], flow, 4.0, shed) == Endings(failed=1.0, aborted=0.5)
    engines = [Endings(failed=None, aborted=8.0)]
    assert endings_of(engines, None, 0.0, shed) == Endings(failed=None, aborted=2.0)


def test_a_recording_keeps_what_a_gateway_counted() -> None:
    """Histogram with an open edge, and differences that may be below zero."""
    found = read("envoy-gateway", ENVOY.read_text(encoding="utf-8"))["ok"]
    seen = Observation(
        time_seconds=NOW_SECONDS, namespace="inference", name="chat", desired_replicas=1,
        gateway=GatewaySample(instances=(replace(found, aborted_total=-3.0),)),
    )  # fmt: skip
    line = observation_line(seen)
    assert list(observations([line])) == [seen]
    broken = line.replace('"cumulative_counts":[', '"cumulative_counts":[9,', 1)
    with pytest.raises(InvalidInputError):
        list(observations([broken]))
