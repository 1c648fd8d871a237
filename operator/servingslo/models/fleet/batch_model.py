"""Predictions for servers of dynamic batches, with the protocol of continuous batching."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from servingslo.models.engine.service_time import DynamicBatcher, ServiceLaw
from servingslo.models.fleet.load_laws import EngineLaws
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import LatencyMetric
from servingslo.models.waits.dynamic_batches import (
    NEAREST_SATURATION,
    BatchTimes,
    largest_batch,
    saturation_per_second,
)

# Loads kept of a few fleets: trial counts, and rates between them.
_KEPT = 256


@dataclass(frozen=True, slots=True)
class BatchServer:
    """One server of dynamic batches: the law of a batch, and how batches form."""

    engine: EngineLaws
    law: ServiceLaw
    batcher: DynamicBatcher

    @property
    def saturation_rate_per_second(self) -> float:
        """Requests per second of full batches back to back."""
        return saturation_per_second(self.law, self.batcher)

    @property
    def cap(self) -> float:
        """Running requests if every instance has a full batch."""
        return float(largest_batch(self.batcher) * self.batcher.instances)

    def predictions(
        self, rates: Sequence[float], _replica_counts: Sequence[int], _pooled: bool
    ) -> list[Prediction]:
        """One prediction for each rate of a replica; each replica has a queue of its own."""
        return [BatchPrediction(self, rate) for rate in rates]


class BatchPrediction(Prediction):
    """Percentiles of one server of dynamic batches under a load.

    There are no tokens, so there is neither a first token nor a time between tokens. Replicas are
    separate queues, however requests reach them: a batch forms on one server.
    """

    __slots__ = ("_server",)
    metrics = frozenset({LatencyMetric.LATENCY, LatencyMetric.QUEUE_TIME})

    def __init__(self, server: BatchServer, rate_per_second: float) -> None:
        super().__init__(server.engine, rate_per_second, None)
        self._server = server

    @property
    def stable(self) -> bool:
        """Whether the load is below saturation."""
        return self._rate < NEAREST_SATURATION * self._server.saturation_rate_per_second

    @property
    def times(self) -> BatchTimes:
        """Times of requests, below saturation."""
        return _times(self._server.law, self._server.batcher, self._rate)

    @property
    def utilization(self) -> float:
        """Arrival rate over saturation rate, of a replica."""
        return self._rate / self._server.saturation_rate_per_second

    @property
    def running_mean(self) -> float:
        """Return the mean running requests of one replica, by Little's law; inf when unstable."""
        if not self.stable:
            return math.inf
        return self._rate * self._server.law.step_seconds(self.times.batch_mean_of_request)

    @property
    def running_floor(self) -> float:
        """A cheap lower bound of `running_mean`."""
        return self._rate * self._server.law.step_fixed_seconds if self.stable else math.inf

    @property
    def running_variance(self) -> float:
        """Return cap² as a bound: the variance is not known, because batches are of any size."""
        return self._server.cap**2

    def kv_usage_quantile(self, percentile: float) -> float:  # noqa: ARG002 - of the protocol
        """Return 0 because no memory is shared, and inf when unstable."""
        return 0.0 if self.stable else math.inf

    def mean_seconds(self, metric: LatencyMetric) -> float:
        """Return the mean of a metric that has percentiles; inf when unstable."""
        if not self.stable:
            return math.inf
        of_wait = metric is LatencyMetric.QUEUE_TIME
        times = self.times
        return float(times.weight @ (times.wait_seconds if of_wait else times.latency_seconds))

    def queue_seconds(self, percentile: float) -> float:
        """Return formation and wait not exceeded by this percent of requests; inf when unstable."""
        if not self.stable:
            return math.inf
        return self.times.quantile(self.times.wait_seconds, percentile / 100.0)

    def latency_seconds(self, percentile: float) -> float:
        """Return the latency not exceeded by this percent of requests; inf when unstable."""
        if not self.stable:
            return math.inf
        return self.times.quantile(self.times.latency_seconds, percentile / 100.0)


@lru_cache(maxsize=_KEPT)
def _times(law: ServiceLaw, batcher: DynamicBatcher, rate_per_second: float) -> BatchTimes:
    return BatchTimes(law, batcher, rate_per_second)
