"""Pages of steady engines under the names of any runtime, and the decision that is made of them."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from functools import partial

from tests.integration.prometheus_pods import PATIENCE_SECONDS
from tests.integration.prometheus_world import Pages, running_prometheus, serving_pages

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.api.convert import targets_from_spec
from servingslo.controller.join import Subject, join
from servingslo.estimation.sample import PodSample
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Observation, Targets
from servingslo.policy.planner import plan
from servingslo.policy.ports import ClusterMetrics, WorkloadView
from servingslo.policy.replicas.state import PlannerState
from servingslo.runtimes.profile import MetricKind, RuntimeProfile

# Of each engine, which has been at it for an hour.
RATE_PER_SECOND = 2.0
PROMPT_TOKENS, OUTPUT_TOKENS = 300, 100
STEP_SECONDS = 0.02
RUNNING = RATE_PER_SECOND * OUTPUT_TOKENS * STEP_SECONDS
BEFORE_SECONDS = 3600.0
PODS = ("chat-0", "chat-1")
SPEC = {
    "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "chat"},
    "objectives": [
        {"metric": "ttft", "percentile": 95, "threshold": "1s"},
        {"metric": "latency", "percentile": 95, "threshold": "20s"},
    ],
    "replicas": {"min": 1, "max": 20},
    "serviceLaw": {
        "stepFixedSeconds": 0.018,
        "stepPerSequenceSeconds": 0.0005,
        "prefillPerTokenSeconds": 0.0004,
    },
    "engine": {"maxSequences": 8, "maxBatchedTokens": 2048},
}


def steady_values(seconds: float) -> dict[str, object]:
    """Fields of an engine that has served so long: numbers, parts by label, (value, count)."""
    done = RATE_PER_SECOND * seconds
    return {
        "running": RUNNING,
        "waiting": 0.0,
        "kv_usage_ratio": RUNNING * (PROMPT_TOKENS + OUTPUT_TOKENS) / 2 / 50_000,
        "kv_capacity_tokens": 50_000.0,
        "kv_block_tokens": 16.0,
        "num_seqs_in_force": 8.0,
        "batched_tokens_in_force": 2048.0,
        "prompt_tokens_total": PROMPT_TOKENS * done,
        "generation_tokens_total": OUTPUT_TOKENS * done,
        "finished_total": done,
        "ttft_seconds": (0.15, done),
        "inter_token_seconds": (STEP_SECONDS, (OUTPUT_TOKENS - 1) * done),
        "time_per_output_token_seconds": (STEP_SECONDS, done),
        "latency_seconds": (0.15 + STEP_SECONDS * (OUTPUT_TOKENS - 1), done),
        "queue_seconds": (0.0, done),
        "prompt_tokens": (PROMPT_TOKENS, done),
        "output_tokens": (OUTPUT_TOKENS, done),
        # Of a server of dynamic batches: each request by itself, at once.
        "executions_total": done,
        "request_seconds_total": 0.0185 * done,
        "queued_seconds_total": 0.0,
    }


def page_of(profile: RuntimeProfile, values: Mapping[str, object]) -> str:
    """A metrics page with what of these the runtime exports, under its newest names."""
    return "".join(_lines(profile, values))


def _lines(profile: RuntimeProfile, values: Mapping[str, object]) -> Iterator[str]:
    written: set[str] = set()
    for metric in profile.metrics:
        value, name = values.get(metric.field), metric.names[0]
        if value is None:
            continue
        if metric.kind is MetricKind.HISTOGRAM:
            assert isinstance(value, tuple)
            mean, count = value
            for edge in (mean * 0.8, mean * 1.2, mean * 5, "+Inf"):
                within = 0 if edge == mean * 0.8 else count
                yield f'{name}_bucket{{le="{edge}"}} {within}\n'
            yield f"{name}_sum {mean * count}\n{name}_count {count}\n"
            continue
        labels = f'{{{profile.engine_label}="0"}}'
        if metric.by_labels:
            # The parts of a field are those that it takes, else one that any engine has.
            part = f'{metric.by_labels[0]}="{(metric.only or ("stop",))[0]}"'
            labels = f'{{{profile.engine_label}="0",{part}}}'
        if name + labels not in written:
            written.add(name + labels)
            assert isinstance(value, float | int)
            yield f"{name}{labels} {value / metric.unit}\n"
    capacity = profile.capacity
    if capacity is not None:
        labels = f'{capacity.tokens}="50000",{capacity.block_tokens}="16"'
        yield f"{capacity.metric}{{{labels}}} 1\n"


class SteadyFleets:
    """A workload in each namespace behind one real Prometheus, with pages of these runtimes.

    exported: by namespace, the runtimes whose metrics each pod exports. All serve the same traffic.
    """

    def __init__(self, pages: Pages, exported: Mapping[str, tuple[RuntimeProfile, ...]]) -> None:
        self._began = time.monotonic()
        for namespace, profiles in exported.items():
            for pod in PODS:
                page = partial(self._page, profiles)
                pages.add(f"{namespace}-{pod}", page, namespace=namespace, pod=pod)

    def _page(self, profiles: tuple[RuntimeProfile, ...]) -> str:
        """As it is when it is scraped."""
        values = steady_values(BEFORE_SECONDS + time.monotonic() - self._began)
        return "".join(page_of(profile, values) for profile in profiles)


def decisions_of(
    exported: Mapping[str, tuple[RuntimeProfile, ...]],
    known: tuple[RuntimeProfile, ...],
    specs: Mapping[str, Mapping[str, object]],
) -> Iterator[dict[str, Decision]]:
    """What is decided for each namespace, once a second until patience ends.

    specs: what the ServingSLOs say besides SPEC.
    """
    targets = {name: targets_from_spec({**SPEC, **specs.get(name, {})}) for name in exported}
    states = dict.fromkeys(exported, PlannerState())
    with serving_pages() as pages:
        SteadyFleets(pages, exported)
        with running_prometheus(pages) as prometheus:
            reader = PrometheusReader(PrometheusConfig(url=prometheus.url), profiles=known)
            deadline = time.monotonic() + PATIENCE_SECONDS
            try:
                while time.monotonic() < deadline:
                    metrics = asyncio.run(reader.read())
                    decisions = {}
                    for name, wanted in targets.items():
                        seen = _observation(name, wanted, metrics)
                        decisions[name], states[name] = plan(
                            seen, wanted, Limits(), states[name], seen.time_seconds
                        )
                    yield decisions
                    time.sleep(1.0)
            finally:
                reader.close()


def _observation(namespace: str, targets: Targets, metrics: ClusterMetrics) -> Observation:
    view = WorkloadView(
        target=targets.target,
        desired_replicas=len(PODS),
        current_replicas=len(PODS),
        pods=tuple(
            PodSample(name=name, ready=True, age_seconds=3e3, ready_for_seconds=3e3)
            for name in PODS
        ),
        read_as=metrics.recognize(namespace, targets.runtime)(PODS),
    )
    subject = Subject(namespace=namespace, name="chat", uid=namespace, generation=1)
    now = time.time()  # noqa: TID251 - the observation is of the wall clock's now
    return join(subject, view, metrics, now_seconds=now)
