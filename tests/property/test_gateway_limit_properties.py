"""The gateway's bound over random stories.

1. After each write the bound is at least what the ready replicas can serve within the objectives,
   and no tick leaves a smaller one in force, unless load stands at it: then it may be a fifth
   smaller, for a minute, while no more replicas serve.
2. It never chases anything: while replicas and what one of them holds stay as they are, up to
   noise, it is written once and no more.
3. It turns from up to down, or back, only after the replicas or what one of them holds did.
4. With p proxies the bounds together are at least the bound of one, and one proxy's is at most it.
5. It falls at once where a replica is lost, and else by no more than a quarter in a minute.
"""

import itertools
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from servingslo.policy.inputs import InForce
from servingslo.policy.knobs.in_flight.gateway import (
    FORMER,
    HEADROOM,
    LIMIT,
    LOWEST_STEP,
    RAISED_ABOVE,
    STEP_SECONDS,
    LimitMemory,
    LimitWrite,
    limit_of_each,
    limit_to_write,
    track_bound,
)

if TYPE_CHECKING:
    from servingslo.reasons import Reason

TICK_SECONDS = 15.0
REPLICAS = st.integers(1, 200)
IN_FLIGHT = st.integers(1, 400)
PROXIES = st.integers(1, 40)
STORY = st.lists(st.tuples(REPLICAS, IN_FLIGHT), min_size=1, max_size=40)


class Story:
    """A policy object that takes every order, tick by tick."""

    def __init__(self, former: int | None = None) -> None:
        self.standing = InForce(values={LIMIT: former})
        self.memory = LimitMemory()
        self.former = former
        self.now = 0.0
        self.serving = 0
        self.writes: list[tuple[int, Reason]] = []

    def tick(self, serving: int, per_replica: int, proxies: int = 1, *, full: bool = False) -> int:
        """One tick; returns the bound in force after it."""
        self.now += TICK_SECONDS
        needed = limit_of_each(serving * per_replica, proxies)
        self.memory = track_bound(self.standing, self.memory, needed=needed, now_seconds=self.now)
        wanted, reason = limit_to_write(
            self.standing,
            self.memory,
            needed=needed,
            serving=serving,
            full=full,
            now_seconds=self.now,
        )
        if wanted is not None and reason is not None:
            self.writes.append((wanted, reason))
            self.standing = InForce(values={LIMIT: wanted, FORMER: self.former})
            written = LimitWrite(limit=wanted, serving=serving, at_seconds=self.now)
            self.memory = LimitMemory(written=written)
            self.serving = serving
        bound = self.standing.values[LIMIT]
        assert bound is not None
        return bound


@given(story=STORY, proxies=PROXIES)
def test_no_tick_leaves_a_bound_below_what_serves(story, proxies):
    """Invariant 1: whatever replicas and mixes do, what can be served is let in."""
    world = Story()
    for serving, per_replica in story:
        bound = world.tick(serving, per_replica, proxies)
        assert bound >= limit_of_each(serving * per_replica, proxies)
        assert bound * proxies >= serving * per_replica


@given(story=STORY)
def test_with_load_at_it_the_bound_is_a_little_small_for_a_minute_at_most(story):
    """Invariant 1: each write lets in a whole bound's worth anew."""
    world, since = Story(), None
    for serving, per_replica in story:
        bound, needed = world.tick(serving, per_replica, full=True), serving * per_replica
        if bound >= needed:
            since = None
            continue
        since = world.now if since is None else since
        assert needed < RAISED_ABOVE * bound
        assert serving <= world.serving
        assert world.now - since < STEP_SECONDS


@given(
    serving=REPLICAS,
    per_replica=st.integers(25, 400),
    noise=st.lists(st.floats(0.96, 1.0), min_size=1, max_size=60),
)
def test_a_bound_that_fits_is_written_once(serving, per_replica, noise):
    """Invariant 2: noise of four per cent moves nothing."""
    world = Story()
    world.tick(serving, per_replica)
    for factor in noise:
        world.tick(serving, max(round(per_replica * factor), 1))
    assert len(world.writes) == 1


@given(story=STORY)
def test_the_bound_turns_only_when_capacity_did(story):
    """Invariant 3: each turn of the bound has a turn of what it follows before it."""
    world = Story()
    needs = []
    for serving, per_replica in story:
        world.tick(serving, per_replica)
        needs.append(serving * per_replica)
    bounds = [limit for limit, _ in world.writes]
    assert turns(bounds) <= turns(needs)


def turns(values: list[int]) -> int:
    """How often a sequence changes its direction."""
    steps = [after > before for before, after in itertools.pairwise(values) if after != before]
    return sum(1 for before, after in itertools.pairwise(steps) if before != after)


@given(in_flight=st.integers(1, 100_000), proxies=PROXIES)
def test_proxies_share_the_bound(in_flight, proxies):
    """Invariant 4: no division by proxies lets less in than one proxy would."""
    each = limit_of_each(in_flight, proxies)
    assert each * proxies >= in_flight
    assert each <= in_flight or proxies > 1
    assert limit_of_each(in_flight, 1) == in_flight


@given(serving=st.integers(2, 200), lost=st.integers(1, 199), per_replica=st.integers(10, 400))
def test_a_lost_replica_lowers_the_bound_at_once(serving, lost, per_replica):
    """Invariant 5: with the tick that sees fewer replicas, down to what they need."""
    left = max(serving - lost, 1)
    world = Story()
    world.tick(serving, per_replica)
    bound = world.tick(left, per_replica)
    assert bound <= max(1.15 * left * per_replica, HEADROOM * left * per_replica + 1)


@given(serving=REPLICAS, before=st.integers(20, 400), after=st.integers(1, 400))
def test_what_one_replica_holds_lowers_it_in_steps(serving, before, after):
    """Invariant 5: a quarter at most, a minute apart."""
    world = Story()
    bounds = [world.tick(serving, before)]
    times = [world.now]
    for _ in range(40):
        bound = world.tick(serving, after)
        if bound != bounds[-1]:
            bounds.append(bound)
            times.append(world.now)
    steps = list(zip(bounds, bounds[1:], times, times[1:], strict=False))
    for high, low, began, ended in steps:
        if low < high:
            assert low >= LOWEST_STEP * high
            assert ended - began >= STEP_SECONDS
