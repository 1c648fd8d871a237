"""One reading of the whole cluster, in a thread of its own, bounded in time and memory."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from servingslo.adapters.prometheus.assembly import Assembly
from servingslo.adapters.prometheus.client import (
    Answer,
    PrometheusClient,
    PrometheusConfig,
    no_collection,
)
from servingslo.adapters.prometheus.queries import NOW, build_queries
from servingslo.errors import MetricsUnavailableError
from servingslo.estimation.sample import EngineSample
from servingslo.policy.inputs import SignalProblem
from servingslo.policy.ports import ClusterMetrics, PodMetrics
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.dcgm import DCGM
from servingslo.runtimes.profile import MetricKind, RuntimeProfile

# The thread notices its deadline by itself; what is waited beyond it is for its last step.
_GRACE_SECONDS = 2.0

Pod = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Histograms:
    """The histograms of the last reading that held them, kept for the readings in between.

    read_at: on the monotonic clock. ticks: readings since. None of it is kept when partial.
    """

    read_at: float = 0.0
    ticks: int = 0
    series_count: int = 0
    engines: Mapping[tuple[Pod, str], EngineSample] = field(default_factory=dict)


class PrometheusReader:
    """The metrics source of the operator. Implements ports.MetricsSource.

    Ages are those at the moment the reading is returned.
    """

    def __init__(
        self,
        config: PrometheusConfig,
        profiles: tuple[RuntimeProfile, ...] = CATALOGUE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._profiles = profiles
        self._monotonic = monotonic
        self._client = PrometheusClient(config, monotonic)
        self._queries = build_queries(profiles, DCGM, config)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prometheus")
        self._under_way: asyncio.Future[ClusterMetrics] | None = None
        self._kept = _Histograms()

    @property
    def query_count(self) -> int:
        """How many queries a full reading sends."""
        return self._queries.count

    async def read(self) -> ClusterMetrics:
        """All engines and GPUs by (namespace, pod), or the problem that prevented it."""
        if self._under_way is not None and not self._under_way.done():
            return _unavailable("the reading before has not ended yet")
        loop = asyncio.get_running_loop()
        self._under_way = loop.run_in_executor(self._executor, self._read)
        try:
            return await asyncio.wait_for(
                asyncio.shield(self._under_way),
                self._config.reading_timeout_seconds + _GRACE_SECONDS,
            )
        except TimeoutError:
            return _unavailable(f"no reading within {self._config.reading_timeout_seconds:.3g} s")

    def close(self) -> None:
        """Stop the thread once its reading ends, and drop the connection."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _read(self) -> ClusterMetrics:
        try:
            return self._read_all()
        except MetricsUnavailableError as error:
            return _unavailable(str(error))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            return _unavailable(f"malformed answer: {type(error).__name__}: {error}")

    def _read_all(self) -> ClusterMetrics:
        started = self._monotonic()
        deadline = started + self._config.reading_timeout_seconds
        warnings: list[str] = []
        now = self._client.query(NOW, deadline=deadline)
        evaluated_at = self._monotonic()
        at_seconds = float(now.result[1])

        def ask(promql: str) -> Answer:
            answer = self._client.query(promql, deadline=deadline, at_seconds=at_seconds)
            warnings.extend(answer.warnings)
            return answer

        assembly = Assembly(self._profiles, DCGM, self._config)
        assembly.add_numbers(ask(self._queries.gauges).result)
        assembly.add_numbers(ask(self._queries.counters).result)
        assembly.add_ages(ask(self._queries.ages).result)
        assembly.add_gpus(ask(self._queries.gpus).result)
        full = self._histograms_are_due()
        if full:
            for promql in self._queries.histograms:
                answer = ask(promql)
                with no_collection():
                    assembly.add_histograms(answer.result)
        pods = assembly.pods()
        if full:
            self._keep(pods, evaluated_at, assembly.histogram_series_count, partial=bool(warnings))
        else:
            self._kept = replace(self._kept, ticks=self._kept.ticks + 1)
            pods = self._with_kept_histograms(pods, evaluated_at)
        elapsed = self._monotonic() - evaluated_at
        problem = None
        if warnings:
            detail = "; ".join(dict.fromkeys(warnings))
            problem = SignalProblem(reason=Reason.METRICS_PARTIAL, detail=detail)
        return ClusterMetrics(pods=_aged(pods, elapsed), problem=problem)

    def _histograms_are_due(self) -> bool:
        kept = self._kept
        small = kept.series_count <= self._config.histogram_series_each_tick
        return small or not kept.engines or kept.ticks + 1 >= self._config.histogram_every_ticks

    def _keep(
        self, pods: Mapping[Pod, PodMetrics], read_at: float, series_count: int, *, partial: bool
    ) -> None:
        if partial or series_count <= self._config.histogram_series_each_tick:
            self._kept = _Histograms()
            return
        engines = {
            (pod, engine.engine): engine
            for pod, metrics in pods.items()
            for engine in metrics.engines
        }
        self._kept = _Histograms(read_at=read_at, series_count=series_count, engines=engines)

    def _with_kept_histograms(
        self, pods: Mapping[Pod, PodMetrics], evaluated_at: float
    ) -> dict[Pod, PodMetrics]:
        elapsed = evaluated_at - self._kept.read_at
        histograms = [m for p in self._profiles for m in p.of_kind(MetricKind.HISTOGRAM)]
        fields = {metric.field for metric in histograms}
        names = {name for metric in histograms for name in metric.names}
        result = {}
        for pod, metrics in pods.items():
            engines = []
            for engine in metrics.engines:
                kept = self._kept.engines.get((pod, engine.engine))
                if kept is None:
                    engines.append(replace(engine, histograms_age_seconds=None))
                    continue
                values = {name: getattr(kept, name) for name in fields}
                engines.append(
                    replace(
                        engine,
                        histograms_age_seconds=_plus(kept.histograms_age_seconds, elapsed),
                        nan_metrics=(*engine.nan_metrics, *names.intersection(kept.nan_metrics)),
                        **values,
                    )
                )
            result[pod] = replace(metrics, engines=tuple(engines))
        return result


def _unavailable(detail: str) -> ClusterMetrics:
    return ClusterMetrics(
        problem=SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail=detail)
    )


def _plus(age: float | None, elapsed: float) -> float | None:
    return None if age is None else age + elapsed


def _aged(pods: Mapping[Pod, PodMetrics], elapsed: float) -> dict[Pod, PodMetrics]:
    """The same samples, older by the time that reading took."""
    return {
        pod: PodMetrics(
            engines=tuple(
                replace(
                    engine,
                    gauges_age_seconds=_plus(engine.gauges_age_seconds, elapsed),
                    counters_age_seconds=_plus(engine.counters_age_seconds, elapsed),
                    histograms_age_seconds=_plus(engine.histograms_age_seconds, elapsed),
                )
                for engine in metrics.engines
            ),
            gpus=tuple(
                replace(gpu, age_seconds=_plus(gpu.age_seconds, elapsed)) for gpu in metrics.gpus
            ),
        )
        for pod, metrics in pods.items()
    }
