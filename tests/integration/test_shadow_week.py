"""`servingslo shadow` on hours of counters in a real Prometheus: it says what was put there.

Two pods serve all the time and a third one for three hours, as an HPA would have had it. For half
an hour nothing was scraped. One workload is known to kube-state-metrics, another is not.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.prometheus_world import proxying, running_prometheus, serving_pages
from tests.integration.test_prometheus_past_rates import wait_until_scraped
from tests.unit.cli_calls import CLI
from tests.unit.test_migrate import HPA, changed

from servingslo.api.v1alpha1 import API_VERSION
from servingslo.runtimes.engines.vllm import VLLM
from servingslo.runtimes.profile import MetricKind

pytestmark = pytest.mark.slow("servingslo_lab.cli.shadow", "servingslo_lab.cli.past")

MINUTE, HOUR = 60, 3600
HOURS = 9
# The third pod's time, and that of which nothing is known, from the end.
GUEST_BEGAN, GUEST_ENDED = 6 * HOUR, 3 * HOUR
DARK_BEGAN, DARK_ENDED = 2 * HOUR, 90 * MINUTE
# Of each engine; a fiftieth of the requests waits longer for its first token than it may.
RATE, LATE = 2.0, 0.02
GPUS = 4
CARD = 'container="vllm",resource="nvidia_com_gpu"'
NAMESPACE = "inference"
KNOWN, BARE = "llama-chat", "llama-bare"
SUFFIX = {KNOWN: "6d4cf56db6", BARE: "7f5b8c9d4"}
PODS = ("x2k9z", "bcdfg", "qwrtz")
SPEC: dict[str, Any] = {
    "objectives": [{"metric": "ttft", "percentile": 95, "threshold": "500ms"}],
    "replicas": {"min": 1, "max": 8},
    "serviceLaw": {
        "stepFixedSeconds": 0.018,
        "stepPerSequenceSeconds": 0.0005,
        "prefillPerTokenSeconds": 0.0004,
    },
    "engine": {"maxSequences": 32, "maxBatchedTokens": 2048},
}


def histograms(done: float) -> dict[str, dict[str, float]]:
    """Cumulative counts of an engine that ended so many requests, and their sum."""
    return {
        "ttft_seconds": {"0.25": done * (1 - LATE), "0.5": done * (1 - LATE), "sum": 0.2 * done},
        "inter_token_seconds": {"0.025": 99 * done, "sum": 0.02 * 99 * done},
        "time_per_output_token_seconds": {"0.025": done, "sum": 0.02 * done},
        "latency_seconds": {"2.5": done, "sum": 2.2 * done},
        "prompt_tokens": {"200": 0.0, "500": done, "sum": 300.0 * done},
        "output_tokens": {"50": 0.0, "200": done, "sum": 100.0 * done},
    }


def numbers(done: float) -> dict[str, float]:
    """Gauges and counters of the same engine."""
    return {
        "running": RATE * 2.2, "waiting": 0.0, "kv_usage_ratio": 0.1,
        "prompt_tokens_total": 300 * done, "generation_tokens_total": 100 * done,
        "finished_total": done,
    }  # fmt: skip


def engine_page(began: int, end: int, dark: range) -> str:
    """What an engine exported, a scrape a minute, but not in the dark."""
    lines = []
    for at in range(began, end, MINUTE):
        if at in dark:
            continue
        done, stamp = RATE * (at - began), at * 1000
        for metric in VLLM.metrics:
            name = metric.names[0]
            labels = 'engine="0",model_name="m"'
            if metric.kind is MetricKind.HISTOGRAM and metric.field in histograms(0):
                edges = histograms(done)[metric.field]
                total = 99 * done if metric.field == "inter_token_seconds" else done
                lines += [
                    f'{name}_bucket{{{labels},le="{edge}"}} {count} {stamp}'
                    for edge, count in {**edges, "+Inf": total}.items()
                    if edge != "sum"
                ]
                lines.append(f"{name}_sum{{{labels}}} {edges['sum']} {stamp}")
                lines.append(f"{name}_count{{{labels}}} {total} {stamp}")
            elif metric.field in numbers(0):
                more = ',finished_reason="stop"' if metric.field == "finished_total" else ""
                lines.append(f"{name}{{{labels}{more}}} {numbers(done)[metric.field]} {stamp}")
        lines.append(
            'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="50000",'
            f'engine="0"}} 1 {stamp}'
        )
    return "\n".join(lines) + "\n"


def state_page(spans: dict[str, tuple[int, int]], now: int) -> str:
    """What kube-state-metrics said of the workload and its pods."""
    lines = []
    for at in range(now - HOURS * HOUR, now, MINUTE):
        alive = {pod: began for pod, (began, end) in spans.items() if began <= at < end}
        told = [f'kube_deployment_spec_replicas{{deployment="{KNOWN}"}} {len(alive)}']
        for pod, began in alive.items():
            told += [
                f'kube_pod_created{{pod="{pod}"}} {began - 90}',
                f'kube_pod_status_phase{{pod="{pod}",phase="Running"}} 1',
                f'kube_pod_status_ready{{pod="{pod}",condition="true"}} 1',
                f'kube_pod_status_ready_time{{pod="{pod}"}} {began}',
                f'kube_pod_container_resource_requests{{pod="{pod}",{CARD}}} {GPUS}',
            ]
        lines += [f"{one} {at * 1000}" for one in told]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def remembering() -> Iterator[str]:
    """A Prometheus with both workloads."""
    now = int(time.time()) // MINUTE * MINUTE  # noqa: TID251 - timestamps of samples
    dark = range(now - DARK_BEGAN, now - DARK_ENDED)
    begins = [now - HOURS * HOUR, now - HOURS * HOUR, now - GUEST_BEGAN]
    ends = [now, now, now - GUEST_ENDED]
    with serving_pages() as pages:
        for name in (KNOWN, BARE):
            spans = {}
            for pod, began, end in zip(PODS, begins, ends, strict=True):
                full = f"{name}-{SUFFIX[name]}-{pod}"
                spans[full] = (began, end)
                page = engine_page(began, end, dark)
                pages.add(full, page, namespace=NAMESPACE, pod=full)
            if name == KNOWN:
                pages.add("state", state_page(spans, now), namespace=NAMESPACE)
        with running_prometheus(pages, interval_seconds=15.0, oldest_sample_days=2) as prometheus:
            minutes = 2 * HOURS * 60 + (GUEST_BEGAN - GUEST_ENDED) // MINUTE
            wait_until_scraped(prometheus.url, 2 * (minutes - 2 * 30))
            yield prometheus.url


@pytest.fixture
def shadow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """The command on one of the workloads, with an HPA of five running requests a pod."""
    cli = CLI(capsys, monkeypatch)

    def call(url: str, name: str, *flags: str) -> Any:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        metric = {
            "type": "Pods",
            "pods": {
                "metric": {"name": "vllm_num_requests_running"},
                "target": {"type": "AverageValue", "averageValue": "5"},
            },
        }
        hpa, slo = tmp_path / "hpa.yaml", tmp_path / "slo.yaml"
        hpa.write_text(json.dumps(changed(HPA, scaleTargetRef=target, metrics=[metric])))
        metadata = {"name": name, "namespace": NAMESPACE}
        spec = {"targetRef": target, **SPEC}
        document = {"apiVersion": API_VERSION, "kind": "ServingSLO", "metadata": metadata}
        slo.write_text(json.dumps({**document, "spec": spec}))
        asked = ("-f", slo, "--hpa", hpa, "--days", "1", "--prometheus-url", url)
        return cli("shadow", *asked, *flags)

    return call


def test_what_was_put_there_is_what_the_page_says(
    remembering: str, shadow: Any, tmp_path: Path
) -> None:
    """GPU hours, requests and misses; the dark half hour and the day before are gaps."""
    done = shadow(remembering, KNOWN, "-o", "json", "--every", "2m")
    assert done.exit_code == 0, done.err
    found = json.loads(done.out)
    seen, _, ours = found["outcomes"]
    hours = 2 * (HOURS - 0.5) + 3
    assert seen["gpu_hours"]["value"] == pytest.approx(hours * GPUS, rel=0.03)
    assert found["gpus_per_replica"] == GPUS
    assert (seen["least_replicas"], seen["greatest_replicas"], seen["measured"]) == (2, 3, True)
    assert seen["requests"] == pytest.approx(hours * HOUR * RATE, rel=0.05)
    assert seen["missed_ratio"]["value"] == pytest.approx(LATE, rel=0.02)
    assert ours["greatest_replicas"] <= 3
    known = [gap for gap in found["gaps"] if "no ready pod" in gap["reason"]]
    assert known[0]["end_seconds"] - known[0]["start_seconds"] > (24 - HOURS - 0.2) * HOUR
    # A sample is seen for five minutes more, as in any instant query.
    dark = known[1]["end_seconds"] - known[1]["start_seconds"]
    assert 24 * MINUTE <= dark <= 31 * MINUTE
    assert not [note for note in found["notes"] if "kube-state-metrics" in note]

    out = tmp_path / "week.html"
    done = shadow(remembering, KNOWN, "--every", "2m", "-o", "html", "--out", str(out))
    assert (done.exit_code, done.out) == (0, "")
    page = out.read_text()
    assert page.startswith("<!doctype html>")
    assert "no ready pod of the workload has engine metrics" in page


def test_a_workload_without_kube_state_metrics_is_its_pods_with_metrics(
    remembering: str, shadow: Any
) -> None:
    """The same hours, of the GPU that is assumed, and the text says what is not known."""
    done = shadow(remembering, BARE, "--every", "2m")
    assert done.exit_code == 0, done.err
    assert "kube-state-metrics is not there" in done.out
    assert "how many GPUs a replica has" in done.out
    assert "GPUs of a replica: 1." in done.out
    assert "2.00 %" in next(line for line in done.out.splitlines() if "measured" in line)


def test_what_cannot_be_read_is_refused_with_the_reason(remembering: str, shadow: Any) -> None:
    """A workload that never was, and a store whose every answer is partial."""
    assert shadow(remembering, "other", "--every", "2m").refuses(
        "--prometheus-url", "0s of 1d", "no ready pod", "6h or more of inference/other"
    )
    with proxying(remembering) as proxy:
        proxy.warnings.append("a store is away")
        assert shadow(proxy.url, KNOWN, "--every", "2m").refuses("a store is away", "6h or more")
