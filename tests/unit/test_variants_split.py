"""What pools of unequal cards carry together, by who splits the traffic, and how that is learnt."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.variant_choices import BY_LOAD, EVEN, by_weights, linear

from servingslo.policy.pools.variants import learning, split
from servingslo.policy.pools.variants.learning import SPLIT, SplitSample, SplitState
from servingslo.policy.pools.variants.split import Split, SplitRule

RATES = {"h100": linear(10.0), "l4": linear(2.0)}
TICK = 15.0


class TestCarried:
    """Worked numbers: pods that carry 10/s and 2/s."""

    @pytest.mark.parametrize(
        ("rule", "carried", "share"),
        [
            pytest.param(BY_LOAD, 24.0, 20 / 24, id="by load both are filled"),
            pytest.param(EVEN, 8.0, 0.5, id="evenly by pod the slow ones are full first"),
            pytest.param(by_weights(h100=3, l4=1), 16.0, 0.75, id="weights: 4/s is a quarter"),
            pytest.param(by_weights(h100=9, l4=1), 20 / 0.9, 0.9, id="weights: the fast are full"),
        ],
    )
    def test_two_of_each(self, rule, carried, share):
        """The same replicas carry 24/s or 8/s."""
        counts = {"h100": 2, "l4": 2}
        assert split.carried_rate_per_second(rule, counts, RATES) == pytest.approx(carried)
        shares = split.shares(rule, counts, RATES)
        assert shares["h100"] == pytest.approx(share)
        assert sum(shares.values()) == pytest.approx(1.0)

    def test_one_slow_pod_costs_more_than_it_adds(self):
        """Evenly by pod, three fast ones carry 30/s, and 8/s with a slow one."""
        alone = split.carried_rate_per_second(EVEN, {"h100": 3, "l4": 0}, RATES)
        mixed = split.carried_rate_per_second(EVEN, {"h100": 3, "l4": 1}, RATES)
        assert (alone, mixed) == (30.0, 8.0)

    def test_measured_weights_of_pods_lie_between(self):
        """A fast pod that gets three times as much: 20 % for two slow ones, full at 20/s."""
        rule = Split(rule=SplitRule.BY_LOAD, weights={"h100": 3.0, "l4": 1.0})
        counts = {"h100": 2, "l4": 2}
        assert split.shares(rule, counts, RATES)["l4"] == pytest.approx(0.25)
        assert split.carried_rate_per_second(rule, counts, RATES) == pytest.approx(16.0)

    def test_the_weight_of_a_pool_without_replicas_is_lost(self):
        """A gateway answers 503 for the share of a backend without endpoints."""
        weights = by_weights(h100=3, l4=1)
        assert split.carried_rate_per_second(weights, {"h100": 9, "l4": 0}, RATES) == 0.0

    @pytest.mark.parametrize("rule", [BY_LOAD, EVEN, by_weights(h100=1, l4=1)])
    def test_nothing_carries_nothing(self, rule):
        """No replicas."""
        assert split.carried_rate_per_second(rule, {"h100": 0, "l4": 0}, RATES) == 0.0

    def test_pools_that_carry_nothing_still_share(self):
        """An objective that no replica meets: by pod."""
        shares = split.shares(BY_LOAD, {"a": 1, "b": 3}, {"a": linear(0.0), "b": linear(0.0)})
        assert shares == {"a": 0.25, "b": 0.75}

    def test_a_rate_is_computed_once(self):
        """And none for no replicas."""
        asked = []
        rate = split.remembered(lambda count: asked.append(count) or 2.0 * count)
        assert [rate(3), rate(3), rate(0)] == [6.0, 6.0, 0.0]
        assert asked == [3]
        assert split.remembered(rate) is rate

    def test_a_rate_between_two_of_the_same_is_not_computed(self):
        """A replica carries 2/s alone, and 3/s in any larger pool."""
        asked = []
        rate = split.remembered(lambda count: asked.append(count) or 3.0 * count - (count == 1))
        assert [rate(n) for n in (64, 1, 20, 40, 7, 3, 2)] == [
            192.0,
            2.0,
            60.0,
            120.0,
            21.0,
            9.0,
            6.0,
        ]
        assert asked == [64, 1, 20, 7, 3, 2]


def played(counts, shares_of, *, rate=20.0, ticks=40, seed=0, state=None, start=0.0):
    """The state after some minutes with each of the counts, traffic split by shares_of(counts)."""
    rng = np.random.default_rng(seed)
    state, now = state or SplitState(), start
    for each in counts:
        shares = shares_of(each)
        for _ in range(ticks):
            now += TICK
            drawn = {
                pool: float(rng.poisson(rate * TICK * share)) for pool, share in shares.items()
            }
            sample = SplitSample(time_seconds=now, serving=each, requests=drawn)
            state = learning.learn_split(state, sample, RATES)
    return state


def by(rule):
    """The shares of a rule."""
    return lambda counts: split.shares(rule, counts, RATES)


DAY = [
    {"h100": 2, "l4": 2},
    {"h100": 4, "l4": 2},
    {"h100": 4, "l4": 5},
    {"h100": 2, "l4": 5},
    {"h100": 2, "l4": 2},
]


class TestLearning:
    """Which rule holds, from counts of arrivals."""

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        "truth",
        [
            pytest.param(BY_LOAD, id="by load"),
            pytest.param(EVEN, id="evenly by pod"),
            pytest.param(by_weights(h100=0.7, l4=0.3), id="fixed weights"),
            pytest.param(by_weights(h100=0.5, l4=0.5), id="weights as the first counts"),
        ],
    )
    def test_a_rule_is_learnt_as_counts_change(self, truth, seed):
        """Four changes of counts, at 20 requests a second."""
        found = learning.learned_split(played(DAY, by(truth), seed=seed))
        assert (found.rule, found.source) == (truth.rule, "learned")
        if truth.weights:
            # A block of 300 s at 20/s: a share s of n requests is known to ±√(s(1 − s)/n).
            share = truth.weights["h100"]
            error = (share * (1.0 - share) / 6000.0) ** 0.5
            assert found.weights["h100"] == pytest.approx(share, abs=4.0 * error)
        elif truth is BY_LOAD:
            # Measured at the present counts: in proportion to what a pod of each pool carries.
            each = {pool: RATES[pool](count) / count for pool, count in DAY[-1].items()}
            weights = found.weights
            assert weights["h100"] / weights["l4"] == pytest.approx(
                each["h100"] / each["l4"], rel=0.1
            )

    def test_constant_counts_teach_no_rule(self):
        """Weights of pools and of pods are then the same: evenly by pod is assumed."""
        state = played([{"h100": 2, "l4": 2}], by(BY_LOAD), ticks=400)
        assert learning.learned_split(state) == Split()
        assert state.evenness == 1

    def test_a_picker_by_requests_in_flight_has_weights_of_its_own(self):
        """A fast pod gets twice as much, and carries five times as much."""
        in_flight = Split(rule=SplitRule.BY_LOAD, weights={"h100": 2.0, "l4": 1.0})
        found = learning.learned_split(played(DAY, by(in_flight)))
        assert found.rule is SplitRule.BY_LOAD
        weights = found.weights
        assert weights["h100"] / weights["l4"] == pytest.approx(2.0, rel=0.05)

    def test_few_requests_conclude_nothing(self):
        """One in two minutes."""
        state = played(DAY, by(BY_LOAD), rate=1 / 120)
        assert learning.learned_split(state) == Split()

    def test_one_pool_alone_teaches_nothing(self):
        """All shares are 1."""
        counts = [{"h100": 2, "l4": 0}, {"h100": 5, "l4": 0}, {"h100": 1, "l4": 0}]
        state = played(counts, lambda _: {"h100": 1.0})
        assert (state.by_pool, state.uneven, state.reference) == (0.0, 0.0, ())

    def test_nothing_is_tallied_while_a_change_settles(self):
        """Connections and queues of new pods."""
        state = played([{"h100": 2, "l4": 2}], by(EVEN), ticks=4)
        assert all(tally.requests == 0.0 for tally in state.block)

    def test_a_conclusion_does_not_flap(self):
        """One block against it leaves it, lasting evidence changes it."""
        learnt = played(DAY * 2, by(BY_LOAD))
        end = len(DAY) * 2 * 40 * TICK
        # Serving counts that were tallied before, so that a single block follows.
        odd = played([{"h100": 6, "l4": 2}], by(EVEN), state=learnt, start=end, ticks=26)
        assert learning.learned_split(odd).rule is SplitRule.BY_LOAD
        after = played(DAY * 2, by(EVEN), state=learnt, start=end)
        assert learning.learned_split(after) == Split(source="learned")

    def test_the_rules_of_a_day_change_at_most_once(self):
        """From assumed to learned."""
        state, seen = SplitState(), []
        for index, counts in enumerate(DAY * 3):
            state = played([counts], by(BY_LOAD), state=state, seed=index, start=index * 40 * TICK)
            seen.append(learning.learned_split(state).rule)
        assert sum(a is not b for a, b in pairwise(seen)) == 1


class TestStored:
    """What survives a restart."""

    def test_conclusions_and_shares_do(self):
        """As plain JSON."""
        state = played(DAY, by(by_weights(h100=0.7, l4=0.3)))
        stored = json.loads(json.dumps(SPLIT.dump(state)))
        back = SPLIT.load(stored)
        assert learning.learned_split(back) == learning.learned_split(state)
        assert back.block == ()

    def test_a_conclusion_without_evidence_is_dropped(self):
        """An edited status."""
        state = replace(SplitState(), by_pool=-5.0, belongs=1, uneven=0.5, evenness=1)
        back = SPLIT.load(SPLIT.dump(state))
        assert (back.belongs, back.evenness) == (-1, 1)
        assert SPLIT.load(SPLIT.dump(replace(state, uneven=-0.5))).evenness == 0

    @pytest.mark.parametrize(
        "stored",
        [None, 3, [], {}, {"odds": [1, 2]}, {"odds": ["x"] * 5}, {"odds": [-5.0, 5.0, -1, 1]}],
    )
    def test_what_cannot_be_read_stays_unknown(self, stored):
        """No error."""
        found = SPLIT.load(stored)
        assert found is None or learning.learned_split(found) == Split()


def test_evidence_follows_pools_to_other_names_and_ends_with_them() -> None:
    """The tallies have the present names; of other pools nothing is concluded."""
    tallies = tuple(
        learning.PoolTally(pool=pool, serving=n, requests=100.0 * n)
        for pool, n in (("cheap", 2), ("dear", 3))
    )
    state = SplitState(by_pool=5.0, belongs=1, reference=tallies, block=tallies, start_seconds=9.0)
    swapped = learning.renamed_split(state, {"cheap": "dear", "dear": "cheap"}, 2)
    assert [(one.pool, one.serving) for one in swapped.reference] == [("cheap", 3), ("dear", 2)]
    assert (swapped.belongs, swapped.block, swapped.start_seconds) == (1, (), None)
    for names, pools in (({"cheap": "cheap"}, 2), ({"cheap": "cheap", "dear": "dear"}, 3)):
        assert learning.renamed_split(state, names, pools) == SplitState()
