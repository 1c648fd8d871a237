"""What loads make of limits to KV use and latency, as far as it decides."""

from typing import TYPE_CHECKING, NamedTuple

from servingslo.errors import InvalidInputError
from servingslo.models.objective_metrics import metric_seconds
from servingslo.models.objectives import LatencyMetric, Routing

if TYPE_CHECKING:
    from servingslo.models.latency import LatencyModel

# Requests per second of a fleet without any: one in thirty years.
_LEAST_RATE = 1e-9


class LatencyLimit(NamedTuple):
    """A percentile, in percent, of a metric, and the predicted seconds that it may reach."""

    metric: LatencyMetric
    percentile: float
    seconds: float


class LoadLimits(NamedTuple):
    """All that a load is held against, in this order.

    kv_percentile: of the share of the KV cache in use, in percent, at most kv_usage_ratio.
    """

    kv_percentile: float
    kv_usage_ratio: float
    latencies: tuple[LatencyLimit, ...]


def judged(
    model: "LatencyModel",
    rate_per_second: float,
    replica_count: int,
    routing: Routing,
    limits: LoadLimits,
) -> list[float]:
    """KV use and then percentiles in seconds, up to the first beyond its limit, at a fleet rate.

    KV use is inf at saturation and above.
    """
    load = model.predict(rate_per_second, replica_count, routing)
    found = [load.kv_usage_quantile(limits.kv_percentile)]
    most = limits.kv_usage_ratio
    for limit in limits.latencies:
        if found[-1] > most:
            break
        found.append(metric_seconds(load, limit.metric, limit.percentile))
        most = limit.seconds
    return found


def replica_rate_per_second(arrival_rate_per_second: float, replica_count: int) -> float:
    """The rate of one of these replicas.

    Raises: InvalidInputError for a negative rate or fewer than one replica.
    """
    if replica_count < 1:
        raise InvalidInputError("replica_count", replica_count, "1 or more")
    if not arrival_rate_per_second >= 0:
        raise InvalidInputError("arrival_rate_per_second", arrival_rate_per_second, "0 or more")
    return max(arrival_rate_per_second / replica_count, _LEAST_RATE)
