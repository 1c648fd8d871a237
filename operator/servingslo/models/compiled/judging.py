"""Limits to KV use and latency as plain numbers, and what running sequences alone tell of them."""

from functools import cache
from typing import Any

import numpy as np
from scipy.special import ndtri

from servingslo.models import kv_cache, prediction
from servingslo.models.compiled.shared import share
from servingslo.models.judging import LoadLimits
from servingslo.models.load_laws import EngineLaws
from servingslo.models.objectives import LatencyMetric
from servingslo.models.occupancy import Occupancy
from servingslo.models.service_time import FloatArray

# What is limited: KV use, or a metric.
KV_USE, TTFT, TPOT, LATENCY, QUEUE_TIME = range(5)
_METRICS = {
    LatencyMetric.TTFT: TTFT,
    LatencyMetric.TPOT: TPOT,
    LatencyMetric.LATENCY: LATENCY,
    LatencyMetric.QUEUE_TIME: QUEUE_TIME,
}
# Columns of a limit: what, the share that stays within it, the most allowed; then, of KV use, the
# normal deviate of that share, tokens held by a sequence and their variance, sequences, capacity.
METRIC, SHARE, MOST, _DEVIATE, _HELD, _VARIANCE, _CAP, _CAPACITY = range(8)
_NOT_OF_CACHE = (0.0,) * (_CAPACITY - MOST)


def limit_numbers(engine: EngineLaws, limits: LoadLimits) -> FloatArray:
    """A row for each limit, that of KV use first."""
    kept = limits.kv_percentile / 100.0
    held = engine.held
    of_cache = float(ndtri(kept)), held.mean, held.variance, engine.cap, engine.kv_capacity_tokens
    rows: list[tuple[float, ...]] = [(KV_USE, kept, limits.kv_usage_ratio, *of_cache)]
    rows += [
        (_METRICS[limit.metric], limit.percentile / 100.0, limit.seconds, *_NOT_OF_CACHE)
        for limit in limits.latencies
    ]
    return np.array(rows, dtype=float)


@cache
def percentile_numbers(metric: LatencyMetric, share: float) -> FloatArray:
    """A row for a percentile that anything is within."""
    rows = np.zeros((1, _CAPACITY + 1))
    rows[0, : MOST + 1] = _METRICS[metric], share, np.inf
    return rows


def of_running(metric: int, running: Occupancy, limit: Any) -> float:
    """KV use, or the wait for a slot in seconds."""
    if metric == QUEUE_TIME:
        beyond = 1.0 - limit[SHARE]
        return prediction.queue_seconds(
            running.wait_probability, running.wait_rate_per_second, beyond
        )
    met = running.mean, running.variance, limit[_CAP]
    return kv_cache.kv_usage_at(
        limit[_HELD], limit[_VARIANCE], met, limit[_CAPACITY], limit[_DEVIATE]
    )


share(kv_cache.kv_usage_at, prediction.queue_seconds, of_running)
