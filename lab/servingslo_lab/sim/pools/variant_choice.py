"""Pools of a simulation as a choice of variants, and the demand of a trace, for hindsight.

What replicas carry is read from the latency model at the trace's own lengths and the pool's own
service law. Rates of pools are added wherever the gateway looks at loads: no gateway carries more,
so no schedule behind it is cheaper.
"""

from collections.abc import Callable

import numpy as np

from servingslo.models.fleet.frontier import GREATEST_UTILIZATION, Frontier
from servingslo.models.fleet.latency import Objective, latency_model
from servingslo.models.fleet.latency import Routing as ModelRouting
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.pools.variants.composition import Choice, Variant
from servingslo.policy.pools.variants.split import Split, SplitRule
from servingslo.policy.replicas.sizing import SizingCase, carried_rate_per_second
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace

# Quantiles of a trace's lengths: 40 points of equal weight, as many as an engine's histogram has.
_POINTS = 40
# Before preemptions: the default target of KV use.
_KV_TARGET = 0.9


def choice_of(spec: VariantsSpec, trace: Trace, objectives: Objectives, *, most: int) -> Choice:
    """The pools with their prices and rates; most: of the replicas of each."""
    return Choice(
        variants=tuple(
            Variant(
                name=name,
                price_hourly=fleet.dollars_per_hour,
                rate_of=_rate_of(fleet, trace, objectives, spec, most),
                maximum=most if fleet.max_replicas is None else min(most, fleet.max_replicas),
            )
            for name, fleet in spec.pools.items()
        ),
        split=_split_of(spec),
        gpus_max=spec.gpu_quota,
    )


def demand_of(trace: Trace, interval_seconds: float) -> list[float]:
    """Mean arrival rate of each interval, requests per second; the last may be shorter."""
    edges = np.append(
        np.arange(0.0, trace.duration_seconds, interval_seconds), trace.duration_seconds
    )
    counts, _ = np.histogram(trace.arrival_seconds, edges)
    rates: list[float] = (counts / interval_seconds).tolist()
    return rates


def _split_of(spec: VariantsSpec) -> Split:
    if spec.weights:
        return Split(rule=SplitRule.FIXED_WEIGHTS, weights=spec.weights)
    blind = spec.routing in {Routing.ROUND_ROBIN, Routing.RANDOM}
    return Split(rule=SplitRule.EVEN_BY_POD if blind else SplitRule.BY_LOAD)


def _rate_of(
    fleet: FleetSpec, trace: Trace, objectives: Objectives, spec: VariantsSpec, most: int
) -> Callable[[int], float]:
    workload = Workload(
        arrival_rate_per_second=max(len(trace) / trace.duration_seconds, 1e-9),
        prompt=_lengths(trace.prompt_tokens),
        output=_lengths(trace.output_tokens),
    )
    rule = fleet.routing if spec.weights else spec.routing
    case = SizingCase(
        frontier=Frontier(latency_model(workload, fleet.engine_law, fleet.engine_limits)),
        routing=ModelRouting.RANDOM if rule is Routing.RANDOM else ModelRouting.POOLED,
        objectives=tuple(
            Objective(metric=metric, percentile=100.0 * objectives.share, threshold_seconds=seconds)
            for metric, seconds in (
                (LatencyMetric.TTFT, objectives.ttft_seconds),
                (LatencyMetric.TPOT, objectives.tpot_seconds),
                (LatencyMetric.LATENCY, objectives.latency_seconds),
            )
            if np.isfinite(seconds)
        ),
        utilization_target_ratio=GREATEST_UTILIZATION,
        kv_cache_target_ratio=_KV_TARGET,
        largest_count=most,
    )
    return lambda count: carried_rate_per_second(case, (), count)


def _lengths(tokens: np.ndarray) -> LengthDistribution:
    middles = (np.arange(_POINTS) + 0.5) / _POINTS
    points = np.quantile(tokens, middles)
    found, weights = np.unique(points, return_counts=True)
    return LengthDistribution(
        tokens=tuple(float(point) for point in found),
        weights=tuple(float(weight) / _POINTS for weight in weights),
    )
