"""Memory across a restart: it follows its target, from `targetRef` into a pool and back."""

import json
from dataclasses import replace

import pytest
from tests.unit.policy_world import TARGETS

from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets, Role
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.stored import carried_on, learned_fleet, restore_fleet
from servingslo.policy.replicas.promise import PromiseState
from servingslo.policy.replicas.state import PlannerState

SAVED, AGAIN = 100.0, 110.0
LEARNT = PromiseState(requests=800.0, missed=8.0, seconds=3600.0)
STATE = PlannerState(promise=LEARNT)


def targets_on(name: str) -> FleetTargets:
    """A single target of this name."""
    return FleetTargets.of(
        replace(TARGETS, target=ScaleTarget(api_version="apps/v1", kind="Deployment", name=name))
    )


def pools_on(*names: str) -> FleetTargets:
    """Pools named after where they stand, on targets of these names."""
    return FleetTargets(
        pools=tuple(
            PoolTargets(
                name=f"pool-{place}",
                role=Role.COMBINED,
                targets=targets_on(name).pools[0].targets,
            )
            for place, name in enumerate(names)
        )
    )


LLAMA, OTHER, POOLS = targets_on("llama"), targets_on("other"), pools_on("other", "llama")
BEFORE = {"targetRef": (LLAMA, ""), "pools": (POOLS, "pool-1")}
AFTER = {
    "the same target": (LLAMA, ""),
    "into a pool": (POOLS, "pool-1"),
    "under another name": (pools_on("llama", "third"), "pool-0"),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("after", AFTER)
def test_what_was_learnt_follows_its_target(before: str, after: str) -> None:
    """Stored and read again, and carried on in memory; no other pool has it."""
    (then, own), (now, wanted) = BEFORE[before], AFTER[after]
    state = FleetState(pools={own: STATE})
    stored = json.loads(json.dumps(learned_fleet(state, then, SAVED)))
    for again in (restore_fleet(stored, now, AGAIN), carried_on(state, then, now)):
        assert [name for name in again.pools if again.of(name).promise == LEARNT] == [wanted]


def test_a_single_target_is_stored_as_before_there_were_pools() -> None:
    """Without a list of pools; and what names no target is read, as former versions wrote it."""
    stored = learned_fleet(FleetState(pools={"": STATE}), LLAMA, SAVED)
    assert stored["target"] == "Deployment/llama"
    assert "pools" not in stored
    former = {key: value for key, value in stored.items() if key != "target"}
    assert restore_fleet(former, LLAMA, AGAIN).of("").promise == LEARNT


def test_another_target_begins_as_after_a_restart() -> None:
    """A memory of one target never becomes that of another; its demand neither."""
    stored = json.loads(json.dumps(learned_fleet(FleetState(pools={"": STATE}), LLAMA, SAVED)))
    carried = carried_on(FleetState(pools={"": STATE}), LLAMA, OTHER)
    assert carried == restore_fleet(stored, OTHER, AGAIN) == FleetState()


def test_a_pool_without_a_memory_begins_anew() -> None:
    """Another target learns by itself; a memory that cannot be read is none."""
    stored = learned_fleet(FleetState(pools={"pool-1": STATE}), POOLS, SAVED)
    assert restore_fleet(stored, OTHER, AGAIN).of("").promise == PromiseState()
    for unread in (None, {}, {**stored, "version": 0}, "text"):
        assert restore_fleet(unread, POOLS, AGAIN) == FleetState()
