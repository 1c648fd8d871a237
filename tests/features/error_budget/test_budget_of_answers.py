"""Requests without a whole answer count against the error budget over days, as refused ones do."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit import test_prometheus_matchers as matchers

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.api.convert import targets_from_spec
from servingslo.features.error_budget.queries import BudgetQueries
from servingslo.features.error_budget.reader import Budgets
from servingslo.features.error_budget.report import WINDOW
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.inputs import ScaleTarget, Targets
from servingslo.policy.ports import WorkloadQuestion
from servingslo.runtimes.gateway_catalogue import gateway_profile

store = matchers.store
END = 1_700_000_000
TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat"),
    objectives=(Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.5),),
    features={WINDOW.name: 28 * 86400.0},
)
CLUSTER = "httproute/inference/chat/rule/0"


def _asked(runtime: str) -> WorkloadQuestion:
    return WorkloadQuestion(namespace="inference", targets=TARGETS, runtime=runtime)


def _one(value: float, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "values": [[END, str(value)]]}


def _counted(name: str, value: float, **labels: str) -> dict[str, Any]:
    return _one(
        value, servingslo_metric=f"envoy_cluster_upstream_{name}", envoy_cluster_name=CLUSTER,
        namespace="gateway", pod="envoy-0", **labels,
    )  # fmt: skip


def _read(runtime: str, answers: dict[str, list[Any]], gateway: str = "none"):
    """Misses of the only bin. answers: by a word of the query; nothing to any other query."""
    config = PrometheusConfig(url="http://store.test", gateway=gateway_profile(gateway))

    def ask(promql: str) -> list[Any]:
        return next((found for word, found in answers.items() if word in promql), [])

    return BudgetQueries(config).read(ask, _asked(runtime), 3600)[END]


TTFT = [_one(90.0, le="0.5"), _one(100.0, le="+Inf")]


def test_a_gateway_s_failures_and_aborts_are_missed() -> None:
    """Of 100 served, 10 were late; 7 refused (5 by engines), 9 failed, 4 aborted."""
    series = [
        _counted("rq_total", 120.0),
        _counted("rq_pending_overflow", 2.0),
        # Refusals of gateway and engines are answers of 5xx too.
        _counted("rq_xx", 16.0, envoy_response_code_class="5"),
        _counted("rq_xx", 100.0, envoy_response_code_class="2"),
        _counted("cx_destroy_local_with_active_rq", 5.0),
        _counted("rq_timeout", 1.0),
    ]
    found = _read(
        "vllm",
        {
            "time_to_first_token": TTFT,
            "admission_rejections": [_one(5.0)],
            "envoy_cluster": series,
            "request_success": [_one(50.0, finished_reason="abort")],
        },
        gateway="envoy-gateway",
    )
    lost = 2.0 + 5.0 + (16.0 - 2.0 - 5.0) + 4.0
    assert found.requests == pytest.approx(100.0 + lost)
    assert found.most == pytest.approx(10.0 + lost)


def test_without_a_gateway_the_engines_own_count_stands_in() -> None:
    """By reason where they are counted by reason; whole answers are none."""
    reasons = [
        _one(3.0, finished_reason="abort"),
        _one(2.0, finished_reason="error"),
        _one(95.0, finished_reason="stop"),
    ]
    found = _read("vllm", {"time_to_first_token": TTFT, "request_success": reasons})
    assert found.requests == pytest.approx(105.0)
    assert found.least == pytest.approx(15.0)


def test_engines_that_count_aborts_apart() -> None:
    """SGLang has a counter of its own, without a reason."""
    found = _read("sglang", {"time_to_first_token": TTFT, "num_aborted": [_one(4.0)]})
    assert found.requests == pytest.approx(104.0)


def test_what_a_fallback_served_counts_by_its_own_weight() -> None:
    """Here 10 of 100 were late; there 40 were served, Envoy refused 4 and the server 6."""
    at = 3600

    def bucket(edge: str, count: float) -> dict[str, Any]:
        return {"metric": {"le": edge}, "values": [[at, str(count)]]}

    def count(name: str, value: float, backend: int, **labels: str) -> dict[str, Any]:
        cluster = f"httproute/inference/chat/rule/0/backend/{backend}"
        metric = {"servingslo_metric": name, "envoy_cluster_name": cluster, **labels}
        return {"metric": metric, "values": [[at, str(value)]]}

    def ask(promql: str) -> list[Any]:
        if "time_to_first_token" in promql:
            return [bucket("1.0", 90), bucket("+Inf", 100)]
        if "envoy_cluster" not in promql:
            return []
        assert "envoy_cluster_upstream_rq_xx" in promql
        return [
            count("envoy_cluster_upstream_rq_total", 100, 0),
            count("envoy_cluster_upstream_rq_total", 46, 1),
            count("envoy_cluster_upstream_rq_active_overflow", 4, 1),
            count("envoy_cluster_upstream_rq_xx", 10, 1, envoy_response_code_class="5"),
            count("envoy_cluster_upstream_rq_xx", 40, 1, envoy_response_code_class="2"),
        ]

    targets = targets_from_spec(
        {
            "targetRef": {"kind": "Deployment", "name": "chat"},
            "objectives": [{"metric": "ttft", "percentile": 95, "threshold": "1s"}],
            "replicas": {"max": 3},
            "degradation": {"route": "chat", "fallback": "small", "degradedCountsAs": 0.75},
        }
    )
    asked = replace(_asked("vllm"), targets=targets, fallback=(0, 1))
    config = PrometheusConfig(url="http://prometheus", gateway=gateway_profile("envoy-gateway"))
    found = BudgetQueries(config).read(ask, asked, 3600)[at]
    assert found.requests == pytest.approx(100 + 40 + 10)
    assert found.most == pytest.approx(10 + 10 + 0.25 * 40)


@pytest.mark.parametrize("gateway", matchers.GATEWAYS)
def test_every_query_has_the_matchers(store: str, gateway: str) -> None:
    """Of each runtime, with a fallback behind the gateway."""
    profile = gateway_profile(gateway)
    budgets = Budgets(PrometheusConfig(url=store, gateway=profile, matchers=matchers.MATCHERS))
    for runtime in ("vllm", "sglang", "trtllm"):
        asked = replace(_asked(runtime), fallback=(0, 1))
        budgets._bins(asked, 300, range(END - 900, END, 300))
    budgets.close()
    asked = matchers.Store.asked
    assert asked
    assert {query: found for query in asked if (found := matchers.unmatched(query))} == {}
