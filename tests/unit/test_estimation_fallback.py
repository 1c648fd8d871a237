"""The gateway's counts of a fallback, from Envoy's series to requests per second."""

import re
from pathlib import Path

import pytest

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.gateways import backends_of, gateways_of
from servingslo.estimation.gateway.fallback import measure_fallback
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.runtimes.gateways import ENVOY_GATEWAY

CLUSTER = "httproute/inference/chat/rule/0"
CONFIG = PrometheusConfig(url="http://prometheus")
ENVOY_PAGE = Path(__file__).parents[1] / "golden" / "data" / "envoy_1.40.0_backends.txt"


def series(name, value, cluster=f"{CLUSTER}/backend/1", **labels):
    """One series of Envoy's page, as Prometheus answers it."""
    metric = {"__name__": f"envoy_cluster_{name}", "envoy_cluster_name": cluster, "pod": "envoy-0"}
    return {"metric": {**metric, **labels}, "value": [0, str(value)]}


PAGE = [
    series("upstream_rq_total", 100, f"{CLUSTER}/backend/0"),
    series("upstream_rq_total", 40),
    series("upstream_rq_active_overflow", 4),
    series("upstream_rq_xx", 36, envoy_response_code_class="2"),
    series("upstream_rq_xx", 6, envoy_response_code_class="5"),
    series("upstream_rq", 3, envoy_response_code="429"),
    series("upstream_rq", 36, envoy_response_code="200"),
    series("upstream_rq_time_sum", 80000),
    series("upstream_rq_time_count", 40),
    series("upstream_rq_total", 7, "httproute/inference/chat/rule/1"),
]


def test_each_backend_is_counted_apart_and_the_route_as_a_whole():
    """A backend's cluster has its number; a rule with one cluster has no backend."""
    (whole,) = gateways_of(ENVOY_GATEWAY, CONFIG, PAGE)[("inference", "chat")].instances
    assert whole.requests_total == 151
    assert whole.rejected_total == 4
    assert whole.failed_total is None
    found = backends_of(ENVOY_GATEWAY, CONFIG, PAGE)
    assert set(found) == {("inference", "chat", 0, 0), ("inference", "chat", 0, 1)}
    (small,) = found[("inference", "chat", 0, 1)].instances
    assert (small.requests_total, small.rejected_total, small.failed_total) == (44, 4, 9)
    assert (small.ended_total, small.ended_milliseconds_total) == (40, 80000)


def test_a_backend_of_thousands_of_digits_is_none():
    """A label may be a tenant's: what is counted of the other backends is read."""
    found = [series("upstream_rq_total", 9, cluster=f"{CLUSTER}/backend/{'9' * 5000}"), *PAGE]
    assert set(backends_of(ENVOY_GATEWAY, CONFIG, found)) == {
        ("inference", "chat", 0, 0),
        ("inference", "chat", 0, 1),
    }


def test_a_page_of_a_real_envoy_says_what_its_clients_saw():
    """Captured after 400 requests: 11 served, one answered with 429 and 99 refused by Envoy."""
    line = re.compile(r"(?P<name>\w+)\{(?P<labels>.*)} (?P<value>\S+)")
    found = []
    for match in map(line.fullmatch, ENVOY_PAGE.read_text(encoding="utf-8").splitlines()):
        if match is not None:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
            metric = {"__name__": match["name"], "pod": "envoy-0", **labels}
            found.append({"metric": metric, "value": [0, match["value"]]})
    by_backend = backends_of(ENVOY_GATEWAY, CONFIG, found)
    (small,) = by_backend[("inference", "chat", 0, 1)].instances
    assert (small.requests_total, small.rejected_total, small.failed_total) == (111, 99, 100)
    (chat,) = by_backend[("inference", "chat", 0, 0)].instances
    assert (chat.requests_total, chat.failed_total) == (280 + 9, 9)
    for one in (small, chat):
        assert 0 < one.ended_total <= one.requests_total
    # The server slept for 200 ms.
    assert 200 < small.ended_milliseconds_total / small.ended_total < 400
    (whole,) = gateways_of(ENVOY_GATEWAY, CONFIG, found)[("inference", "chat")].instances
    assert whole.requests_total == 400


def sample(requests, failed, ended, milliseconds, rejected=0.0, name="envoy", age=1.0):
    """One proxy's counts of the fallback."""
    one = GatewayInstance(
        name=name, age_seconds=age, requests_total=requests, rejected_total=rejected,
        failed_total=failed, ended_total=ended, ended_milliseconds_total=milliseconds,
    )  # fmt: skip
    return GatewaySample(instances=(one,))


def test_a_window_lies_between_two_scrapes():
    """The first scrape says nothing; the second one says rates and the mean answer."""
    windows, use = measure_fallback((), sample(100, 0, 100, 200_000), 1000.0, 60.0)
    assert use is None
    windows, use = measure_fallback(windows, sample(130, 3, 127, 254_000), 1015.0, 60.0)
    assert use.requests_per_second == pytest.approx(2.0)
    assert use.refused_ratio == pytest.approx(0.1)
    assert use.served_per_second == pytest.approx(1.8)
    assert use.passed_on_per_second == pytest.approx(2.0)
    assert use.mean_seconds == pytest.approx(2.0)
    assert use.began_seconds == pytest.approx(999.0)
    assert use.requests == pytest.approx(30.0)
    # The same scrape again is no new window.
    assert measure_fallback(windows, sample(130, 3, 127, 254_000, age=6.0), 1020.0, 60.0)[1] == use


def test_a_refusal_of_the_gateway_itself_is_counted_once():
    """Envoy counts it among its answers with 503."""
    windows, _ = measure_fallback((), sample(0, 0, 0, 0), 1000.0, 60.0)
    _, use = measure_fallback(windows, sample(30, 6, 24, 24_000, rejected=6.0), 1015.0, 60.0)
    assert use.refused_per_second == pytest.approx(0.4)
    assert use.passed_on_per_second == pytest.approx(1.6)
    assert use.served_per_second == pytest.approx(1.6)


def test_old_counts_are_none():
    """A proxy that is not scraped any more says nothing."""
    windows, _ = measure_fallback((), sample(0, 0, 0, 0), 1000.0, 60.0)
    assert measure_fallback(windows, sample(30, 0, 30, 1, age=90.0), 1100.0, 60.0) == ((), None)
    assert measure_fallback(windows, None, 1100.0, 60.0) == ((), None)
