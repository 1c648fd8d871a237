"""The least price of a demand over integer counts: worked numbers and bounds."""

from itertools import pairwise

import pytest
from tests.cards import H100, H100_LIMITS, L4, L4_LIMITS
from tests.sizing_cases import WORKLOAD, case
from tests.variant_choices import BY_LOAD, EVEN, by_weights, choice, h100, l4, linear, pooling

from servingslo.models.fleet.latency import Objective, Routing, latency_model
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.pools.variants import enumeration, integer_program
from servingslo.policy.pools.variants.composition import Variant
from servingslo.policy.pools.variants.enumeration import least_true
from servingslo.policy.pools.variants.search import least_price_composition
from servingslo.policy.pools.variants.split import Split, SplitRule
from servingslo.policy.replicas.sizing import carried_rate_per_second

OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.06),
)


def found(demand, *variants, **settings):
    """The cheapest composition."""
    return least_price_composition(choice(*variants, **settings), demand)


class TestWorked:
    """An h100 carries 10/s for 2.5, an l4 3/s for 0.8."""

    def test_by_load_a_remainder_goes_to_the_small_card(self):
        """32/s: four h100 cost 10.0, eleven l4 8.8, two and four 8.2."""
        composition = found(32.0)
        assert composition.counts == {"h100": 2, "l4": 4}
        assert composition.price_hourly == pytest.approx(8.2)
        assert composition.kept_per_second == pytest.approx(32.0)
        assert composition.carries

    def test_evenly_by_pod_one_card_is_cheapest(self):
        """Each pod of a mix carries 3/s, so the h100 would cost 2.5 for it."""
        composition = found(32.0, split=EVEN)
        assert composition.counts == {"h100": 0, "l4": 11}
        assert composition.price_hourly == pytest.approx(8.8)

    def test_fixed_weights_fill_each_pool_for_its_share(self):
        """Of 32/s the h100 get three quarters, 24/s, and the l4 8/s: three and three."""
        composition = found(32.0, split=by_weights(h100=3, l4=1))
        assert composition.counts == {"h100": 3, "l4": 3}
        assert composition.kept_per_second == pytest.approx(36.0)

    def test_measured_weights_of_pods(self):
        """An h100 that gets twice as much as an l4 carries 6/s next to it, for 2.5: no mix."""
        measured = Split(rule=SplitRule.BY_LOAD, weights={"h100": 2.0, "l4": 1.0})
        assert found(32.0, split=measured).counts == {"h100": 0, "l4": 11}
        dear = found(32.0, h100(), l4(price_hourly=1.0), split=measured)
        assert dear.counts == {"h100": 4, "l4": 0}

    def test_one_failure_in_each_pool(self):
        """Of two and four 20/s are left of 32; one more h100 costs least."""
        spare = found(32.0, h100(tolerated_failures=1), l4(tolerated_failures=1))
        assert spare.kept_per_second >= 32.0
        assert spare.counts == {"h100": 0, "l4": 12}

    def test_failures_of_one_pool_only(self):
        """The l4 are spot: one of them may be lost."""
        spare = found(32.0, l4(tolerated_failures=1), h100())
        assert spare.counts == {"h100": 2, "l4": 5}

    def test_cold_starts_count_for_an_hour(self):
        """11 l4 are there: two h100 for seven of them save 0.6 and cost 0.42 to start."""
        now = (h100(present=0), l4(present=11))
        assert found(32.0, *now).counts == {"h100": 2, "l4": 4}
        slow = (h100(present=0, cold_start_seconds=600.0), l4(present=11))
        assert found(32.0, *slow).counts == {"h100": 0, "l4": 11}


class TestBounds:
    """Minimum, maximum, GPUs, and demand beyond them."""

    def test_the_minimum_binds_without_demand(self):
        """At least one h100."""
        composition = found(0.0, h100(minimum=1), l4())
        assert composition.counts == {"h100": 1, "l4": 0}

    def test_the_maximum_of_the_cheap_pool_binds(self):
        """Four l4 at most; eight of them and one h100 would cost 6.5."""
        composition = found(32.0, h100(), l4(price_hourly=0.5, maximum=4))
        assert composition.counts == {"h100": 2, "l4": 4}

    def test_gpus_bind(self):
        """Four GPUs carry 32/s with three h100 and one l4, six would with two and four."""
        composition = found(32.0, gpus_max=4)
        assert composition.counts == {"h100": 3, "l4": 1}

    def test_gpus_of_a_replica(self):
        """An h100 replica of two GPUs: six GPUs hold two of them and two l4, 26/s."""
        composition = found(26.0, h100(gpus_per_replica=2), l4(), gpus_max=6)
        assert composition.counts == {"h100": 2, "l4": 2}

    def test_beyond_gpus_the_most_is_carried(self):
        """Four GPUs carry 40/s at most."""
        composition = found(60.0, gpus_max=4)
        assert composition.counts == {"h100": 4, "l4": 0}
        assert not composition.carries

    def test_beyond_maxima_the_most_is_carried(self):
        """2·10 + 3·3."""
        composition = found(60.0, h100(maximum=2), l4(maximum=3))
        assert composition.counts == {"h100": 2, "l4": 3}
        assert not composition.carries

    def test_the_most_evenly_by_pod_leaves_out_the_slow_pool(self):
        """Four h100 carry 40/s; with 3 l4 it would be 21/s."""
        composition = found(60.0, h100(maximum=4), l4(maximum=3), split=EVEN)
        assert composition.counts == {"h100": 4, "l4": 0}
        assert composition.kept_per_second == pytest.approx(40.0)

    def test_the_most_is_carried_at_least_price(self):
        """The weights fill the l4 first, so more h100 carry no more."""
        composition = found(99.0, l4(maximum=2), h100(), split=by_weights(h100=3, l4=1))
        assert composition.counts == {"h100": 2, "l4": 2}
        assert composition.kept_per_second == pytest.approx(24.0)

    def test_minima_beyond_the_gpus_are_kept(self):
        """They are the user's, both of them."""
        composition = found(5.0, h100(minimum=3), l4(minimum=2), gpus_max=4)
        assert composition.counts == {"h100": 3, "l4": 2}

    def test_objectives_that_no_replica_meets(self):
        """Nothing is carried: the minimum."""
        composition = found(5.0, h100(rate_of=linear(0.0)), l4(rate_of=linear(0.0), minimum=1))
        assert composition.counts == {"h100": 0, "l4": 1}
        assert not composition.carries


class TestEffort:
    """A rate costs a millisecond of the latency model."""

    @pytest.mark.parametrize("rule", [BY_LOAD, EVEN, by_weights(h100=0.8, l4=0.2)])
    @pytest.mark.parametrize("failures", [0, 1])
    def test_a_demand_of_hundreds_asks_for_few_rates(self, rule, failures):
        """Of 264."""
        asked = []

        def counted(name, rate_of):
            return lambda count: asked.append((name, count)) or rate_of(count)

        fast = h100(rate_of=counted("h100", pooling(10.0, 0.3)), maximum=64)
        slow = l4(rate_of=counted("l4", pooling(3.0, 0.3)), maximum=200)
        pools = [
            Variant(**{**vars_of(one), "tolerated_failures": failures}) for one in (fast, slow)
        ]
        composition = found(333.0, *pools, split=rule)
        assert composition.carries
        assert len(asked) == len(set(asked))
        assert len(asked) < 100

    def test_eight_pools_are_an_integer_program(self):
        """A pool of each size; the cheapest per request is the third."""
        pools = [
            Variant(
                name=f"p{size}",
                price_hourly=size + (0.2 if size != 3 else 0.0),
                rate_of=linear(2.0 * size),
                maximum=6,
            )
            for size in range(1, 9)
        ]
        composition = found(30.0, *pools)
        assert composition.counts["p3"] == 5
        assert composition.price_hourly == pytest.approx(15.0)


def vars_of(variant):
    """The fields of a variant."""
    return {name: getattr(variant, name) for name in Variant.__slots__}


@pytest.mark.parametrize("solver", [enumeration, integer_program])
def test_both_searches_know_when_nothing_holds(solver):
    """33 h100 would be needed."""
    assert solver.cheapest_counts(choice(h100()), 121.0) is None
    assert solver.cheapest_counts(choice(h100()), 120.0) == {"h100": 12}


@pytest.mark.parametrize("guess", [-5, 0, 3, 17, 40, 99])
@pytest.mark.parametrize("answer", [0, 1, 16, 17, 18, 40])
def test_the_least_true_number_is_found_from_any_guess(guess, answer):
    """In a logarithm of questions."""
    asked = []
    assert least_true(lambda n: asked.append(n) or n >= answer, 0, 40, guess) == answer
    assert len(asked) <= 12


@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("card", [(H100, H100_LIMITS), (L4, L4_LIMITS)])
def test_the_latency_model_carries_no_less_in_a_larger_pool(card, routing):
    """What the searches rely on; and few of its rates are computed."""
    asked = []
    sizing_case = case(*OBJECTIVES, model=latency_model(WORKLOAD, *card), routing=routing)

    def rate_of(count):
        asked.append(count)
        return carried_rate_per_second(sizing_case, (), count)

    each = [rate_of(count) / count for count in (1, 2, 3, 5, 8, 16, 40)]
    assert min(b / a for a, b in pairwise(each)) >= 1.0 - enumeration.UNEVENNESS_RATIO
    asked.clear()
    one = Variant(name="a", price_hourly=1.0, rate_of=rate_of, maximum=64)
    other = Variant(name="b", price_hourly=0.7, rate_of=linear(each[0] / 2), maximum=64)
    composition = found(each[0] * 20.3, one, other)
    assert composition.carries
    assert len(asked) < 12
