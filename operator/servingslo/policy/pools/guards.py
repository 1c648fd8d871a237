"""Guards over all pools, after the guards of each: unseen pools, roles at zero, GPUs.

An unseen pool keeps the others from stepping down, never from growing. Pools sleep and wake
together. Within a bound on GPUs a pool grows only into GPUs that no pod holds any more; prefill and
decode that are both short are balanced, so that neither waits for the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from servingslo.policy.budget.guard import shortage
from servingslo.policy.decision import Decision
from servingslo.policy.planner import Seen
from servingslo.policy.pools.decision import GpuUse
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets
from servingslo.policy.replicas.guards import limit_step
from servingslo.policy.stages import Draft
from servingslo.reasons import Reason

STAGE = "pools"
# Prefill and decode are balanced at the bound only if the shorter of them gains more than this
# share of what it carries: less is within the error of the demand.
# Judgement; measured by the crowd's row of the pools' benchmark with a bound on GPUs.
LEAST_BALANCE_GAIN_RATIO = 0.1

Drafts = Mapping[str, Draft]


def guard_pools(targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts) -> Drafts:
    """The drafts after all guards over pools."""
    drafts = hold_while_unseen(seen, drafts)
    drafts = sleep_together(targets, drafts)
    return within_gpus(targets, seen, drafts)


def hold_while_unseen(seen: Mapping[str, Seen], drafts: Drafts) -> Drafts:
    """No pool steps down while another cannot be observed or used."""
    unseen = _unseen(seen)
    found = dict(drafts)
    for name, draft in drafts.items():
        current = seen[name].context.current
        others = [other for other in unseen if other != name]
        if others and draft.proposal.replicas < current:
            found[name] = _moved(draft, current, Reason.POOL_UNSEEN, unseen_pool=others[0])
    return found


def sleep_together(targets: FleetTargets, drafts: Drafts) -> Drafts:
    """No pool is at zero while another is not."""
    counts = {name: draft.proposal.replicas for name, draft in drafts.items()}
    if not any(counts.values()) or all(counts.values()):
        return drafts
    awake = max(counts, key=lambda name: counts[name])
    found = dict(drafts)
    for name, count in counts.items():
        if count == 0:
            least = max(targets.pool(name).targets.replicas.minimum, 1)
            found[name] = _moved(drafts[name], least, Reason.OTHER_POOL_AWAKE, awake_pool=awake)
    return found


def within_gpus(targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts) -> Drafts:
    """The drafts within `gpus_max`: growth takes only GPUs that are free now.

    Counts above the bound, because it was lowered, step down to it while every pool is seen.
    """
    if targets.gpus_max is None:
        return drafts
    found = _balanced(targets, seen, drafts) if targets.disaggregated else dict(drafts)
    found = _lowered(targets, seen, found, targets.gpus_max)
    growing = [name for name in found if found[name].proposal.replicas > seen[name].context.current]
    wanted = {name: found[name].proposal.replicas for name in growing}
    granted = {name: seen[name].context.current for name in growing}
    free = targets.gpus_max - held_gpus(targets, seen)
    while room := [
        name
        for name in growing
        if granted[name] < wanted[name] and targets.pool(name).gpus_per_replica <= free
    ]:
        # The pool that is shortest of what it wants gets the next replica.
        name = min(room, key=lambda one: granted[one] / wanted[one])
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
        current, after = seen[name].context.current, drafts[name].proposal.replicas
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


def _balanced(targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts) -> dict[str, Draft]:
    """Move GPUs from a pool that has more of what it wants to one that has less.

    Requests pass one pool after the other, so the pool that is shortest decides how many are
    served. A donor keeps a larger part of what it wants than that pool has: its step is safe.
    """
    found = dict(drafts)
    most = targets.gpus_max or 0
    wanted = {name: max(draft.proposal.replicas, 1) for name, draft in drafts.items()}
    if _gpus(targets.pools, wanted) <= most or not all(one.planned for one in seen.values()):
        return found
    current = {name: one.context.current for name, one in seen.items()}
    share = min(current[name] / wanted[name] for name in wanted)
    fitting = in_proportion(targets.pools, wanted, most)
    gained = min(fitting[name] / wanted[name] for name in wanted)
    if gained <= (1.0 + LEAST_BALANCE_GAIN_RATIO) * share:
        return found
    for name, draft in drafts.items():
        if fitting[name] != draft.proposal.replicas:
            found[name] = _bounded(targets, draft, fitting[name], drafts)
    return found


def _lowered(
    targets: FleetTargets, seen: Mapping[str, Seen], drafts: Drafts, most: int
) -> dict[str, Draft]:
    """Step down in proportion if what is kept of the present counts exceeds the bound."""
    found = dict(drafts)
    kept = {
        name: min(draft.proposal.replicas, seen[name].context.current)
        for name, draft in drafts.items()
    }
    if _gpus(targets.pools, kept) <= most or _unseen(seen):
        return found
    fitting = in_proportion(targets.pools, kept, most)
    for name, draft in drafts.items():
        context, count = seen[name].context, fitting[name]
        if count < kept[name]:
            moved = _bounded(targets, draft, count, drafts, Reason.BUDGET_MOVED)
            # Others wait for what a grant takes: no step is too large for that.
            max_step = None if targets.granted is not None else context.limits.max_step
            proposal = limit_step(moved.proposal, current=context.current, max_step=max_step)
            found[name] = replace(moved, proposal=proposal)
    return found


def _unseen(seen: Mapping[str, Seen]) -> list[str]:
    """Pools that cannot be observed or used, or of which every pod lacks a part of its metrics."""
    return [
        name
        for name, one in seen.items()
        if (not one.planned and not one.asleep) or _all_partial(one)
    ]


def _all_partial(seen: Seen) -> bool:
    signals = seen.context.signals
    serving = {pod.name for pod in signals.serving_pods}
    return bool(serving) and serving <= set(signals.unseen_pods)


def in_proportion(
    pools: Sequence[PoolTargets], wanted: Mapping[str, int], most: int
) -> dict[str, int]:
    """Counts in the ratio of those wanted that fit into this many GPUs, none below its minimum.

    A pool that wants none has none.
    """
    least = {
        pool.name: min(max(pool.targets.replicas.minimum, 1), wanted[pool.name]) for pool in pools
    }
    found = dict(least)
    while room := [
        pool
        for pool in pools
        if found[pool.name] < wanted[pool.name]
        and _gpus(pools, found) + pool.gpus_per_replica <= most
    ]:
        pool = min(room, key=lambda one: found[one.name] / wanted[one.name])
        found[pool.name] += 1
    return found


def _gpus(pools: Sequence[PoolTargets], counts: Mapping[str, int]) -> int:
    return sum(pool.gpus_per_replica * counts[pool.name] for pool in pools)


def _bounded(
    targets: FleetTargets,
    draft: Draft,
    replicas: int,
    drafts: Drafts,
    by_grant: Reason = Reason.BUDGET_REACHED,
) -> Draft:
    """The draft at another count, because of the resource's own bound or of a grant."""
    grant, most = targets.granted, targets.gpus_max or 0
    if grant is None:
        return _moved(draft, replicas, Reason.GPUS_REACHED, gpus_max=most)
    counts = {name: one.proposal.replicas for name, one in drafts.items()}
    wanted = _gpus(targets.pools, counts)
    detail = shortage(grant, wanted, max(wanted - most, 0))
    return _moved(draft, replicas, by_grant, granted_gpus=most, detail=detail)


def _moved(draft: Draft, replicas: int, reason: Reason, **inputs: str | float) -> Draft:
    return replace(draft, proposal=draft.proposal.moved(STAGE, replicas, reason, **inputs))
