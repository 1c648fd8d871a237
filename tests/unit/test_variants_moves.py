"""When a composition changes: the soonest pool first, the cheapest afterwards, new pods first."""

from itertools import pairwise

import pytest
from tests.variant_choices import EVEN, choice, h100, l4

from servingslo.policy.pools.variants.moves import MoveReason, MoveState, next_order
from servingslo.policy.pools.variants.present_fleet import DemandAhead, Standing

# An h100 carries 10/s for 2.5 and starts in 300 s; an l4 3/s for 0.8, in 60 s.
SETTLED = MoveState()
PAID_LONG = MoveState(pays_since_seconds=0.0)


def ahead(now, l4_lead=None, h100_lead=None):
    """Demand now, in a minute, and in five."""
    soon = now if l4_lead is None else l4_lead
    late = soon if h100_lead is None else h100_lead
    return DemandAhead(now_per_second=now, at_lead_per_second={"l4": soon, "h100": late})


def standing(h100=0, l4=0):
    """Pools as they are; a number of replicas that all serve."""
    return {
        name: pool if isinstance(pool, Standing) else Standing(ordered=pool, serving=pool)
        for name, pool in (("h100", h100), ("l4", l4))
    }


def ordered(world, demand, *, state=SETTLED, now=1000.0, pools=None):
    """The order of a tick."""
    return next_order(pools or choice(), world, demand, state, now)[0]


class TestRises:
    """Demand beyond what serves and starts."""

    def test_a_rise_foreseen_in_five_minutes_goes_to_the_cheapest(self):
        """20/s now and in a minute, 30/s in five: one h100."""
        order = ordered(standing(h100=2), ahead(20.0, 20.0, 30.0))
        assert order.counts == {"h100": 3, "l4": 0}
        assert order.reason is MoveReason.RISE_CHEAPEST

    def test_a_rise_within_a_minute_goes_to_the_soonest(self):
        """29/s in a minute: three l4, though an h100 costs 0.1 more than two of them."""
        order = ordered(standing(h100=2), ahead(20.0, 29.0, 29.0))
        assert order.counts == {"h100": 2, "l4": 3}
        assert order.reason is MoveReason.RISE_SOONEST

    def test_the_soonest_bridge_and_the_cheapest_follow(self):
        """29/s in a minute and 50/s in five: three l4 now, and two h100 to serve then."""
        order = ordered(standing(h100=2), ahead(20.0, 29.0, 49.0))
        assert order.counts == {"h100": 4, "l4": 3}

    def test_pods_that_start_are_not_ordered_again(self):
        """The third h100 carries the 30/s of five minutes ahead."""
        starting = Standing(ordered=3, serving=2)
        order = ordered(standing(h100=starting), ahead(20.0, 20.0, 30.0))
        assert order.counts == {"h100": 3, "l4": 0}
        assert order.reason is MoveReason.SETTLED

    def test_pods_that_start_too_late_are_bridged(self):
        """It serves in five minutes: three l4 until then."""
        starting = Standing(ordered=3, serving=2)
        order = ordered(standing(h100=starting), ahead(20.0, 29.0, 29.0))
        assert order.counts == {"h100": 3, "l4": 3}
        assert order.reason is MoveReason.RISE_SOONEST

    def test_a_pool_without_a_place_gets_nothing(self):
        """The l4 are unschedulable: an h100, later."""
        blocked = Standing(ordered=0, serving=0, placeable=False)
        order = ordered(standing(h100=2, l4=blocked), ahead(20.0, 29.0, 29.0))
        assert order.counts == {"h100": 3, "l4": 0}

    def test_from_zero(self):
        """The first pods are the soonest."""
        order = ordered(standing(), ahead(0.0, 3.0, 3.0))
        assert order.counts == {"h100": 0, "l4": 1}

    def test_a_rise_stays_within_the_gpus(self):
        """Three GPUs, of which two are taken."""
        order = ordered(standing(h100=2), ahead(20.0, 29.0, 40.0), pools=choice(gpus_max=3))
        assert sum(order.counts.values()) == 3

    def test_the_minimum_is_ordered(self):
        """Whatever the demand."""
        order = ordered(standing(), ahead(0.0), pools=choice(h100(minimum=1), l4()))
        assert order.counts == {"h100": 1, "l4": 0}

    def test_evenly_by_pod_a_slow_pod_is_no_help(self):
        """One l4 next to two h100 would carry 9/s: an h100, though it is late."""
        order = ordered(standing(h100=2), ahead(20.0, 29.0, 29.0), pools=choice(split=EVEN))
        assert order.counts == {"h100": 3, "l4": 0}

    def test_what_cannot_be_carried_is_held(self):
        """Ten l4 at most, and no h100."""
        pools = choice(h100(maximum=0), l4(maximum=10))
        order = ordered(standing(l4=10), ahead(50.0), pools=pools)
        assert order.counts == {"h100": 0, "l4": 10}
        assert order.reason is MoveReason.DEMAND_NOT_CARRIED


class TestMoves:
    """The same demand at a lower price."""

    def test_a_move_that_pays_is_ordered_after_a_cold_start(self):
        """11 l4 for 32/s cost 8.8; two h100 and four l4 8.2. The starts cost 2·2.5/12 = 0.42."""
        world = standing(l4=11)
        order, state = next_order(choice(), world, ahead(32.0), SETTLED, 1000.0)
        assert order.counts == {"h100": 0, "l4": 11}
        assert order.reason is MoveReason.MOVE_PENDING
        assert order.saving_hourly == pytest.approx(0.6)
        order, state = next_order(choice(), world, ahead(32.0), state, 1299.0)
        assert order.reason is MoveReason.MOVE_PENDING
        order, state = next_order(choice(), world, ahead(32.0), state, 1300.0)
        assert order.counts == {"h100": 2, "l4": 11}
        assert order.reason is MoveReason.MOVE_PAYS

    def test_a_surplus_leaves_while_a_move_waits(self):
        """One h100 and five l4 would cost 0.1 less than what is left."""
        order, state = next_order(choice(), standing(4, 2), ahead(25.0), SETTLED, 1000.0)
        assert order.counts == {"h100": 2, "l4": 2}
        assert order.reason is MoveReason.STEP_DOWN
        assert state.pays_since_seconds == 1000.0

    def test_a_move_that_stops_paying_starts_again(self):
        """33/s need another l4 or h100, which is a rise."""
        world = standing(l4=11)
        _, state = next_order(choice(), world, ahead(32.0), SETTLED, 1000.0)
        assert state.pays_since_seconds == 1000.0
        _, state = next_order(choice(), world, ahead(34.0), state, 1200.0)
        assert state == SETTLED

    def test_a_saving_below_its_cold_starts_is_left(self):
        """Starts of ten minutes cost 0.83."""
        pools = choice(h100(cold_start_seconds=600.0), l4())
        order = ordered(standing(l4=11), ahead(32.0), state=PAID_LONG, pools=pools)
        assert order.counts == {"h100": 0, "l4": 11}
        assert order.reason is MoveReason.SETTLED

    def test_old_pods_leave_when_the_new_ones_serve(self):
        """Not before, however long that takes."""
        starting = Standing(ordered=2, serving=0)
        order = ordered(standing(h100=starting, l4=11), ahead(32.0))
        assert order.counts == {"h100": 2, "l4": 11}
        assert order.reason is MoveReason.NEW_PODS_FIRST

    def test_some_leave_when_some_of_the_new_ones_serve(self):
        """One h100 serves 10/s: eight l4 carry the other 22/s."""
        starting = Standing(ordered=2, serving=1)
        order = ordered(standing(h100=starting, l4=11), ahead(32.0))
        assert order.counts == {"h100": 2, "l4": 8}
        assert order.reason is MoveReason.STEP_DOWN

    def test_then_all(self):
        """Two and four carry 32/s."""
        order = ordered(standing(h100=2, l4=11), ahead(32.0))
        assert order.counts == {"h100": 2, "l4": 4}

    def test_a_surplus_leaves_without_new_pods(self):
        """The dearest that is not needed."""
        order = ordered(standing(h100=4, l4=2), ahead(26.0))
        assert order.counts == {"h100": 2, "l4": 2}
        assert order.reason is MoveReason.STEP_DOWN

    def test_nothing_leaves_before_a_rise_that_is_foreseen(self):
        """20/s now, 45/s in five minutes."""
        order = ordered(standing(h100=4, l4=2), ahead(20.0, 20.0, 45.0))
        assert order.counts == {"h100": 4, "l4": 2}

    def test_a_mix_that_would_miss_is_not_passed_through(self):
        """Evenly by pod twelve l4 are cheaper, but the first would end four h100 at 15/s."""
        order = ordered(standing(h100=4), ahead(36.0), state=PAID_LONG, pools=choice(split=EVEN))
        assert order.target.counts == {"h100": 0, "l4": 12}
        assert order.counts == {"h100": 4, "l4": 0}
        assert order.reason is MoveReason.MIX_WOULD_MISS

    def test_no_gpus_for_new_pods_next_to_the_old_ones(self):
        """Eleven GPUs, all taken."""
        order = ordered(standing(l4=11), ahead(32.0), state=PAID_LONG, pools=choice(gpus_max=11))
        assert order.counts == {"h100": 0, "l4": 11}
        assert order.reason is MoveReason.NO_ROOM

    def test_one_gpu_for_new_pods_takes_one(self):
        """The next follows when old ones have left."""
        order = ordered(standing(l4=11), ahead(32.0), state=PAID_LONG, pools=choice(gpus_max=12))
        assert order.counts == {"h100": 1, "l4": 11}

    def test_tolerated_failures_hold_replicas(self):
        """One more l4 than two and four, if one may be lost."""
        pools = choice(h100(), l4(tolerated_failures=1))
        assert ordered(standing(h100=2, l4=6), ahead(32.0), pools=pools).counts["l4"] == 5
        assert ordered(standing(h100=2, l4=4), ahead(32.0), pools=pools).counts["l4"] == 5


def test_a_bridge_is_moved_to_the_cheaper_pool_afterwards():
    """A jump from 20/s to 40/s: l4 within a minute, h100 in their place afterwards."""
    pools, state, world, seen = choice(), MoveState(), standing(h100=2), []
    left = {"h100": [], "l4": []}
    for tick in range(240):
        order, state = next_order(pools, world, ahead(40.0), state, tick * 15.0)
        seen.append(dict(order.counts))
        for one in pools.variants:
            at = world[one.name]
            serving = min(at.serving, order.counts[one.name])
            new = order.counts[one.name] - serving - len(left[one.name])
            times = [t - 15.0 for t in left[one.name]] + [one.cold_start_seconds] * max(new, 0)
            serving += sum(t <= 0.0 for t in times)
            left[one.name] = [t for t in times if t > 0.0]
            world[one.name] = Standing(ordered=order.counts[one.name], serving=serving)
    # 20/s more: seven l4 for 5.6 an hour at once, then two h100 for 5.0.
    assert seen[0] == {"h100": 2, "l4": 7}
    assert seen[-1] == {"h100": 4, "l4": 0}
    changes = [b for a, b in pairwise(seen) if a != b]
    assert changes[0] == {"h100": 4, "l4": 7}
    assert len(changes) <= 3


class TestBoundedGpus:
    """Replicas that carry little must not fill the GPUs for good."""

    def test_a_bridge_leaves_room_for_what_follows(self):
        """20 GPUs carry 110/s with eleven h100 at least: nine l4 at most until they serve."""
        order = ordered(standing(h100=3, l4=5), ahead(40.0, 110.0), pools=choice(gpus_max=20))
        assert order.counts["h100"] * 10 + order.counts["l4"] * 3 >= 110
        assert sum(order.counts.values()) <= 20

    def test_full_of_slow_cards_makes_room_one_by_one(self):
        """Twenty l4 carry 60/s; two of them less and two h100 more carry 74/s."""
        pools, world, seen = choice(gpus_max=20), standing(l4=20), []
        for tick in range(12):
            order = ordered(world, ahead(70.0), pools=pools, now=tick * 300.0)
            seen.append((dict(order.counts), order.reason))
            world = standing(**order.counts)
        assert seen[0] == ({"h100": 0, "l4": 19}, MoveReason.MAKES_ROOM)
        assert seen[1][0] == {"h100": 1, "l4": 19}
        final = seen[-1][0]
        assert final["h100"] * 10 + final["l4"] * 3 >= 70
        assert all(sum(counts.values()) <= 20 for counts, _ in seen)

    def test_no_more_leaves_while_the_first_starts(self):
        """A cold start."""
        starting = Standing(ordered=1, serving=0)
        order = ordered(standing(h100=starting, l4=19), ahead(80.0), pools=choice(gpus_max=20))
        assert order.counts == {"h100": 1, "l4": 19}
        assert order.reason is MoveReason.NO_ROOM
