"""One tick of a resource: observations in, one decision for each pool out.

A single target is a fleet of one pool, which `plan` decides alone. Of several, each is observed,
drafted and finished by the same code. In between, demand and objectives of the whole resource are
divided among the pools. After the guards of each pool come those over all of them: an unseen pool,
roles at zero, GPUs.
"""

from collections.abc import Mapping
from dataclasses import replace

from servingslo.estimation.sample import GatewaySample
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits
from servingslo.policy.knobs.catalogue import is_trying
from servingslo.policy.planner import Seen, draft_count, finish, observe, plan
from servingslo.policy.pools import insights
from servingslo.policy.pools.admission import (
    own_counts,
    with_elsewhere,
    with_facts,
    writing_pool,
)
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.demand import learn_demand
from servingslo.policy.pools.division import Division, divide_demand
from servingslo.policy.pools.guards import Drafts, gpu_use, guard_pools, write_order
from servingslo.policy.pools.inputs import FleetTargets, Observations, Role, unknown_for_all
from servingslo.policy.pools.insights import FleetTick
from servingslo.policy.pools.observed_path import path_objectives
from servingslo.policy.pools.path import divide_path, path_targets, stages_of, waits_for_room
from servingslo.policy.pools.state import FleetState
from servingslo.policy.stages import STAGES, Stages
from servingslo.reasons import Action, Reason


def plan_fleet(
    observations: Observations,
    targets: FleetTargets,
    limits: Limits,
    state: FleetState,
    now_seconds: float,
    *,
    stages: Stages = STAGES,
) -> tuple[FleetDecision, FleetState]:
    """The decision for this tick of all pools, and the memory for the next.

    observations: one of each pool; a past rate that one of them holds is of the whole resource.
    now_seconds: as in `plan`. Raises: KeyError if the observation of a pool is missing.
    """
    if (only := targets.only) is not None:
        decision, memory = plan(
            observations[only.name],
            only.targets,
            limits,
            state.of(only.name),
            now_seconds,
            stages=stages,
        )
        return FleetDecision.of(decision), FleetState(pools={only.name: memory})
    observations = unknown_for_all(observations)
    targets = targets.within_grants({name: one.grant for name, one in observations.items()})
    divided = path_targets(targets, state.limits_seconds)
    counted = own_counts(targets, observations)
    found: dict[str, Seen] = {}
    # What decode shows says what prefill's waits mean.
    for pool in sorted(divided.pools, key=lambda one: one.role is Role.PREFILL):
        found[pool.name] = observe(
            replace(counted[pool.name], history=None),
            pool.targets,
            limits,
            state.of(pool.name),
            now_seconds,
            stages=stages_of(pool.role, state, stages, now_seconds),
        )
        if pool.role is Role.DECODE and waits_for_room(found[pool.name]):
            state = replace(state, no_room_seconds=now_seconds)
    seen = {pool.name: found[pool.name] for pool in divided.pools}
    targets = _with_bounds_in_force(targets, seen)
    history = next((one.history for one in observations.values() if one.history), None)
    state = learn_demand(targets, state, seen, now_seconds, history)
    if targets.disaggregated:
        seen, path, state = divide_path(targets, state, seen, now_seconds)
        division = Division(seen=seen, path=path)
    else:
        division, state = divide_demand(targets, state, seen, now_seconds)
    drafts: Drafts = {
        name: draft_count(one, division.requirements.get(name), stages=stages)
        for name, one in division.seen.items()
    }
    drafts = guard_pools(targets, division.seen, drafts)
    route = observations[writing_pool(targets)].gateway
    return _finish(targets, state, division, drafts, route, stages)


def _with_bounds_in_force(targets: FleetTargets, seen: Mapping[str, Seen]) -> FleetTargets:
    """The pools with the bounds that hold at this tick."""
    return targets.with_targets(
        {
            pool.name: replace(pool.targets, replicas=seen[pool.name].context.targets.replicas)
            for pool in targets.pools
        }
    )


def _finish(
    targets: FleetTargets,
    state: FleetState,
    division: Division,
    drafts: Drafts,
    route: GatewaySample | None,
    stages: Stages,
) -> tuple[FleetDecision, FleetState]:
    """The decision of all pools, in the order of their writes."""
    decisions: dict[str, Decision] = {}
    writer = writing_pool(targets)
    for pool in sorted(targets.pools, key=lambda one: one.name == writer):
        seen = division.seen[pool.name]
        if pool.name == writer:
            seen = with_elsewhere(targets, division.seen, decisions, route)
        # Two trials at a time would disturb each other's comparison.
        trying = any(is_trying(one) for name, one in state.pools.items() if name != pool.name)
        seen = with_facts(seen, replace(seen.context.facts, trial_elsewhere=trying))
        decisions[pool.name], memory = finish(seen, drafts[pool.name], stages=stages)
        state = state.with_pool(pool.name, memory)
    objectives = path_objectives(targets, division.seen, decisions, division.path)
    now_seconds = division.seen[writer].context.now_seconds
    tick = FleetTick(
        targets=targets,
        seen=division.seen,
        decisions=decisions,
        path=division.path,
        objectives=objectives,
        now_seconds=now_seconds,
    )
    told, remembered = insights.whole(tick, state.features)
    own = decisions[writer]
    decisions[writer] = replace(own, features=insights.of_writer(own.features, told))
    order = write_order(targets, division.seen, drafts)
    decisions = {name: decisions[name] for name in order}
    leading = _leading(decisions)
    observed = division.seen[leading].context.observation
    decision = FleetDecision(
        time_seconds=observed.time_seconds,
        namespace=observed.namespace,
        name=observed.name,
        pools=decisions,
        roles={pool.name: pool.role for pool in targets.pools},
        action=decisions[leading].action,
        reason=decisions[leading].reason,
        binding_pool=leading,
        gpus=gpu_use(targets, division.seen, decisions),
        path=division.path,
        objectives=objectives,
        features={**division.features, **told},
        detail=decisions[leading].detail,
    )
    return decision, replace(state, features=remembered)


def _leading(decisions: Mapping[str, Decision]) -> str:
    """The pool that the whole is about: a problem first, then growth, then the largest change.

    Without a change it is the one that lacks most of what its demand needs, then one that is held.
    """

    def rank(name: str) -> tuple[bool, bool, int, int, bool]:
        decision = decisions[name]
        before, after = decision.replicas_before, decision.replicas_after
        change = 0 if before is None or after is None else abs(after - before)
        needed = max((need.replicas or 0 for need in decision.needs), default=0)
        return (
            decision.metrics is not Reason.METRICS_FRESH,
            decision.action is Action.SCALE_UP,
            change,
            max(needed - (after or 0), 0),
            decision.limited_by is not None,
        )

    return max(decisions, key=rank)
