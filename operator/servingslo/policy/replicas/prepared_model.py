"""The mix of requests and the engine used for plans, renewed only after a material change.

Estimates move a little with every scrape. Plans from slightly different laws would jump between
neighbouring counts, and would have to prepare their tables again at every tick.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.requests.histograms import HistogramDelta, of_quantiles
from servingslo.models.engine.service_time import (
    EngineLimits,
    RequestDemand,
    ServiceLaw,
    request_demand,
)
from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import LatencyModel, latency_model
from servingslo.models.fleet.objective_metrics import metric_seconds
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import Workload

# Below the error that the models themselves are validated to (3 % of saturation throughput).
MATERIAL_CHANGE_RATIO = 0.02
# Arrival dispersion is known far less well than lengths and only widens the tails.
MATERIAL_DISPERSION_RATIO = 0.1
# Renewed after this time even without a material change, to follow many small ones.
RENEWAL_SECONDS = 300.0
# A law that bends is compared with all slots taken, and with this share of them.
COMPARED_SHARE = 0.125
# Shares of requests at which the law's percentiles replace a histogram.
_SHARES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


class Mix(NamedTuple):
    """What an average request costs an engine, and the index of dispersion of arrivals."""

    demand: RequestDemand
    arrival_dispersion: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """The mix of requests and the engine that serves it.

    workload: at a rate of 1 per second. frontier: of one engine, which follows from the rest; it
    keeps its results for as long as the mix lasts.
    """

    workload: Workload
    law: ServiceLaw
    limits: EngineLimits
    at_seconds: float
    frontier: Frontier = field(compare=False, repr=False)

    @property
    def model(self) -> LatencyModel:
        """The latency model of one engine, prepared."""
        return self.frontier.model

    @property
    def mix(self) -> Mix:
        """Requests and their cost."""
        return Mix(self.model.demand, self.workload.arrival_dispersion)


def renewed_model(
    previous: PreparedModel | None,
    *,
    workload: Workload,
    law: ServiceLaw,
    limits: EngineLimits,
    now_seconds: float,
    error_ratio: float = 0.0,
) -> PreparedModel:
    """The previous mix if nothing material has changed, else one made of these.

    error_ratio: standard error of the mix. Of two mixes that differ by less, neither is better.
    """
    moved_ratio = math.inf
    if previous is not None and previous.limits == limits:
        cap, budget = previous.model.cap, limits.max_num_batched_tokens
        bends = law.bends or previous.law.bends
        moved_ratio = max(
            mix_moved_ratio(
                Mix(
                    request_demand(previous.workload, previous.law, count, budget),
                    previous.workload.arrival_dispersion,
                ),
                Mix(request_demand(workload, law, count, budget), workload.arrival_dispersion),
            )
            for count in (cap, COMPARED_SHARE * cap)[: 2 if bends else 1]
        )
        if (
            moved_ratio <= max(MATERIAL_CHANGE_RATIO, error_ratio)
            and now_seconds - previous.at_seconds < RENEWAL_SECONDS
        ):
            return previous
    unit = workload.at_rate(1.0)
    model = latency_model(unit, law, limits)
    return PreparedModel(
        workload=unit,
        law=law,
        limits=limits,
        at_seconds=now_seconds,
        frontier=Frontier(model, None if previous is None else previous.frontier, moved_ratio),
    )


def mix_moved_ratio(old: Mix, new: Mix) -> float:
    """How far requests or their cost have moved, in terms of the models' own error."""
    before, after = old.demand, new.demand
    pairs = (
        (before.fixed_seconds, after.fixed_seconds),
        (before.marginal_seconds, after.marginal_seconds),
        (before.held_tokens, after.held_tokens),
        (before.prefill_mean_seconds, after.prefill_mean_seconds),
        (before.uncached_second_moment_tokens2**0.5, after.uncached_second_moment_tokens2**0.5),
        (before.output_mean_tokens, after.output_mean_tokens),
    )
    weight = MATERIAL_CHANGE_RATIO / MATERIAL_DISPERSION_RATIO
    dispersion = _difference(old.arrival_dispersion, new.arrival_dispersion)
    return max(weight * dispersion, *(_difference(*pair) for pair in pairs))


def _difference(old: float, new: float) -> float:
    """The difference as a share of the larger."""
    largest = max(abs(old), abs(new))
    return abs(new - old) / largest if largest > 0.0 else 0.0


def with_means(estimate: Estimate, prepared: PreparedModel | None, serving: int) -> Estimate:
    """The estimate with the law's percentiles, scaled so that their mean is the observed one.

    Unchanged if engines export histograms or summaries, or if the law has no means.
    """
    lacking = estimate.means.keys() - estimate.observed.keys()
    rate = estimate.load_per_second
    if prepared is None or not lacking or not rate or not serving:
        return estimate
    present = prepared.model.predict(rate, serving * estimate.engines_per_pod, estimate.routing)
    if not present.stable:
        return estimate
    found = {
        metric: _of_law(present, metric, mean, estimate.means[metric])
        for metric in lacking
        if (mean := present.mean_seconds(LatencyMetric(metric))) is not None
    }
    return replace(estimate, observed={**estimate.observed, **found})


def _of_law(present: Prediction, metric: str, mean: float, seen: HistogramDelta) -> HistogramDelta:
    known = LatencyMetric(metric)
    ratio = (seen.mean or 0.0) / mean if mean > 0.0 else 1.0
    quantiles = {share: ratio * metric_seconds(present, known, 100.0 * share) for share in _SHARES}
    return of_quantiles(quantiles, seen.count, seen.sum)
