"""28 days of counters in a real Prometheus, as promtool makes blocks of them: what is left.

Engines restart, pods are replaced, another scrape sees the same pod, another workload has a name
that begins alike. What the operator says is held against what was put there.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.integration.prometheus_world import running_prometheus

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.features.error_budget.reader import Budgets
from servingslo.features.error_budget.report import READING, WINDOW, BudgetReading, budget_report
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import Observation, ScaleTarget, Targets
from servingslo.policy.ports import WorkloadQuestion
from servingslo.runtimes.gateway_catalogue import gateway_profile
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.programs import versions

pytestmark = pytest.mark.slow("servingslo.features.error_budget", "servingslo.adapters.prometheus")

HOUR, DAY = 3600, 86400
DAYS = 28
# Scrapes of the last day, and those before it.
SAMPLE_SECONDS, OLD_SAMPLE_SECONDS = 100, 600
# Counters go on for as long as the blocks may take to be made.
LATER = HOUR
NAMESPACE = "inference"
OLD_POD, NEW_POD = "llama-6d4cf56db6-x2k9z", "llama-7f5b8c9d4-bcdfg"
OTHER_POD = "llama-chat-5c9f8d7b6-qwrtz"
TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
REFUSED = "vllm:admission_rejections_total"
PROXY_TOTAL, PROXY_REFUSED = (
    "envoy_cluster_upstream_rq_total",
    "envoy_cluster_upstream_rq_pending_overflow",
)
RATE = 2.0
# Of the requests of a quiet hour, 1 in 500 misses its first token; 1 in 1000 may miss its TPOT.
QUIET_TTFT, MAYBE_TPOT = 0.002, 0.001
# Six hours in which a tenth missed, eleven days ago; in the last hour a twentieth was refused.
BAD_BEGAN, BAD_ENDED, BAD_TTFT = 11 * DAY, 11 * DAY - 6 * HOUR, 0.1
LAST_REFUSED = 0.05
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Counted:
    """What the time between two scrapes adds."""

    requests: float
    late_first_token: float
    maybe_slow: float
    refused: float


def step(ago: float, seconds: float = SAMPLE_SECONDS) -> Counted:
    """What happened in the step of this length that ended so long ago."""
    requests = RATE * seconds
    late = BAD_TTFT if BAD_ENDED <= ago < BAD_BEGAN else QUIET_TTFT
    refused = LAST_REFUSED if ago < HOUR else 0.0
    return Counted(requests, requests * late, requests * MAYBE_TPOT, requests * refused)


def times(now: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """When a scrape is, and how long after the one before it."""
    at = begin
    while at < end:
        length = SAMPLE_SECONDS if at > now - DAY else OLD_SAMPLE_SECONDS
        yield at, length
        at += SAMPLE_SECONDS if at >= now - DAY else OLD_SAMPLE_SECONDS


def samples(now: int, begin: int, end: int, labels: str, fell_at: int | None) -> Iterator[str]:
    """Lines of OpenMetrics of one pod; at fell_at its counters begin anew."""
    total = late = maybe = refused = 0.0
    engine = f'{labels},engine="0",model_name="m"'
    for at, length in times(now, begin, end):
        if fell_at is not None and at - length < fell_at <= at:
            total = late = maybe = refused = 0.0
        added = step(now - at, length)
        total += added.requests
        late += added.late_first_token
        maybe += added.maybe_slow
        refused += added.refused
        for edge, count in (("0.25", total / 2), ("0.5", total - late), ("+Inf", total)):
            yield f'{TTFT}_bucket{{{engine},le="{edge}"}} {count:.3f} {at}'
        for edge, count in (("0.04", total - maybe), ("0.06", total), ("+Inf", total)):
            yield f'{TPOT}_bucket{{{engine},le="{edge}"}} {count:.3f} {at}'
        yield f"{REFUSED}{{{labels}}} {refused:.3f} {at}"


def proxy_samples(now: int, begin: int, end: int) -> Iterator[str]:
    """A proxy that refused as many again, in the last hour, as the engines did."""
    labels = (
        'namespace="gate",pod="envoy-1",job="envoy",'
        'envoy_cluster_name="httproute/inference/llama/rule/0"'
    )
    total = refused = 0.0
    for at, length in times(now, begin, end):
        added = step(now - at, length)
        total += added.requests
        refused += added.refused
        yield f"{PROXY_TOTAL}{{{labels}}} {total:.3f} {at}"
        yield f"{PROXY_REFUSED}{{{labels}}} {refused:.3f} {at}"


def openmetrics(now: int) -> Iterator[str]:
    """Everything, in the text that promtool reads."""
    start, middle = now - DAYS * DAY - DAY, now - 14 * DAY
    pods = [
        (OLD_POD, start, middle, None, ""),
        (NEW_POD, middle, now + LATER, now - 7 * DAY, ""),
        # Another scrape of the same pod, and a workload that is no part of it.
        (NEW_POD, middle, now + LATER, now - 7 * DAY, ',instance="b"'),
        (OTHER_POD, now - 2 * DAY, now + LATER, None, ""),
    ]
    for pod, begin, end, fell_at, more in pods:
        labels = f'namespace="{NAMESPACE}",pod="{pod}"{more}'
        yield from samples(now, begin, end, labels, fell_at)
    yield from proxy_samples(now, now - 2 * DAY, now + LATER)
    yield "# EOF"


@contextmanager
def remembering(now: int) -> Iterator[str]:
    """A Prometheus that begins with these 28 days as blocks on its disk."""
    promtool = ensure_tools((versions.PROMTOOL,))[versions.PROMTOOL.name]

    def fill(data: Path) -> None:
        with TemporaryDirectory(prefix="servingslo-test-") as directory:
            page = Path(directory) / "page.txt"
            page.write_text("\n".join(openmetrics(now)) + "\n", encoding="utf-8")
            subprocess.run(
                [promtool, "tsdb", "create-blocks-from", "openmetrics", "-q", page, data],
                check=True,
                timeout=300,
                capture_output=True,
            )

    with running_prometheus(None, fill=fill, retention_days=DAYS + 3) as prometheus:
        yield prometheus.url


@pytest.fixture(scope="module")
def remembered() -> Iterator[tuple[str, int]]:
    """Its address, and the moment that its data was made around."""
    now = int(time.time()) // OLD_SAMPLE_SECONDS * OLD_SAMPLE_SECONDS  # noqa: TID251 - times of samples
    with remembering(now) as url:
        yield url, now


TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.5),
        Objective(metric=LatencyMetric.TPOT, percentile=99.5, threshold_seconds=0.05),
    ),
    stated_share_ratio=0.99,
    features={WINDOW.name: float(DAYS * DAY)},
)


def reading(
    url: str, done: Callable[[BudgetReading], bool] = lambda _: True, gateway: str | None = None
) -> BudgetReading:
    """What a reader that has just been started says, as a restarted operator would."""
    config = PrometheusConfig(url=url)
    if gateway is not None:
        config = replace(config, gateway=gateway_profile(gateway))
    budgets = Budgets(config)
    asked = WorkloadQuestion(namespace=NAMESPACE, targets=TARGETS, runtime="vllm")
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while time.monotonic() < deadline:
            budgets.tick()
            found = budgets.take("uid", asked, [NEW_POD])
            if found is not None and done(found):
                return found
            time.sleep(0.05)
    finally:
        budgets.close()
    raise AssertionError("nothing was read in time")


def expected(now: int, until: float, seconds: float) -> tuple[float, float, float]:
    """Requests, least and most misses of a window, by what was put there."""
    counted = [step(now - at) for at in range(int(until - seconds), int(until), SAMPLE_SECONDS)]
    refused = sum(c.refused for c in counted)
    late = sum(c.late_first_token for c in counted)
    maybe = sum(c.maybe_slow for c in counted)
    return sum(c.requests for c in counted) + refused, late + refused, late + maybe + refused


def test_28_days_are_what_was_put_there(remembered: tuple[str, int]) -> None:
    """Within 3 %: over a reset, a replaced pod, two scrapes, and nothing remembered but there."""
    url, now = remembered
    found = reading(url)
    assert found.covered_ratio == pytest.approx(1.0)
    for window in found.windows:
        # Short windows end with the last bin of five minutes.
        until = found.time_seconds // 300 * 300
        requests, least, most = expected(now, until, window.seconds)
        assert window.requests == pytest.approx(requests, rel=0.03), window
        assert window.least == pytest.approx(least, rel=0.05), window
        assert window.most == pytest.approx(most, rel=0.05), window
    report = budget_report(
        TARGETS,
        Observation(
            time_seconds=found.time_seconds, namespace="a", name="b", features={READING.name: found}
        ),
    )
    assert report is not None
    requests, least, most = expected(now, now, DAYS * DAY)
    assert report.remaining_ratio == pytest.approx(1 - most / requests / 0.01, abs=0.03)
    assert report.remaining_most_ratio == pytest.approx(1 - least / requests / 0.01, abs=0.03)
    rates = {burn.seconds: burn.rate for burn in report.burn_rates}
    assert rates[HOUR] > 4.0
    assert rates[3 * DAY] < 1.0


def test_what_a_gateway_refuses_is_missed(remembered: tuple[str, int]) -> None:
    """Its refusals of the workload's route count beside those of the engines."""
    url, _ = remembered
    alone, behind = reading(url), reading(url, gateway="envoy-gateway")
    hour = next(i for i, window in enumerate(alone.windows) if window.seconds == HOUR)
    refused = RATE * HOUR * LAST_REFUSED
    added = behind.windows[hour].most - alone.windows[hour].most
    assert added == pytest.approx(refused, rel=0.15)
