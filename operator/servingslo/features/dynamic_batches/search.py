"""Find the limits of dynamic batches with which a server carries most within every objective.

One candidate is judged at a tick, so that a plan stays short: first the batch sizes with the window
in force, then windows with the best size and with the size in force. The memory of it all.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.law.batch_rows import limits_of
from servingslo.features.dynamic_batches.servers import BatcherLimits, PodBatcher, with_limits
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import latency_model
from servingslo.models.workload import Workload
from servingslo.policy.inputs import BatchingTargets
from servingslo.policy.knobs.trial.stages import Began, Refusal
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.sizing import SizingCase, carried_rate_per_second

# Windows that are tried, as shares of the tightest threshold: how long a request may wait for
# others. At most 30 %: Machine Learning Systems (V. J. Reddi), chapter "Model Serving".
WINDOW_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2)
# Windows are whole numbers of this many microseconds.
_ROUNDED_MICROSECONDS = 100
# Limits that carry this share of the best rate are as good: the models' own error is 3 %.
EQUAL_RATE_RATIO = 0.97
# A bounded queue holds this many full batches at least.
LEAST_ROOM_BATCHES = 2

# A reload of a large model takes longer than the wait for its answer.
ASK_AGAIN_SECONDS = 60.0
# After this many requests, a pod that does not take limits counts with those that it has.
MOST_ASKED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherSearch:
    """Results so far for limits near those in force, all under the law that it began with.

    largest: batch that may be tried. instances: batches that run at a time. rates: requests per
    second that one replica carries, by limits; limits without an entry are still to be judged.
    """

    current: BatcherLimits
    largest: int
    least: int
    instances: int
    workload: Workload
    law: ServiceLaw
    rates: Mapping[BatcherLimits, float] = field(default_factory=dict)

    @property
    def best(self) -> BatcherLimits:
        """The nearest to those in force among the limits that carry most."""
        most = max(self.rates.values(), default=0.0)
        good = [one for one, rate in self.rates.items() if rate >= EQUAL_RATE_RATIO * most]
        return min(good, key=lambda one: _distance(one, self.current), default=self.current)

    @property
    def gain_ratio(self) -> float:
        """The rate that a replica carries with the best limits over that with those in force."""
        now = self.rates.get(self.current, 0.0)
        best = self.rates.get(self.best, 0.0)
        return best / now if now > 0.0 else math.inf if best > 0.0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """When a pod was last asked to take limits, and how often in a row."""

    at_seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherMemory:
    """The wanted limits and the progress towards them; after a restart they are read from pods.

    first_pod: the only one that has them; None if all are to have them. proven: every pod has had
    them, so that a pod without them is new or has drifted. former: our limits from before the
    trial, to restore. began: the comparison in progress. loaded_seconds: when any pod was last
    asked. refusal: limits that were taken back. search: under way. ended: the last one that ended.
    """

    wanted: BatcherLimits | None = None
    first_pod: str | None = None
    proven: bool = False
    former: BatcherLimits | None = None
    began: Began[PodBatcher] | None = None
    asked: Mapping[str, Asked] = field(default_factory=dict)
    changed_seconds: float | None = None
    loaded_seconds: float | None = None
    refusal: Refusal | None = None
    search: BatcherSearch | None = field(default=None, compare=False, repr=False)
    ended: BatcherSearch | None = field(default=None, compare=False, repr=False)

    @property
    def stood(self) -> BatcherLimits | None:
        """The limits that every pod has had, but for the first pod of a trial; None for none."""
        if self.first_pod is not None:
            return self.former
        return self.wanted if self.proven else None

    def refuses(self, limits: BatcherLimits) -> bool:
        """Whether these limits were taken back last."""
        return self.refusal is not None and self.refusal.setting == limits

    def count(self, pod: str) -> int:
        """How often in a row a pod was asked."""
        return self.asked[pod].count if pod in self.asked else 0

    def is_reloading(self, now_seconds: float) -> bool:
        """Whether a model was loaded recently: its counters were reset, and requests are missed."""
        since = self.loaded_seconds
        return since is not None and now_seconds - since < ASK_AGAIN_SECONDS


def new_search(
    prepared: PreparedModel,
    targets: BatchingTargets,
    batchers: Mapping[str, PodBatcher],
    current: BatcherLimits,
) -> BatcherSearch | None:
    """Start where the law is known and the tenant allows it; None before the first batch."""
    ran = [size for one in batchers.values() for size in one.batches]
    if not ran:
        return None
    own = max(one.former_max_batch_size for one in batchers.values())
    allowed = own if targets.max_sequences is None else targets.max_sequences
    return BatcherSearch(
        current=current,
        largest=max(min(allowed, 2 * max(ran)), 1),
        least=targets.min_sequences,
        instances=min(one.instances for one in batchers.values()),
        workload=prepared.workload,
        law=prepared.law,
    )


def advance(search: BatcherSearch, case: SizingCase) -> tuple[BatcherSearch, bool]:
    """Judge the next candidate; return the search and whether it is over."""
    candidate = _next_candidate(search, case)
    if candidate is not None:
        rate = _carried_per_second(search, candidate, case)
        search = replace(search, rates={**search.rates, candidate: rate})
    return search, _next_candidate(search, case) is None


def _next_candidate(search: BatcherSearch, case: SizingCase) -> BatcherLimits | None:
    """The limits to judge next; None if all are judged."""
    return next((one for one in _candidates(search, case) if one not in search.rates), None)


def _carried_per_second(search: BatcherSearch, candidate: BatcherLimits, case: SizingCase) -> float:
    """What a replica carries with these limits, within every constraint."""
    engine = limits_of(with_limits(candidate, search.instances))
    model = latency_model(search.workload, search.law, engine)
    limited = replace(case, frontier=Frontier(model, case.frontier))
    return carried_rate_per_second(limited, (), 1)


def _candidates(search: BatcherSearch, case: SizingCase) -> Iterator[BatcherLimits]:
    yield search.current
    sizes = [2**power for power in range(search.largest.bit_length())]
    for size in sorted({*sizes, search.largest}):
        if search.least <= size <= search.largest:
            yield _sized(search, case, size, search.current.max_queue_delay_microseconds)
    for size in dict.fromkeys((search.best.max_batch_size, search.current.max_batch_size)):
        yield from _windows(search, case, size)


def _windows(search: BatcherSearch, case: SizingCase, size: int) -> Iterator[BatcherLimits]:
    tightest = min((one.threshold_seconds for one in case.objectives), default=0.0)
    for share in WINDOW_SHARES:
        window = round(share * tightest * 1e6 / _ROUNDED_MICROSECONDS) * _ROUNDED_MICROSECONDS
        yield _sized(search, case, size, window)


def _sized(search: BatcherSearch, case: SizingCase, size: int, window: int) -> BatcherLimits:
    """Limits with this batch and window; a bounded queue holds what can still be in time.

    An unbounded queue stays so: a request refused there misses every objective.
    """
    if (size, window) == search.current[:2] or not search.current.max_queue_size:
        return BatcherLimits(size, window, search.current.max_queue_size)
    full = search.law.step_seconds(size)
    left = max((one.threshold_seconds for one in case.objectives), default=0.0) - full
    in_time = int(max(left, 0.0) / full * size * search.instances)
    room = max(in_time, LEAST_ROOM_BATCHES * size * search.instances)
    return BatcherLimits(size, window, room)


def _distance(one: BatcherLimits, current: BatcherLimits) -> tuple[bool, int, int]:
    """Prefer an unchanged window, then a size that is near, then the shortest window."""
    moved = one.max_queue_delay_microseconds != current.max_queue_delay_microseconds
    return moved, abs(one.max_batch_size - current.max_batch_size), one[1]
