"""A sold-out pool: the others carry what it lacks, one pod waits there, and it comes back."""

from dataclasses import replace
from functools import cache

import pytest
from tests.features.variants.choices import choice, h100, l4
from tests.features.variants.sold_out_story import lived as stormed
from tests.features.variants.sold_out_world import SLO, Market, dollars, lived
from tests.unit.policy_world import NO_PLACE, settled_context

from servingslo.estimation.pods.cold_start import LONGEST_NODE_SECONDS, ColdStartEstimate
from servingslo.estimation.sample import PodSample
from servingslo.features.variants import divider
from servingslo.features.variants.composition import SPLIT
from servingslo.features.variants.moves import DemandAhead, MoveReason, Order, Standing, next_order
from servingslo.features.variants.search import least_price_composition
from servingslo.features.variants.sold_out import (
    Shortage,
    is_placeable,
    longest_wait_seconds,
    not_coming,
    shortage,
)
from servingslo.policy.inputs import SignalProblem
from servingslo.policy.replicas.pods import read_pods
from servingslo.reasons import Reason

SPOT, DEAR = h100(name="spot", price_hourly=1.0), h100(name="dear", price_hourly=4.0)
SHORT = Standing(ordered=1, serving=1, placeable=False, sold_out=3)
QUOTA = SignalProblem(reason=Reason.QUOTA_REACHED, detail="exceeded quota: gpus")


def standing(spot=SHORT, dear=1):
    """Both pools; a number of dear replicas that all serve."""
    return {"spot": spot, "dear": Standing(ordered=dear, serving=dear)}


def order(pools, world, demand):
    """The order for a demand that stays."""
    ahead = DemandAhead(now_per_second=demand, greatest_per_second=demand)
    return next_order(pools, world, ahead, None, 1000.0)[0]


class TestOrders:
    """A replica of either pool carries 10/s, for 1 or for 4 an hour."""

    def test_what_does_not_come_is_ordered_in_the_other_pool(self):
        """Of four cheap replicas one has a card: three dear ones, at 9 more an hour."""
        pools = choice(SPOT, DEAR)
        found = order(pools, standing(dear=0), 40.0)
        assert found.counts == {"spot": 1, "dear": 3}
        assert found.reason is MoveReason.RISE
        short = shortage(pools, standing(dear=0), found.counts, 40.0)
        assert short.lacking == {"spot": 3}
        assert short.extra_hourly == pytest.approx(9.0)
        assert short.ordered("spot", 1) == 2
        assert short.ordered("dear", 3) == 3

    def test_pods_that_may_still_come_are_waited_for(self):
        """All four are ordered, and a node may come for three."""
        waiting = Standing(ordered=4, serving=1, placeable=False)
        found = order(choice(SPOT, DEAR), standing(waiting, 0), 40.0)
        assert found.counts == {"spot": 4, "dear": 0}
        assert not shortage(choice(SPOT, DEAR), standing(waiting, 0), found.counts, 40.0).lacking

    def test_no_pod_waits_where_none_is_wanted(self):
        """One cheap replica carries 10/s: the ones without a card go, and nothing is lacking."""
        found = order(choice(SPOT, DEAR), standing(dear=0), 10.0)
        assert found.counts == {"spot": 1, "dear": 0}
        assert shortage(choice(SPOT, DEAR), standing(dear=0), found.counts, 10.0) == Shortage(
            counts={"spot": 1, "dear": 0}
        )

    def test_every_pool_keeps_a_waiting_pod_while_all_are_sold_out(self):
        """Any card would help, the dear one too; there is no price for what nobody carries."""
        world = {"spot": SHORT, "dear": SHORT}
        found = order(choice(SPOT, DEAR), world, 40.0)
        assert found.counts == {"spot": 1, "dear": 1}
        assert found.reason is MoveReason.DEMAND_NOT_CARRIED
        short = shortage(choice(SPOT, DEAR), world, found.counts, 40.0)
        assert short.lacking == {"spot": 3, "dear": 1}
        assert short.extra_hourly is None

    def test_the_waiting_pod_holds_its_gpu_of_the_bound(self):
        """It may get a place at any moment: of five GPUs four are for pods that serve."""
        found = order(choice(SPOT, DEAR, gpus_max=5), standing(dear=0), 60.0)
        assert found.counts == {"spot": 1, "dear": 3}

    def test_a_minimum_of_pods_that_do_not_come_carries_nothing(self):
        """None of two has a card."""
        gone = Standing(ordered=0, serving=0, placeable=False, sold_out=2)
        found = order(choice(replace(SPOT, minimum=2), DEAR), standing(gone, 0), 20.0)
        assert found.counts == {"spot": 0, "dear": 2}

    def test_a_dear_minimum_that_does_not_come_costs_nothing_more(self):
        """Nor does it save: it is asked for."""
        pools = choice(SPOT, replace(DEAR, minimum=2))
        gone = Standing(ordered=0, serving=0, placeable=False, sold_out=2)
        world = {"spot": Standing(ordered=4, serving=4), "dear": gone}
        short = shortage(pools, world, order(pools, world, 40.0).counts, 40.0)
        assert (short.lacking, short.extra_hourly) == ({"dear": 2}, 0.0)

    def test_the_way_back_is_a_move_that_has_to_pay(self):
        """The waiting pod has got a card: nothing is sold out, and cheap pods are worth a start."""
        back = standing(Standing(ordered=2, serving=2), 3)
        found = order(choice(SPOT, DEAR), back, 40.0)
        assert found.reason is not MoveReason.RISE
        dear = choice(replace(SPOT, cold_start_seconds=14_400.0), DEAR)
        assert order(dear, back, 40.0).counts["spot"] == 2

    def test_a_slow_card_in_place_of_a_fast_one(self):
        """Next to l4, which carry 3/s, an h100 carries no more than they: 14 pods for 40/s."""
        short = Standing(ordered=1, serving=1, placeable=False, sold_out=3)
        world = {"h100": short, "l4": Standing(ordered=3, serving=3)}
        assert order(choice(h100(minimum=1), l4()), world, 40.0).counts == {"h100": 1, "l4": 13}


def pool(*, ready=1, waiting=(), refused=False, ending=0, current=4, node=None):
    """A context of a pool with a cold start of 90 s. waiting: ages of pods without a place."""
    context = settled_context()
    first = context.observation.pods[0]
    pods = (
        *(replace(first, name=f"ready-{n}") for n in range(ready)),
        *(replace(first, name=f"ending-{n}", deleting=True) for n in range(ending)),
        *(
            PodSample(name=f"waiting-{n}", age_seconds=age, unschedulable_reason=NO_PLACE)
            for n, age in enumerate(waiting)
        ),
    )
    observation = replace(
        context.observation,
        pods=pods,
        desired_replicas=current,
        problems=(QUOTA,) if refused else (),
    )
    start = ColdStartEstimate(
        mean_seconds=90.0, sample_count=3, source="measured", node_median_seconds=node
    )
    signals = replace(context.signals, serving_pods=pods[:ready])
    return replace(
        context,
        observation=observation,
        current=current,
        signals=signals,
        estimate=replace(context.estimate, cold_start=start),
        pods=read_pods(observation, signals, (), 90.0, 0.0),
    )


@pytest.mark.parametrize(
    ("facts", "lacking", "placeable"),
    [
        ({"ready": 4}, 0, True),
        ({"waiting": (89.0, 89.0, 89.0)}, 0, False),
        ({"waiting": (91.0, 1.0, 1.0)}, 3, False),
        ({"waiting": (91.0,)}, 3, False),
        ({"waiting": (399.0,), "node": 200.0}, 0, False),
        ({"waiting": (401.0,), "node": 200.0, "current": 2}, 1, False),
        ({"ready": 2, "refused": True}, 2, False),
        ({"ready": 2, "refused": True, "ending": 1}, 0, False),
        ({"ready": 4, "waiting": (500.0,)}, 0, False),
    ],
)
def test_which_replicas_do_not_come(facts, lacking, placeable):
    """Twice the wait for a node, else a cold start; a quota at once, unless its pods still end.

    One pod without a place is a rollout's, if all that are ordered have one.
    """
    context = pool(**facts)
    assert not_coming(context) == lacking
    assert is_placeable(context) is placeable


def test_a_pod_that_is_stuck_in_its_end_gives_no_place():
    """Its node is lost: it may end for ever."""
    context = pool(ready=2, refused=True, ending=1)
    pods = tuple(
        replace(pod, ready=False, unready_for_seconds=LONGEST_NODE_SECONDS + 1.0)
        if pod.deleting
        else pod
        for pod in context.observation.pods
    )
    assert not_coming(replace(context, observation=replace(context.observation, pods=pods))) == 2


@pytest.mark.parametrize(
    ("kind", "names", "safe"),
    [("Deployment", "3201", 2), ("StatefulSet", "3201", 4), ("StatefulSet", "0123", 2)],
)
def test_no_pod_that_has_a_place_is_removed_with_those_that_have_none(kind, names, safe):
    """A StatefulSet removes its highest number, whichever waits. The first two of names serve."""
    context = pool(ready=2, waiting=(401.0, 1.0))
    renamed = {
        pod.name: f"llama-{number}"
        for pod, number in zip(context.observation.pods, names, strict=True)
    }
    observation = replace(
        context.observation,
        pods=tuple(replace(pod, name=renamed[pod.name]) for pod in context.observation.pods),
    )
    signals = replace(context.signals, serving_pods=observation.pods[:2])
    context = replace(
        context,
        observation=observation,
        signals=signals,
        pods=read_pods(observation, signals, (), 90.0, 0.0),
        targets=replace(context.targets, target=replace(context.targets.target, kind=kind)),
    )
    order = Order(
        counts={"spot": 2},
        reason=MoveReason.SETTLED,
        target=least_price_composition(choice(SPOT), 20.0),
    )
    at = Standing(ordered=2, serving=2, placeable=False, sold_out=2)
    short = Shortage()
    assert divider._safe_count(choice(SPOT), order, short, {"spot": context}, "spot", at) == safe


@pytest.mark.parametrize(("node", "longest"), [(None, 90.0), (100.0, 200.0), (800.0, 900.0)])
def test_the_wait_is_that_of_nodes_once_they_were_measured(node, longest):
    """At most what a node may take at all."""
    assert longest_wait_seconds(pool(node=node)) == longest <= LONGEST_NODE_SECONDS


# Demand of four replicas. Three of four cheap ones are reclaimed and find no card; or a quota has
# cards for two when demand rises fourfold.
RECLAIM = {"cards": ((0.0, None), (500.0, 1), (1200.0, None))}
UNDER_QUOTA = {
    "cards": ((0.0, 2), (1200.0, None)),
    "refused": True,
    "rates": (10.0, 40.0),
    "initial": (1, 1),
}


@cache
def story(*, under_quota: bool) -> tuple[Market, float, float]:
    """The plan, the share of requests within objectives, and dollars."""
    market, result = lived(**(UNDER_QUOTA if under_quota else RECLAIM))
    return market, SLO.share_of(result.result), dollars(result)


@pytest.mark.parametrize("under_quota", [False, True])
def test_a_sold_out_pool_is_made_up_for_and_comes_back(under_quota):
    """The dear pool takes over; one pod waits; the cheap pool serves again when it has cards."""
    market, share, _ = story(under_quota=under_quota)
    short = [at for at, one in market.told.items() if _says(one)]
    assert short
    (step,) = [
        one for one in market.told[short[-1]].pools["dear"].steps
        if one.reason is Reason.OTHER_POOL_SHORT
    ]  # fmt: skip
    assert step.inputs["short_pool"] == "spot"
    assert step.inputs["extra_hourly"] == 3.0 * step.inputs["lacking_replicas"]
    split = SPLIT.of(market.told[short[-1]].features)
    assert split.lacking["spot"] == step.inputs["lacking_replicas"]
    before = market.told[1185.0].pools
    assert before["spot"].replicas_after == (3 if under_quota else 2)
    assert before["dear"].replicas.ready > 1
    after = market.told[1785.0].pools
    assert after["spot"].replicas.ready > before["spot"].replicas.ready
    assert after["dear"].replicas_after < before["dear"].replicas_after
    assert not _says(market.told[1785.0])
    assert share > 0.75


def _says(decision):
    steps = decision.pools["dear"].steps
    return any(one.reason is Reason.OTHER_POOL_SHORT for one in steps)


@pytest.mark.acceptance
@pytest.mark.parametrize("under_quota", [False, True])
def test_without_it_pods_that_never_come_are_waited_for(under_quota, monkeypatch):
    """What it is for: a tenth to a half of the requests miss, for a few dollars less."""
    monkeypatch.setattr(divider, "not_coming", lambda _context: 0)
    _, share, cost = story.__wrapped__(under_quota=under_quota)
    _, kept, more = story(under_quota=under_quota)
    assert share < kept - 0.05
    assert cost < more < 2.0 * cost


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.acceptance) for n in range(1, 4))]
)
def test_a_storm_of_faults_leads_to_no_forbidden_write(seed):
    """With shortages of the cheap card in between."""
    _, wrong = stormed(seed)
    assert not wrong
