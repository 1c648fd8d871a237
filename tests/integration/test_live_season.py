"""A season in a live operator: two weeks of days in a real Prometheus foretell a rise.

Nothing rises in the present: what is ordered is ordered because of the days before.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.integration.operator_under_test import Engines, Operator, Tenant, steady_trace
from tests.integration.prometheus_world import running_prometheus, serving_pages
from tests.integration.test_lifecycle_scaling import LAW

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import http_get, wait_until

pytestmark = pytest.mark.slow(
    "servingslo.estimation.forecast", "servingslo.adapters.prometheus.past"
)

DAY, DAYS, SAMPLE_SECONDS = 86400, 14, 120
NAMESPACE = "season-live"
OLD_POD = "chat-6d4cf56db6-x2k9z"
# Requests per second; one replica serves six. Each day the surge begins within the cold start that
# the resource states, counted from when this test looks, and lasts four hours.
CALM, SURGE = 1.0, 12.0
COLD_START_SECONDS, BEGINS_SECONDS, LASTS_SECONDS = 600, 300, 14400
PATIENCE_SECONDS = 60.0


def _page(now: int) -> str:
    """The count of completed requests, every two minutes of two weeks, each with its time."""
    labels = 'engine="0",finished_reason="stop",model_name="tiny"'
    lines, total = [], 0.0
    for at in range(now - DAYS * DAY, now, SAMPLE_SECONDS):
        since = (at - now - BEGINS_SECONDS) % DAY
        total += (SURGE if since < LASTS_SECONDS else CALM) * SAMPLE_SECONDS
        lines.append(f"vllm:request_success_total{{{labels}}} {total:.0f} {at * 1000}")
    return "\n".join(lines) + "\n"


def _samples(url: str) -> int:
    """How many samples of the past Prometheus has."""
    counter = f'vllm:request_success_total{{pod="{OLD_POD}"}}[{DAYS + 1}d]'
    query = quote(f"sum(count_over_time({counter}))")
    found = json.loads(http_get(f"{url}/api/v1/query?query={query}") or "{}")
    result = (found.get("data") or {}).get("result")
    return int(result[0]["value"][1]) if result else 0


@pytest.fixture(scope="module")
def remembering(engines: Engines) -> Iterator[str]:
    """The address of a Prometheus that has those weeks, and scrapes the engines of now."""
    now = int(time.time())  # noqa: TID251 - times of samples
    with serving_pages() as pages:
        pages.add(OLD_POD, _page(now), namespace=NAMESPACE, pod=OLD_POD)
        with running_prometheus(
            pages, interval_seconds=2.0, oldest_sample_days=DAYS + 1
        ) as prometheus:
            wait_until(
                lambda: _samples(prometheus.url) >= DAYS * DAY // SAMPLE_SECONDS,
                what="two weeks of samples",
                timeout_seconds=PATIENCE_SECONDS,
            )
            now_plan = replace(
                prometheus.plan, http_sd_url=f"{engines.url}/sd", scrape_interval_seconds=1.0
            )
            prometheus.configure(now_plan)
            yield prometheus.url


@pytest.fixture(scope="module")
def operator_settings(remembering: str) -> tuple[str, ...]:
    """The operator reads that Prometheus."""
    return (f"--prometheus-url={remembering}",)


@pytest.fixture
def namespace(rig: Rig) -> Iterator[str]:
    """The one that the history is of."""
    rig.create_namespace(NAMESPACE)
    yield NAMESPACE
    rig.delete_namespace(NAMESPACE)


def test_replicas_are_ordered_for_a_rise_that_only_the_past_foretells(
    tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """One request a second comes, and the count is that of the surge before it begins."""
    tenant.create_deployment(replicas=1)
    trace = steady_trace(tmp_path / "calm.csv", rate=CALM, seconds=60.0)
    tenant.begin_traffic(trace, duration_seconds=600)
    tenant.create_slo(serviceLaw=LAW, coldStart=f"{COLD_START_SECONDS}s")
    tenant.wait(lambda: tenant.replicas() > 1, what="replicas", timeout_seconds=PATIENCE_SECONDS)
    tenant.wait(
        lambda: bool(operator.log_lines("decided", NAMESPACE, "action=scale-up")),
        what="its line",
        timeout_seconds=PATIENCE_SECONDS,
    )
    line = operator.log_lines("decided", NAMESPACE, "action=scale-up")[0]
    assert _number(line, "arrival") < 3.0 * CALM
    assert _number(line, "forecast") > SURGE / 2.0


def _number(line: str, key: str) -> float:
    """A rate of a decision's line."""
    return float(line.partition(f" {key}=")[2].partition("/s")[0])
