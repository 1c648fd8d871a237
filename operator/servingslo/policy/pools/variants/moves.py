"""When the composition of variants changes, and in which order.

A cold start costs its replica's price while it serves nothing. So a replica that does not exist yet
is dearer than one that does, by the price of its start over an hour: the composition of least cost
moves only where the saving pays for the starts within an hour, and it must do so during a whole
cold start before it begins.

A rise cannot wait for the cheapest pool if demand is missed meanwhile. At the lead of each pool,
soonest first, the replicas that can be ready by then are compared with the demand expected then;
what is missing is ordered from those pools. What these cost too much is moved afterwards.

New pods are ordered first. Old ones leave when the new ones serve, and only as far as those that
serve carry the demand without them. If pods share the traffic, the first pod of a slow pool can
lower what all carry; a change that passes through such a mix is not made. Where GPUs are bounded, a
bridge leaves room for the replicas that follow it. If replicas that carry too little fill all GPUs,
one at a time makes room.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.policy.pools.variants.composition import Choice
from servingslo.policy.pools.variants.present_fleet import DemandAhead, PresentFleet, Standing
from servingslo.policy.pools.variants.rises import rise_of
from servingslo.policy.pools.variants.search import Composition, least_price_composition
from servingslo.policy.pools.variants.split import Counts


class MoveReason(StrEnum):
    """Why these counts are ordered."""

    SETTLED = "Settled"
    RISE_SOONEST = "RiseSoonest"
    RISE_CHEAPEST = "RiseCheapest"
    MOVE_PAYS = "MovePays"
    MOVE_PENDING = "MovePending"
    NEW_PODS_FIRST = "NewPodsFirst"
    NO_ROOM = "NoRoom"
    MAKES_ROOM = "MakesRoom"
    MIX_WOULD_MISS = "MixWouldMiss"
    STEP_DOWN = "StepDown"
    DEMAND_NOT_CARRIED = "DemandNotCarried"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveState:
    """Since when a move to a cheaper composition has paid; None while none does."""

    pays_since_seconds: float | None = None


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


def next_order(
    choice: Choice,
    standing: Mapping[str, Standing],
    demand: DemandAhead,
    state: MoveState,
    now_seconds: float,
) -> tuple[Order, MoveState]:
    """The counts to order now, and the memory for the next tick.

    choice: with the cold start of each pool; present replicas are taken from standing. standing,
    demand: by the names of the pools; raises KeyError if one is missing.
    """
    ordered = {one.name: standing[one.name].ordered for one in choice.variants}
    fleet = PresentFleet(
        choice=_present(choice, standing),
        bare=choice.without_reserve(),
        demand=demand,
        ordered=ordered,
        serving={name: min(standing[name].serving, count) for name, count in ordered.items()},
    )
    target = least_price_composition(_present(choice, None), demand.greatest_per_second)
    saving = choice.price_hourly(ordered) - target.price_hourly
    rise, pays = rise_of(fleet), False
    if rise is None:
        (counts, reason), pays = _move(fleet, state, now_seconds)
    else:
        counts = rise.counts
        reason = MoveReason.RISE_SOONEST if rise.soonest else MoveReason.RISE_CHEAPEST
    since = state.pays_since_seconds if state.pays_since_seconds is not None else now_seconds
    return Order(
        counts=counts,
        reason=reason,
        target=target,
        saving_hourly=saving,
    ), MoveState(pays_since_seconds=since if pays else None)


_Ordered = tuple[dict[str, int], MoveReason]


def _present(choice: Choice, standing: Mapping[str, Standing] | None) -> Choice:
    """The choice with these replicas present, and no room where pods find no place."""
    variants = []
    for one in choice.variants:
        if standing is None:
            variants.append(replace(one, present=None))
            continue
        at = standing[one.name]
        most = one.maximum if at.placeable else max(min(one.maximum, at.ordered), one.minimum)
        variants.append(replace(one, present=at.ordered, maximum=most))
    return replace(choice, variants=tuple(variants))


def _move(fleet: PresentFleet, state: MoveState, now_seconds: float) -> tuple[_Ordered, bool]:
    """Move to what is cheaper, or release what is not needed; and whether a move pays now."""
    held = dict(fleet.ordered)
    due = fleet.demand.greatest_per_second
    found = least_price_composition(fleet.choice, due)
    short = fleet.choice.kept_per_second(held) < due
    if short and found.kept_per_second <= fleet.choice.kept_per_second(held):
        return (held, MoveReason.DEMAND_NOT_CARRIED), False
    refused = None
    if _grows(fleet, found.counts):
        union = {name: max(count, found.counts[name]) for name, count in held.items()}
        carried = fleet.bare.carried_per_second(fleet.serving)
        if not fleet.choice.within_gpus(union):
            union = _within_room(fleet, found.counts)
        if union == held:
            refused = MoveReason.NO_ROOM
            if short:
                return _with_room(fleet, found.counts), False
        elif fleet.least_carried(fleet.serving, union) < min(carried, due):
            refused = MoveReason.MIX_WOULD_MISS
        elif short or _paid_long(fleet, state, union, now_seconds):
            return (union, MoveReason.MOVE_PAYS), True
        else:
            counts, reason = _released(fleet)
            return (counts, MoveReason.MOVE_PENDING if counts == held else reason), True
    counts, reason = _released(fleet)
    return (counts, refused if refused and counts == held else reason), False


def _paid_long(fleet: PresentFleet, state: MoveState, counts: Counts, now_seconds: float) -> bool:
    """Whether a move has paid for as long as its slowest new pod takes to start."""
    wait = max(
        one.cold_start_seconds
        for one in fleet.choice.variants
        if counts[one.name] > fleet.ordered[one.name]
    )
    since = state.pays_since_seconds
    return since is not None and now_seconds - since >= wait


def _with_room(fleet: PresentFleet, target: Counts) -> _Ordered:
    """Release what makes room for one replica that the target has more of.

    Only while the GPUs hold no composition that carries the demand next to what is there. One at a
    time: the next when the last one serves.
    """
    held = dict(fleet.ordered)
    starting = any(
        count > fleet.serving[name] and target[name] >= count for name, count in held.items()
    )
    growing = [one for one in fleet.choice.variants if target[one.name] > held[one.name]]
    if starting or not growing or fleet.choice.gpus_max is None:
        return held, MoveReason.NO_ROOM
    room = min(one.gpus_per_replica for one in growing)
    room += fleet.choice.gpus(held) - fleet.choice.gpus_max
    counts = dict(held)
    for one in sorted(fleet.choice.variants, key=lambda one: (one.rate_of(1), one.name)):
        surplus = max(held[one.name] - target[one.name], 0)
        leaving = min(surplus, max(-(-room // one.gpus_per_replica), 0))
        counts[one.name] -= leaving
        room -= leaving * one.gpus_per_replica
    return (counts, MoveReason.MAKES_ROOM) if room <= 0 else (held, MoveReason.NO_ROOM)


def _grows(fleet: PresentFleet, counts: Counts) -> bool:
    return any(counts[name] > count for name, count in fleet.ordered.items())


def _within_room(fleet: PresentFleet, target: Counts) -> dict[str, int]:
    """As many of the new replicas as there are GPUs for next to the old ones."""
    counts = dict(fleet.ordered)
    room = (fleet.choice.gpus_max or 0) - fleet.choice.gpus(counts)
    for one in fleet.choice.variants:
        new = min(max(target[one.name] - counts[one.name], 0), room // one.gpus_per_replica)
        counts[one.name] += max(new, 0)
        room -= max(new, 0) * one.gpus_per_replica
    return counts


def _released(fleet: PresentFleet) -> _Ordered:
    """The ordered counts without the replicas that are dearest and not needed.

    Those that serve afterwards carry the demand, at any moment while others leave.
    """
    due = fleet.demand.greatest_per_second
    held = dict(fleet.ordered)
    found = least_price_composition(fleet.choice.bounded(most=_at_most(fleet)), due)
    if not found.carries or found.counts == held:
        return held, MoveReason.SETTLED
    counts = dict(held)
    for one in sorted(fleet.choice.variants, key=lambda one: (-one.price_hourly, one.name)):
        for count in range(found.counts[one.name], held[one.name]):
            left = {**counts, one.name: count}
            serving = {name: min(fleet.serving[name], n) for name, n in left.items()}
            if (
                fleet.least_carried(serving, fleet.serving) >= due
                and fleet.choice.kept_per_second(left) >= due
            ):
                counts = left
                break
    return counts, MoveReason.STEP_DOWN if counts != held else MoveReason.NEW_PODS_FIRST


def _at_most(fleet: PresentFleet) -> dict[str, int]:
    return {
        one.name: max(min(fleet.ordered[one.name], one.maximum), one.minimum)
        for one in fleet.choice.variants
    }
