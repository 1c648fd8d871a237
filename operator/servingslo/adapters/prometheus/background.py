"""Histograms of a large cluster: read beside the control loop, published all at once.

At 4,000 engines the buckets are some 640,000 series; with every reading they would cost more than
the tick has. They are evaluated at one common time, and their ages say how long ago that is.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from servingslo.adapters.prometheus.assembly import Assembly, Pod
from servingslo.adapters.prometheus.client import (
    PrometheusClient,
    PrometheusConfig,
    no_collection,
)
from servingslo.adapters.prometheus.queries import NOW, Queries
from servingslo.errors import MetricsUnavailableError
from servingslo.estimation.sample import EngineSample
from servingslo.policy.ports import PodMetrics
from servingslo.runtimes.dcgm import DCGM
from servingslo.runtimes.profile import MetricKind, RuntimeProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    """One complete set of histograms. evaluated_at: on the monotonic clock."""

    evaluated_at: float = 0.0
    engines: Mapping[tuple[Pod, str], EngineSample] = field(default_factory=dict)


class BackgroundHistograms:
    """Reads all histograms every few ticks in a thread of its own."""

    def __init__(
        self,
        config: PrometheusConfig,
        profiles: tuple[RuntimeProfile, ...],
        queries: Queries,
        monotonic: Callable[[], float],
    ) -> None:
        self._config = config
        self._profiles = profiles
        self._queries = queries
        self._monotonic = monotonic
        self._client = PrometheusClient(config, monotonic)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="histograms")
        self._under_way: Future[None] | None = None
        self._ticks_left = 0
        self._published = _Published()
        histograms = [m for p in profiles for m in p.of_kind(MetricKind.HISTOGRAM)]
        self._fields = tuple(dict.fromkeys(metric.field for metric in histograms))
        self._names = frozenset(name for metric in histograms for name in metric.names)

    def tick(self) -> None:
        """Start another reading when it is time and none is under way.

        Raises: what the last one raised, which is a defect of this program.
        """
        self._ticks_left -= 1
        if self._under_way is not None:
            if not self._under_way.done():
                return
            self._under_way.result()
        if self._ticks_left > 0:
            return
        self._ticks_left = self._config.histogram_every_ticks
        self._under_way = self._executor.submit(self._read)

    def merged_into(
        self, pods: Mapping[Pod, PodMetrics], evaluated_at: float
    ) -> dict[Pod, PodMetrics]:
        """The same engines with the histograms that were published last, at their age now."""
        published = self._published
        elapsed = evaluated_at - published.evaluated_at
        return {
            pod: replace(
                metrics,
                engines=tuple(
                    self._merged(engine, published.engines.get((pod, engine.engine)), elapsed)
                    for engine in metrics.engines
                ),
            )
            for pod, metrics in pods.items()
        }

    def close(self) -> None:
        """Stop the thread once its query ends, and drop the connection."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _merged(
        self, engine: EngineSample, published: EngineSample | None, elapsed: float
    ) -> EngineSample:
        if published is None or published.histograms_age_seconds is None:
            return replace(engine, histograms_age_seconds=None)
        return replace(
            engine,
            histograms_age_seconds=published.histograms_age_seconds + elapsed,
            nan_metrics=(*engine.nan_metrics, *sorted(self._names & {*published.nan_metrics})),
            **{name: getattr(published, name) for name in self._fields},
        )

    def _read(self) -> None:
        """Publish a new set; on any trouble the last one stays, and its age tells."""
        try:
            published = self._read_all()
        except (MetricsUnavailableError, KeyError, TypeError, ValueError, IndexError):
            # The light reading meets the same Prometheus and reports its trouble.
            self._ticks_left = 0
            return
        if published is not None:
            self._published = published

    def _read_all(self) -> _Published | None:
        config = self._config
        started = self._monotonic()
        deadline = started + config.reading_timeout_seconds * config.histogram_every_ticks
        at_seconds = float(self._client.query(NOW, deadline=deadline).result[1])
        evaluated_at = self._monotonic()
        assembly = Assembly(self._profiles, DCGM, config)
        ages = self._client.query(self._queries.ages, deadline=deadline, at_seconds=at_seconds)
        assembly.add_ages(ages.result)
        warned = bool(ages.warnings)
        for promql in self._queries.histograms:
            answer = self._client.query(promql, deadline=deadline, at_seconds=at_seconds)
            warned = warned or bool(answer.warnings)
            with no_collection():
                assembly.add_histograms(answer.result)
        if warned:
            return None
        return _Published(
            evaluated_at=evaluated_at,
            engines={
                (pod, engine.engine): engine
                for pod, metrics in assembly.pods().items()
                for engine in metrics.engines
            },
        )
