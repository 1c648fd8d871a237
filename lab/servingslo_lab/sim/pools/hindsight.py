"""The cheapest constant replica counts of several pools, found by trying them on the trace."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from servingslo.policy.pools.inputs import Role
from servingslo_lab.sim.bounds.oracle import interval_work
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import AnyPools, PoolsSpec
from servingslo_lab.sim.pools.scaling import Constant
from servingslo_lab.sim.pools.together import PoolsResult
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace, chosen_requests

_FIRST_WORK, _GROWTH = 0.8, 1.5
# Counts of one pool beyond this multiple of its sufficient count are not tried to save on another.
_WIDEST, _PAIR = 2, 2
# Beyond 1.5^8 = 25 times the replicas for the mean work, more of them do not help.
_MOST_GROWTHS = 9

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Constant replica counts of all pools that were run."""

    counts: Counts
    result: PoolsResult


def parts_of(spec: AnyPools, trace: Trace) -> Iterator[tuple[str, FleetSpec, Trace]]:
    """Each pool with the work that it would do if it were the only one of its role.

    Of prefill and decode: the first token, or the others without the prompt. Prompts that skip the
    prefill pool are left out; they are short.
    """
    if not isinstance(spec, PoolsSpec):
        yield from ((name, fleet, trace) for name, fleet in spec.fleets.items())
        return
    prefill, decode = spec.names
    passing = np.flatnonzero(trace.prompt_tokens >= spec.skip_prompt_tokens)
    first = chosen_requests(trace, passing) if len(passing) else trace
    yield prefill, spec.prefill, replace(first, output_tokens=np.ones_like(first.output_tokens))
    yield decode, replace(spec.decode, cached_ratio=1.0), trace


def best_counts(
    spec: AnyPools, trace: Trace, objectives: Objectives, *, most: Counts, seed: int
) -> Combination | None:
    """The cheapest constant counts that meet the share; None if none do.

    most: of each pool. Of two pools, every count of the first is tried with the least sufficient
    count of the second, which for prefill and decode is the cheapest pair. Of more, each pool is
    made small in turn, in several orders, and the cheapest result is returned. Pools of whole
    requests may have no replica. Of them, more replicas may be worse: a slow card gets its part of
    the requests. So their cheapest pool alone is tried as well, and a cheaper mixture may exist.
    """
    search = _Search(spec, trace, objectives, seed)
    found = []
    enough = search.enough(most)
    if enough is not None:
        pair = len(most) == _PAIR
        found.append(search.cheapest_pair(enough, most) if pair else search.in_turn(enough))
    if not isinstance(spec, PoolsSpec) and (alone := search.cheapest_alone(most)) is not None:
        found.append(alone)
    return min(found, key=lambda each: search.price(each.counts), default=None)


class _Search:
    """Runs of constant counts, each pair of counts once."""

    def __init__(self, spec: AnyPools, trace: Trace, objectives: Objectives, seed: int) -> None:
        self._spec, self._trace = spec, trace
        self._objectives, self._seed = objectives, seed
        self._tried: dict[tuple[int, ...], Combination | None] = {}
        self._prices = {name: fleet.dollars_per_hour for name, fleet in spec.fleets.items()}
        if not any(self._prices.values()):
            self._prices = dict.fromkeys(self._prices, 1.0)
        combined = Role.COMBINED in spec.roles.values()
        self._least = dict.fromkeys(spec.fleets, 0 if combined else 1)

    def attempt(self, counts: Counts) -> Combination | None:
        """The run with these counts if it meets the share."""
        fleets = self._spec.fleets
        ordered = {name: counts[name] for name in fleets}
        key = tuple(ordered.values())
        if key not in self._tried:
            spec = self._spec.with_fleets(
                {
                    name: replace(fleet, initial_replicas=ordered[name], max_replicas=None)
                    for name, fleet in fleets.items()
                }
            )
            result = simulate_pools(spec, self._trace, Constant(ordered), seed=self._seed)
            met = self._objectives.share_of(result.result) >= self._objectives.share
            self._tried[key] = Combination(counts=ordered, result=result) if met else None
        return self._tried[key]

    def price(self, counts: Counts) -> float:
        """Dollars an hour."""
        return sum(self._prices[name] * count for name, count in counts.items())

    def enough(self, most: Counts) -> Combination | None:
        """Sufficient counts, or None if those at the bounds are not."""
        counts = {
            name: max(math.ceil(float(interval_work(fleet, part).mean()) / _FIRST_WORK), 1)
            for name, fleet, part in parts_of(self._spec, self._trace)
        }
        for _ in range(_MOST_GROWTHS):
            bounded = {name: min(count, most[name]) for name, count in counts.items()}
            found = self.attempt(bounded)
            if found is not None or bounded == dict(most):
                return found
            counts = {name: math.ceil(count * _GROWTH) for name, count in counts.items()}
        return None

    def cheapest_pair(self, enough: Combination, most: Counts) -> Combination:
        """The cheapest pair if more of one pool never needs more of the other."""
        (one, other), best = enough.counts, enough
        widest = {name: min(_WIDEST * count, most[name]) for name, count in enough.counts.items()}
        highest = widest[other]
        for count in range(self._least[one], widest[one] + 1):
            if self.price({one: count}) >= self.price(best.counts):
                break
            high = self._below(best, {one: count}, other, highest)
            low = max(self._least[other], 1 if count == 0 else 0)
            found = self._fewest({one: count}, other, low, high)
            if found is not None:
                highest = found.counts[other]
                best = min(best, found, key=lambda each: self.price(each.counts))
        return best

    def _below(self, best: Combination, fixed: Counts, other: str, highest: int) -> int:
        """The largest count of the other pool that is cheaper than the best combination."""
        left = self.price(best.counts) - self.price(fixed)
        price = self._prices[other]
        return highest if price <= 0 else min(math.ceil(left / price - 1e-9) - 1, highest)

    def _fewest(self, fixed: Counts, other: str, low: int, high: int) -> Combination | None:
        """The least count from low to high that meets the share beside the fixed ones."""
        best = self.attempt({**fixed, other: high}) if high >= low else None
        if best is None:
            return None
        low -= 1
        while (high := best.counts[other]) - low > 1:
            middle = (low + high) // 2
            found = self.attempt({**fixed, other: middle})
            if found is None:
                low = middle
            else:
                best = found
        return best

    def in_turn(self, enough: Combination) -> Combination:
        """Each pool made small in turn, beginning with each of them once."""
        names = list(enough.counts)
        found = []
        for first in range(len(names)):
            best = enough
            for name in names[first:] + names[:first]:
                best = self._smaller(best, name)
            found.append(best)
        return min(found, key=lambda each: self.price(each.counts))

    def cheapest_alone(self, most: Counts) -> Combination | None:
        """The cheapest count of a single pool, the others empty."""
        found = []
        for name in most:
            enough = self.enough({one: most[one] if one == name else 0 for one in most})
            if enough is not None:
                found.append(self._smaller(enough, name))
        return min(found, key=lambda each: self.price(each.counts), default=None)

    def _smaller(self, best: Combination, name: str) -> Combination:
        low = self._least[name] - 1
        while (high := best.counts[name]) - low > 1:
            middle = (low + high) // 2
            counts = {**best.counts, name: middle}
            found = self.attempt(counts) if any(counts.values()) else None
            if found is None:
                low = middle
            else:
                best = found
        return best


def cheapest_single(
    spec: AnyPools, trace: Trace, objectives: Objectives, *, most: Counts, seed: int
) -> Combination | None:
    """The cheapest constant count of one pool of whole requests alone; None if none is enough."""
    return _Search(spec, trace, objectives, seed).cheapest_alone(most)
