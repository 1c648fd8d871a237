"""The least price of a demand over integer counts: worked numbers and bounds."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.cards import H100, H100_LIMITS, L4, L4_LIMITS
from tests.features.variants.choices import choice, h100, l4, linear, pooling
from tests.sizing_cases import WORKLOAD, case

from servingslo.features.variants.composition import UNEVENNESS_RATIO, Variant, shares
from servingslo.features.variants.search import least_price_composition
from servingslo.models.fleet.latency import Objective, Routing, latency_model
from servingslo.models.objectives import LatencyMetric
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

    @pytest.mark.parametrize(
        ("counts", "carried"),
        [((3, 0), 30.0), ((3, 1), 12.0), ((2, 2), 12.0), ((0, 0), 0.0)],
    )
    def test_one_slow_pod_costs_more_than_it_adds(self, counts, carried):
        """Every pod gets as many requests, and the slow ones are full first."""
        by_pool = dict(zip(("h100", "l4"), counts, strict=True))
        assert choice().carried_per_second(by_pool) == carried
        assert sum(shares(by_pool).values()) == (1.0 if any(counts) else 0.0)

    def test_one_card_is_cheapest(self):
        """Each pod of a mix carries 3/s, so the h100 would cost 2.5 for it."""
        composition = found(32.0)
        assert composition.counts == {"h100": 0, "l4": 11}
        assert composition.price_hourly == pytest.approx(8.8)
        assert composition.kept_per_second == pytest.approx(33.0)
        assert composition.carries

    def test_a_card_at_two_prices_is_mixed(self):
        """Four spot replicas at most, and two at the full price."""
        spot = h100(name="spot", price_hourly=1.0, maximum=4)
        assert found(60.0, spot, h100()).counts == {"spot": 4, "h100": 2}

    def test_failures_of_one_pool_only(self):
        """The spot replicas may lose one: five of them, or four and a dear one for 6.5."""
        spot = h100(name="spot", price_hourly=1.0, maximum=8, tolerated_failures=1)
        spare = found(40.0, spot, h100())
        assert spare.counts == {"spot": 5, "h100": 0}
        assert spare.kept_per_second == pytest.approx(40.0)

    def test_cold_starts_count_for_an_hour(self):
        """Four h100 are there: eleven l4 save 1.2, and their starts cost 0.15 or 1.5."""
        there = h100(present=4)
        assert found(32.0, there, l4(present=0)).counts == {"h100": 0, "l4": 11}
        slow = l4(present=0, cold_start_seconds=600.0)
        assert found(32.0, there, slow).counts == {"h100": 4, "l4": 0}


class TestBounds:
    """Minimum, maximum, GPUs, and demand beyond them."""

    def test_the_minimum_binds_without_demand(self):
        """At least one h100."""
        assert found(0.0, h100(minimum=1), l4()).counts == {"h100": 1, "l4": 0}

    def test_the_maximum_of_the_cheap_pool_binds(self):
        """Ten l4 carry 30/s, so it is four h100."""
        assert found(32.0, h100(), l4(maximum=10)).counts == {"h100": 4, "l4": 0}

    def test_gpus_bind(self):
        """Four GPUs carry 32/s with h100 alone."""
        assert found(32.0, gpus_max=4).counts == {"h100": 4, "l4": 0}

    def test_gpus_of_a_replica(self):
        """Four replicas of the spot kind with two GPUs each do not fit into six."""
        spot = h100(name="spot", price_hourly=1.0, gpus_per_replica=2)
        assert found(40.0, spot, h100(), gpus_max=6).counts == {"spot": 2, "h100": 2}

    def test_beyond_gpus_the_most_is_carried(self):
        """Four GPUs carry 40/s at most."""
        composition = found(60.0, gpus_max=4)
        assert composition.counts == {"h100": 4, "l4": 0}
        assert not composition.carries

    def test_the_most_leaves_out_the_slow_pool(self):
        """Four h100 carry 40/s; with 3 l4 it would be 21/s."""
        composition = found(60.0, h100(maximum=4), l4(maximum=3))
        assert composition.counts == {"h100": 4, "l4": 0}
        assert composition.kept_per_second == pytest.approx(40.0)

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

    @pytest.mark.parametrize("failures", [0, 1])
    def test_a_demand_of_hundreds_asks_for_few_rates(self, failures):
        """Of 264."""
        asked = set()

        def counted(name, rate_of):
            return lambda count: asked.add((name, count)) or rate_of(count)

        fast = h100(rate_of=counted("h100", pooling(10.0, 0.3)), maximum=64)
        slow = l4(rate_of=counted("l4", pooling(3.0, 0.3)), maximum=200)
        pools = [replace(one, tolerated_failures=failures) for one in (fast, slow)]
        assert found(333.0, *pools).carries
        assert len(asked) < 100

    def test_eight_pools(self):
        """Cards of every size; the third is the cheapest that carries 30/s within its maximum."""
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


@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("card", [(H100, H100_LIMITS), (L4, L4_LIMITS)])
def test_the_latency_model_carries_no_less_in_a_larger_pool(card, routing):
    """What the search relies on."""
    sizing_case = case(*OBJECTIVES, model=latency_model(WORKLOAD, *card), routing=routing)
    each = [carried_rate_per_second(sizing_case, (), n) / n for n in (1, 2, 3, 5, 8, 16, 40)]
    assert min(b / a for a, b in pairwise(each)) >= 1.0 - UNEVENNESS_RATIO
