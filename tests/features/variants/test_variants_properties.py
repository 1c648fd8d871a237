"""Invariants of variants.

1. The search finds the least price that brute force finds, and the most that can be carried.
2. What is kept with failures is no more than what is carried without.
3. Shares are a distribution, and every pool can take its share of what is carried.
4. While a composition changes, pods that start and leave in any order never carry less than the
   demand, if they carried it before.
5. Under constant demand, orders settle at counts that carry it with the tolerated failures.
"""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.features.variants.choices import cost, every, pooling

from servingslo.features.variants.composition import (
    UNEVENNESS_RATIO,
    Choice,
    Variant,
    shares,
)
from servingslo.features.variants.moves import DemandAhead, Standing, next_order
from servingslo.features.variants.search import cheapest_counts, least_price_composition

prices = st.sampled_from([0.3, 0.8, 1.0, 2.5, 4.0])


@st.composite
def variants(draw, name, most=6):
    """A pool whose replicas carry more in a larger pool."""
    maximum = draw(st.integers(1, most))
    return Variant(
        name=name,
        price_hourly=draw(prices),
        rate_of=pooling(draw(st.floats(0.5, 10.0)), draw(st.floats(0.0, 0.6))),
        maximum=maximum,
        minimum=draw(st.integers(0, 1)),
        tolerated_failures=draw(st.sampled_from([0, 0, 1, 2])),
        gpus_per_replica=draw(st.integers(1, 2)),
        present=draw(st.sampled_from([None, 0, 2])),
        cold_start_seconds=draw(st.sampled_from([30.0, 300.0, 900.0])),
    )


@st.composite
def choices(draw, most_pools=3, most=6):
    """One to three pools."""
    names = "abc"[: draw(st.integers(1, most_pools))]
    return Choice(
        variants=tuple(draw(variants(name, most)) for name in names),
        gpus_max=draw(st.none() | st.integers(3, 14)),
    )


demands = st.floats(0.0, 60.0)


@settings(max_examples=150)
@given(choices(), demands)
def test_the_search_equals_brute_force(choice, demand):
    """Invariant 1: the price, over all counts."""
    prices = [
        cost(choice, counts) for counts in every(choice) if choice.kept_per_second(counts) >= demand
    ]
    counts = cheapest_counts(choice, demand)
    assert (counts is None) == (not prices)
    if counts is not None:
        assert choice.within_gpus(counts)
        assert choice.keeps(counts, demand)
        assert cost(choice, counts) == pytest.approx(min(prices), abs=1e-9)


@settings(max_examples=60)
@given(choices(), st.floats(20.0, 500.0))
def test_beyond_the_bounds_the_most_is_carried(choice, demand):
    """Invariant 1: the rate, over all counts, and its least price."""
    possible = every(choice)
    assume(possible)
    kept = [choice.kept_per_second(counts) for counts in possible]
    assume(max(kept) < demand)
    composition = least_price_composition(choice, demand)
    assert not composition.carries
    assert composition.kept_per_second == pytest.approx(max(kept), rel=2.0 * UNEVENNESS_RATIO)
    assert choice.within_gpus(composition.counts)


@settings(max_examples=200)
@given(choices(), st.data())
def test_shares_are_carried_by_every_pool(choice, data):
    """Invariants 2 and 3."""
    counts = {
        one.name: data.draw(st.integers(0, one.maximum), label=one.name) for one in choice.variants
    }
    carried, found = choice.carried_per_second(counts), shares(counts)
    assert sum(found.values()) == pytest.approx(1.0) or not any(counts.values())
    assert choice.kept_per_second(counts) <= carried * (1 + 1e-9)
    for one in choice.variants:
        if not counts[one.name]:
            continue
        assert carried * found[one.name] <= one.rate_of(counts[one.name]) * (1 + 1e-9)


class World:
    """Pods that start and leave one at a time, in any order."""

    def __init__(self, choice, counts):
        self.choice = choice
        self.serving = dict(counts)
        self.ordered = dict(counts)
        self.starting = {name: [] for name in counts}

    def standing(self):
        """What the planner sees."""
        return {
            name: Standing(ordered=self.ordered[name], serving=self.serving[name])
            for name in self.ordered
        }

    def carried(self):
        """What serves carries."""
        return self.choice.carried_per_second(self.serving)

    def apply(self, counts, data):
        """Order; surplus pods leave one by one in any order. Returns the least carried then."""
        for one in self.choice.variants:
            name = one.name
            new = counts[name] - self.serving[name] - len(self.starting[name])
            self.starting[name] += [one.cold_start_seconds] * max(new, 0)
            surplus = max(-new, 0)
            # A controller removes pods that are not ready first.
            while surplus and self.starting[name]:
                self.starting[name].pop()
                surplus -= 1
        self.ordered = dict(counts)
        least = math.inf
        while leaving := [n for n in self.serving if self.serving[n] > self.ordered[n]]:
            name = data.draw(st.sampled_from(leaving))
            self.serving[name] -= 1
            least = min(least, self.carried())
        return least

    def pass_time(self, seconds, data):
        """Let pods become ready one by one in any order. Returns the least carried then."""
        due = []
        for name, left in self.starting.items():
            self.starting[name] = [time - seconds for time in left if time > seconds]
            due += [name for time in left if time <= seconds]
        least = math.inf
        for name in data.draw(st.permutations(due)):
            self.serving[name] += 1
            least = min(least, self.carried())
        return least


@settings(max_examples=25)
@given(choices(most=8), st.floats(0.5, 40.0), st.data())
def test_a_change_never_carries_less_than_the_demand(choice, demand, data):
    """Invariants 4 and 5, from any counts that carry the demand."""
    possible = [c for c in every(choice) if choice.kept_per_second(c) >= demand]
    assume(possible)
    world = World(choice, data.draw(st.sampled_from(possible)))
    ahead = DemandAhead(now_per_second=demand, greatest_per_second=demand)
    state, now, orders = None, 0.0, []
    for _ in range(30):
        order, state = next_order(choice, world.standing(), ahead, state, now)
        orders.append(dict(order.counts))
        assert choice.within_gpus(order.counts)
        assert world.apply(order.counts, data) >= demand
        assert world.pass_time(120.0, data) >= demand
        now += 120.0
    assert orders[-1] == orders[-8]
    assert choice.kept_per_second(orders[-1]) >= demand
    assert choice.price_hourly(orders[-1]) <= choice.price_hourly(orders[0]) + 1e-9


@settings(max_examples=12)
@given(choices(most=8), st.lists(st.floats(0.5, 40.0), min_size=2, max_size=4), st.data())
def test_pods_never_leave_while_they_are_needed(choice, steps, data):
    """Invariant 4 under demand that jumps: leaving pods never end what was carried."""
    minimum = {one.name: one.minimum for one in choice.variants}
    assume(choice.within_gpus(minimum))
    world, state, now = World(choice, minimum), None, 0.0
    for demand in steps:
        ahead = DemandAhead(now_per_second=demand, greatest_per_second=demand)
        for _ in range(10):
            before = world.carried()
            order, state = next_order(choice, world.standing(), ahead, state, now)
            assert choice.within_gpus(order.counts)
            least = world.apply(order.counts, data)
            assert least >= min(before, demand)
            if before >= demand:
                assert world.pass_time(120.0, data) >= demand
            else:
                world.pass_time(120.0, data)
            now += 120.0
        if least_price_composition(choice, demand).carries:
            assert choice.kept_per_second(world.ordered) >= demand
