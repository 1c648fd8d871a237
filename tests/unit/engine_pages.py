"""Pages of engines under steady load, as text, and what the estimators make of them."""

from collections.abc import Callable, Iterable
from typing import Any

from tests.unit.managed_store import ManagedStore, Series, series_of

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.estimation import estimator
from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.sample import PodSample

SCRAPE_SECONDS = 15.0
SINCE_SECONDS = 3600.0
NAMESPACE = "team"

# Target's labels and its page at a time, and its age if it is not 2 s; nothing where it is not
# scraped.
Targets = Callable[[float], Iterable[tuple[Any, ...]]]


def histogram(name: str, labels: str, mean: float, count: float) -> str:
    """A histogram of so many observations, all of them the mean."""
    own = f"{labels}," if labels else ""
    edges = ((mean * 0.8, 0.0), (mean * 1.2, count), ("+Inf", count))
    lines = [f'{name}_bucket{{{own}le="{edge}"}} {value}' for edge, value in edges]
    lines += [f"{name}_sum{{{labels}}} {mean * count}", f"{name}_count{{{labels}}} {count}"]
    return "\n".join(lines) + "\n"


def vllm_page(requests: float, *, running: float = 4.0, labels: str = 'engine="0"') -> str:
    """A vLLM engine that has served so many requests of 300 prompt and 100 output tokens."""
    lines = (
        f"vllm:num_requests_running{{{labels}}} {running}\n"
        f"vllm:num_requests_waiting{{{labels}}} 0\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.02\n"
        f"vllm:prompt_tokens_total{{{labels}}} {300 * requests}\n"
        f"vllm:generation_tokens_total{{{labels}}} {100 * requests}\n"
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {requests}\n'
    )
    return (
        lines
        + histogram("vllm:time_to_first_token_seconds", labels, 0.15, requests)
        + histogram("vllm:inter_token_latency_seconds", labels, 0.02, 99 * requests)
        + histogram("vllm:request_time_per_output_token_seconds", labels, 0.02, requests)
        + histogram("vllm:e2e_request_latency_seconds", labels, 2.1, requests)
        + histogram("vllm:request_queue_time_seconds", labels, 0.001, requests)
        + histogram("vllm:request_prompt_tokens", labels, 300.0, requests)
        + histogram("vllm:request_generation_tokens", labels, 100.0, requests)
        + histogram("vllm:iteration_tokens_total", labels, 10.0, 40 * requests)
    )


def sglang_page(requests: float, ranks: int, *, realtime: bool = True) -> str:
    """An SGLang server: requests once, at its front; tokens and what runs once a rank.

    realtime: tokens are counted as they are made, by rank; else once, when a request ends.
    """
    lines = []
    for rank in range(ranks):
        own = f'dp_rank="{rank}",model_name="m"' if ranks > 1 else 'model_name="m"'
        each = requests / ranks
        lines += [
            f"sglang:num_running_reqs{{{own}}} 4",
            f"sglang:num_queue_reqs{{{own}}} 0",
            f"sglang:token_usage{{{own}}} 0.02",
            f"sglang:max_total_num_tokens{{{own}}} 50000",
        ]
        if realtime:
            lines += [
                f'sglang:realtime_tokens_total{{{own},mode="prefill_compute"}} {300 * each}',
                f'sglang:realtime_tokens_total{{{own},mode="decode"}} {100 * each}',
            ]
    front = 'model_name="m"'
    lines += [
        f"sglang:prompt_tokens_total{{{front}}} {300 * requests}",
        f"sglang:generation_tokens_total{{{front}}} {100 * requests}",
        f"sglang:num_requests_total{{{front}}} {requests}",
    ]
    return (
        "\n".join(lines)
        + "\n"
        + (
            histogram("sglang:time_to_first_token_seconds", front, 0.15, requests)
            + histogram("sglang:inter_token_latency_seconds", front, 0.02, 99 * requests)
            + histogram("sglang:e2e_request_latency_seconds", front, 2.1, requests)
        )
    )


def triton_page(requests: float, *, pending: bool = True) -> str:
    """A model of a tritonserver."""
    own = 'model="m",version="1"'
    lines = [
        f"nv_inference_request_success{{{own}}} {requests}",
        f"nv_inference_count{{{own}}} {requests}",
        f"nv_inference_exec_count{{{own}}} {requests / 2}",
        f"nv_inference_request_duration_us{{{own}}} {20_000 * requests}",
        f"nv_inference_queue_duration_us{{{own}}} {3000 * requests}",
    ]
    if pending:
        lines.append(f"nv_inference_pending_request_count{{{own}}} 0")
    return "\n".join(lines) + "\n"


def readings(targets: Targets, ticks: int, **settings: Any) -> Iterable[tuple[float, Any]]:
    """Readings a scrape apart of what these targets serve, one reader for all of them."""
    now = 1_700_000_000.0
    store = ManagedStore(lambda: now, [])
    config = PrometheusConfig(url="http://store.test", **settings)
    reader = PrometheusReader(config, client=store, monotonic=lambda: now - 1.6e9)
    try:
        for tick in range(ticks):
            now += SCRAPE_SECONDS
            seconds = SINCE_SECONDS + tick * SCRAPE_SECONDS
            series: list[Series] = []
            for labels, page, *age in targets(seconds):
                at = now - (age[0] if age else 2.0)
                series += series_of(page, at, **{"namespace": NAMESPACE, **labels})
            store.series = series
            yield now, reader._read()
    finally:
        reader.close()


def estimates(
    targets: Targets, ticks: int, pods: Iterable[str] = ("chat-0",), **settings: Any
) -> list[Estimate]:
    """What is known after each of these readings; every pod is one of the workload's."""
    state, found = EstimatorState(), []
    for now, metrics in readings(targets, ticks, **settings):
        assert metrics.problem is None, metrics.problem
        seen = tuple(
            PodSample(
                name=pod, ready=True, age_seconds=9e3, ready_for_seconds=9e3,
                engines=metrics.pods[NAMESPACE, pod].engines,
            )
            for pod in pods if (NAMESPACE, pod) in metrics.pods
        )  # fmt: skip
        state, estimate = estimator.update(state, FleetSample(time_seconds=now, pods=seen))
        found.append(estimate)
    return found
