"""Guards over pools: an unseen pool, roles at zero, GPUs; and known failures of others."""

from dataclasses import replace
from functools import cache

import pytest
from tests.unit.policy_world import TARGETS, TICK_SECONDS, World, steady
from tests.unit.pools_world import two_prices

from servingslo.errors import InvalidInputError
from servingslo.policy.inputs import (
    CostTargets,
    Grant,
    Limits,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
)
from servingslo.policy.planner import Seen, draft_count, observe
from servingslo.policy.pools.guards import (
    guard_pools,
    held_gpus,
    hold_while_unseen,
    sleep_together,
    within_gpus,
    write_order,
)
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets, Role
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason

NAMES = ("prefill", "decode")


def fleet(gpus_max: int | None = None, minimum: int = 1, gpus: int = 1) -> FleetTargets:
    """A prefill and a decode pool."""
    roles = zip(NAMES, (Role.PREFILL, Role.DECODE), strict=True)
    return FleetTargets(
        pools=tuple(
            PoolTargets(
                name=name,
                role=role,
                targets=replace(
                    TARGETS,
                    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name=name),
                    replicas=ReplicaTargets(minimum=minimum, maximum=32, idle_seconds=600.0),
                    cost=CostTargets(gpu_hourly=2.0, gpus_per_replica=gpus),
                    gpus_per_replica=gpus,
                ),
            )
            for name, role in roles
        ),
        gpus_max=gpus_max,
    )


@cache
def _observation(replicas: int):
    return World(rate=steady(1.0), replicas=replicas).observe(TICK_SECONDS)


def seen_of(name: str, replicas: int, *, leaving: int = 0, problem: Reason | None = None) -> Seen:
    """A pool with so many ready pods, and others that end."""
    found = _observation(replicas + leaving)
    pods = tuple(replace(pod, deleting=place >= replicas) for place, pod in enumerate(found.pods))
    problems = () if problem is None else (SignalProblem(reason=problem),)
    observation = replace(found, pool=name, desired_replicas=replicas, pods=pods, problems=problems)
    targets = fleet().pool(name).targets
    return observe(observation, targets, Limits(), PlannerState(), TICK_SECONDS)


def world(*counts: int, **others) -> dict[str, Seen]:
    """Both pools."""
    return {
        name: seen_of(name, count, **others.get(name, {}))
        for name, count in zip(NAMES, counts, strict=True)
    }


def drafts_of(seen, *counts, needed=None):
    """Drafts that want these counts without a law; needed: by demand, if guards hold more."""
    found = {}
    for name, count, need in zip(NAMES, counts, needed or counts, strict=True):
        draft = draft_count(seen[name])
        own = draft.requirement
        found[name] = replace(
            draft,
            replicas=count,
            requirement=replace(own, replicas=need, sized=None),
        )
    return found


def counts_of(drafts):
    """The counts of drafts in the order of the pools."""
    return tuple(drafts[name].replicas for name in NAMES)


def test_a_pool_that_is_not_seen_keeps_the_other_from_stepping_down_but_not_from_growing():
    """Either direction, with the pool named."""
    seen = world(2, 4, prefill={"problem": Reason.PROMETHEUS_UNAVAILABLE})
    held = hold_while_unseen(seen, drafts_of(seen, 2, 3))
    assert counts_of(held) == (2, 4)
    (step,) = held["decode"].steps[-1:]
    assert (step.reason, step.inputs) == (Reason.POOL_UNSEEN, {"unseen_pool": "prefill"})
    assert counts_of(hold_while_unseen(seen, drafts_of(seen, 2, 6))) == (2, 6)


def test_a_target_that_is_gone_counts_as_unseen():
    """As a pool whose engines are not read."""
    seen = world(2, 4, decode={"problem": Reason.TARGET_NOT_FOUND})
    assert counts_of(hold_while_unseen(seen, drafts_of(seen, 1, 4))) == (2, 4)


@pytest.mark.parametrize(("placeless", "after"), [(True, 3), (False, 4)])
def test_a_combined_pool_without_a_place_hides_no_requests(placeless: bool, after: int):
    """All of its pods wait for a card, so the other steps down; not while they start."""
    targets, seen = two_prices(), {}
    for name, waits in (("dear", False), ("spot", True)):
        found = _observation(4)
        reason = "no GPU" if placeless else None
        pods = [
            replace(pod, ready=False, engines=(), unschedulable_reason=reason) if waits else pod
            for pod in found.pods
        ]
        observation = replace(found, pool=name, desired_replicas=4, pods=tuple(pods))
        own = targets.pool(name).targets
        seen[name] = observe(observation, own, Limits(), PlannerState(), TICK_SECONDS)
    drafts = {name: draft_count(one) for name, one in seen.items()}
    drafts["dear"] = replace(drafts["dear"], replicas=3)
    assert guard_pools(targets, seen, drafts)["dear"].replicas == after


@pytest.mark.parametrize(("partial", "after"), [(4, 2), (3, 1)])
def test_a_pool_of_which_every_pod_lacks_a_part_counts_as_unseen(partial: int, after: int):
    """Counters or histograms of none of its pods are known; of some of them they are enough."""
    seen = world(2, 4)
    context = seen["decode"].context
    names = tuple(pod.name for pod in context.signals.serving_pods)[:partial]
    signals = replace(context.signals, reason=Reason.METRICS_PARTIAL, unseen_pods=names)
    seen["decode"] = replace(seen["decode"], context=replace(context, signals=signals))
    assert counts_of(hold_while_unseen(seen, drafts_of(seen, 1, 4))) == (after, 4)


def test_no_role_reaches_zero_alone():
    """Others leave prefill at zero while decode serves; here it keeps what it has, spare included.

    One that is at zero wakes to what one replica and its tolerated failures need.
    """
    targets = fleet(minimum=0)
    spare = ReplicaTargets(minimum=0, maximum=32, idle_seconds=600.0, tolerated_failures=1)
    first = targets.pool("prefill").targets
    spared = targets.with_targets({"prefill": replace(first, replicas=spare)})
    for own, before, after in ((targets, 1, 1), (targets, 0, 1), (spared, 2, 2), (spared, 0, 2)):
        seen = world(before, 2)
        kept = sleep_together(own, seen, drafts_of(seen, 0, 2))
        assert counts_of(kept) == (after, 2)
        assert kept["prefill"].limited_by is Reason.OTHER_POOL_AWAKE
        assert counts_of(sleep_together(own, seen, drafts_of(seen, 0, 0))) == (0, 0)


def test_a_ceiling_on_gpus_never_raises_a_count_above_what_is_wanted():
    """A planner of others grew decode eightfold at its ceiling."""
    seen = world(4, 4)
    for wanted in ((8, 8), (5, 30), (30, 5)):
        found = counts_of(within_gpus(fleet(8), seen, drafts_of(seen, *wanted)))
        assert sum(found) <= 8
        assert all(count <= most for count, most in zip(found, wanted, strict=True))


def test_growth_takes_only_gpus_that_no_pod_holds():
    """Pods that end still hold theirs; the receiver grows when they are gone."""
    ending = world(4, 8, decode={"leaving": 3})
    targets = fleet(16)
    assert held_gpus(targets, ending) == 15
    assert counts_of(within_gpus(targets, ending, drafts_of(ending, 8, 8))) == (5, 8)
    gone = world(4, 8)
    assert counts_of(within_gpus(targets, gone, drafts_of(gone, 8, 8))) == (8, 8)


def test_two_short_roles_are_balanced_within_the_ceiling():
    """The pool that is shortest of what it wants decides how many requests are served."""
    seen = world(4, 12)
    first = within_gpus(fleet(16), seen, drafts_of(seen, 8, 12))
    # Decode gives three at once; prefill grows when they are gone.
    assert counts_of(first) == (4, 9)
    after = world(4, 9)
    second = within_gpus(fleet(16), after, drafts_of(after, 8, 12))
    assert counts_of(second) == (7, 9)
    assert write_order(fleet(16), seen, first) == ("decode", "prefill")


def test_what_a_pool_is_only_held_at_is_given_to_the_one_that_lacks():
    """Prefill steps down slowly; while decode lacks, it keeps what it needs and what is left."""
    seen = world(14, 6)
    drafts = drafts_of(seen, 14, 10, needed=(8, 10))
    assert counts_of(within_gpus(fleet(20), seen, drafts)) == (10, 6)
    after = world(10, 6)
    drafts = drafts_of(after, 10, 10, needed=(8, 10))
    assert counts_of(within_gpus(fleet(20), after, drafts)) == (10, 10)


@pytest.mark.parametrize("granted", [False, True])
def test_a_balance_takes_no_more_at_once_than_the_administrators_largest_step(granted: bool):
    """One replica of decode has four GPUs: prefill would give four of its replicas for it."""
    pools = [replace(pool, gpus=gpus) for pool, gpus in zip(fleet().pools, (1, 4), strict=True)]
    grant = grants(16)["decode"] if granted else None
    targets = replace(fleet(16), pools=tuple(pools), granted=grant)
    seen = {
        name: replace(one, context=replace(one.context, limits=Limits(max_step=1)))
        for name, one in world(8, 2).items()
    }
    drafts = drafts_of(seen, 8, 3, needed=(3, 4))
    assert counts_of(within_gpus(targets, world(8, 2), drafts)) == (4, 2)
    assert counts_of(within_gpus(targets, seen, drafts)) == (7, 2)


def test_a_lowered_bound_is_reached_by_the_administrators_largest_steps():
    """From 14 and 2 GPUs to 10, prefill gives one replica at once, not seven."""
    targets = fleet(10)
    seen = {
        name: replace(one, context=replace(one.context, limits=Limits(max_step=1)))
        for name, one in world(14, 2).items()
    }
    drafts = drafts_of(seen, 14, 3, needed=(7, 3))
    assert counts_of(within_gpus(targets, seen, drafts)) == (13, 2)


def test_a_balance_that_gains_little_is_not_sought():
    """Demand that wavers by a tenth moves no GPU to and fro."""
    seen = world(6, 10)
    for wanted in ((7, 11), (6, 11), (7, 10), (6, 12)):
        assert counts_of(within_gpus(fleet(16), seen, drafts_of(seen, *wanted))) == (6, 10)


def test_counts_step_down_to_a_ceiling_that_was_lowered():
    """In their ratio and not below a minimum; not while a pool is unseen; then growth waits."""
    seen = world(6, 10)
    lowered = within_gpus(fleet(8), seen, drafts_of(seen, 6, 10))
    assert counts_of(lowered) == (3, 5)
    assert {one.limited_by for one in lowered.values()} == {Reason.GPUS_REACHED}
    assert counts_of(within_gpus(fleet(8), seen, drafts_of(seen, 2, 10))) == (2, 6)
    assert counts_of(within_gpus(fleet(8, minimum=4), seen, drafts_of(seen, 6, 10))) == (4, 4)
    assert counts_of(within_gpus(fleet(15), seen, drafts_of(seen, 12, 10))) == (6, 7)
    blind = world(6, 10, decode={"problem": Reason.METRICS_MISSING})
    assert counts_of(within_gpus(fleet(8), blind, drafts_of(blind, 6, 10))) == (6, 10)


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_any_growth_stays_within_the_ceiling(gpus):
    """For several GPUs a replica, and whatever is wanted."""
    targets = fleet(32, gpus=gpus)
    for now in ((1, 1), (2, 6), (4, 4)):
        seen = world(*now)
        for wanted in ((1, 30), (30, 1), (20, 20), (2, 2)):
            found = guard_pools(targets, seen, drafts_of(seen, *wanted))
            held = {name: max(seen[name].context.current, found[name].replicas) for name in NAMES}
            assert sum(held.values()) * gpus <= max(32, sum(now) * gpus)


def test_growth_comes_first_without_a_ceiling():
    """The pool that is shortest of what it wants leads."""
    seen = world(4, 4)
    assert write_order(fleet(), seen, drafts_of(seen, 3, 8)) == ("decode", "prefill")
    assert write_order(fleet(), seen, drafts_of(seen, 8, 5)) == ("prefill", "decode")


def test_roles_must_be_whole():
    """A prefill pool without decode answers nobody."""
    whole = fleet()
    with pytest.raises(InvalidInputError, match="Prefill together with Decode"):
        FleetTargets(pools=(whole.pools[0], replace(whole.pools[0], name="other")))


def grants(gpus: int, each: int = 1, **stated) -> dict[str, Grant]:
    """The grant of a budget, as both pools observe it."""
    grant = Grant(budget="inference", gpus=gpus, gpus_per_replica=each, **stated)
    return dict.fromkeys(NAMES, grant)


def test_a_grant_bounds_growth_as_a_bound_of_the_resource_does():
    """With its own reason, the budget by name and what it costs."""
    targets = fleet().within_grants(grants(6, kept_per_gpu=2.0))
    assert targets.gpus_max == 6
    seen = world(2, 2)
    found = guard_pools(targets, seen, drafts_of(seen, 4, 4))
    assert sum(counts_of(found)) == 6
    last = found["decode"].steps[-1]
    assert last.reason is Reason.BUDGET_REACHED
    assert last.inputs["detail"].startswith("budget inference grants 6 of 8 GPUs")


def test_a_grant_that_falls_tells_each_pool_who_received():
    """A step down for a budget is no step down because the demand is met."""
    seen = world(6, 10)
    targets = fleet().within_grants(grants(8, holders="n/chat gets them"))
    lowered = guard_pools(targets, seen, drafts_of(seen, 6, 10))
    assert counts_of(lowered) == (3, 5)
    for one in lowered.values():
        assert one.limited_by is Reason.BUDGET_MOVED
        assert one.steps[-1].inputs["detail"].endswith("n/chat gets them")


def test_the_lesser_of_both_bounds_counts():
    """Its own bound keeps its own reason."""
    targets = fleet(gpus_max=4).within_grants(grants(6))
    assert (targets.gpus_max, targets.granted) == (4, None)
    assert fleet(gpus_max=8).within_grants(grants(6)).gpus_max == 6


def test_pools_step_down_together_to_a_grant_that_fell():
    """In proportion, and none below its minimum."""
    seen = world(4, 4)
    wanted = drafts_of(seen, 4, 4)
    found = guard_pools(fleet().within_grants(grants(5)), seen, wanted)
    assert sorted(counts_of(found)) == [2, 3]
    least = guard_pools(fleet(minimum=2).within_grants(grants(1)), seen, wanted)
    assert counts_of(least) == (2, 2)


def test_an_unseen_pool_is_asked_for_nothing():
    """A grant that falls while one pool is not seen moves no count."""
    seen = world(4, 4, decode={"problem": Reason.PROMETHEUS_UNAVAILABLE})
    found = guard_pools(fleet().within_grants(grants(5)), seen, drafts_of(seen, 4, 4))
    assert counts_of(found) == (4, 4)


def test_no_pool_grows_while_the_gpus_of_one_are_unknown():
    """What the other pool may have of the bound is unknown then; the pool is named."""
    seen, found, targets = world(1, 2), {}, fleet(16, minimum=2)
    known = Grant(budget="", gpus=16, gpus_per_replica=4)
    for unknown in ("", "state gpusPerReplica"):
        decode = replace(known, unknown=unknown)
        observations = {
            "prefill": replace(seen["prefill"].context.observation, grant=known),
            "decode": replace(seen["decode"].context.observation, grant=decode),
        }
        decision, _ = plan_fleet(observations, targets, Limits(), FleetState(), TICK_SECONDS)
        found[unknown] = decision.pools["prefill"]
    assert [one.replicas_after for one in found.values()] == [2, 1]
    held = found["state gpusPerReplica"]
    assert held.limited_by is Reason.GPUS_UNKNOWN
    assert held.steps[-1].inputs["detail"] == "decode: state gpusPerReplica"


def test_gpus_of_templates_count_in_a_grant():
    """Of each pool its own; while those of any are unknown, the bound is left to the guard."""
    each = {"prefill": grants(8, 1)["prefill"], "decode": grants(8, 4)["decode"]}
    targets = fleet().within_grants(each)
    assert [pool.gpus_per_replica for pool in targets.pools] == [1, 4]
    assert fleet().within_grants(grants(8, unknown="no GPU requested")) == fleet()
