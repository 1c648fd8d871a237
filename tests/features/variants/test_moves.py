"""When a composition changes: the cheapest rise, the cheapest mix afterwards, new pods first."""

import pytest
from tests.features.variants.choices import choice, h100, l4
from tests.unit.pools_world import two_prices

from servingslo.features.variants.moves import DemandAhead, MoveReason, Standing, next_order
from servingslo.policy.pools.division import DIVIDER
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.stored import carried_on

# An h100 carries 10/s for 2.5, an l4 3/s for 0.8: together each pod carries 3/s.
PAID_LONG = 0.0


def ahead(now, greatest=None):
    """Demand now, and at most until new pods serve."""
    return DemandAhead(
        now_per_second=now, greatest_per_second=now if greatest is None else greatest
    )


def standing(h100=0, l4=0):
    """Pools as they are; a number of replicas that all serve."""
    return {
        name: pool if isinstance(pool, Standing) else Standing(ordered=pool, serving=pool)
        for name, pool in (("h100", h100), ("l4", l4))
    }


def ordered(world, demand, *, since=None, now=1000.0, pools=None):
    """The order of a tick."""
    return next_order(pools or choice(), world, demand, since, now)[0]


class TestRises:
    """Demand beyond what serves and starts."""

    def test_a_slow_pod_is_no_help_next_to_fast_ones(self):
        """One l4 next to two h100 would carry 9/s: an h100, though it is dearer."""
        order = ordered(standing(h100=2), ahead(20.0, 29.0))
        assert order.counts == {"h100": 3, "l4": 0}
        assert order.reason is MoveReason.RISE

    def test_pods_that_start_are_not_ordered_again(self):
        """The third h100 carries the 30/s ahead."""
        starting = Standing(ordered=3, serving=2)
        order = ordered(standing(h100=starting), ahead(20.0, 30.0))
        assert order.counts == {"h100": 3, "l4": 0}
        assert order.reason is MoveReason.SETTLED

    def test_a_pool_without_a_place_gets_nothing(self):
        """The l4 are unschedulable: an h100."""
        blocked = Standing(ordered=0, serving=0, placeable=False)
        assert ordered(standing(l4=blocked), ahead(0.0, 3.0)).counts == {"h100": 1, "l4": 0}

    def test_from_zero(self):
        """The first pods are the cheapest."""
        assert ordered(standing(), ahead(0.0, 3.0)).counts == {"h100": 0, "l4": 1}

    def test_a_rise_stays_within_the_gpus(self):
        """Three GPUs, of which two are taken."""
        order = ordered(standing(h100=2), ahead(20.0, 40.0), pools=choice(gpus_max=3))
        assert order.counts == {"h100": 3, "l4": 0}

    def test_the_minimum_is_ordered(self):
        """Whatever the demand."""
        order = ordered(standing(), ahead(0.0), pools=choice(h100(minimum=1), l4()))
        assert order.counts == {"h100": 1, "l4": 0}

    def test_what_cannot_be_carried_is_held(self):
        """Ten l4 at most, and no h100."""
        pools = choice(h100(maximum=0), l4(maximum=10))
        order = ordered(standing(l4=10), ahead(50.0), pools=pools)
        assert order.counts == {"h100": 0, "l4": 10}
        assert order.reason is MoveReason.DEMAND_NOT_CARRIED

    def test_lost_pods_are_ordered_again(self):
        """Three of four spot pods have vanished with their nodes: the same three."""
        assert ordered(standing(l4=1), ahead(12.0)).counts == {"h100": 0, "l4": 4}


class TestMoves:
    """The same demand at a lower price."""

    def test_a_move_that_pays_is_ordered_after_a_cold_start(self):
        """Of eight pods one has to be an h100: seven l4 in place of the others cost 6.8 less."""
        world, pools = standing(5, 3), choice(h100(minimum=1), l4(minimum=1))
        order, since = next_order(pools, world, ahead(24.0), None, 1000.0)
        assert order.counts == {"h100": 5, "l4": 3}
        assert order.reason is MoveReason.MOVE_PENDING
        assert order.saving_hourly == pytest.approx(4 * (2.5 - 0.8))
        order, since = next_order(pools, world, ahead(24.0), since, 1059.0)
        assert order.reason is MoveReason.MOVE_PENDING
        order, since = next_order(pools, world, ahead(24.0), since, 1060.0)
        assert order.counts == {"h100": 5, "l4": 7}
        assert order.reason is MoveReason.MOVE_PAYS

    def test_a_surplus_leaves_without_new_pods(self):
        """Of seven h100 three carry what is due."""
        order = ordered(standing(h100=7), ahead(24.0), pools=choice(h100(), l4(maximum=0)))
        assert order.counts == {"h100": 3, "l4": 0}
        assert order.reason is MoveReason.STEP_DOWN

    def test_a_move_that_stops_paying_starts_again(self):
        """27/s need another pod, which is a rise."""
        pools = choice(h100(minimum=1), l4(minimum=1))
        _, since = next_order(pools, standing(5, 3), ahead(24.0), None, 1000.0)
        assert since == 1000.0
        _, since = next_order(pools, standing(5, 3), ahead(27.0), since, 1030.0)
        assert since is None

    def test_a_saving_below_its_cold_starts_is_left(self):
        """An h100 less saves 1.7 an hour; a start of three hours costs 2.4."""
        pools = choice(h100(minimum=1), l4(minimum=1, cold_start_seconds=10_800.0))
        order = ordered(standing(5, 3), ahead(24.0), since=PAID_LONG, pools=pools)
        assert order.counts == {"h100": 5, "l4": 3}
        assert order.reason is MoveReason.SETTLED

    def test_old_pods_leave_when_the_new_ones_serve(self):
        """Not before, however long that takes; then as many as those that serve allow."""
        pools = choice(h100(minimum=1), l4(minimum=1))
        starting = Standing(ordered=7, serving=3)
        order = ordered(standing(h100=5, l4=starting), ahead(24.0), pools=pools)
        assert order.counts == {"h100": 5, "l4": 7}
        assert order.reason is MoveReason.NEW_PODS_FIRST
        some = Standing(ordered=7, serving=5)
        order = ordered(standing(h100=5, l4=some), ahead(24.0), pools=pools)
        assert order.counts == {"h100": 3, "l4": 7}
        assert order.reason is MoveReason.STEP_DOWN
        order = ordered(standing(h100=5, l4=7), ahead(24.0), pools=pools)
        assert order.counts == {"h100": 1, "l4": 7}

    def test_nothing_leaves_before_a_rise_that_is_foreseen(self):
        """20/s now, 40/s until new pods would serve."""
        order = ordered(standing(h100=4), ahead(20.0, 40.0))
        assert order.counts == {"h100": 4, "l4": 0}

    def test_a_mix_that_would_miss_is_not_passed_through(self):
        """Twelve l4 are cheaper, but the first would end four h100 at 15/s."""
        order = ordered(standing(h100=4), ahead(36.0), since=PAID_LONG)
        assert order.target.counts == {"h100": 0, "l4": 12}
        assert order.counts == {"h100": 4, "l4": 0}
        assert order.reason is MoveReason.MIX_WOULD_MISS

    def test_no_gpus_for_new_pods_next_to_the_old_ones(self):
        """Eight GPUs, all taken."""
        pools = choice(h100(minimum=1), l4(minimum=1), gpus_max=8)
        order = ordered(standing(5, 3), ahead(24.0), since=PAID_LONG, pools=pools)
        assert order.counts == {"h100": 5, "l4": 3}
        assert order.reason is MoveReason.NO_ROOM

    def test_tolerated_failures_hold_replicas(self):
        """One more l4 than four, if one may be lost."""
        pools = choice(h100(), l4(tolerated_failures=1))
        assert ordered(standing(l4=7), ahead(12.0), pools=pools).counts["l4"] == 5
        assert ordered(standing(l4=4), ahead(12.0), pools=pools).counts["l4"] == 5


def test_a_move_waits_anew_under_a_changed_spec() -> None:
    """What it waited for is of the former prices and objectives; other memory stays."""
    state = FleetState(features={DIVIDER.parts()[0].key.name: 100.0, "other": 1.0})
    pools = two_prices()
    assert carried_on(state, pools, pools).features == {"other": 1.0}
