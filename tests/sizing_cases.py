"""A workload on one card, and its sizing under a load."""

from dataclasses import replace

from tests.cards import H100, H100_LIMITS

from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import Routing, latency_model
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.replicas.sizing import Load, SizingCase, size

WORKLOAD = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution(tokens=(200.0, 1000.0, 3000.0), weights=(0.4, 0.4, 0.2)),
    output=LengthDistribution(tokens=(50.0, 200.0, 500.0), weights=(0.3, 0.5, 0.2)),
)


def case(*objectives, model=None, **changes):
    """A case with these objectives."""
    if model is not None:
        changes["frontier"] = Frontier(model)
    plain = SizingCase(
        frontier=Frontier(latency_model(WORKLOAD, H100, H100_LIMITS)),
        routing=Routing.POOLED,
        objectives=objectives,
        utilization_target_ratio=0.85,
        kv_cache_target_ratio=0.9,
        largest_count=64,
    )
    return replace(plain, **changes)


def sized(sizing_case, rate, drain=0.0):
    """The sizing of a case under a load."""
    load = Load(rate_per_second=rate, drain_per_second=drain)
    return size(sizing_case, load)
