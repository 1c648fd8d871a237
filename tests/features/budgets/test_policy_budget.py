"""How one number of GPUs is shared: the rules one by one, and known failures of others."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.features.budgets.budget_world import TICK_SECONDS, BudgetWorld

from servingslo.features.budgets.claims import waiting_replicas
from servingslo.features.budgets.sharing import Claim, Names, share_gpus, steady_quota, with_drawn
from servingslo.policy.decision_parts import ConstraintNeed
from servingslo.reasons import Constraint


def held(uid: str, gpus: int, **stated: float | bool) -> Claim:
    """A resource that holds and was granted this many GPUs and wants as many, unless stated."""
    return Claim(
        uid=uid,
        name=f"inference/{uid}",
        **{
            "minimum_gpus": 1,
            "wanted_gpus": gpus,
            "ordered_gpus": gpus,
            "held_gpus": gpus,
            "shared_gpus": gpus,
            "needed_seconds": 0.0,
            "hold_seconds": 120.0,
            **stated,
        },
    )


def granted(gpus: int, *claims: Claim, now_seconds: float = 1000.0) -> dict[str, int]:
    """The grants by uid."""
    shares = share_gpus(gpus, claims, now_seconds).shares
    return {uid: share.granted_gpus for uid, share in shares.items()}


def test_equals_get_gpus_by_their_use() -> None:
    """Equals get gpus by their use."""
    large = held("large", 2, wanted_gpus=6, kept_per_gpu=0.5)
    small = held("small", 2, wanted_gpus=6, kept_per_gpu=2.0)
    assert granted(8, large, small) == {"small": 6, "large": 2}


def test_work_that_may_wait_comes_after_live_requests_of_equals() -> None:
    """It gives back what it holds, before others of its priority lack any; never to a lower one."""
    night = held("night", 6, waiting_gpus=4)
    chat = held("chat", 2, wanted_gpus=5)
    other = held("other", 0, minimum_gpus=0, wanted_gpus=9, waiting_gpus=9, kept_per_gpu=2.0)
    assert share_gpus(8, (night, chat), 1000.0).shares["chat"].share_gpus == 5
    assert granted(8, night, chat) == {"night": 3, "chat": 2}
    assert granted(8, night, chat, other) == {"night": 3, "chat": 2, "other": 0}
    assert granted(8, replace(night, priority=1), chat) == {"night": 6, "chat": 2}
    assert night.within(3).live_gpus == 2


@pytest.mark.parametrize(("due", "waits"), [(9, 3), (12, 4), (6, 0), (None, 0)])
def test_what_only_a_deadline_needs_may_wait(due: int | None, waits: int) -> None:
    """As far as it is wanted: here live requests need six replicas, and ten are wanted at most."""
    each = {Constraint.TTFT: 6, Constraint.KV_CACHE: 2, Constraint.DEADLINE: due}
    needs = [ConstraintNeed(constraint=one, replicas=count) for one, count in each.items()]
    assert waiting_replicas(needs, 10) == waits


def test_priority_takes_back_what_is_above_the_minimum_of_others() -> None:
    """Priority takes back what is above the minimum of others."""
    chat = held("chat", 2, priority=10, wanted_gpus=6)
    batch = held("batch", 6)
    sharing = share_gpus(8, (chat, batch), 1000.0)
    assert sharing.shares["batch"].granted_gpus == 2
    assert sharing.shares["chat"].share_gpus == 6
    # Its pods still hold the GPUs.
    assert sharing.shares["chat"].granted_gpus == 2
    assert sharing.shares["chat"].donors == Names(("inference/batch",), 1)
    assert sharing.shares["batch"].holders == Names(("inference/chat",), 1)
    assert sharing.shares["batch"].receivers == Names(("inference/chat",), 1)
    assert not sharing.shares["chat"].receivers


def test_a_grant_stays_for_a_cold_start() -> None:
    """A grant stays for a cold start."""
    busy = held("busy", 2, wanted_gpus=8)
    idle = held("idle", 6, wanted_gpus=2, needed_seconds=900.0)
    assert granted(8, busy, idle, now_seconds=1000.0) == {"busy": 2, "idle": 6}
    # It ends 120 s after they were needed last; the pods still hold them.
    later = share_gpus(8, (busy, idle), 1021.0)
    assert later.shares["idle"].granted_gpus == 2
    assert later.shares["busy"].share_gpus == 6


def test_a_held_grant_is_one_replica_more_than_is_ordered() -> None:
    """What a resource needed a moment ago does not wait for it while another is short."""
    idle = held("idle", 1, wanted_gpus=1, shared_gpus=6, needed_seconds=990.0)
    short = held("short", 2, wanted_gpus=8)
    assert granted(8, idle, short) == {"idle": 2, "short": 6}


def test_after_a_restart_only_what_was_needed_since_is_held() -> None:
    """A share that was never needed while its resource was decided on is nobody's to keep."""
    world = BudgetWorld(
        {"idle": held("idle", 6, acts=False), "short": held("short", 2, wanted_gpus=8)}
    )
    world.restart()
    world.tick(8)
    # Now the first decision is known: it needs less than it has.
    world.claims["idle"] = replace(world.claims["idle"], acts=True, wanted_gpus=1)
    world.tick(8)
    assert world.ordered_gpus()["idle"] == 1


def test_a_priority_waits_for_no_cold_start() -> None:
    """A priority waits for no cold start."""
    chat = held("chat", 2, priority=10, wanted_gpus=7)
    idle = held("idle", 6, wanted_gpus=2, needed_seconds=999.0)
    assert granted(8, chat, idle)["idle"] == 1


def test_a_replica_is_granted_whole() -> None:
    """A replica is granted whole."""
    chat = held("chat", 0, priority=10, wanted_gpus=16, gpus_per_replica=8, minimum_gpus=8)
    batch = held("batch", 0, wanted_gpus=8)
    assert granted(12, chat, batch) == {"chat": 8, "batch": 4}


def test_a_budget_below_the_minimums_takes_none_of_them() -> None:
    """A budget below the minimums takes none of them."""
    chat = held("chat", 4, priority=10, minimum_gpus=4, wanted_gpus=6)
    batch = held("batch", 4, minimum_gpus=2)
    sharing = share_gpus(5, (chat, batch), 1000.0)
    assert {uid: one.granted_gpus for uid, one in sharing.shares.items()} == {
        "chat": 4,
        "batch": 2,
    }
    assert not sharing.minimums_fit


def test_spare_gpus_are_drawn_once() -> None:
    """Spare gpus are drawn once."""
    sharing = share_gpus(8, (held("a", 2), held("b", 2)), 1000.0)
    assert sharing.spare_gpus == 4
    sharing = with_drawn(sharing, "a", 5)
    assert sharing.spare_gpus == 1
    assert sharing.shares["a"].granted_gpus == 5


def test_gpus_that_someone_waits_for_are_not_spare() -> None:
    """Gpus that someone waits for are not spare."""
    chat = held("chat", 2, priority=10, wanted_gpus=6)
    batch = held("batch", 2, held_gpus=6)
    sharing = share_gpus(8, (chat, batch), 1000.0)
    assert sharing.shares["chat"].granted_gpus == 2
    assert sharing.spare_gpus == 0


def test_a_quota_falls_at_once_and_rises_after_noise() -> None:
    """A quota falls at once and rises after noise."""
    quota = steady_quota(None, 64, 120.0, 0.0)
    quota = steady_quota(quota, 61, 120.0, 15.0)
    assert quota.gpus == 61
    quota = steady_quota(quota, 66, 120.0, 30.0)
    assert quota.gpus == 61
    assert steady_quota(quota, 66, 120.0, 150.0).gpus == 66
    # Twice as many are no noise.
    assert steady_quota(quota, 122, 120.0, 45.0).gpus == 122


def test_noise_of_a_demand_moves_others_once_a_cold_start() -> None:
    """Noise of one replica moves others once a cold start."""
    draw = np.random.default_rng(7)
    world = BudgetWorld(
        {
            "high": held("high", 20, priority=10),
            "low": held("low", 20, wanted_gpus=60),
        }
    )
    falls = []
    before = 20
    for number in range(400):
        sharing = world.tick(64, {"high": 19 + int(draw.random() < 0.1)})
        after = sharing.shares["high"].share_gpus
        if after < before:
            falls.append(number * TICK_SECONDS)
        before = after
    apart = [later - earlier for earlier, later in pairwise(falls)]
    assert len(falls) < 400 * TICK_SECONDS / 120.0
    assert min(apart) >= 120.0
