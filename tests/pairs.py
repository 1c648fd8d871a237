"""A prefill and a decode pool on one card, and each pool's own sizing with its thresholds."""

from dataclasses import replace

from tests.cards import H100, H100_LIMITS

from servingslo.models.disaggregated.pair import cheapest_pair
from servingslo.models.disaggregated.path import Path, TransferLaw
from servingslo.models.disaggregated.pools import PoolModel
from servingslo.models.disaggregated.workloads import decode_workload, prefill_workload
from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import latency_model
from servingslo.models.objectives import LatencyMetric, Objective, Routing
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.replicas.sizing import Load, SizingCase, size

WORKLOAD = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution(tokens=(200.0, 1000.0, 3000.0), weights=(0.4, 0.4, 0.2)),
    output=LengthDistribution(tokens=(50.0, 200.0, 500.0), weights=(0.3, 0.5, 0.2)),
)
TTFT = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.5)
TPOT = Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.02)
LATENCY = Objective(metric=LatencyMetric.LATENCY, percentile=95.0, threshold_seconds=8.0)
QUEUE = Objective(metric=LatencyMetric.QUEUE_TIME, percentile=99.0, threshold_seconds=0.1)


def path(through=1.0, transfer=0.05, fixed=0.0):
    """A path with these shares and seconds."""
    law = TransferLaw(mean_seconds=transfer, fixed_seconds=fixed)
    return Path(through_ratio=through, transfer=law)


def models(through=1.0, workload=WORKLOAD, law=H100, limits=H100_LIMITS):
    """The latency models of both pools' engines."""
    return (
        latency_model(prefill_workload(workload, through), law, limits),
        latency_model(decode_workload(workload, through), law, limits),
    )


def predictions(rate, counts=(4, 4), through=1.0, routing=Routing.POOLED, **of_models):
    """Both pools at a rate of requests."""
    prefill, decode = models(through, **of_models)
    return (
        prefill.predict(through * rate, counts[0], routing),
        decode.predict(rate, counts[1], routing),
    )


def pools(through=1.0, prices=(1.0, 1.0), most=40, calibration=None, **of_models):
    """Both pools of a pair; decode has a ceiling on its KV cache."""
    prefill, decode = models(through, **of_models)
    plain = PoolModel(
        frontier=Frontier(prefill), price=prices[0], most=most, calibration=calibration or {}
    )
    return plain, replace(plain, frontier=Frontier(decode), price=prices[1], kv_ceiling_ratio=0.9)


def pair_of(rate, *objectives, through=1.0, transfer=0.05, current=None, **of_pools):
    """The cheapest pair of fresh pools."""
    both = pools(through, **of_pools)
    return cheapest_pair(*both, path(through, transfer), objectives, rate, current)


def sized_alone(pool, thresholds, rate):
    """The count that a pool's own sizing finds with its thresholds."""
    case = SizingCase(
        frontier=Frontier(pool.frontier.model),
        routing=pool.routing,
        objectives=tuple(
            replace(objective, threshold_seconds=seconds)
            for objective, seconds in thresholds.items()
        ),
        utilization_target_ratio=pool.utilization_ceiling_ratio,
        kv_cache_target_ratio=pool.kv_ceiling_ratio or 1.0,
        largest_count=pool.most,
        engines_per_replica=pool.engines_per_replica,
        calibration=pool.calibration,
    )
    return size(case, Load(rate_per_second=rate)).replicas
