"""Whether a pool is sold out, what it would have, and what the others cost more for it.

A pod without a place waits for a node, and is on its way until nodes of its pool never took so
long. A pod that a quota refuses is never made; pods that still end may give it theirs, unless they
are stuck. Then the pool has what it has, and the others carry the rest. One more is ordered there
all the same, if it would be worth having: when that pod gets a place, the pool is no longer sold
out, and the rest moves back as in any other move.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.pods.cold_start import (
    LONGEST_NODE_SECONDS,
    LONGEST_SCHEDULING_SECONDS,
)
from servingslo.features.variants.composition import Choice
from servingslo.features.variants.moves import Standing, available
from servingslo.features.variants.search import least_price_composition
from servingslo.policy.decision_parts import StepValue
from servingslo.policy.pools.division import Counts
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import refused_pods
from servingslo.policy.replicas.pods import LATE_STARTS, Condition

_PLACELESS = (Condition.UNSCHEDULABLE, Condition.QUEUED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What sold-out pools lack; nothing by default.

    counts: of least price if nothing were sold out. lacking: replicas of them that sold-out pools
    have not. extra_hourly: what the others cost more an hour, None if they do not carry it.
    """

    counts: Counts = field(default_factory=dict)
    lacking: Counts = field(default_factory=dict)
    extra_hourly: float | None = None

    def ordered(self, name: str, count: int) -> int:
        """The count of a pool with one pod that waits for a place, if the pool lacks any."""
        return count + int(name in self.lacking)

    @property
    def inputs(self) -> Mapping[str, StepValue]:
        """For a step of a pool that carries what is lacking: the pool that lacks most."""
        if not self.lacking:
            return {}
        pool = max(self.lacking, key=lambda name: self.lacking[name])
        return {
            "short_pool": pool,
            "lacking_replicas": self.lacking[pool],
            "extra_hourly": self.extra_hourly,
        }


def shortage(
    choice: Choice, standing: Mapping[str, Standing], counts: Counts, demand: float
) -> Shortage:
    """What sold-out pools would have beyond the counts that are ordered for a demand.

    One more at least while all that can be had does not carry it: any would help.
    """
    if not any(one.sold_out for one in standing.values()):
        return Shortage()
    free = least_price_composition(choice, demand)
    had = available(choice, standing)
    had = replace(had, variants=tuple(replace(one, present=None) for one in had.variants))
    found = least_price_composition(had, demand)
    lacking = {}
    for one in choice.variants:
        more = int(not found.carries and counts[one.name] < one.maximum)
        count = max(free.counts[one.name] - counts[one.name], more)
        if standing[one.name].sold_out and count > 0:
            lacking[one.name] = count
    extra = None
    if found.carries and lacking:
        # Dear pods of a stated minimum that do not come are no saving.
        extra = max(found.price_hourly - free.price_hourly, 0.0)
    return Shortage(counts=free.counts, lacking=lacking, extra_hourly=extra)


def is_placeable(context: TickContext) -> bool:
    """Whether a further pod may find a place now: those that are ordered have one."""
    return refused_pods(context.observation) is None and not context.pods.of(*_PLACELESS)


def not_coming(context: TickContext) -> int:
    """Ordered replicas that do not come; 0 unless the pool is sold out."""
    left = [pod for pod in context.observation.pods if not pod.deleting]
    placeless = {name for name, _ in context.pods.of(*_PLACELESS)}
    waits = [pod.age_seconds or 0.0 for pod in left if pod.name in placeless]
    ends = any(
        pod.deleting and (pod.unready_for_seconds or 0.0) <= LONGEST_NODE_SECONDS
        for pod in context.observation.pods
    )
    refused = refused_pods(context.observation) is not None and not ends
    if not refused and max(waits, default=0.0) <= longest_wait_seconds(context):
        return 0
    return max(context.current - (len(left) - len(waits)), 0)


def least_with_places(context: TickContext) -> int:
    """The least count with which every pod that has a place stays.

    A ReplicaSet removes pods without one first. A StatefulSet, or whatever else numbers its pods,
    removes the highest number.
    """
    if context.targets.target.kind == "Deployment":
        return 0
    placeless = {name for name, _ in context.pods.of(*_PLACELESS)}
    numbers = (
        pod.name.rpartition("-")[2]
        for pod in context.observation.pods
        if not pod.deleting and pod.name not in placeless
    )
    return max((int(one) + 1 for one in numbers if one.isdecimal()), default=0)


def longest_wait_seconds(context: TickContext) -> float:
    """How long a pod may wait for a node that comes.

    While no node of the pool was measured, a cold start: in that time a pod of another pool serves.
    """
    node = context.estimate.cold_start.node_median_seconds
    if node is None:
        wait = max(context.cold_start_seconds, LONGEST_SCHEDULING_SECONDS)
    else:
        wait = LATE_STARTS * node
    return min(wait, LONGEST_NODE_SECONDS)
