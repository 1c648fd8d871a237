"""The pods whose pages the reader's tests put before Prometheus, and how to read them."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.integration.prometheus_world import Pages, running_prometheus, serving_pages

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.estimation.sample import EngineSample
from servingslo.policy.ports import ClusterMetrics, PodMetrics
from servingslo_lab.rig.prometheus import Prometheus

CAPTURE = Path(__file__).parents[1] / "golden" / "data" / "vllm_0.32.0_metrics.txt"
NAMESPACE = "inference"
# Twice a second is scraped; Prometheus looks for new targets every five seconds.
PATIENCE_SECONDS = 40.0
_PAUSE_SECONDS = 0.2
_OUT_OF_TIME = ("no answer within", "did not end within", "has not ended yet")
# One more than the names need: sets of adapters are asked for apart, as not every store knows topk.
FULL_READING_QUERIES = 18

OLD_NAMES = """
vllm:num_requests_running{model_name="m"} 2
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_hits_total{model_name="m"} 40
vllm:generation_tokens_total{model_name="m"} 10
vllm:request_success_total{finish_reason="stop",model_name="m"} 3
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 3
vllm:time_to_first_token_seconds_count{model_name="m"} 3
vllm:time_to_first_token_seconds_sum{model_name="m"} 0.9
vllm:time_per_output_token_seconds_bucket{le="0.05",model_name="m"} 6
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 7
vllm:time_per_output_token_seconds_count{model_name="m"} 7
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.4
"""
NOT_NUMBERS = """
vllm:num_requests_running{engine="0",model_name="m"} 4
vllm:num_requests_waiting{engine="0",model_name="m"} NaN
vllm:kv_cache_usage_perc{engine="0",model_name="m"} +Inf
vllm:generation_tokens_total{engine="0",model_name="m"} 10
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} NaN
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 5
vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0",model_name="m"} NaN
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5
vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 5
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} 5
"""
DATA_PARALLEL = """
vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:num_requests_running{engine="1",model_name="m"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.7
vllm:generation_tokens_total{engine="0",model_name="base"} 100
vllm:generation_tokens_total{engine="0",model_name="adapter"} 50
vllm:generation_tokens_total{engine="1",model_name="base"} 7
vllm:request_prompt_tokens_bucket{engine="0",le="10.0",model_name="base"} 1
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="base"} 2
vllm:request_prompt_tokens_count{engine="0",model_name="base"} 2
vllm:request_prompt_tokens_sum{engine="0",model_name="base"} 30
vllm:request_prompt_tokens_bucket{engine="0",le="10.0",model_name="adapter"} 3
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="adapter"} 3
vllm:request_prompt_tokens_count{engine="0",model_name="adapter"} 3
vllm:request_prompt_tokens_sum{engine="0",model_name="adapter"} 12
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 3
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_tokens"} 1
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="None"} 1
"""
GPU_OF_WORKLOAD = """
DCGM_FI_DEV_GPU_UTIL{gpu="0",modelName="NVIDIA L4",namespace="inference",pod="gpu-kept"} 80
DCGM_FI_DEV_FB_USED{gpu="0",Hostname="n",namespace="inference",pod="gpu-kept"} 1024
DCGM_FI_DEV_FB_FREE{gpu="0",Hostname="n",namespace="inference",pod="gpu-kept"} 512
DCGM_FI_DEV_POWER_USAGE{gpu="0",Hostname="n",namespace="inference",pod="gpu-kept"} 250.5
DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="n",namespace="inference",pod="gpu-kept"} 79
DCGM_FI_DEV_GPU_UTIL{gpu="1",GPU_I_ID="3",namespace="inference",pod="gpu-kept"} 10
DCGM_FI_DEV_GPU_UTIL{gpu="7",Hostname="n"} 1
"""


def running(count: float, timestamp_seconds: float | None = None) -> str:
    """A page with little on it; with an explicit timestamp the sample is that old."""
    stamp = "" if timestamp_seconds is None else f" {round(timestamp_seconds * 1000)}"
    return (
        f'vllm:num_requests_running{{engine="0",model_name="m"}} {count}{stamp}\n'
        f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {100 * count}{stamp}\n'
    )


@contextmanager
def serving_pods() -> Iterator[Pages]:
    """All pages, listed before Prometheus looks for the first time."""
    with serving_pages() as served:
        now = time.time()  # noqa: TID251 - explicit timestamps of samples are wall-clock times

        def pod(name: str, text: str, **labels: str) -> None:
            path = labels.pop("path", name)
            served.add(path, text, namespace=NAMESPACE, pod=name, **labels)

        pod("real", CAPTURE.read_text(encoding="utf-8"))
        pod("old-names", OLD_NAMES)
        pod("not-numbers", NOT_NUMBERS)
        pod("data-parallel", DATA_PARALLEL)
        pod("aged", running(3, now - 100))
        pod("leaving", running(5))
        pod("restarting", running(1000))
        pod("twice", running(7), job="newer", path="twice-newer")
        pod("twice", running(90, now - 60), job="older", path="twice-older")
        pod("mirrored", running(6), mirror="a", path="mirrored")
        pod("mirrored", running(6), mirror="b", path="mirrored")
        for cluster, count in (("a", 3), ("b", 9)):
            pod("namesake", running(count), cluster=cluster, path=f"namesake-{cluster}")
        pod("hostile", running(1), team='"} or vector(1) #')
        served.add("gpu-kept", GPU_OF_WORKLOAD)
        # Without honorLabels the exporter's own pod wins and the workload's moves to exported_*.
        served.add(
            "gpu-moved",
            GPU_OF_WORKLOAD.replace("gpu-kept", "gpu-moved"),
            namespace="gpu-operator",
            pod="dcgm-exporter",
        )
        served.add("renamed", running(1), kube_namespace="other", kube_pod="renamed")
        served.add("nobody", running(1), namespace=NAMESPACE)
        yield served


@contextmanager
def scraping(pages: Pages) -> Iterator[Prometheus]:
    """A real Prometheus that has scraped every page."""
    with running_prometheus(pages) as process:
        wanted = {
            labels["pod"]
            for target in pages.targets
            if isinstance(labels := target["labels"], dict) and "pod" in labels
        } | {"gpu-kept", "gpu-moved"}
        read_until(process.url, lambda found: wanted <= {pod for _, pod in found.pods})
        yield process


@contextmanager
def reader_of(url: str, **settings) -> Iterator[PrometheusReader]:
    """A reader of this address with these settings, closed at the end."""
    reader = PrometheusReader(PrometheusConfig(url=url, **settings))
    try:
        yield reader
    finally:
        reader.close()


def answered(reader: PrometheusReader, pods: Sequence[str] | None = None) -> ClusterMetrics:
    """A reading that did not run out of time: of what it asks, such a one says nothing."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = asyncio.run(reader.read(pods))
        detail = "" if found.problem is None else found.problem.detail
        late = any(words in detail for words in _OUT_OF_TIME)
        if not late or time.monotonic() > deadline:
            return found
        time.sleep(_PAUSE_SECONDS)


def read_once(url: str, **settings) -> ClusterMetrics:
    """One reading by a new reader; of a timeout that a test sets, also one that is too late."""
    with reader_of(url, **settings) as reader:
        return asyncio.run(reader.read()) if "timeout_seconds" in settings else answered(reader)


def read_until(url: str, holds: Callable[[ClusterMetrics], bool]) -> ClusterMetrics:
    """The first reading for which this holds; fails when none does in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with reader_of(url) as reader:
        while True:
            found = asyncio.run(reader.read())
            if holds(found) or time.monotonic() > deadline:
                assert holds(found), found.problem or sorted(found.pods)
                return found
            time.sleep(0.2)


def pod_of(found: ClusterMetrics, name: str) -> PodMetrics:
    """One pod of a reading that met no problem."""
    assert found.problem is None
    return found.pods[NAMESPACE, name]


def engine_of(found: ClusterMetrics, name: str) -> EngineSample:
    """The only engine of a pod."""
    (engine,) = pod_of(found, name).engines
    return engine
