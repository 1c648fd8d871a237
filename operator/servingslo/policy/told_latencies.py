"""Percentiles as observed, of engines that export no histogram of latency."""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from servingslo.estimation.estimator import Estimate
from servingslo.estimation.histograms import HistogramDelta, ObservedLatency
from servingslo.models.batch_model import BatchPrediction
from servingslo.models.latency import LatencyMetric, metric_seconds
from servingslo.policy.decision import DecisionStep
from servingslo.policy.prepared_model import PreparedModel
from servingslo.reasons import Reason

if TYPE_CHECKING:
    from servingslo.policy.context import TickContext

# Shares of requests between which the law's percentiles stand for a histogram.
_SHARES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


def with_means(estimate: Estimate, prepared: PreparedModel | None, serving: int) -> Estimate:
    """The estimate with the law's percentiles, moved so that their mean is the observed one.

    Nothing where engines export histograms or summaries, or no law of batches is known.
    """
    lacking = estimate.means.keys() - estimate.observed.keys()
    rate = estimate.arrival_rate_per_second
    if prepared is None or not lacking or not rate or not serving:
        return estimate
    present = prepared.model.predict(rate, serving * estimate.engines_per_pod, estimate.routing)
    if not isinstance(present, BatchPrediction) or not present.stable:
        return estimate
    found = {metric: _of_law(present, metric, estimate.means[metric]) for metric in lacking}
    return replace(estimate, observed={**estimate.observed, **found})


def _of_law(present: BatchPrediction, metric: str, seen: HistogramDelta) -> ObservedLatency:
    known = LatencyMetric(metric)
    mean = present.mean_seconds(known)
    ratio = (seen.mean or 0.0) / mean if mean > 0.0 else 1.0
    # Of equal percentiles the largest share stands.
    by_edge = {ratio * metric_seconds(present, known, 100.0 * share): share for share in _SHARES}
    shares = (0.0, *by_edge.values(), 1.0)
    delta = HistogramDelta(
        upper_bounds=tuple(by_edge),
        counts=tuple(seen.count * (high - low) for low, high in pairwise(shares)),
        sum=seen.sum,
    )
    return ObservedLatency(delta=delta)


def told_step(context: "TickContext") -> DecisionStep | None:
    """Says of observed percentiles that no histogram is behind them, and what is."""
    estimate = context.estimate
    if not estimate.means or not estimate.observed:
        return None
    asked = {objective.metric.value for objective in context.targets.objectives}
    from_law = bool(asked & estimate.observed.keys() - estimate.summaries)
    return DecisionStep(
        stage="observed",
        knob="latency",
        before=None,
        after=None,
        reason=Reason.LATENCY_FROM_MEANS if from_law else Reason.LATENCY_OF_WORST_POD,
        inputs={f"mean_{name}_seconds": delta.mean for name, delta in estimate.means.items()},
    )
