"""The cheapest schedule of several variants with the trace known: an integer program over time.

It has one parameter, as the oracle of one fleet: the work a second that a replica takes. For it,
the program finds the replicas of each pool and interval of least price, starts included. The
parameter is the largest one at which a run of the schedule meets the share.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from servingslo.models.engine.service_time import FloatArray
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.bounds.oracle import INTERVAL_SECONDS, interval_work
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec, SlowPods
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.pools.together import PoolsResult
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace

_LOWEST_WORK, _HIGHEST_WORK, _STEPS = 0.2, 1.1, 8
# Solutions within 0.1 % of the best one, or the best of half a minute, are good enough to compare.
_GAP_RATIO, _SOLVE_SECONDS = 1e-3, 30.0
# Intervals without requests need next to nothing, and no division by zero.
_LEAST_NEED = 1e-6
_BY_LOAD = frozenset({Routing.LEAST_LOADED, Routing.LEAST_OF_TWO})

IntMatrix = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Timetable:
    """Replica counts of each pool and interval; counts: shape (pools, intervals)."""

    def __init__(self, names: tuple[str, ...], counts: IntMatrix) -> None:
        self._names, self._counts = names, counts

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """The counts of the interval that begins."""
        now = next(iter(observations.values())).time_seconds
        place = min(int(now / INTERVAL_SECONDS + 0.5), self._counts.shape[1] - 1)
        return {
            name: Wanted(replicas=int(count))
            for name, count in zip(self._names, self._counts[:, place], strict=True)
        }


def optimum(spec: VariantsSpec, trace: Trace, objectives: Objectives) -> PoolsResult | None:
    """The cheapest schedule that meets the share; None if none of this kind does.

    Pods are ready in time, without failures, and their cold starts are paid for.
    """
    low, high = _LOWEST_WORK, _HIGHEST_WORK
    best: PoolsResult | None = None
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        found = _followed(spec, trace, counts_of(spec, trace, middle))
        if found is not None and objectives.share_of(found.result) >= objectives.share:
            low, best = middle, found
        else:
            high = middle
    return best


def counts_of(spec: VariantsSpec, trace: Trace, work_per_replica: float) -> IntMatrix | None:
    """Replicas of least price, shape (pools, intervals); None if the program is not solved.

    Each interval has enough for its work and the rest of the previous interval's: by load in sum,
    evenly by pod for the slowest pool that has replicas, by weights in each pool.
    """
    needs = np.stack([_needs(fleet, trace) / work_per_replica for fleet in spec.fleets.values()])
    pools, intervals = needs.shape
    size = pools * intervals
    highest = float(np.ceil(needs.max())) + 1.0
    prices = np.array([fleet.dollars_per_hour for fleet in spec.fleets.values()])
    starts = np.array([f.cold_start.mean_seconds for f in spec.fleets.values()]) / INTERVAL_SECONDS
    # Variables: replicas, those that start, and whether the pool has any.
    cost = np.concatenate(
        [
            np.repeat(prices, intervals),
            np.repeat(prices * starts, intervals),
            np.zeros(size),
        ]
    )
    rows = lil_matrix((size * 3 + intervals, 3 * size))
    least = np.full(rows.shape[0], 0.0)
    for t in range(intervals):
        for k in range(pools):
            at = k * intervals + t
            # A replica that was not there before starts; those of the first interval are there.
            rows[at, size + at] = 1.0
            if t > 0:
                rows[at, at], rows[at, at - 1] = -1.0, 1.0
            rows[size + at, at], rows[size + at, 2 * size + at] = -1.0, highest
            _even(spec, rows, 2 * size + at, (k, t), needs)
            least[2 * size + at] = 1.0 if spec.weights else 0.0
            rows[3 * size + t, at] = _carried(spec, needs, k, t)
        least[3 * size + t] = 1.0
    solved = milp(
        cost,
        integrality=np.repeat([1, 0, 1], size),
        bounds=Bounds(0.0, np.repeat([highest, np.inf, 1.0], size)),
        constraints=LinearConstraint(rows.tocsr(), least, np.inf),
        options={"mip_rel_gap": _GAP_RATIO, "time_limit": _SOLVE_SECONDS},
    )
    if solved.x is None:
        return None
    found: IntMatrix = np.rint(solved.x[:size]).astype(np.int64).reshape(pools, intervals)
    return found


def _carried(spec: VariantsSpec, needs: FloatArray, pool: int, interval: int) -> float:
    """The part of an interval's demand that one replica carries, if load decides; else its count.

    Without a rule by load, the sum over pools only says that there is at least one replica.
    """
    by_load = spec.routing in _BY_LOAD and not spec.weights
    return 1.0 / max(float(needs[pool, interval]), _LEAST_NEED) if by_load else 1.0


def _even(
    spec: VariantsSpec, rows: lil_matrix, row: int, place: tuple[int, int], needs: FloatArray
) -> None:
    """Evenly by pod, all pods together are as many as this pool would need if it has any.

    By weights, this pool has enough for its own share.
    """
    pool, interval = place
    pools, intervals = needs.shape
    need = float(needs[pool, interval])
    if spec.weights:
        name = list(spec.fleets)[pool]
        share = spec.weights[name] / sum(spec.weights.values())
        rows[row, pool * intervals + interval] = 1.0 / max(share * need, _LEAST_NEED)
        return
    if spec.routing in _BY_LOAD:
        return
    for other in range(pools):
        rows[row, other * intervals + interval] = 1.0
    rows[row, 2 * pools * intervals + pool * intervals + interval] = -need


def _needs(fleet: FleetSpec, trace: Trace) -> FloatArray:
    """Work of each interval on this card, with the rest of the previous one's."""
    work = interval_work(fleet, trace)
    before = np.concatenate([work[:1], work[:-1]])
    needs: FloatArray = np.maximum(work, (work + before) / 2.0)
    return needs


def _followed(spec: VariantsSpec, trace: Trace, counts: IntMatrix | None) -> PoolsResult | None:
    if counts is None:
        return None
    names = tuple(spec.fleets)
    free = {
        name: replace(
            fleet,
            initial_replicas=int(counts[k, 0]),
            max_replicas=None,
            gpu_quota=None,
            mean_seconds_to_failure=None,
            spot=None,
            slow_pods=SlowPods(),
            cold_start=ColdStart(mean_seconds=1e-3, variation_ratio=0.0),
            scrape_interval_seconds=INTERVAL_SECONDS,
            scrape_lag_seconds=0.0,
        )
        for k, (name, fleet) in enumerate(spec.fleets.items())
    }
    ideal = replace(spec.with_fleets(free), gpu_quota=None)
    result = simulate_pools(ideal, trace, Timetable(names, counts), seed=0)
    started = np.maximum(np.diff(counts, axis=1), 0).sum(axis=1)
    paid = {
        name: result.replica_seconds[name]
        + float(started[k]) * spec.fleets[name].cold_start.mean_seconds
        for k, name in enumerate(names)
    }
    whole = replace(result.result, replica_seconds=sum(paid.values()))
    return replace(result, result=whole, replica_seconds=paid)
