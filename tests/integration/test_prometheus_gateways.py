"""Gateways through a real Prometheus: a real Envoy's page, and others in upstream's form."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.prometheus_pods import (
    NAMESPACE,
    PATIENCE_SECONDS,
    answered,
    running,
)
from tests.integration.prometheus_world import Pages, running_prometheus, serving_pages
from tests.integration.promql import series_of

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.policy.ports import ClusterMetrics
from servingslo.runtimes.gateway_catalogue import gateway_profile
from servingslo.runtimes.gateways import CountedWhen
from servingslo_lab.cli.past.history import prometheus_now_seconds, read_history
from servingslo_lab.rig.prometheus import Prometheus

pytestmark = pytest.mark.rig
ENVOY = Path(__file__).parents[1] / "golden" / "data" / "envoy_1.40.0_metrics.txt"
ENDINGS = ENVOY.with_name("envoy_1.40.0_endings.txt")
GATEWAYS = "gateways"


def _istio(value: int, workload: str = "chat", flags: str = "-", **labels: str) -> str:
    """A series with the labels of Istio's standard metrics."""
    every = {
        "reporter": "source",
        "source_workload": "web",
        "source_workload_namespace": "shop",
        "destination_workload": workload,
        "destination_workload_namespace": "unknown" if workload == "unknown" else NAMESPACE,
        "destination_service": "chat.inference.svc.cluster.local",
        "destination_service_name": "chat",
        "destination_service_namespace": NAMESPACE,
        "request_protocol": "http",
        "response_code": "200" if flags == "-" else "503",
        "response_flags": flags,
        "connection_security_policy": "unknown",
        **labels,
    }
    text = ",".join(f'{name}="{value}"' for name, value in every.items())
    return f"istio_requests_total{{{text}}} {value}\n"


# 100 served, 4 failed in the engine, 7 refused by the circuit breaker, 2 met no host.
ISTIO_INGRESS = (
    "# TYPE istio_requests_total counter\n"
    + _istio(60)
    + _istio(40, source_workload="mobile")
    + _istio(4, response_code="503", flags="-")
    + _istio(7, flags="UO")
    + _istio(2, workload="unknown", flags="UH,URX")
    # Nothing for an engine to compute, and the same requests as the server's proxy sees them.
    + _istio(1000, response_code="404")
    + _istio(100, reporter="destination")
    # Another service that leads to two workloads: nobody knows whom a request was meant for.
    + _istio(5, workload="left", destination_service_name="both")
    + _istio(5, workload="right", destination_service_name="both")
    + _istio(9, workload="unknown", flags="UH", destination_service_name="both")
)
ISTIO_SIDECAR = _istio(11)
_MODEL = 'model_name="m",target_model_name="m"'
_REFUSED = 'error_code="InferencePoolResourceExhausted"'
PICKER_OLD = f"""
inference_objective_request_total{{{_MODEL},priority="0"}} 50
inference_objective_request_total{{model_name="m",target_model_name="adapter",priority="0"}} 6
inference_objective_request_error_total{{{_MODEL},error_code="ModelServerError"}} 5
inference_objective_request_error_total{{{_MODEL},{_REFUSED}}} 4
inference_extension_flow_control_queue_size{{inference_pool="chat",{_MODEL}}} 3
inference_pool_ready_pods{{name="chat"}} 2
"""
_FLOW = 'inference_pool="busy",model_name="m",target_model_name="m"'
_ENDED = "inference_extension_flow_control_request_queue_duration_seconds_count"
# As v1.5.0 with flow control: two tenants, a priority of which nothing was passed on yet.
PICKER_BANDS = f"""
inference_objective_request_total{{{_MODEL},priority="0"}} 40
inference_objective_request_total{{{_MODEL},priority="-10"}} 12
inference_objective_request_error_total{{{_MODEL},error_code="ResourceExhausted"}} 7
inference_objective_request_error_total{{{_MODEL},error_code="ServiceUnavailable"}} 2
inference_extension_flow_control_queue_size{{fairness_id="a",priority="0",{_FLOW}}} 1
inference_extension_flow_control_queue_size{{fairness_id="a",priority="-10",{_FLOW}}} 4
inference_extension_flow_control_queue_size{{fairness_id="b",priority="-10",{_FLOW}}} 2
{_ENDED}{{fairness_id="a",priority="0",outcome="Dispatched",{_FLOW}}} 40
{_ENDED}{{fairness_id="a",priority="-10",outcome="Dispatched",{_FLOW}}} 12
{_ENDED}{{fairness_id="a",priority="-10",outcome="RejectedCapacity",{_FLOW}}} 3
{_ENDED}{{fairness_id="b",priority="-10",outcome="EvictedTTL",{_FLOW}}} 2
{_ENDED}{{fairness_id="b",priority="-20",outcome="RejectedCapacity",{_FLOW}}} 4
inference_extension_flow_control_pool_saturation{{inference_pool="busy"}} 1.25
inference_pool_ready_pods{{name="busy"}} 2
"""
# A version in transition has both names on its page; they count the same requests.
PICKER_NEW = """
llm_d_epp_request_total{model_name="m",target_model_name="m",fairness_id="f",priority="0"} 70
inference_objective_request_total{model_name="m",target_model_name="m",priority="0"} 70
llm_d_epp_ready_endpoints{name="code"} 1
inference_pool_ready_pods{name="code"} 1
"""


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    """All gateways; each test chooses a profile."""
    with serving_pages() as served:
        envoy = ENVOY.read_text(encoding="utf-8")
        old = time.time() - 100  # noqa: TID251 - explicit timestamps of samples are wall-clock times
        cluster = f"httproute/{NAMESPACE}/aged/rule/0"
        stale = f'envoy_cluster_upstream_rq_total{{envoy_cluster_name="{cluster}"}}'
        served.add("envoy-1", envoy, namespace=GATEWAYS, pod="envoy-1")
        served.add("envoy-2", envoy, namespace=GATEWAYS, pod="envoy-2")
        # Scraped by a second job: the same proxy must not count twice.
        served.add("envoy-2-again", envoy, namespace=GATEWAYS, pod="envoy-2", job="other")
        cluster = f"httproute/{NAMESPACE}/unasked/rule/0"
        known = f'envoy_cluster_membership_total{{envoy_cluster_name="{cluster}"}} 1\n'
        endings = ENDINGS.read_text(encoding="utf-8")
        served.add("envoy-ended", endings, namespace=GATEWAYS, pod="ended")
        served.add("envoy-new", known, namespace=GATEWAYS, pod="new")
        served.add("envoy-aged", f"{stale} 5 {round(1000 * old)}\n", namespace=GATEWAYS, pod="aged")
        served.add("ingress", ISTIO_INGRESS, namespace=GATEWAYS, pod="ingress")
        served.add("sidecar", ISTIO_SIDECAR, namespace="shop", pod="web-1")
        served.add("picker-chat", PICKER_OLD, namespace=NAMESPACE, pod="chat-epp")
        served.add("picker-busy", PICKER_BANDS, namespace=NAMESPACE, pod="busy-epp")
        served.add("picker-code", PICKER_NEW, namespace=NAMESPACE, pod="code-epp")
        served.add("engine", running(4), namespace=NAMESPACE, pod="chat-0")
        yield served


@pytest.fixture(scope="module")
def prometheus(pages: Pages) -> Iterator[Prometheus]:
    """A real Prometheus that has scraped every page."""
    with running_prometheus(pages) as process:
        deadline = time.monotonic() + PATIENCE_SECONDS
        wanted = {"istio": 2, "envoy-gateway": 2, "gateway-api-inference-extension": 1}
        while not (
            len(series_of(process.url, "up == 1")) == len(pages.targets)
            and all(_shows(read(process.url, name), count) for name, count in wanted.items())
        ):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield process


def _shows(found: ClusterMetrics, count: int) -> bool:
    """Whether a reading has the engine's pod and so many instances of its gateway.

    The first readings of a busy machine may not know yet how old a sample is.
    """
    if found.problem is not None or (NAMESPACE, "chat-0") not in found.pods:
        return False
    return len(_sample(found, "chat").instances) == count


def read(url: str, profile: str, **overrides: str) -> ClusterMetrics:
    """One reading with this gateway."""
    config = PrometheusConfig(url=url, gateway=gateway_profile(profile, **overrides))
    reader = PrometheusReader(config)
    try:
        return answered(reader)
    finally:
        reader.close()


def _sample(found: ClusterMetrics, name: str) -> GatewaySample:
    assert found.problem is None
    assert found.gateways is not None
    return found.gateways.get((NAMESPACE, name), GatewaySample())


def _counters(instance: GatewayInstance) -> tuple[float | None, ...]:
    assert instance.age_seconds is not None
    assert 0 <= instance.age_seconds < PATIENCE_SECONDS
    return (
        instance.requests_total,
        instance.rejected_total,
        instance.retried_total,
        instance.queued,
    )


def test_a_real_envoy_s_counters_add_up_to_what_was_sent(prometheus: Prometheus) -> None:
    """14, 6 and 3 requests were sent to its routes; two proxies, one of them scraped twice."""
    found = read(prometheus.url, "envoy-gateway")
    for name, sent, refused in (("chat", 14.0, 4.0), ("busy", 6.0, 3.0), ("asleep", 3.0, 3.0)):
        sample = _sample(found, name)
        assert sample.counted is CountedWhen.PASSED_ON
        assert [one.name for one in sample.instances] == ["gateways/envoy-1", "gateways/envoy-2"]
        for instance in sample.instances:
            requests, rejected, retried, queued = _counters(instance)
            assert None not in {requests, rejected, retried, queued}
            assert (requests or 0) - (retried or 0) + (queued or 0) == sent
            assert rejected == refused


def test_istio_s_counters_are_those_of_the_requests_that_an_engine_could_compute(
    prometheus: Prometheus,
) -> None:
    """Served, failed and refused ones, also those that found no host, of each proxy apart."""
    sample = _sample(read(prometheus.url, "istio"), "chat")
    assert sample.counted is CountedWhen.ENDED
    by_name = {instance.name: _counters(instance) for instance in sample.instances}
    assert by_name == {
        "gateways/ingress": (113.0, 9.0, None, None),
        "shop/web-1": (11.0, None, None, None),
    }


def test_requests_that_may_have_been_for_several_belong_to_none(prometheus: Prometheus) -> None:
    """A service in front of two workloads says nothing about which of them had no host."""
    found = read(prometheus.url, "istio")
    assert _counters(_sample(found, "left").instances[0])[:2] == (5.0, None)
    assert _counters(_sample(found, "right").instances[0])[:2] == (5.0, None)


def test_another_reporter_counts_what_servers_saw(prometheus: Prometheus) -> None:
    """The administrator's choice where clients have no proxies."""
    sample = _sample(read(prometheus.url, "istio", reporter="destination"), "chat")
    assert [_counters(one)[0] for one in sample.instances] == [100.0]


def test_an_endpoint_picker_s_counters_are_those_of_its_pool(prometheus: Prometheus) -> None:
    """Its refusals are beside its requests, adapters are added, and the pool is its page's."""
    found = read(prometheus.url, "gateway-api-inference-extension")
    assert _counters(_sample(found, "chat").instances[0]) == (60.0, 4.0, None, 3.0)
    # Old and new names on one page are the same requests.
    assert _counters(_sample(found, "code").instances[0]) == (70.0, None, None, None)


def test_an_endpoint_picker_s_flow_control_is_read_by_priority(prometheus: Prometheus) -> None:
    """Of each priority what arrived, what was refused and what waits; tenants are added."""
    sample = _sample(read(prometheus.url, "gateway-api-inference-extension"), "busy")
    assert _counters(sample.instances[0]) == (61.0, 9.0, None, 7.0)
    assert sample.instances[0].saturation_ratio == 1.25
    found = {one.priority: _counters(one.instances[0]) for one in sample.priorities}
    assert found == {
        -20: (4.0, 4.0, None, None),
        -10: (17.0, 5.0, None, 6.0),
        0: (40.0, None, None, 1.0),
    }


def test_an_old_counter_says_how_old_it_is(prometheus: Prometheus) -> None:
    """Prometheus answers with its own time; the age is that of the sample."""
    (instance,) = _sample(read(prometheus.url, "envoy-gateway"), "aged").instances
    assert instance.requests_total == 5.0
    assert instance.rejected_total is None
    assert instance.age_seconds is not None
    assert 99 < instance.age_seconds < 300


def test_a_route_that_envoy_knows_has_counted_nothing_before_its_first_request(
    prometheus: Prometheus,
) -> None:
    """Envoy has no counter of it then, but says how many endpoints it has."""
    (instance,) = _sample(read(prometheus.url, "envoy-gateway"), "unasked").instances
    assert _counters(instance) == (0.0, None, None, None)


def test_a_real_envoy_s_endings_and_times_are_read(prometheus: Prometheus) -> None:
    """How requests ended, and how long whole answers took, as the capture's README has it."""
    found = read(prometheus.url, "envoy-gateway")
    endings = {}
    for name in ("ok", "fail", "slow", "stream", "cut", "drop", "retry"):
        (instance,) = _sample(found, name).instances
        endings[name] = (instance.errors_total, instance.aborted_total, instance.cut_total)
    assert endings == {
        "ok": (0.0, 0.0, 0.0), "fail": (3.0, 0.0, 0.0), "slow": (2.0, 1.0, 0.0),
        "stream": (0.0, 2.0, 0.0), "cut": (0.0, 0.0, 2.0), "drop": (2.0, 0.0, 2.0),
        "retry": (2.0, 0.0, 0.0),
    }  # fmt: skip
    latency = _sample(found, "ok").instances[0].latency_seconds
    assert latency is not None
    assert (latency.count, latency.sum) == (4.0, pytest.approx(0.221, abs=0.001))


@pytest.mark.parametrize(
    ("label", "known"),
    [pytest.param("", True, id="counts"), pytest.param("no_such", False, id="silent")],
)
def test_the_past_has_what_the_gateway_counted_then(
    prometheus: Prometheus, label: str, known: bool
) -> None:
    """As a reading of that moment; a gateway that says nothing takes no engine along."""
    profile = gateway_profile("istio", workload_label=label)
    config = PrometheusConfig(url=prometheus.url, gateway=profile)
    now = prometheus_now_seconds(config)
    ((_, past),) = read_history(config, [now])
    assert past.pods[NAMESPACE, "chat-0"].engines[0].running == 4
    counted = {one.name: one.requests_total for one in _sample(past, "chat").instances}
    assert counted == ({"gateways/ingress": 113.0, "shop/web-1": 11.0} if known else {})
    ((_, without),) = read_history(PrometheusConfig(url=prometheus.url), [now])
    assert without.gateways is None


def test_a_gateway_that_is_not_scraped_takes_no_engine_along(prometheus: Prometheus) -> None:
    """A label that no series has leaves engines as they are and the gateway silent."""
    found = read(prometheus.url, "istio", workload_label="no_such_label")
    assert found.gateways == {}
    assert found.problem is None
    assert found.pods[NAMESPACE, "chat-0"].engines[0].running == 4
