"""The Prometheus reader against a real Prometheus that scrapes real and made-up pages."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.prometheus_world import (
    Pages,
    proxying,
    running_prometheus,
    serving_pages,
)

from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.adapters.prometheus.reader import PrometheusReader
from servingslo.estimation.sample import EngineSample, HistogramSample
from servingslo.policy.ports import ClusterMetrics, PodMetrics
from servingslo.reasons import Reason
from servingslo.rig.prometheus import Prometheus
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.profile import MetricKind

pytestmark = pytest.mark.rig

CAPTURE = Path(__file__).parents[1] / "golden" / "data" / "vllm_0.32.0_metrics.txt"
DATA = Path(__file__).parent / "data"
VLLM = profile("vllm")
NAMESPACE = "inference"
# Twice a second is scraped; Prometheus looks for new targets every five seconds.
PATIENCE_SECONDS = 40.0
FULL_READING_QUERIES = 13

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
DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n",namespace="inference",pod="gpu-kept"} 80
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


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    """All pages of this module's pods, listed before Prometheus looks for the first time."""
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


@pytest.fixture(scope="module")
def prometheus(pages: Pages) -> Iterator[Prometheus]:
    """A real Prometheus that has scraped every page."""
    with running_prometheus(pages) as process:
        wanted = {
            labels["pod"]
            for target in pages.targets
            if isinstance(labels := target["labels"], dict) and "pod" in labels
        } | {"gpu-kept", "gpu-moved"}
        _read_until(process.url, lambda found: wanted <= {pod for _, pod in found.pods})
        yield process


@contextmanager
def _reader(url: str, **settings) -> Iterator[PrometheusReader]:
    reader = PrometheusReader(PrometheusConfig(url=url, **settings))
    try:
        yield reader
    finally:
        reader.close()


def _read(url: str, **settings) -> ClusterMetrics:
    with _reader(url, **settings) as reader:
        return asyncio.run(reader.read())


def _read_until(url: str, holds: Callable[[ClusterMetrics], bool]) -> ClusterMetrics:
    deadline = time.monotonic() + PATIENCE_SECONDS
    with _reader(url) as reader:
        while True:
            found = asyncio.run(reader.read())
            if holds(found) or time.monotonic() > deadline:
                assert holds(found), found.problem or sorted(found.pods)
                return found
            time.sleep(0.2)


def _pod(found: ClusterMetrics, name: str) -> PodMetrics:
    assert found.problem is None
    return found.pods[NAMESPACE, name]


def _engine(found: ClusterMetrics, name: str) -> EngineSample:
    (engine,) = _pod(found, name).engines
    return engine


# What is read


def _expected_of_capture() -> dict[str, object]:
    """Each field of the profile, read from the capture by another parser."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(CAPTURE.read_text(encoding="utf-8")):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    expected: dict[str, object] = {}
    for metric in VLLM.metrics:
        name = metric.names[0]
        if metric.kind is MetricKind.HISTOGRAM:
            buckets = [(float(labels["le"]), value) for labels, value in samples[name + "_bucket"]]
            expected[metric.field] = (
                tuple(sorted(buckets)),
                samples[name + "_sum"][0][1],
                samples[name + "_count"][0][1],
            )
        elif metric.by_labels:
            expected[metric.field] = {
                labels[metric.by_labels[0]]: value for labels, value in samples[name]
            }
        else:
            expected[metric.field] = sum(value for _, value in samples[name])
    return expected


@pytest.mark.parametrize("metric", VLLM.metrics, ids=lambda metric: metric.field)
def test_every_metric_of_a_real_engine_arrives_in_its_field(prometheus, metric):
    """A real vLLM page, scraped by a real Prometheus, is read name by name and value by value."""
    value = getattr(_engine(_read(prometheus.url), "real"), metric.field)
    if metric.kind is MetricKind.HISTOGRAM:
        buckets = tuple(zip(value.upper_bounds, value.cumulative_counts, strict=True))
        value = (buckets, value.sum, value.count)
    assert value == _expected_of_capture()[metric.field]


def test_capacity_and_ages_of_a_real_engine_are_known(prometheus):
    """Blocks times their size as the engine reports it, and samples no older than a few scrapes."""
    engine = _engine(_read(prometheus.url), "real")
    assert engine.engine == "0"
    assert (engine.kv_capacity_tokens, engine.kv_block_tokens) == (262_144, 128)
    assert engine.nan_metrics == ()
    ages = (
        engine.gauges_age_seconds,
        engine.counters_age_seconds,
        engine.histograms_age_seconds,
    )
    assert all(age is not None and 0 <= age < PATIENCE_SECONDS for age in ages)


def test_older_names_and_an_engine_without_label_are_read(prometheus):
    """Renamed names, and the label spelling of another simulator, fill the same fields."""
    engine = _engine(_read(prometheus.url), "old-names")
    assert engine.engine == "0"
    assert engine.kv_usage_ratio == 0.25
    assert engine.cached_prompt_tokens_total == 40
    assert engine.finished_total == {"stop": 3}
    assert engine.inter_token_seconds is not None
    assert engine.inter_token_seconds.cumulative_counts == (6, 7)
    assert engine.time_per_output_token_seconds is None


def test_engines_of_one_pod_are_told_apart(prometheus):
    """KV use is never summed, adapters of one engine are, and rejections belong to the pod."""
    first, second = _pod(_read(prometheus.url), "data-parallel").engines
    assert (first.engine, second.engine) == ("0", "1")
    assert (first.kv_usage_ratio, second.kv_usage_ratio) == (0.5, 0.7)
    assert (first.generation_tokens_total, second.generation_tokens_total) == (150, 7)
    assert first.prompt_tokens == HistogramSample(
        upper_bounds=(10.0, math.inf), cumulative_counts=(4.0, 5.0), sum=42.0, count=5.0
    )
    assert (first.rejected_total, second.rejected_total) == (4, None)
    assert (first.kv_capacity_tokens, second.kv_capacity_tokens) == (1600, None)


@pytest.mark.parametrize("pod", ["gpu-kept", "gpu-moved"])
def test_gpus_are_found_under_both_label_styles(prometheus, pod):
    """With and without honorLabels the card belongs to the workload's pod, in SI units."""
    gpus = _pod(_read(prometheus.url), pod).gpus
    card, slice_ = gpus
    assert (card.gpu, slice_.gpu) == ("0", "1/3")
    assert card.utilization_ratio == 0.8
    assert (card.memory_used_bytes, card.memory_free_bytes) == (2**30, 2**29)
    assert (card.power_watts, card.xid_error) == (250.5, 79)
    assert card.age_seconds is not None
    assert slice_.power_watts is None


# What is not there, not a number, old, or there twice


def test_not_a_number_and_missing_are_different_outcomes(prometheus):
    """Both fields are None; only what Prometheus answered as NaN or Inf is named."""
    engine = _engine(_read(prometheus.url), "not-numbers")
    assert engine.running == 4
    assert engine.waiting is None
    assert engine.kv_usage_ratio is None
    assert engine.preempted_total is None
    assert engine.latency_seconds is None
    assert engine.finished_total == {"length": 5}
    assert set(engine.nan_metrics) == {
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:request_success_total",
        "vllm:e2e_request_latency_seconds",
    }


def test_an_old_sample_says_how_old_it_is(prometheus):
    """Prometheus answers with its own time; the age is that of the sample."""
    engine = _engine(_read(prometheus.url), "aged")
    assert engine.running == 3
    assert engine.gauges_age_seconds is not None
    assert 99 < engine.gauges_age_seconds < 300
    assert engine.histograms_age_seconds is None


def test_a_pod_whose_target_is_gone_is_missing(prometheus, pages):
    """No ghost of it stays behind for the lookback time."""
    pages.texts["leaving"] = None
    _read_until(prometheus.url, lambda found: (NAMESPACE, "leaving") not in found.pods)
    pages.texts["leaving"] = running(5)
    _read_until(prometheus.url, lambda found: (NAMESPACE, "leaving") in found.pods)


def test_a_counter_that_fell_is_passed_on_as_it_is(prometheus, pages):
    """A restart is seen by whoever compares two samples, so nothing is smoothed here."""
    assert _engine(_read(prometheus.url), "restarting").generation_tokens_total == 100_000
    pages.texts["restarting"] = running(1)
    found = _read_until(prometheus.url, lambda found: _engine(found, "restarting").running == 1)
    assert _engine(found, "restarting").generation_tokens_total == 100
    pages.texts["restarting"] = running(1000)
    _read_until(prometheus.url, lambda found: _engine(found, "restarting").running == 1000)


def test_a_pod_scraped_by_two_jobs_counts_once_with_the_newest_sample(prometheus):
    """The older scrape is larger, and is neither taken nor added."""
    engine = _engine(_read(prometheus.url), "twice")
    assert engine.running == 7
    assert engine.generation_tokens_total == 700
    assert engine.gauges_age_seconds is not None
    assert engine.gauges_age_seconds < 60


def test_a_pod_scraped_twice_under_an_unlisted_label_is_not_doubled(prometheus):
    """A replica label that nobody configured must not double every counter."""
    assert _engine(_read(prometheus.url), "mirrored").generation_tokens_total == 600


def test_what_tenants_write_never_reaches_a_query(prometheus):
    """A hostile label value changes no query, and its pod is read like any other."""
    with proxying(prometheus.url) as proxy:
        found = _read(proxy.url)
    assert _engine(found, "hostile").running == 1
    assert not any("vector" in request or "hostile" in request for request in proxy.requests)


def test_the_number_of_queries_does_not_grow_with_the_cluster(prometheus):
    """A dozen pods cost as many queries as none."""
    with running_prometheus(None) as empty, proxying(empty.url) as proxy:
        nothing = _read(proxy.url)
        of_nothing = len(proxy.requests)
    with proxying(prometheus.url) as proxy:
        _read(proxy.url)
        of_many = len(proxy.requests)
    assert nothing == ClusterMetrics()
    assert of_nothing == of_many == FULL_READING_QUERIES


def test_histograms_of_many_engines_are_read_beside_the_readings(prometheus):
    """Above the limit a reading stays light; buckets come all at once, and their age grows."""
    light = FULL_READING_QUERIES - 8
    with (
        proxying(prometheus.url) as proxy,
        _reader(proxy.url, histogram_engines_each_tick=1, histogram_every_ticks=3) as reader,
    ):
        first = _engine(asyncio.run(reader.read()), "real")
        assert first.ttft_seconds is None
        assert first.histograms_age_seconds is None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(proxy.requests) < light + FULL_READING_QUERIES - 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ages, counts = [], []
        while len(ages) < 8:
            assert time.monotonic() < deadline
            before = len(proxy.requests)
            engine = _engine(asyncio.run(reader.read()), "real")
            counts.append(len(proxy.requests) - before)
            if engine.ttft_seconds is not None:
                assert engine.ttft_seconds.count == 54
                assert engine.iteration_tokens is not None
                ages.append(engine.histograms_age_seconds)
            time.sleep(0.2)
    assert min(counts) == light
    assert any(later > earlier for earlier, later in pairwise(ages))
    assert any(later < earlier for earlier, later in pairwise(ages))


# Trouble


def _assert_unavailable(found: ClusterMetrics, *words: str) -> None:
    assert found.pods == {}
    assert found.problem is not None
    assert found.problem.reason is Reason.PROMETHEUS_UNAVAILABLE
    for word in words:
        assert word in found.problem.detail


def test_a_frozen_prometheus_is_a_problem_within_the_timeout_and_heals(prometheus):
    """A server that accepts and never answers costs one timeout, not the loop."""
    with _reader(prometheus.url, timeout_seconds=0.5) as reader:
        prometheus.process.pause()
        try:
            _assert_unavailable(asyncio.run(reader.read()), "no answer within 0.5 s")
        finally:
            prometheus.process.resume()
        assert asyncio.run(reader.read()).problem is None


def test_a_dead_prometheus_is_a_problem_and_heals(prometheus):
    """Refused connections are told as such; after the restart the same reader goes on."""
    with _reader(prometheus.url) as reader:
        prometheus.process.stop()
        _assert_unavailable(asyncio.run(reader.read()), "Connection refused")
        prometheus.start()
        prometheus.wait_ready()
        assert asyncio.run(reader.read()).problem is None
    _read_until(prometheus.url, lambda found: (NAMESPACE, "real") in found.pods)


def test_an_answer_that_trickles_in_is_cut_off(prometheus):
    """Single bytes reset the timeout of a socket, not the deadline of a query."""
    with proxying(prometheus.url) as proxy:
        proxy.trickle_seconds = 0.1
        found = _read(proxy.url, timeout_seconds=0.5)
    _assert_unavailable(found, "no answer within 0.5 s")


def test_a_reading_under_way_is_not_joined_by_another(prometheus):
    """A slow server never makes readings pile up."""

    async def twice(reader: PrometheusReader) -> tuple[ClusterMetrics, ClusterMetrics]:
        first = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0.2)
        second = await reader.read()
        return await first, second

    with proxying(prometheus.url) as proxy:
        proxy.trickle_seconds = 0.1
        with _reader(proxy.url, timeout_seconds=1.0) as reader:
            first, second = asyncio.run(twice(reader))
    _assert_unavailable(first, "no answer within 1 s")
    _assert_unavailable(second, "the reading before has not ended yet")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"<html>login</html>", id="not-json"),
        pytest.param(b'{"status":"error","error":"no"}', id="no-data"),
        pytest.param(b'{"status":"success","data":{"result":{}}}', id="not-a-list"),
        pytest.param(b'{"status":"success","data":{"result":[]}}', id="no-clock"),
        pytest.param(b'{"status":"success","data":{"result":[{"value":1}]}}', id="no-labels"),
        pytest.param(b"[1, 2]", id="another-document"),
        pytest.param(b"", id="empty"),
    ],
)
def test_an_answer_that_is_none_is_a_problem(prometheus, body):
    """A login page or a broken proxy never looks like an empty cluster."""
    with proxying(prometheus.url) as proxy:
        proxy.body = body
        _assert_unavailable(_read(proxy.url))


def test_a_failure_at_once_is_tried_again_and_again_only_so_often(prometheus):
    """One failed request is repeated, two in a row are a problem."""
    with proxying(prometheus.url) as proxy:
        proxy.failures = 1
        assert _read(proxy.url).problem is None
        proxy.failures, before = 2, len(proxy.requests)
        _assert_unavailable(_read(proxy.url), "503")
        assert len(proxy.requests) - before == 2


def test_warnings_make_a_reading_partial(prometheus):
    """Part of the truth is told as such, with Prometheus's own words, beside what there is."""
    with proxying(prometheus.url) as proxy:
        proxy.warnings = ["store gateway zone-b unavailable"]
        found = _read(proxy.url)
    assert found.problem is not None
    assert found.problem.reason is Reason.METRICS_PARTIAL
    assert found.problem.detail == "store gateway zone-b unavailable"
    assert (NAMESPACE, "real") in found.pods


# Credentials


def test_a_bearer_token_is_read_again_when_it_rotates(prometheus, tmp_path):
    """The next query after a rotation carries the new token; no token shows in a message."""
    token = tmp_path / "token"
    token.write_text("first\n")
    with (
        proxying(prometheus.url) as proxy,
        _reader(proxy.url, bearer_token_file=str(token)) as reader,
    ):
        proxy.required = {"Authorization": "Bearer first"}
        assert asyncio.run(reader.read()).problem is None
        proxy.required = {"Authorization": "Bearer second"}
        refused = asyncio.run(reader.read())
        _assert_unavailable(refused, "HTTP 401")
        assert refused.problem is not None
        assert "first" not in refused.problem.detail
        token.write_text("second\n")
        assert asyncio.run(reader.read()).problem is None
        token.unlink()
        _assert_unavailable(asyncio.run(reader.read()), "token")


def test_tenant_and_basic_auth_are_sent(prometheus, tmp_path):
    """Multi-tenant backends are asked for the right tenant by the right user."""
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    with proxying(prometheus.url) as proxy:
        proxy.required = {
            "X-Scope-OrgID": "team-a",
            "Authorization": "Basic b3BlcmF0b3I6b3BlbiBzZXNhbWU=",
        }
        settings = {
            "basic_auth_username": "operator",
            "basic_auth_password_file": str(password),
        }
        _assert_unavailable(_read(proxy.url, **settings), "HTTP 401")
        assert _read(proxy.url, tenant="team-a", **settings).problem is None


def test_a_private_authority_is_trusted_only_when_named(prometheus):
    """TLS is always verified, against the administrator's own authority where one is given."""
    with proxying(prometheus.url, DATA / "loopback.pem") as proxy:
        _assert_unavailable(_read(proxy.url), "CERTIFICATE_VERIFY_FAILED")
        ca_file = str(DATA / "loopback-ca.pem")
        assert _read(proxy.url, ca_file=ca_file).problem is None


def test_other_label_names_are_honoured(prometheus):
    """A cluster whose relabelling calls the pod otherwise is read by those names alone."""
    settings = {"namespace_label": "kube_namespace", "pod_label": "kube_pod"}
    found = _read(prometheus.url, **settings)
    assert [pod for pod, metrics in found.pods.items() if metrics.engines] == [("other", "renamed")]


def test_samples_do_not_depend_on_the_reader(prometheus):
    """Two readers see the same numbers; only ages differ."""

    def ageless(engine: EngineSample) -> EngineSample:
        return replace(
            engine,
            gauges_age_seconds=None,
            counters_age_seconds=None,
            histograms_age_seconds=None,
        )

    first, second = _read(prometheus.url), _read(prometheus.url)
    assert ageless(_engine(first, "real")) == ageless(_engine(second, "real"))
