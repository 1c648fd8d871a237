"""When the composition of variants changes, and in which order.

A rise orders what costs least next to what is there. A cold start costs its replica's price while
it serves nothing. So a replica that does not exist yet is dearer than one that does, by the price
of its start over an hour: the composition of least cost moves only where the saving pays for the
starts within an hour, and it must do so during a whole cold start before it begins.

New pods are ordered first. Old ones leave when the new ones serve, and only as far as those that
serve carry the demand without them. The first pod of a slow pool can lower what all carry; a change
that passes through such a mix is not made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product

from servingslo.features.variants.composition import Choice
from servingslo.features.variants.search import Composition, least_price_composition
from servingslo.policy.pools.division import Counts


class MoveReason(StrEnum):
    """Why these counts are ordered."""

    SETTLED = "Settled"
    RISE = "Rise"
    MOVE_PAYS = "MovePays"
    MOVE_PENDING = "MovePending"
    NEW_PODS_FIRST = "NewPodsFirst"
    NO_ROOM = "NoRoom"
    MIX_WOULD_MISS = "MixWouldMiss"
    STEP_DOWN = "StepDown"
    DEMAND_NOT_CARRIED = "DemandNotCarried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A pool as it is: replicas ordered, and those of them that serve.

    placeable: whether new pods find a place now. sold_out: so many more are ordered and do not
    come; 0 unless the pool is sold out.
    """

    ordered: int
    serving: int
    placeable: bool = True
    sold_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandAhead:
    """Demand to plan for, requests per second: now, and at most until new replicas serve."""

    now_per_second: float
    greatest_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Counts to order now, and why.

    target: the composition of least price for the greatest demand, cold starts not counted.
    saving_hourly: of the target, against the replicas that are ordered.
    """

    counts: Counts
    reason: MoveReason
    target: Composition
    saving_hourly: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """The pools at this tick; choice: with the ordered replicas as present ones."""

    choice: Choice
    demand: DemandAhead
    ordered: Counts
    serving: Counts

    @property
    def due(self) -> float:
        return self.demand.greatest_per_second

    def keeps(self, counts: Counts) -> bool:
        return self.choice.keeps(counts, self.due)

    def would_miss(self, counts: Counts) -> bool:
        """Whether less is carried of what is due now, while pods of these counts start."""
        carried = self.choice.carried_per_second(self.serving)
        return self.least_carried(self.serving, counts) < min(carried, self.due)

    def least_carried(self, low: Counts, high: Counts) -> float:
        """The least demand that any counts between these carry, bounds included.

        Pods start and leave in any order, and the first pod of a pool may lower what all carry.
        """
        corners = [{least, max(least, min(high[name], 1))} for name, least in low.items()]
        return min(
            self.choice.carried_per_second(dict(zip(low, corner, strict=True)))
            for corner in product(*corners)
        )


def next_order(
    choice: Choice,
    standing: Mapping[str, Standing],
    demand: DemandAhead,
    pays_since_seconds: float | None,
    now_seconds: float,
) -> tuple[Order, float | None]:
    """The counts to order now, and since when a move has paid; None while none does.

    choice: with the cold start of each pool; present replicas are taken from standing, by the names
    of the pools.
    """
    ordered = {one.name: standing[one.name].ordered for one in choice.variants}
    fleet = _Fleet(
        choice=available(choice, standing),
        demand=demand,
        ordered=ordered,
        serving={name: min(standing[name].serving, count) for name, count in ordered.items()},
    )
    target = least_price_composition(choice, fleet.due)
    pays = False
    counts, reason = _rise(fleet), MoveReason.RISE
    if counts is None:
        counts, reason, pays = _move(fleet, pays_since_seconds, now_seconds)
    since = now_seconds if pays_since_seconds is None else pays_since_seconds
    saving = choice.price_hourly(ordered) - target.price_hourly
    order = Order(counts=counts, reason=reason, target=target, saving_hourly=saving)
    return order, since if pays else None


def available(choice: Choice, standing: Mapping[str, Standing]) -> Choice:
    """The choice with these replicas present, and no room where pods find no place.

    A sold-out pool has no minimum beyond what it has. The pod that waits there holds its GPUs of
    the bound, because it may get a place at any moment.
    """
    variants, waiting = [], 0
    for one in choice.variants:
        at = standing[one.name]
        least = min(one.minimum, at.ordered) if at.sold_out else one.minimum
        most = one.maximum if at.placeable else max(min(one.maximum, at.ordered), least)
        waiting += one.gpus_per_replica if at.sold_out else 0
        variants.append(replace(one, present=at.ordered, minimum=least, maximum=most))
    most_gpus = None if choice.gpus_max is None else choice.gpus_max - waiting
    return replace(choice, variants=tuple(variants), gpus_max=most_gpus)


def _rise(fleet: _Fleet) -> Counts | None:
    """The ordered counts with what they lack, at least cost; None if nothing can be added.

    If a new mix of pods carries less meanwhile, only pools that serve already grow.
    """
    variants = fleet.choice.variants
    least = {one.name: max(fleet.ordered[one.name], one.minimum) for one in variants}
    if fleet.keeps(least):
        return None if least == fleet.ordered else least
    most = {one.name: max(one.maximum, least[one.name]) for one in variants}
    free = fleet.choice.bounded(least=least, most=most)
    found = least_price_composition(free, fleet.due)
    if fleet.would_miss(found.counts):
        served = {name: most[name] if fleet.serving[name] else least[name] for name in most}
        same = least_price_composition(free.bounded(most=served), fleet.due)
        carried = fleet.choice.carried_per_second(fleet.serving)
        if same.carries or carried >= fleet.demand.now_per_second:
            found = same
    return None if found.counts == fleet.ordered else found.counts


def _move(
    fleet: _Fleet, pays_since_seconds: float | None, now_seconds: float
) -> tuple[Counts, MoveReason, bool]:
    """Move to what is cheaper, or release what is not needed; and whether a move pays now."""
    held, short = fleet.ordered, not fleet.keeps(fleet.ordered)
    found = least_price_composition(fleet.choice, fleet.due)
    if short and found.kept_per_second <= fleet.choice.kept_per_second(held):
        return held, MoveReason.DEMAND_NOT_CARRIED, False
    union = {name: max(count, found.counts[name]) for name, count in held.items()}
    new = [one for one in fleet.choice.variants if union[one.name] > held[one.name]]
    waits, pays = None, False
    if new and not fleet.choice.within_gpus(union):
        waits = MoveReason.NO_ROOM
    elif new and fleet.would_miss(union):
        waits = MoveReason.MIX_WOULD_MISS
    elif new:
        since = now_seconds if pays_since_seconds is None else pays_since_seconds
        waits, pays = MoveReason.MOVE_PENDING, True
        if short or now_seconds - since >= max(one.cold_start_seconds for one in new):
            return union, MoveReason.MOVE_PAYS, True
    counts, reason = _released(fleet)
    return counts, waits if waits and counts == held else reason, pays


def _released(fleet: _Fleet) -> tuple[Counts, MoveReason]:
    """The ordered counts without the replicas that are dearest and not needed.

    Those that serve afterwards carry the demand, at any moment while others leave.
    """
    held = fleet.ordered
    variants = fleet.choice.variants
    most = {one.name: max(min(held[one.name], one.maximum), one.minimum) for one in variants}
    found = least_price_composition(fleet.choice.bounded(most=most), fleet.due)
    if not found.carries or found.counts == held:
        return held, MoveReason.SETTLED
    counts = dict(held)
    for one in sorted(variants, key=lambda one: (-one.price_hourly, one.name)):
        for count in range(found.counts[one.name], held[one.name]):
            left = {**counts, one.name: count}
            serving = {name: min(fleet.serving[name], n) for name, n in left.items()}
            if fleet.least_carried(serving, fleet.serving) >= fleet.due and fleet.keeps(left):
                counts = left
                break
    return counts, MoveReason.STEP_DOWN if counts != held else MoveReason.NEW_PODS_FIRST
