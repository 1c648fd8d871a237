"""Guards over all pools, after the guards of each: unseen pools, roles at zero, GPUs.

An unseen pool keeps the others from stepping down, never from growing. Pools sleep and wake
together. Within a bound on GPUs a pool grows only into GPUs that no pod holds any more; of prefill
and decode the one that the path lacks has them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from servingslo.policy.decision import Decision
from servingslo.policy.planner import Seen
from servingslo.policy.pools.decision import GpuUse
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets
from servingslo.policy.replicas.pods import Condition
from servingslo.policy.replicas.proposal import Proposal
from servingslo.policy.replicas.sizing import carried_rate_per_second
from servingslo.policy.rules.guards import limit_step, shortage
from servingslo.reasons import Reason

STAGE = "pools"
# Prefill and decode are balanced at the bound only if the shorter of them gains more than this
# share of what it carries: less is within the error of the demand.
# Judgement; measured by the crowd's row of the pools' benchmark with a bound on GPUs.
LEAST_BALANCE_GAIN_RATIO = 0.1

Drafts = Mapping[str, Proposal]
# Part of a pool's load that so many of its replicas carry; above 1 if they have room.
CarriedOf = Callable[[int], float]


def guard_pools(targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts) -> Drafts:
    """The drafts after all guards over pools."""
    empty = frozenset() if targets.disaggregated else _without_a_place(seen)
    drafts = hold_while_unseen(seen, drafts, empty)
    drafts = sleep_together(targets, seen, drafts)
    return within_gpus(targets, seen, drafts)


def hold_while_unseen(
    seen: Mapping[str, Seen], drafts: Drafts, empty: Collection[str] = ()
) -> Drafts:
    """No pool steps down while another cannot be observed or used.

    empty: pools that serve nothing, and may be left out.
    """
    unseen = [name for name in _unseen(seen) if name not in empty]
    found = dict(drafts)
    for name, draft in drafts.items():
        current = seen[name].context.current
        others = [other for other in unseen if other != name]
        if others and draft.replicas < current:
            found[name] = _moved(draft, current, Reason.POOL_UNSEEN, unseen_pool=others[0])
    return found


def sleep_together(targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts) -> Drafts:
    """No pool is at zero while another is not; one that has replicas keeps them."""
    counts = {name: draft.replicas for name, draft in drafts.items()}
    if not any(counts.values()) or all(counts.values()):
        return drafts
    awake = max(counts, key=lambda name: counts[name])
    found = dict(drafts)
    for name, count in counts.items():
        if count == 0:
            own = targets.pool(name).targets.replicas
            least = max(own.minimum, 1 + own.tolerated_failures)
            kept = seen[name].context.current or least
            found[name] = _moved(drafts[name], kept, Reason.OTHER_POOL_AWAKE, awake_pool=awake)
    return found


def within_gpus(targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts) -> Drafts:
    """The drafts within `gpus_max`: growth takes only GPUs that are free now.

    Counts above the bound, because it was lowered, step down to it while every pool is seen.
    """
    if targets.gpus_max is None:
        return drafts
    found = _balanced(targets, seen, drafts) if targets.disaggregated else dict(drafts)
    found = _lowered(targets, seen, found, targets.gpus_max)
    growing = [name for name in found if found[name].replicas > seen[name].context.current]
    wanted = {name: found[name].replicas for name in growing}
    granted = {name: seen[name].context.current for name in growing}
    free = targets.gpus_max - held_gpus(targets, seen)
    carried = {name: _carried_of(found[name]) for name in growing}
    while room := [
        name
        for name in growing
        if granted[name] < wanted[name] and targets.pool(name).gpus_per_replica <= free
    ]:
        # The pool that carries least of its load gets the next replica.
        name = min(room, key=lambda one: carried[one](granted[one]))
        granted[name] += 1
        free -= targets.pool(name).gpus_per_replica
    for name in growing:
        if granted[name] < wanted[name]:
            found[name] = _bounded(targets, found[name], granted[name], drafts)
    return found


def held_gpus(targets: FleetTargets, seen: Mapping[str, Seen]) -> int:
    """GPUs that are ordered, or still held by pods that end."""
    held = 0
    for pool in targets.pools:
        context = seen[pool.name].context
        pods = max(context.current, len(context.observation.pods))
        held += pods * pool.gpus_per_replica
    return held


def write_order(targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts) -> tuple[str, ...]:
    """Names of the pools in the order of their writes.

    With a bound on GPUs donors come first. Else growth comes first, the shortest pool leading.
    """

    def place(name: str) -> tuple[bool, float]:
        current, after = seen[name].context.current, drafts[name].replicas
        gives = after < current
        return gives != (targets.gpus_max is not None), current / max(after, 1)

    return tuple(sorted(drafts, key=place))


def gpu_use(
    targets: FleetTargets, seen: Mapping[str, Seen], decisions: Mapping[str, Decision]
) -> GpuUse:
    """GPUs of all pools before and after the decisions, and those that their demand wants."""
    before = after = wanted = 0
    for pool in targets.pools:
        decision, each = decisions[pool.name], pool.gpus_per_replica
        current = seen[pool.name].context.current
        before += each * current
        after += each * _or(decision.replicas_after, current)
        needed = [need.replicas for need in decision.needs if need.replicas is not None]
        wanted += each * max(needed, default=_or(decision.recommended_replicas, current))
    return GpuUse(before=before, after=after, wanted=wanted, most=targets.gpus_max)


def _or(count: int | None, otherwise: int) -> int:
    return otherwise if count is None else count


def _balanced(
    targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts
) -> dict[str, Proposal]:
    """Move GPUs to the pool that the path lacks.

    Requests pass one pool after the other, so the pool that carries least of its load decides how
    many are served, and gets the next replica until none is short. What is left stays with pools
    that are only held at more than they need.
    """
    found, most = dict(drafts), targets.gpus_max or 0
    held = {name: max(draft.replicas, 1) for name, draft in drafts.items()}
    if _gpus(targets.pools, held) <= most or not all(one.planned for one in seen.values()):
        return found
    carried = {name: _carried_of(draft) for name, draft in drafts.items()}
    needed = {
        name: min(max(draft.requirement.replicas, 1), held[name]) for name, draft in drafts.items()
    }
    counts = fitting(targets.pools, needed, most, carried)
    counts = fitting(targets.pools, held, most, carried, least=counts)
    current = {name: one.context.current for name, one in seen.items()}
    now, then = (
        min(carried[name](count) for name, count in each.items()) for each in (current, counts)
    )
    if min(then, 1.0) <= (1.0 + LEAST_BALANCE_GAIN_RATIO) * now:
        return found
    for name, draft in drafts.items():
        if counts[name] != draft.replicas:
            moved = _bounded(targets, draft, counts[name], drafts)
            found[name] = limit_step(seen[name].context, moved)
    return found


def _carried_of(draft: Proposal) -> CarriedOf:
    """What so many replicas carry of a pool's load; by their number while no law says it."""
    sized, infeasible = draft.requirement.sized, draft.requirement.infeasible
    needed = max(draft.requirement.replicas, 1)
    if sized is None or not sized.load.rate_per_second:
        return lambda count: count / needed
    case, rate = sized.case, sized.load.rate_per_second
    return lambda count: carried_rate_per_second(case, infeasible, count) / rate


def _lowered(
    targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts, most: int
) -> dict[str, Proposal]:
    """Step down if what is kept of the present counts exceeds the bound."""
    found = dict(drafts)
    kept = {name: min(draft.replicas, seen[name].context.current) for name, draft in drafts.items()}
    if _gpus(targets.pools, kept) <= most or _unseen(seen):
        return found
    counts = fitting(targets.pools, kept, most, {n: _carried_of(d) for n, d in drafts.items()})
    for name, draft in drafts.items():
        context, count = seen[name].context, counts[name]
        if count < kept[name]:
            moved = _bounded(targets, draft, count, drafts, Reason.BUDGET_MOVED)
            # Others wait for what a grant takes: no step is too large for that.
            found[name] = moved if targets.granted is not None else limit_step(context, moved)
    return found


def _unseen(seen: Mapping[str, Seen]) -> list[str]:
    """Pools that cannot be observed or used, or of which every pod lacks a part of its metrics."""
    return [
        name
        for name, one in seen.items()
        if (not one.planned and not one.asleep) or _all_partial(one)
    ]


def _without_a_place(seen: Mapping[str, Seen]) -> frozenset[str]:
    """Pools of which no pod has a place: none of their requests is unseen."""
    waiting = (Condition.UNSCHEDULABLE, Condition.QUEUED)
    return frozenset(
        name
        for name, one in seen.items()
        if one.context.owner is None
        and one.context.signals.no_metrics is not None
        and one.context.signals.no_metrics.reason is Reason.PENDING_PODS
        and one.context.pods.total == len(one.context.pods.of(*waiting))
    )


def _all_partial(seen: Seen) -> bool:
    signals = seen.context.signals
    serving = {pod.name for pod in signals.serving_pods}
    return bool(serving) and serving <= set(signals.unseen_pods)


def fitting(
    pools: Sequence[PoolTargets],
    wanted: Mapping[str, int],
    most: int,
    carried: Mapping[str, CarriedOf] | None = None,
    *,
    least: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Counts up to those wanted that fit into this many GPUs, none below its minimum.

    Each replica goes to the pool that carries least of its load; without `carried` to the one that
    has the least part of what it wants. A pool that wants none has none. least: counts to begin at.
    """
    found = dict(
        least
        or {
            pool.name: min(max(pool.targets.replicas.minimum, 1), wanted[pool.name])
            for pool in pools
        }
    )

    def filled(pool: PoolTargets) -> float:
        count = found[pool.name]
        return count / wanted[pool.name] if carried is None else carried[pool.name](count)

    while room := [
        pool
        for pool in pools
        if found[pool.name] < wanted[pool.name]
        and _gpus(pools, found) + pool.gpus_per_replica <= most
    ]:
        found[min(room, key=filled).name] += 1
    return found


def _gpus(pools: Sequence[PoolTargets], counts: Mapping[str, int]) -> int:
    return sum(pool.gpus_per_replica * counts[pool.name] for pool in pools)


def _bounded(
    targets: FleetTargets,
    draft: Proposal,
    replicas: int,
    drafts: Drafts,
    by_grant: Reason = Reason.BUDGET_REACHED,
) -> Proposal:
    """The draft at another count, because of the resource's own bound or of a grant."""
    grant, most = targets.granted, targets.gpus_max or 0
    if grant is None:
        return _moved(draft, replicas, Reason.GPUS_REACHED, gpus_max=most)
    counts = {name: one.replicas for name, one in drafts.items()}
    wanted = _gpus(targets.pools, counts)
    detail = shortage(grant, wanted, max(wanted - most, 0))
    return _moved(draft, replicas, by_grant, granted_gpus=most, detail=detail)


def _moved(draft: Proposal, replicas: int, reason: Reason, **inputs: str | float) -> Proposal:
    return draft.moved(STAGE, replicas, reason, **inputs)
