"""Histograms that a real Prometheus stores as native ones are read as classic ones."""

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.prometheus_pods import (
    NAMESPACE,
    PATIENCE_SECONDS,
    answered,
    engine_of,
    reader_of,
)
from tests.integration.prometheus_world import running_prometheus, serving_pages
from tests.integration.promql import series_of

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.estimation.requests.histograms import pooled_delta
from servingslo.estimation.sample import EngineSample, HistogramSample
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.policy.ports import PodMetrics
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.profile import MetricKind
from servingslo_lab.cli.past.history import prometheus_now_seconds, read_history
from servingslo_lab.rig.prometheus import ENGINES_JOB, Prometheus, ScrapePlan
from servingslo_lab.rig.simulated.engine_metrics import vllm_page
from servingslo_lab.rig.waiting import http_get
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine

pytestmark = pytest.mark.rig
FIELDS = [metric.field for metric in profile("vllm").of_kind(MetricKind.HISTOGRAM)]
LAW = ServiceLaw(
    step_fixed_seconds=0.015, step_per_sequence_seconds=0.00015,
    prefill_per_token_seconds=0.00008, context_per_token_seconds=4e-7,
)  # fmt: skip


POD, CONVERTED = "chat-6d4cf56db6-x2k9z", "native-6d4cf56db6-x2k9z"
# Prometheus's own page, as if an engine had one histogram.
OWN_PAGE, OWN_NAMESPACE = "/-/healthy", "own"
OWN_REQUESTS = 20
OWN_JOBS = {
    "own-classic": {},
    "own-native": {"scrape_native_histograms": True},
    "own-both": {"scrape_native_histograms": True, "always_scrape_classic_histograms": True},
}
_OWN = {
    "metric_relabel_configs": [
        {"source_labels": ["__name__", "handler"], "action": "keep",
         "regex": f"prometheus_http_request_duration_seconds.*;{OWN_PAGE}"},
        {"source_labels": ["__name__"], "target_label": "__name__",
         "regex": "prometheus_http_request_duration_seconds(.*)",
         "replacement": "vllm:time_to_first_token_seconds$1"},
    ]
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreJobs(ScrapePlan):
    """The same targets in two jobs more, which convert, as pods of another name.

    own_address: of Prometheus.
    """

    own_address: str = ""

    def as_config(self) -> dict[str, Any]:
        """Prometheus's configuration with that job."""
        config = ScrapePlan.as_config(self)
        (engines,) = (job for job in config["scrape_configs"] if job["job_name"] == ENGINES_JOB)
        renamed = {"source_labels": ["pod"], "target_label": "pod", "replacement": CONVERTED}
        config["scrape_configs"] += [
            {**_OWN, "job_name": name, **settings,
             "static_configs": [{"targets": [self.own_address], "labels": {
                 "namespace": OWN_NAMESPACE, "pod": name}}]}
            for name, settings in OWN_JOBS.items()
        ]  # fmt: skip
        converting = {"convert_classic_histograms_to_nhcb": True, "relabel_configs": [renamed]}
        config["scrape_configs"] += [
            {**engines, **converting, "job_name": name} for name in ("converting", "twice")
        ]
        return config


class Pages:
    """The page of a simulated engine, which serves more at each step."""

    def __init__(self) -> None:
        limits = EngineLimits(max_num_seqs=8, max_num_batched_tokens=256, kv_capacity_tokens=262144)
        self._engine = Engine(law=LAW, limits=limits, max_model_len=2048)
        self._at = 0.0
        self.text, self.tokens = "", 0.0
        self.serve(16, 64)

    def serve(self, requests: int, prompt_tokens: int) -> None:
        """Let so many requests arrive, and some time pass."""
        for _ in range(requests):
            request = self._engine.requests.add(
                arrival=self._at, prompt_tokens=prompt_tokens, output_tokens=100
            )
            self._engine.submit(request, self._at)
        self._at += 30.0
        self._engine.advance(self._at)
        self.tokens = float(self._engine.counter(layout.GENERATED_TOKENS))
        self.text = vllm_page(self._engine, model_name="tiny")


@pytest.fixture(scope="module")
def pages() -> Pages:
    """What the engine serves now."""
    return Pages()


@pytest.fixture(scope="module")
def prometheus(pages) -> Iterator[Prometheus]:
    """A Prometheus of both jobs."""
    with serving_pages() as served:
        served.add("engine", lambda: pages.text, namespace=NAMESPACE, pod=POD)
        with running_prometheus(served) as process:
            plan = process.plan
            process.configure(
                MoreJobs(
                    own_address=process.url.removeprefix("http://"),
                    http_sd_url=plan.http_sd_url,
                    scrape_interval_seconds=plan.scrape_interval_seconds,
                )
            )
            yield process


def _pair(reader: PrometheusReader, tokens: float | None = None) -> tuple[EngineSample, ...]:
    """Both engines of one reading, once they have generated so many tokens, or any."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = answered(reader)
        try:
            pair = tuple(engine_of(found, name) for name in (POD, CONVERTED))
        except KeyError:
            assert time.monotonic() < deadline, sorted(found.pods)
            continue
        totals = {one.generation_tokens_total for one in pair}
        if totals == {tokens} or (tokens is None and len(totals) == 1):
            return pair
        assert time.monotonic() < deadline, totals
        time.sleep(0.2)


def _at(histogram: HistogramSample, edge: float) -> float:
    place = bisect_right(histogram.upper_bounds, edge)
    return histogram.cumulative_counts[place - 1] if place else 0.0


def _assert_equal(classic: HistogramSample, native: HistogramSample) -> None:
    """The same numbers at every edge of either."""
    assert (native.sum, native.count) == (classic.sum, classic.count)
    assert set(native.upper_bounds) <= set(classic.upper_bounds)
    for edge in classic.upper_bounds:
        assert _at(native, edge) == _at(classic, edge)


def test_converted_histograms_are_read_as_the_classic_ones_of_the_same_page(prometheus, pages):
    """Sums, counts, cumulative counts and ages, now and in the past, and windows between them."""
    with reader_of(prometheus.url) as reader:
        before = _pair(reader)
        classic_names = '{__name__=~"vllm:.*_(bucket|sum)"'
        gone = series_of(prometheus.url, f'{classic_names},pod="{CONVERTED}"}}')
        assert gone == []
        for prompt_tokens in (64, 1500):
            pages.serve(200, prompt_tokens)
            after = _pair(reader, pages.tokens)
            compared = 0
            for name in FIELDS:
                ends = [
                    (getattr(b, name), getattr(a, name)) for b, a in zip(before, after, strict=True)
                ]
                assert len({end is None for pair in ends for end in pair}) == 1
                if ends[0][0] is None:
                    continue
                for classic, native in zip(*ends, strict=True):
                    _assert_equal(classic, native)
                _assert_same_window(*(pooled_delta([pair]) for pair in ends))
                compared += ends[0][1].count > ends[0][0].count
            assert compared >= 8
            for one in after:
                assert one.nan_metrics == one.impossible_metrics == ()
                assert one.histograms_age_seconds == pytest.approx(one.counters_age_seconds)
            before = after
    config = PrometheusConfig(url=prometheus.url)
    ((_, past),) = read_history(config, [prometheus_now_seconds(config)])
    for name in FIELDS:
        classic, native = (getattr(engine_of(past, pod), name) for pod in (POD, CONVERTED))
        if classic is not None:
            _assert_equal(classic, native)


def _assert_same_window(classic, native) -> None:
    assert (native.sum, native.count) == (classic.sum, classic.count)
    for percentile in (1, 50, 95, 99, 100):
        assert native.quantile(percentile) == classic.quantile(percentile)
    for threshold in (0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 1e5):
        assert native.share_within(threshold) == classic.share_within(threshold)


def test_exponential_histograms_are_read_where_a_client_has_them(prometheus):
    """Prometheus's own: the sum and count are those of the classic one, and no count is off."""
    for _ in range(OWN_REQUESTS):
        assert http_get(f"{prometheus.url}{OWN_PAGE}") is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    with reader_of(prometheus.url) as reader:
        while True:
            pods = asyncio.run(reader.read()).pods
            found = [pods.get((OWN_NAMESPACE, pod), PodMetrics()).engines for pod in OWN_JOBS]
            each = [engine.ttft_seconds for engines in found for engine in engines]
            if [one.count for one in each if one] == [OWN_REQUESTS] * len(OWN_JOBS):
                break
            assert time.monotonic() < deadline, each
            time.sleep(0.2)
    classic, native, both = each
    assert both.upper_bounds == classic.upper_bounds
    assert native.sum == classic.sum
    assert native.upper_bounds[0] < classic.upper_bounds[0]
    for edge, count in zip(native.upper_bounds, native.cumulative_counts, strict=True):
        above = classic.cumulative_counts[bisect_left(classic.upper_bounds, edge)]
        assert _at(classic, edge) <= count <= above
