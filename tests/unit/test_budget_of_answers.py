"""Requests without a whole answer count against the error budget over days, as refused ones do."""

from typing import Any

import pytest

from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.adapters.prometheus.past.budget_queries import BudgetQueries
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.inputs import ErrorBudgetTargets, ScaleTarget, Targets
from servingslo.policy.ports import BudgetQuestion
from servingslo.runtimes.gateway_catalogue import gateway_profile

END = 1_700_000_000
TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat"),
    objectives=(Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.5),),
    error_budget=ErrorBudgetTargets(),
)
CLUSTER = "httproute/inference/chat/rule/0"


def _asked(runtime: str) -> BudgetQuestion:
    return BudgetQuestion(namespace="inference", targets=TARGETS, runtime=runtime)


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
