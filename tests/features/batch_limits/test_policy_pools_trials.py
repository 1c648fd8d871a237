"""Batch limits of several pools: one of them is tried at a time."""

from dataclasses import replace

from tests.features.batch_limits.canary_story import ALLOWED, TARGETS, story
from tests.unit.policy_world import TICK_SECONDS

from servingslo.policy.inputs import CostTargets, InForce, ScaleTarget
from servingslo.policy.knobs.catalogue import is_trying
from servingslo.policy.knobs.decisions import BATCH_LIMITS, GATEWAY_LIMITS
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets, Role
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason

NAMES = ("first", "second")
IN_FORCE = {BATCH_LIMITS: InForce(), GATEWAY_LIMITS: InForce()}


def test_no_pool_begins_a_trial_while_another_one_tries():
    """Both would begin at the same tick; the second waits, and says so."""
    targets = FleetTargets(
        pools=tuple(
            PoolTargets(
                name=name,
                role=Role.COMBINED,
                targets=replace(
                    TARGETS,
                    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name=name),
                    cost=CostTargets(gpu_hourly=2.0),
                ),
            )
            for name in NAMES
        )
    )
    worlds = {name: story(seed=seed).world for seed, name in enumerate(NAMES, start=1)}
    state, reasons = FleetState(), []
    for tick in range(1, 121):
        at = tick * TICK_SECONDS
        seen = {
            name: replace(world.observe(at), pool=name, in_force=IN_FORCE)
            for name, world in worlds.items()
        }
        fleet, state = plan_fleet(seen, targets, ALLOWED, state, at)
        reasons = [fleet.pools[name].batching.reason for name in NAMES]
        trying = [name for name in NAMES if is_trying(state.pools[name])]
        assert len(trying) <= 1
        if trying:
            break
    assert sorted(reasons) == [Reason.BATCHING_CANARY_STARTED, Reason.BATCHING_TOO_SOON]


def test_what_was_never_begun_is_no_trial():
    """Whoever has no memory tries nothing."""
    assert not is_trying(PlannerState())
