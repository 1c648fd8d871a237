"""What one more GPU is worth: requests per second that it keeps within their objectives.

Of a resource that is short, the mean over the GPUs it lacks. Of one that has what it wants, what it
would lose with one replica fewer. Both are read from the capacity frontiers; without one it is the
mean over all GPUs that are wanted.
"""

from collections.abc import Mapping
from functools import partial

from servingslo.policy.decision import Decision
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.guards import fitting
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.variants.composition import carried_rate_per_second as carried_together
from servingslo.policy.replicas.sizing import (
    Sized,
    carried_rate_per_second,
    infeasible_objectives,
)


def kept_per_gpu(
    fleet: FleetDecision, targets: FleetTargets, state: FleetState, wanted: Mapping[str, int]
) -> float:
    """Requests per second of all pools together. wanted: replicas by pool.

    One replica fewer is the one that several pools would release under a lower bound of GPUs.
    """
    each = {pool.name: pool.gpus_per_replica for pool in targets.pools}
    gpus = _gpus(wanted, each)
    found = {name: one.sized for name, one in state.pools.items() if name in each}
    sized = {name: one for name, one in found.items() if one is not None}
    if len(sized) < len(each) or not gpus:
        rates = [one.demand.forecast_rate_per_second or 0.0 for one in fleet.pools.values()]
        # Variants divide the requests; each passes both prefill and decode.
        whole = max(rates) if targets.disaggregated else sum(rates)
        return whole / gpus if gpus else 0.0
    after = {name: fleet.pools[name].replicas_after or 0 for name in each}
    low, high = after, dict(wanted)
    if gpus <= _gpus(after, each):
        most = _gpus(after, each) - min(each.values())
        none = None if targets.only is None else dict.fromkeys(after, 0)
        low, high = fitting(targets.pools, after, most, least=none), after
    apart = _gpus(high, each) - _gpus(low, each)
    if apart <= 0:
        return 0.0
    kept = [_kept(fleet, targets, sized, counts) for counts in (low, high)]
    return max(kept[1] - kept[0], 0.0) / apart


def _kept(
    fleet: FleetDecision,
    targets: FleetTargets,
    sized: Mapping[str, Sized],
    counts: Mapping[str, int],
) -> float:
    """Requests per second of the whole demand that these counts keep."""
    rates = {name: one.load.rate_per_second for name, one in sized.items()}
    if targets.disaggregated:
        # The pool that is full first decides how many of all requests are kept.
        shares = [
            min(_carried(fleet.pools[name], sized[name], counts[name]) / rate, 1.0)
            for name, rate in rates.items()
            if rate > 0.0
        ]
        return max(rates.values()) * min(shares, default=0.0)
    rate_of = {name: partial(_carried, fleet.pools[name], sized[name]) for name in counts}
    return min(sum(rates.values()), carried_together(counts, rate_of))


def _carried(decision: Decision, sized: Sized, count: int) -> float:
    """The greatest rate that so many replicas carry, without objectives that no count meets."""
    if not count:
        return 0.0
    return carried_rate_per_second(sized.case, infeasible_objectives(decision.needs), count)


def _gpus(counts: Mapping[str, int], each: Mapping[str, int]) -> int:
    return sum(each[name] * count for name, count in counts.items())
