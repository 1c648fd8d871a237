"""The cheapest pair of replica counts of a prefill and a decode pool.

Whether a pair keeps the objectives rises with either count, so the pairs that are just enough form
a staircase. It is walked from the fewest prefill replicas up, for as long as fewer decode replicas
can pay for one more. A law of a pool is evaluated once for each of its counts, and kept with the
rate; pairs only join two of them.
Source: saddleback search in a monotone table, D. Gries, The Science of Programming (1981).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TypeVar

from servingslo.models.disaggregated.path import (
    JOINT_METRICS,
    DecodeTimes,
    FirstTokens,
    Path,
    PathLaws,
)
from servingslo.models.disaggregated.pools import PoolModel
from servingslo.models.disaggregated.sums import Law
from servingslo.models.fleet.frontier import IDLE_RATE_PER_SECOND
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.numerics import ROUNDING
from servingslo.models.objectives import LatencyMetric, Objective

# Pairs of pools whose laws one process keeps, with their frontiers.
_MODELS_KEPT = 16
# Counts of each pool that a search usually evaluates.
_LIKELY = 4
# A percentile this little above its threshold is at it.
_EQUAL_RATIO = 1.0 + ROUNDING

_T = TypeVar("_T")
# Count and rate of a pool.
Load = tuple[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Replica counts of both pools for a rate of requests.

    sufficient: whether they keep every feasible joint objective; else each pool has the count that
    it would need next to an idle one of the other role, at most its largest. within_ceilings:
    whether they keep what holds for one pool alone. joint: feasible objectives of both pools
    together. decode_alone: those of decode alone. infeasible: objectives that no counts keep; they
    do not affect the counts. prefill_least, decode_least: what each pool needs by its own ceilings
    and objectives. model: what found the pair.
    """

    prefill: int
    decode: int
    rate_per_second: float
    price: float
    sufficient: bool
    within_ceilings: bool
    joint: tuple[Objective, ...]
    decode_alone: tuple[Objective, ...]
    infeasible: tuple[Objective, ...]
    prefill_least: int
    decode_least: int
    model: "PairModel" = field(compare=False, repr=False)


class PairModel:
    """Two pools and the path through them, with the laws of the last rate."""

    __slots__ = (
        "_before", "_first", "_kept", "_loaded", "_rate", "_there",
        "decode", "laws", "path", "prefill",
    )  # fmt: skip

    def __init__(self, prefill: PoolModel, decode: PoolModel, path: Path) -> None:
        self.prefill, self.decode, self.path = prefill, decode, path
        self.laws = PathLaws(
            prefill.frontier.model.engine,
            decode.frontier.model.engine,
            path,
            prefill.calibration,
            decode.calibration,
        )
        self._loaded: dict[tuple[PoolModel, Load], Prediction] = {}
        self._before: dict[tuple[bool, Load], Law | None] = {}
        self._first: dict[Load, FirstTokens | None] = {}
        self._there: dict[tuple[LatencyMetric, Load], DecodeTimes | None] = {}
        self._rate = 0.0
        self._kept: tuple[object, Pair] | None = None

    def seconds_ratio(self, objective: Objective, prefill: Load, decode: Load) -> float:
        """Return the percentile that clients see, over its threshold; inf when unstable."""
        return self.seconds(objective, prefill, decode) / objective.threshold_seconds

    def seconds(self, objective: Objective, prefill: Load, decode: Load) -> float:
        """Return the percentile that clients see, with each pool at its count and rate."""
        law = self.laws.client_law(
            self._times_before(objective.metric, prefill),
            self._times_there(objective.metric, decode),
        )
        return math.inf if law is None else law.quantile(objective.percentile / 100.0)

    def loaded(self, pool: PoolModel, load: Load) -> Prediction:
        """Return the prediction of one pool alone; its laws are evaluated once."""
        self._load(pool, [load])
        return self._loaded[pool, load]

    def expect(self, prefill: Sequence[Load], decode: Sequence[Load]) -> None:
        """Evaluate first tokens of these loads at once, which is cheaper."""
        for load, law in self._evaluated(
            self.prefill,
            [load for load in prefill if (False, load) not in self._before],
            lambda made: self.laws.prefill_times(made, LatencyMetric.TTFT),
        ):
            self._before[False, load] = law
        for there, first in self._evaluated(
            self.decode,
            [load for load in decode if load not in self._first],
            self.laws.decode_first,
        ):
            self._first[there] = first

    def cheapest(
        self,
        objectives: Sequence[Objective],
        rate_per_second: float,
        current: tuple[int, int] | None = None,
    ) -> Pair:
        """Return the pair of least price, see `cheapest_pair`."""
        key = tuple(objectives), rate_per_second, current
        if self._kept is None or self._kept[0] != key:
            self._keep_rate(rate_per_second)
            self._kept = key, _Search(self, objectives, rate_per_second).run(current)
        return self._kept[1]

    def loads(self, prefill: int, decode: int, rate_per_second: float) -> tuple[Load, Load]:
        """Return both pools' loads at these counts and this rate of requests."""
        return (prefill, self.path.through_ratio * rate_per_second), (decode, rate_per_second)

    def _keep_rate(self, rate_per_second: float) -> None:
        """Forget laws of other rates."""
        if rate_per_second != self._rate:
            self._rate = rate_per_second
            for kept in (self._loaded, self._before, self._first, self._there):
                kept.clear()

    def _load(self, pool: PoolModel, loads: Sequence[Load]) -> list[Prediction]:
        lacking = [load for load in loads if (pool, load) not in self._loaded]
        if lacking:
            counts, rates = zip(*lacking, strict=True)
            for load, made in zip(lacking, pool.predictions(counts, rates), strict=True):
                self._loaded[pool, load] = made
        return [self._loaded[pool, load] for load in loads]

    def _evaluated(
        self,
        pool: PoolModel,
        loads: Sequence[Load],
        evaluate: Callable[[list[Prediction]], Sequence[_T]],
    ) -> list[tuple[Load, _T]]:
        """Return loads with their evaluations."""
        if not loads:
            return []
        return list(zip(loads, evaluate(self._load(pool, loads)), strict=True))

    def _times_before(self, metric: LatencyMetric, load: Load) -> Law | None:
        waits = ROW_OF[metric].only_waits
        if not waits:
            self.expect([load], [])
        elif (waits, load) not in self._before:
            (law,) = self.laws.prefill_times(self._load(self.prefill, [load]), metric)
            self._before[waits, load] = law
        return self._before[waits, load]

    def _times_there(self, metric: LatencyMetric, load: Load) -> DecodeTimes | None:
        if (metric, load) not in self._there:
            self.expect([], [load])
            (times,) = self.laws.decode_times(
                self._load(self.decode, [load]), metric, [self._first[load]]
            )
            self._there[metric, load] = times
        return self._there[metric, load]


class _Search:
    """The search for the cheapest pair at one rate."""

    def __init__(
        self, model: PairModel, objectives: Sequence[Objective], rate_per_second: float
    ) -> None:
        self.model, self.rate = model, rate_per_second
        alone = tuple(one for one in objectives if one.metric not in JOINT_METRICS)
        prefill, decode = model.prefill, model.decode
        through = model.path.through_ratio * rate_per_second
        before, there = prefill.needs_alone((), through), decode.needs_alone(alone, rate_per_second)
        self.prefill_least, self.decode_least = before.replicas, there.replicas
        self.within_ceilings = before.enough and there.enough
        self.decode_alone = tuple(one for one in alone if one not in there.infeasible)
        joint = tuple(one for one in objectives if one.metric in JOINT_METRICS)
        largest = model.loads(prefill.most, decode.most, rate_per_second)
        if joint:
            self._expect_near(largest)
        missed = [one for one in joint if not self._kept([one], *largest)]
        idle = prefill.idle(through) and decode.idle(rate_per_second)
        never = tuple(one for one in missed if idle or self._never(one))
        self.joint = tuple(one for one in joint if one not in never)
        self.infeasible = there.infeasible + never
        self.within_reach = all(one in never for one in missed)

    def run(self, current: tuple[int, int] | None) -> Pair:
        """Return the pair."""
        if not self.within_reach:
            return self._pair(*self._beyond_reach(), sufficient=False)
        found = self._stairs()
        price = min(self._price(*pair) for pair in found)
        cheapest = [pair for pair in found if self._price(*pair) <= price * _EQUAL_RATIO]
        if current in cheapest:
            return self._pair(*current, sufficient=True)
        best = cheapest[0]
        if len(cheapest) > 1:
            best = min(cheapest, key=lambda pair: self._worst(*pair))
        return self._pair(*best, sufficient=True)

    def _stairs(self) -> list[tuple[int, int]]:
        """Return pairs of which the first of least price is the cheapest."""
        model, most = self.model, self.model.decode.most
        first = _least(
            self.prefill_least, model.prefill.most, lambda count: self._holds(count, most)
        )
        found: list[tuple[int, int]] = []
        best = math.inf
        for prefill in range(first, model.prefill.most + 1):
            if self._price(prefill, self.decode_least) > best * _EQUAL_RATIO:
                break
            most = _least(self.decode_least, most, partial(self._holds, prefill))
            found.append((prefill, most))
            best = min(best, self._price(prefill, most))
            if most == self.decode_least:
                break
        return found

    def _beyond_reach(self) -> tuple[int, int]:
        """Return each pool's count next to an idle one of the other role, if that is enough.

        A pool that is short does not make the other one grow.
        """
        model, through = self.model, self.model.path.through_ratio * self.rate
        idle: Load = (1, IDLE_RATE_PER_SECOND)
        prefill = _least(
            self.prefill_least,
            model.prefill.most,
            lambda count: self._kept(self.joint, (count, through), idle),
        )
        decode = _least(
            self.decode_least,
            model.decode.most,
            lambda count: self._kept(self.joint, idle, (count, self.rate)),
        )
        if prefill < model.prefill.most and decode < model.decode.most:
            return model.prefill.most, model.decode.most
        return prefill, decode

    def _expect_near(self, largest: tuple[Load, Load]) -> None:
        """Evaluate the loads that the search is sure or likely to need together."""
        (_, through), (_, rate) = largest
        self.model.expect(
            [(self.prefill_least + more, through) for more in range(_LIKELY)] + [largest[0]],
            [(self.decode_least + more, rate) for more in range(_LIKELY)] + [largest[1]],
        )

    def _never(self, objective: Objective) -> bool:
        idle: Load = (1, IDLE_RATE_PER_SECOND)
        return not self._kept([objective], idle, idle)

    def _holds(self, prefill: int, decode: int) -> bool:
        return self._kept(self.joint, *self.model.loads(prefill, decode, self.rate))

    def _worst(self, prefill: int, decode: int) -> float:
        loads = self.model.loads(prefill, decode, self.rate)
        ratios = [self.model.seconds_ratio(one, *loads) for one in self.joint]
        return max(ratios, default=0.0)

    def _kept(self, objectives: Sequence[Objective], prefill: Load, decode: Load) -> bool:
        return all(
            self.model.seconds_ratio(one, prefill, decode) <= _EQUAL_RATIO for one in objectives
        )

    def _price(self, prefill: int, decode: int) -> float:
        return prefill * self.model.prefill.price + decode * self.model.decode.price

    def _pair(self, prefill: int, decode: int, *, sufficient: bool) -> Pair:
        return Pair(
            prefill=prefill,
            decode=decode,
            rate_per_second=self.rate,
            price=self._price(prefill, decode),
            sufficient=sufficient,
            within_ceilings=self.within_ceilings,
            joint=self.joint,
            decode_alone=self.decode_alone,
            infeasible=self.infeasible,
            prefill_least=self.prefill_least,
            decode_least=self.decode_least,
            model=self.model,
        )


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the least count from low to high that holds, in ever longer steps; else the highest.

    The highest is not tried: it holds, or is the answer anyway.
    """
    failing, step = low - 1, 1
    count = low
    while count < high and not holds(count):
        failing, step = count, 2 * step
        count = failing + step // 2
    found = min(count, high)
    while found - failing > 1:
        middle = (failing + found) // 2
        if holds(middle):
            found = middle
        else:
            failing = middle
    return max(found, low)


@lru_cache(maxsize=_MODELS_KEPT)
def pair_model(prefill: PoolModel, decode: PoolModel, path: Path) -> PairModel:
    """Return the laws of two pools; those of recent ones are kept."""
    return PairModel(prefill, decode, path)


def cheapest_pair(
    prefill: PoolModel,
    decode: PoolModel,
    path: Path,
    objectives: Sequence[Objective],
    rate_per_second: float,
    current: tuple[int, int] | None = None,
) -> Pair:
    """Return the pair of least price that keeps every objective and ceiling at this rate.

    rate_per_second: requests of the resource, all of which pass decode. current: counts that are
    preferred among equal prices; else the pair with most room in its objectives.
    """
    return pair_model(prefill, decode, path).cheapest(objectives, rate_per_second, current)
