"""The length of a queue, from the metric of its exporter in the resource's own namespace.

A tenant chooses a metric of the table and the name of a queue, and writes no query. Exporters may
run twice, and each reports the whole queue: of several series the greatest counts.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar

from servingslo.adapters.prometheus.client import PrometheusClient
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import NOW, told_time
from servingslo.errors import MetricsUnavailableError
from servingslo.features.backlog.deadlines import (
    READING,
    TARGETS,
    BacklogReading,
    BacklogTargets,
    Preset,
)
from servingslo.plugins import Key
from servingslo.policy.ports import WorkloadQuestion

_LOG = logging.getLogger(__name__)
# Metric and label of a queue's name. Source: RabbitMQ, plugin rabbitmq_prometheus, metrics of each
# object; oliver006/redis_exporter, --check-single-keys; llm-d-async keeps its queue in a sorted set
# of Redis. What an administrator's recording rule gives has a name of this product.
METRICS: Mapping[Preset, tuple[str, str]] = {
    Preset.RABBITMQ: ("rabbitmq_queue_messages", "queue"),
    Preset.REDIS: ("redis_key_size", "key"),
    Preset.LLM_D_ASYNC: ("redis_key_size", "key"),
    Preset.RECORDED: ("servingslo:backlog_left", "queue"),
}
# As often as exporters are scraped by default.
_REFRESH_SECONDS = 15.0
_TIMEOUT_SECONDS = 10.0
_FORGOTTEN_SECONDS = 600.0
_BROKEN = (MetricsUnavailableError, KeyError, TypeError, ValueError, IndexError)


@dataclass(slots=True)
class _Queue:
    """One resource's queue. asked_at: the last time that it was asked for, monotonic."""

    namespace: str
    stated: BacklogTargets
    asked_at: float
    reading: BacklogReading | None = None


class Backlogs:
    """Reads lengths of queues in its own thread. Implements ports.FeatureReader."""

    key: ClassVar[Key[BacklogReading]] = READING

    def __init__(
        self, config: PrometheusConfig, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._monotonic = monotonic
        self._client = PrometheusClient(
            replace(config, timeout_seconds=_TIMEOUT_SECONDS), monotonic
        )
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="backlog")
        self._under_way: Future[None] | None = None
        self._due_at = monotonic()
        self._queues: dict[str, _Queue] = {}

    def tick(self) -> None:
        """Start a reading, if due and if none is running."""
        now = self._monotonic()
        if now < self._due_at or (self._under_way is not None and not self._under_way.done()):
            return
        self._queues = {
            uid: one for uid, one in self._queues.items() if now - one.asked_at < _FORGOTTEN_SECONDS
        }
        if self._queues:
            self._due_at = now + _REFRESH_SECONDS
            self._under_way = self._executor.submit(self._read_all, tuple(self._queues.values()))

    def take(
        self,
        uid: str,
        asked: WorkloadQuestion,
        pods: Sequence[str],  # noqa: ARG002 - of the protocol: a queue has no pods
    ) -> BacklogReading | None:
        """The last length of this resource's queue; None until it was read."""
        stated = TARGETS.of(asked.targets.features)
        if stated is None:
            return None
        now, one = self._monotonic(), self._queues.get(uid)
        if one is None or (one.namespace, one.stated) != (asked.namespace, stated):
            one = _Queue(namespace=asked.namespace, stated=stated, asked_at=now)
            self._queues[uid] = one
            self._due_at = now
        one.asked_at = now
        return one.reading

    def close(self) -> None:
        """Stop the thread once its query ends, and drop the connection."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _read_all(self, queues: Sequence[_Queue]) -> None:
        for one in queues:
            try:
                one.reading = self._read(one)
            except _BROKEN as error:
                _LOG.warning(
                    "backlog not read namespace=%s queue=%s detail=%r",
                    one.namespace,
                    one.stated.queue,
                    str(error),
                )

    def _read(self, one: _Queue) -> BacklogReading:
        """The length now. Raises: MetricsUnavailableError, also for a partial answer."""
        deadline = self._monotonic() + _TIMEOUT_SECONDS
        now = told_time(self._client.query(NOW, deadline=deadline).result)[0]
        answer = self._client.query(
            query_of(self._config, one.namespace, one.stated), deadline=deadline
        )
        if answer.warnings:
            raise MetricsUnavailableError("; ".join(answer.warnings))
        lengths = [float(series["value"][1]) for series in answer.result]
        known = [length for length in lengths if math.isfinite(length) and length >= 0.0]
        return BacklogReading(time_seconds=float(now), left=max(known, default=None))


def query_of(config: PrometheusConfig, namespace: str, stated: BacklogTargets) -> str:
    """The series of a queue. Its name has neither quotes nor backslashes: `spec.QUEUE`."""
    metric, label = METRICS[stated.preset]
    own = f'{config.namespace_label}="{namespace}"'
    name = f'{label}="{stated.queue}"'
    return f"max({metric}{config.selector(own, name)})"


PART = Backlogs
