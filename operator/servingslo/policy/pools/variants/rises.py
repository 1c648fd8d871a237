"""Replicas that are missing at the lead of a pool, and which pool they are ordered from."""

from dataclasses import dataclass, replace

from servingslo.policy.pools.variants.composition import Choice
from servingslo.policy.pools.variants.present_fleet import PresentFleet
from servingslo.policy.pools.variants.search import least_price_composition
from servingslo.policy.pools.variants.split import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """Counts to order; soonest: whether some are of a pool that is ready before the others."""

    counts: dict[str, int]
    soonest: bool


def rise_of(fleet: PresentFleet) -> Rise | None:
    """Order what is missing at the lead of each pool, soonest first; None if nothing is."""
    gpus = fleet.choice.gpus
    added = dict.fromkeys(fleet.ordered, 0)
    soonest = False
    later = _later(fleet)
    leads = sorted({one.cold_start_seconds for one in fleet.choice.variants})
    for lead in leads[:-1]:
        in_time = fleet.ready_by(lead)
        ready = {name: count + added[name] for name, count in in_time.items()}
        reach = {one.name for one in fleet.choice.variants if one.cold_start_seconds <= lead}
        due = max(fleet.demand.at_lead_per_second[name] for name in reach)
        if fleet.bare.carried_per_second(ready) >= due:
            continue
        # GPUs of replicas that are ordered and not ready by then, or that will be.
        reserved = gpus(fleet.ordered) - gpus(in_time)
        reserved += gpus({name: 0 if name in reach else n for name, n in later.items()})
        more = _cheapest_rise(fleet, fleet.bare, ready, reach, due, reserved)
        soonest = soonest or any(more.values())
        added = {name: count + more[name] for name, count in added.items()}
    ready = {
        one.name: max(fleet.ordered[one.name] + added[one.name], one.minimum)
        for one in fleet.choice.variants
    }
    due = fleet.demand.greatest_per_second
    if fleet.choice.kept_per_second(ready) < due:
        more = _cheapest_rise(fleet, fleet.choice, ready, set(added), due, 0)
        ready = {name: count + more[name] for name, count in ready.items()}
    return None if ready == fleet.ordered else Rise(counts=ready, soonest=soonest)


def _later(fleet: PresentFleet) -> dict[str, int]:
    """What will be ordered in the end, to which a bridge must leave its GPUs."""
    if fleet.choice.gpus_max is None:
        return dict.fromkeys(fleet.ordered, 0)
    grown = fleet.choice.bounded(
        least=fleet.ordered,
        most={one.name: max(one.maximum, fleet.ordered[one.name]) for one in fleet.choice.variants},
    )
    found = least_price_composition(grown, fleet.demand.greatest_per_second)
    return {name: count - fleet.ordered[name] for name, count in found.counts.items()}


def _cheapest_rise(
    fleet: PresentFleet,
    choice: Choice,
    ready: Counts,
    reach: set[str],
    due: float,
    reserved_gpus: int,
) -> dict[str, int]:
    """What to order more of the pools in reach, at least cost, to carry what is due.

    ready: replicas that serve by then. If a new mix of pods carries less meanwhile, only pools that
    serve already grow.
    """
    most = {one.name: max(one.maximum, ready[one.name]) for one in fleet.choice.variants}
    free = replace(
        choice.bounded(
            least=ready, most={name: most[name] if name in reach else ready[name] for name in ready}
        ),
        gpus_max=None
        if choice.gpus_max is None
        else max(choice.gpus_max - reserved_gpus, choice.gpus(ready)),
    )
    found = least_price_composition(free, due)
    carried = fleet.bare.carried_per_second(fleet.serving)
    if fleet.least_carried(fleet.serving, found.counts) < min(carried, due):
        served = {one.name: one.maximum for one in free.variants}
        for name, count in fleet.serving.items():
            served[name] = served[name] if count > 0 else ready[name]
        same = least_price_composition(free.bounded(most=served), due)
        if same.carries or carried >= fleet.demand.now_per_second:
            found = same
    return {name: count - ready[name] for name, count in found.counts.items()}
