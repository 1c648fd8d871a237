"""Pods that vanish without us: how often, how many on top, and in which pool."""

import json

import pytest
from tests.variant_choices import EVEN, choice, h100, l4

from servingslo.estimation.sample import PodSample
from servingslo.policy.pools.variants.losses import (
    LOSSES,
    LossEstimate,
    LossSample,
    LossState,
    loss_estimate,
    observe_losses,
    spare_counts,
    with_spare,
)
from servingslo.policy.pools.variants.search import least_price_composition

TICK = 15.0
START = 360.0


def pods(names, *, starting=(), deleting=()):
    """Ready pods, and others."""
    return (
        *(PodSample(name=name, ready=True) for name in names),
        *(PodSample(name=name) for name in starting),
        *(PodSample(name=name, ready=True, deleting=True) for name in deleting),
    )


def seen(*ticks, state=None, start=0.0, step=TICK):
    """The state after ticks of (pods, count of the target), or of a sample's fields."""
    state = state or LossState()
    for index, tick in enumerate(ticks):
        found, desired, *rollout = tick
        state = observe_losses(
            state,
            LossSample(
                time_seconds=start + index * step,
                pods=found,
                desired=desired,
                rollout=bool(rollout),
                cold_start_seconds=START,
            ),
        )
    return state


class TestCounted:
    """What is a loss, and what is not."""

    @pytest.mark.parametrize(
        ("after", "lost"),
        [
            pytest.param((pods("abc"), 3), 0, id="all there"),
            pytest.param((pods("ab"), 3), 1, id="one is gone"),
            pytest.param((pods("ab", starting="d"), 3), 1, id="one is replaced"),
            pytest.param((pods("ab", deleting="c"), 3), 1, id="one is being deleted"),
            pytest.param((pods("ab", starting="c"), 3), 0, id="one is unready"),
            pytest.param((pods("ab"), 2), 0, id="we wanted one less"),
            pytest.param((pods("a"), 2), 1, id="we wanted one less and two are gone"),
            pytest.param((pods("de"), 3, True), 0, id="a rollout replaces them"),
            pytest.param((pods("ab"), None), 1, id="the count was not read, and did not fall"),
            pytest.param(((), 3), 3, id="all are gone"),
        ],
    )
    def test_losses_of_three(self, after, lost):
        """Ready pods a, b and c; the target's count was 3."""
        assert seen((pods("abc"), 3), after).losses == pytest.approx(lost)

    def test_a_lower_count_explains_pods_that_leave_later(self):
        """The controller takes a tick; pods beyond the count are its to remove."""
        state = seen((pods("abcd"), 4), (pods("abcd"), 2), (pods("abc"), 2), (pods("ab"), 2))
        assert state.losses == 0.0

    def test_starting_pods_that_are_removed_first_are_no_losses(self):
        """A count from 4 to 3 ends the pod that starts."""
        assert seen((pods("abc", starting="d"), 4), (pods("abc"), 3)).losses == 0.0

    def test_a_gap_is_not_counted(self):
        """Ten minutes without a look: neither pods nor hours."""
        state = seen((pods("abc"), 3), (pods("a"), 3), step=600.0)
        assert (state.losses, state.pod_hours) == (0.0, 0.0)

    def test_a_clock_that_goes_back_is_not_counted(self):
        """As a gap."""
        state = seen((pods("abc"), 3), (pods("a"), 3), step=-15.0)
        assert (state.losses, state.pod_hours) == (0.0, 0.0)

    def test_hours_are_those_of_ready_pods(self):
        """Three for a minute."""
        state = seen(*[(pods("abc"), 3)] * 5)
        assert state.pod_hours == pytest.approx(3 * 60 / 3600, rel=1e-3)

    def test_evidence_is_halved_in_a_day(self):
        """Ten losses, and a day without any."""
        state = LossState(losses=10.0, pod_hours=20.0, time_seconds=0.0)
        state = seen(*[((), 0)] * 576, state=state, start=150.0, step=150.0)
        assert state.losses == pytest.approx(5.0, rel=1e-3)
        assert state.pod_hours == pytest.approx(10.0, rel=1e-3)


class TestEstimated:
    """Worked numbers."""

    def test_the_prior_orders_nothing(self):
        """A loss in a hundred hours, and no replica for it however large the pool."""
        found = loss_estimate(LossState(), serving=500, cold_start_seconds=600.0)
        assert found.losses_per_pod_hour == pytest.approx(0.01)
        assert found.source == "prior"
        assert found.spare == 0

    def test_losses_an_hour_times_cold_start_are_missing(self):
        """Ten pods, a loss of each in two hours, starts of six minutes: half a pod is missing."""
        state = LossState(losses=499.5, pod_hours=950.0)
        found = loss_estimate(state, serving=10, cold_start_seconds=START)
        assert found.losses_per_hour == pytest.approx(5.0)
        assert found.missing == pytest.approx(0.5)
        assert found.spare == 1
        assert found.source == "measured"

    def test_rare_losses_order_nothing(self):
        """One in a month of ten pods."""
        state = LossState(losses=1.0, pod_hours=7200.0)
        assert loss_estimate(state, serving=10, cold_start_seconds=START).spare == 0

    def test_many_missing_are_rounded_up(self):
        """2.4 on average."""
        state = LossState(losses=499.5, pod_hours=950.0)
        assert loss_estimate(state, serving=48, cold_start_seconds=START).spare == 3

    def test_a_measured_rate_is_found(self):
        """Poisson losses of a twentieth an hour of each of twenty pods, over two days."""
        names = [f"p{n}" for n in range(20)]
        lost, ticks = 0, []
        for index in range(int(48 * 3600 / 300)):
            if index % 12 == 5:
                lost += 1
                names = [*names[1:], f"n{lost}"]
            ticks.append((pods(names), 20))
        found = loss_estimate(seen(*ticks, step=300.0), 20, START)
        assert found.losses_per_hour == pytest.approx(1.0, rel=0.1)


class TestVanishes:
    """A pool that can be gone at once."""

    def test_half_of_a_pool_within_a_cold_start(self):
        """Four, three, two of four."""
        state = seen((pods("abcd"), 4), (pods("abc"), 4), (pods("ab"), 4))
        assert state.burst_ratio == pytest.approx(0.5, rel=1e-3)
        assert loss_estimate(state, 4, START).vanishes

    def test_one_at_a_time_does_not(self):
        """A single pod of two is half of it, and no burst."""
        state = seen((pods("ab"), 2), (pods("a"), 2))
        assert not loss_estimate(state, 2, START).vanishes

    def test_losses_of_different_hours_do_not_add(self):
        """More than a cold start apart."""
        state = seen((pods("abcd"), 4), (pods("abc"), 4))
        state = seen(*[(pods("abcd"), 4)] * 3, (pods("abc"), 4), state=state, start=200.0, step=200)
        assert state.losses == pytest.approx(2.0, rel=1e-2)
        assert not loss_estimate(state, 4, START).vanishes

    def test_it_may_be_stated(self):
        """Spot capacity by the pool's own spec."""
        assert loss_estimate(LossState(), 4, START, stated=True).vanishes

    def test_a_burst_is_forgotten(self):
        """By half in a day."""
        state = LossState(burst_ratio=0.9, time_seconds=0.0)
        state = seen(*[((), 0)] * 576, state=state, start=150.0, step=150.0)
        assert state.burst_ratio == pytest.approx(0.45, rel=1e-3)


def estimate(missing=0.0, *, vanishes=False, often=0.1):
    """Losses of a pool."""
    return LossEstimate(
        losses_per_pod_hour=often,
        losses_per_hour=often * 10,
        missing=missing,
        vanishes=vanishes,
        source="measured" if missing else "prior",
    )


NONE = estimate()
COUNTS = {"h100": 2, "l4": 6}


class TestPlaced:
    """Where the replicas on top are ordered: an h100 carries 10/s, an l4 3/s."""

    def test_in_the_pool_itself(self):
        """Pods of it are lost one at a time."""
        spare = spare_counts(choice(), COUNTS, {"h100": NONE, "l4": estimate(1.2)})
        assert spare.counts == {"h100": 0, "l4": 2}
        assert spare.moved == {}

    def test_half_elsewhere_if_it_can_vanish(self):
        """Two of four l4 carry 6/s: one h100."""
        spare = spare_counts(choice(), COUNTS, {"h100": NONE, "l4": estimate(3.5, vanishes=True)})
        assert spare.counts == {"h100": 1, "l4": 2}
        assert spare.moved == {"l4": "h100"}

    def test_a_single_one_is_elsewhere(self):
        """It would vanish with the others."""
        spare = spare_counts(choice(), COUNTS, {"h100": NONE, "l4": estimate(0.5, vanishes=True)})
        assert spare.counts == {"h100": 1, "l4": 0}

    def test_as_many_as_carry_the_same(self):
        """One h100 is four l4."""
        spare = spare_counts(choice(), COUNTS, {"l4": NONE, "h100": estimate(0.5, vanishes=True)})
        assert spare.counts == {"h100": 0, "l4": 4}

    def test_in_the_pool_that_is_lost_least_if_all_can_vanish(self):
        """Not where it is lost most often."""
        pools = choice(h100(), l4(), h100(name="h200", price_hourly=9.0))
        counts = {"h100": 2, "l4": 6, "h200": 1}
        spare = spare_counts(
            pools,
            counts,
            {
                "l4": estimate(0.5, vanishes=True, often=0.5),
                "h100": estimate(vanishes=True, often=0.2),
                "h200": estimate(vanishes=True, often=0.1),
            },
        )
        assert spare.moved == {"l4": "h200"}

    def test_alone_it_stays(self):
        """No other pool."""
        spare = spare_counts(choice(l4()), {"l4": 6}, {"l4": estimate(0.5, vanishes=True)})
        assert spare.counts == {"l4": 1}

    def test_a_pool_without_replicas_gets_them_only_by_load(self):
        """Evenly by pod the first l4 would lower what three h100 carry."""
        estimates = {"l4": NONE, "h100": estimate(0.5, vanishes=True)}
        counts = {"h100": 3, "l4": 0}
        assert spare_counts(choice(), counts, estimates).counts == {"h100": 0, "l4": 4}
        assert spare_counts(choice(split=EVEN), counts, estimates).counts == {"h100": 1, "l4": 0}

    def test_on_top_of_what_carries_the_demand(self):
        """32/s: two and four, and two l4 on top."""
        spare = spare_counts(choice(), COUNTS, {"h100": NONE, "l4": estimate(1.2)})
        composition = least_price_composition(with_spare(choice(), spare), 32.0)
        assert composition.counts == {"h100": 2, "l4": 6}

    def test_the_part_elsewhere_is_ordered_too(self):
        """In a pool that would have none."""
        estimates = {"l4": NONE, "h100": estimate(0.5, vanishes=True)}
        spare = spare_counts(choice(), {"h100": 3, "l4": 0}, estimates)
        composition = least_price_composition(with_spare(choice(), spare), 30.0)
        assert composition.counts == {"h100": 3, "l4": 4}


def test_what_survives_a_restart():
    """Rates; pods are looked at again."""
    state = seen((pods("abcd"), 4), (pods("ab"), 4))
    back = LOSSES.load(json.loads(json.dumps(LOSSES.dump(state))))
    assert back.losses == pytest.approx(state.losses, rel=1e-3)
    assert (back.ready, back.time_seconds) == ((), None)
    assert LOSSES.load([-1.0, 0.0, 0.0]) is None
