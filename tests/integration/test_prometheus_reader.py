"""What the reader makes of real and made-up pages that a real Prometheus scraped."""

import math
import time
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.prometheus_pods import (
    CAPTURE,
    FULL_READING_QUERIES,
    NAMESPACE,
    PATIENCE_SECONDS,
    answered,
    engine_of,
    pod_of,
    read_once,
    read_until,
    reader_of,
    running,
)
from tests.integration.prometheus_world import proxying
from tests.unit.test_prometheus_matchers import ask_for_the_past

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.estimation.sample import HistogramSample
from servingslo.policy.ports import ClusterMetrics
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.profile import MetricKind

VLLM = profile("vllm")
pytestmark = pytest.mark.rig


# What is read

# The recorded engine has no draft model and hands no KV cache over: it exports nothing of either.
NOT_OF_THIS_ENGINE = frozenset({"accepted_draft_tokens_total", "transfer_seconds"})


def _expected_of_capture() -> dict[str, object]:
    """Each field of the profile, read from the capture by another parser."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(CAPTURE.read_text(encoding="utf-8")):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    expected: dict[str, object] = {}
    for metric in VLLM.metrics:
        name = metric.names[0]
        if metric.field in NOT_OF_THIS_ENGINE:
            assert name not in samples
            expected[metric.field] = None
        elif metric.kind is MetricKind.HISTOGRAM:
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
    value = getattr(engine_of(read_once(prometheus.url), "real"), metric.field)
    if metric.kind is MetricKind.HISTOGRAM and value is not None:
        buckets = tuple(zip(value.upper_bounds, value.cumulative_counts, strict=True))
        value = (buckets, value.sum, value.count)
    assert value == _expected_of_capture()[metric.field]


def test_capacity_and_ages_of_a_real_engine_are_known(prometheus):
    """Blocks times their size as the engine reports it, and samples no older than a few scrapes."""
    engine = engine_of(read_once(prometheus.url), "real")
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
    engine = engine_of(read_once(prometheus.url), "old-names")
    assert engine.engine == "0"
    assert engine.kv_usage_ratio == 0.25
    assert engine.cached_prompt_tokens_total == 40
    assert engine.finished_total == {"stop": 3}
    assert engine.inter_token_seconds is not None
    assert engine.inter_token_seconds.cumulative_counts == (6, 7)
    assert engine.time_per_output_token_seconds is None


def test_engines_of_one_pod_are_told_apart(prometheus):
    """KV use is never summed, adapters of one engine are, and rejections belong to the pod."""
    first, second = pod_of(read_once(prometheus.url), "data-parallel").engines
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
    gpus = pod_of(read_once(prometheus.url), pod).gpus
    card, slice_ = gpus
    assert (card.gpu, slice_.gpu) == ("0", "1/3")
    assert card.utilization_ratio == 0.8
    assert (card.product, slice_.product) == ("NVIDIA L4", None)
    assert (card.memory_used_bytes, card.memory_free_bytes) == (2**30, 2**29)
    assert (card.power_watts, card.xid_error) == (250.5, 79)
    assert card.age_seconds is not None
    assert slice_.power_watts is None


# What is not there, not a number, old, or there twice


def test_not_a_number_and_missing_are_different_outcomes(prometheus):
    """Both fields are None; only what Prometheus answered as NaN or Inf is named."""
    engine = engine_of(read_once(prometheus.url), "not-numbers")
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
    engine = engine_of(read_once(prometheus.url), "aged")
    assert engine.running == 3
    assert engine.gauges_age_seconds is not None
    assert 99 < engine.gauges_age_seconds < 300
    assert engine.histograms_age_seconds is None


def test_a_pod_whose_target_is_gone_is_missing(prometheus, pages):
    """No ghost of it stays behind for the lookback time."""
    pages.texts["leaving"] = None
    read_until(prometheus.url, lambda found: (NAMESPACE, "leaving") not in found.pods)
    pages.texts["leaving"] = running(5)
    read_until(prometheus.url, lambda found: (NAMESPACE, "leaving") in found.pods)


def test_a_counter_that_fell_is_passed_on_as_it_is(prometheus, pages):
    """A restart is seen by whoever compares two samples, so nothing is smoothed here."""
    assert engine_of(read_once(prometheus.url), "restarting").generation_tokens_total == 100_000
    pages.texts["restarting"] = running(1)
    found = read_until(prometheus.url, lambda found: engine_of(found, "restarting").running == 1)
    assert engine_of(found, "restarting").generation_tokens_total == 100
    pages.texts["restarting"] = running(1000)
    read_until(prometheus.url, lambda found: engine_of(found, "restarting").running == 1000)


def test_a_pod_scraped_by_two_jobs_counts_once_with_the_newest_sample(prometheus):
    """The older scrape is larger, and is neither taken nor added."""
    engine = engine_of(read_once(prometheus.url), "twice")
    assert engine.running == 7
    assert engine.generation_tokens_total == 700
    assert engine.gauges_age_seconds is not None
    assert engine.gauges_age_seconds < 60


def test_namesakes_in_two_clusters_are_told_apart_by_matchers(prometheus):
    """Without them they are refused by name; no query of another kind is malformed by them."""
    (engine,) = pod_of(read_once(prometheus.url), "namesake").engines
    assert engine.running is None
    (why,) = engine.impossible_metrics
    assert why.startswith(f"two series of pod {NAMESPACE}/namesake: cluster=a and cluster=b")
    for cluster, count in (("a", 3), ("b", 9)):
        matchers = f'cluster=~"{cluster}|x", cluster!=""'
        for pods in (None, {"namesake-0", "namesake"}):
            with reader_of(prometheus.url, matchers=matchers) as reader:
                found = answered(reader, pods)
            assert engine_of(found, "namesake").running == count
            assert _engines(found) == {"namesake"}
        ask_for_the_past(PrometheusConfig(url=prometheus.url, matchers=matchers))


def test_histograms_of_many_engines_are_read_in_turns_with_their_counters(prometheus):
    """Above the limit a reading has those of some pods; what others had stays and grows older."""
    turns = {"histogram_engines_each_tick": 1, "histogram_every_ticks": 3}
    with proxying(prometheus.url) as proxy, reader_of(proxy.url, **turns) as reader:
        own, kept = [], []
        for _ in range(7):
            before = len(proxy.requests)
            engine = engine_of(answered(reader), "real")
            assert len(proxy.requests) - before == FULL_READING_QUERIES + (before == 0)
            if engine.ttft_seconds is None:
                assert engine.histograms_age_seconds is None
                assert not own
                continue
            assert engine.ttft_seconds.count == 54
            assert engine.iteration_tokens is not None
            apart = engine.histograms_age_seconds - engine.counters_age_seconds
            (own if abs(apart) < 0.01 else kept).append(apart)
            time.sleep(0.7)
    assert len(own) >= 2
    assert len(kept) >= 3
    assert min(kept) > 0.3


def test_other_label_names_are_honoured(prometheus):
    """A cluster whose relabelling calls the pod otherwise is read by those names alone."""
    settings = {"namespace_label": "kube_namespace", "pod_label": "kube_pod"}
    found = read_once(prometheus.url, **settings)
    assert [pod for pod, metrics in found.pods.items() if metrics.engines] == [("other", "renamed")]


# More than a URL may hold, so that the queries are sent in bodies.
_MANY_PODS = tuple(f"chat-{number}-7d4b9c-x2v" for number in range(200))


def _engines(found: ClusterMetrics) -> set[str]:
    return {name for (_, name), metrics in found.pods.items() if metrics.engines}


@pytest.mark.parametrize("others", [(), _MANY_PODS])
def test_only_engines_of_the_named_pods_and_their_siblings_are_read(prometheus, others):
    """`twice` has no owner by its name, `data-0` has one that `data-parallel` has too."""
    named = ("data-0", "twice", "hostile", *others)
    with reader_of(prometheus.url) as reader:
        every = answered(reader)
        found = answered(reader, named)
    assert found.problem is None
    assert _engines(found) == {"data-parallel", "twice", "hostile"} < _engines(every)
    fields = ("running", "generation_tokens_total", "prompt_tokens")
    for name in ("data-parallel", "twice"):
        own, same = (pod_of(one, name).engines for one in (found, every))
        assert [[getattr(e, f) for f in fields] for e in own] == [
            [getattr(e, f) for f in fields] for e in same
        ]


@pytest.mark.parametrize("others", [(), _MANY_PODS])
def test_only_gpus_of_the_named_pods_are_read_under_both_label_styles(prometheus, others):
    """Those that the exporter's page assigns to other pods are not."""
    with reader_of(prometheus.url) as reader:
        every = answered(reader)
        found = answered(reader, ("gpu-x", *others))
        other = answered(reader, ("twice", "dcgm-x", *others))
    gpus = {key: metrics.gpus for key, metrics in found.pods.items() if metrics.gpus}
    assert {name for _, name in gpus} == {"gpu-kept", "gpu-moved"}
    for key, read in gpus.items():
        same = every.pods[key].gpus
        assert [replace(one, age_seconds=None) for one in read] == [
            replace(one, age_seconds=None) for one in same
        ]
        assert all(one.age_seconds is not None for one in read)
    # A GPU that no workload has is the exporter's, as in a whole reading.
    assert {name for (_, name), metrics in other.pods.items() if metrics.gpus} == {"dcgm-exporter"}


def test_all_engines_are_read_where_a_proxy_takes_no_query_of_such_length(prometheus, caplog):
    """It lets GET through and nothing else; that is found out once and told."""
    with proxying(prometheus.url) as proxy, reader_of(proxy.url) as reader:
        caplog.set_level("INFO")
        for _ in range(2):
            found = answered(reader, _MANY_PODS)
            assert found.problem is None
            assert {"twice", "real"} <= _engines(found)
    (told,) = [text for text in caplog.messages if "is refused" in text]
    assert told == "engines of all pods are read: a query for 200 is refused"
