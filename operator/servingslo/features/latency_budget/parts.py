"""The parts of the time of a request, from what engines and gateway export.

A part that is exported as a histogram has a mean and a percentile. A part that is not, but lies
between two exported times, has the difference of their means: means of the same requests may be
subtracted, percentiles may not. Anything else is reported as not measured, with the reason.
Source: vLLM v1/metrics/stats.py: queued until scheduled, prefill until the first token, decode
until the last one; Triton user guide, "Metrics": the queue time is a part of the request's.
"""

from collections.abc import Mapping, Sequence

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.observed import DECODE, GATEWAY, PREFILL, TRANSFER
from servingslo.features.latency_budget.report import LatencyReport, Part, PartReport, PartSource
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.reasons import Reason

_NOT_EXPORTED = "the engines do not export it"
_NO_GATEWAY = "no gateway is read"
_NO_GATEWAY_TIME = "the gateway exports no latency of this workload"
_NOT_ALL = "the gateway does not see every request"
_NO_ENGINE_TIME = "the engines export no time of whole requests"


def latency_report(
    estimate: Estimate, objectives: Sequence[Objective], *, alone: bool = True
) -> LatencyReport | None:
    """The parts over the recent window; None if no time of any request was observed.

    alone: False for one of several pools: what the gateway takes is known of all of them together.
    """
    if not (estimate.observed or estimate.means or estimate.phases):
        return None
    percentile = max(objective.percentile for objective in objectives)
    phases = estimate.phases
    gateway = gateway_times(estimate) if alone else None
    engine = _mean(estimate, LatencyMetric.LATENCY)
    first, queue = (
        _mean(estimate, metric) for metric in (LatencyMetric.TTFT, LatencyMetric.QUEUE_TIME)
    )
    parts = [gateway_part(estimate, engine)] if alone else []
    parts.append(_queue(estimate, queue, percentile))
    if LatencyMetric.LATENCY.value in estimate.means:
        parts.append(_between(Part.COMPUTE, queue, engine))
    else:
        parts.append(
            _measured(Part.PREFILL, phases[PREFILL], percentile)
            if PREFILL in phases
            else _between(Part.PREFILL, queue, first)
        )
        if TRANSFER in phases:
            parts.append(_measured(Part.TRANSFER, phases[TRANSFER], percentile))
        parts.append(
            _measured(Part.DECODE, phases[DECODE], percentile)
            if DECODE in phases
            else _between(Part.DECODE, first, engine)
        )
        parts += _other(phases, queue, engine)
    whole = gateway or estimate.observed.get(LatencyMetric.LATENCY)
    return LatencyReport(
        percentile=percentile,
        parts=tuple(parts),
        whole_mean_seconds=engine if whole is None else whole.mean,
        whole_percentile_seconds=None if whole is None else whole.quantile(percentile),
        whole_least_seconds=None if whole is None else whole.least_quantile(percentile),
        by_gateway=gateway is not None,
    )


def gateway_times(estimate: Estimate) -> HistogramDelta | None:
    """The gateway's time of whole requests; None if it does not tell all of them."""
    use = estimate.gateway
    if use is None or use.reason is Reason.GATEWAY_UNDERCOUNTS:
        return None
    return estimate.phases.get(GATEWAY)


def _mean(estimate: Estimate, metric: LatencyMetric) -> float | None:
    """The mean of a metric: a sum over requests is exact, a summary of quantiles is not."""
    found = estimate.means.get(metric.value) or estimate.observed.get(metric.value)
    return None if found is None else found.mean


def gateway_part(estimate: Estimate, engine: float | None) -> PartReport:
    """What the gateway's mean leaves over. engine: mean time in the engines, without transfers."""
    gateway = gateway_times(estimate)
    if estimate.gateway is None:
        return _missing(Part.GATEWAY, _NO_GATEWAY)
    if gateway is None:
        undercounts = estimate.gateway.reason is Reason.GATEWAY_UNDERCOUNTS
        return _missing(Part.GATEWAY, _NOT_ALL if undercounts else _NO_GATEWAY_TIME)
    if engine is None:
        return _missing(Part.GATEWAY, _NO_ENGINE_TIME)
    # The engine's time is observed without transfers, which lie in it.
    moved = _transfers_of_each(estimate)
    return _between(Part.GATEWAY, engine + moved, gateway.mean)


def _transfers_of_each(estimate: Estimate) -> float:
    """The mean time of transfers over all requests, also of those without one."""
    moved = estimate.phases.get(TRANSFER)
    ended = estimate.observed.get(LatencyMetric.LATENCY)
    if moved is None or ended is None or ended.count <= 0.0 or moved.mean is None:
        return 0.0
    return min(moved.sum / ended.count, moved.mean)


def _queue(estimate: Estimate, mean: float | None, percentile: float) -> PartReport:
    if mean is None:
        return _missing(Part.QUEUE, _NOT_EXPORTED)
    observed = estimate.observed.get(LatencyMetric.QUEUE_TIME)
    return PartReport(
        part=Part.QUEUE,
        source=PartSource.MEASURED,
        mean_seconds=mean,
        percentile_seconds=None if observed is None else observed.quantile(percentile),
    )


def _other(
    phases: Mapping[str, HistogramDelta], queue: float | None, engine: float | None
) -> list[PartReport]:
    """What is left of the engine's time; nothing unless all of its other parts are measured."""
    prefill, decode = (phases[name].mean if name in phases else None for name in (PREFILL, DECODE))
    if engine is None or queue is None or prefill is None or decode is None:
        return []
    return [_between(Part.OTHER, queue + prefill + decode, engine)]


def _measured(part: Part, times: HistogramDelta, percentile: float) -> PartReport:
    return PartReport(
        part=part,
        source=PartSource.MEASURED,
        mean_seconds=times.mean,
        percentile_seconds=times.quantile(percentile),
    )


def _between(part: Part, start: float | None, end: float | None) -> PartReport:
    """The mean time between two means; below zero only by windows that are not in step."""
    if start is None or end is None:
        return _missing(part, _NOT_EXPORTED)
    return PartReport(part=part, source=PartSource.DERIVED, mean_seconds=max(end - start, 0.0))


def _missing(part: Part, why: str) -> PartReport:
    return PartReport(part=part, source=PartSource.NOT_MEASURED, missing=why)
