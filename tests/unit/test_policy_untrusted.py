"""What is ordered while the service law is not trusted yet."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import World, run, steady, stepped

from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import ReplicaTargets
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Action, Reason

# One replica of the small card saturates at 1.68 requests/s of these lengths.
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 500
SATURATION_PER_SECOND = 1.68
# Histograms of an engine come with every third tick, as of one of many engines.
TURNS = 3
OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.08),
)
HISTOGRAMS = (
    "ttft_seconds",
    "inter_token_seconds",
    "time_per_output_token_seconds",
    "latency_seconds",
    "queue_seconds",
    "prompt_tokens",
    "output_tokens",
    "iteration_tokens",
)


class EvenWorld(World):
    """Requests at even distances, histograms of the engines in turns."""

    turns = TURNS

    def _length_ratio(self):
        return 1.0

    def _arrivals(self, until):
        at = self.next_arrival
        while at <= until:
            ratio = self._length_ratio()
            self.service.offer(
                arrival=at,
                prompt_tokens=round(PROMPT_TOKENS * ratio),
                output_tokens=round(OUTPUT_TOKENS * ratio),
            )
            at += 1.0 / self.rate(at)
        self.next_arrival = at

    def observe(self, at):
        """As it is, with histograms of the engines whose turn it is."""
        observation, turn = super().observe(at), round(at / 15.0)
        pods = tuple(
            pod if (turn + place) % self.turns == 0 else _without_histograms(pod)
            for place, pod in enumerate(observation.pods)
        )
        return replace(observation, pods=pods)


class VariedWorld(EvenWorld):
    """Lengths vary by up to 80 % of their mean, and turns are rare."""

    turns = 5

    def _length_ratio(self):
        return self.random.uniform(0.2, 1.8)


def _without_histograms(pod):
    none = dict.fromkeys(HISTOGRAMS)
    return replace(pod, engines=tuple(replace(engine, **none) for engine in pod.engines))


def _targets(count):
    bounds = ReplicaTargets(maximum=3 * count)
    return replace(TARGETS, objectives=OBJECTIVES, replicas=bounds, cold_start_seconds=5.0)


def _story(count, rate):
    return run(EvenWorld(rate=rate, replicas=count, cold_start=5.0), _targets(count))


@pytest.mark.parametrize("count", [4, 7])
def test_a_constant_demand_that_is_seen_to_be_served_orders_nothing_while_laws_are_learnt(count):
    """Three quarters of saturation, every objective kept, no queue: known without a law."""
    demand = 0.85 * SATURATION_PER_SECOND * (count - 0.6)
    story = _story(count, steady(demand)).until(120)
    learning = [d for d in story.decisions if not d.model.trusted]
    assert len(learning) > 5
    assert [d.replicas_after for d in story.decisions if d.action is Action.SCALE_UP] == []


@pytest.mark.parametrize("count", [4, 7])
@pytest.mark.parametrize("seed", range(3))
def test_a_law_that_denies_what_is_seen_orders_nothing_while_it_is_learnt(count, seed):
    """It says of the load that is served that it cannot be: no reason for more."""
    demand = 0.82 * SATURATION_PER_SECOND * (count - 0.6)
    world = VariedWorld(rate=steady(demand), replicas=count, cold_start=5.0, seed=seed)
    story = run(world, _targets(count)).until(240)
    learning = [d for d in story.decisions if not d.model.trusted]
    assert len(learning) > 5
    assert [d.replicas_after for d in learning if d.action is Action.SCALE_UP] == []


def test_demand_beyond_what_is_served_is_ordered_for_without_a_law():
    """It doubles while the law is learnt: more are ordered before the law is trusted."""
    rate = stepped((0, 0.8 * SATURATION_PER_SECOND), (60, 2.4 * SATURATION_PER_SECOND))
    story = _story(2, rate).until(105)
    ups = [d for d in story.decisions if d.action is Action.SCALE_UP]
    assert ups
    assert not ups[0].model.trusted


def test_a_queue_that_nobody_stands_in_is_not_foreseen_by_a_law_of_few_windows():
    """One engine near what it can serve: the first windows of its law may say half of that."""
    world = World(
        rate=steady(1.5),
        replicas=1,
        seed=4,
        cold_start=120.0,
        prompt_median=400.0,
        output_median=600.0,
    )
    story = run(world, replace(TARGETS, replicas=ReplicaTargets(maximum=30))).until(90)
    untrusted = [
        d for d in story.decisions if not d.model.trusted and not d.demand.waiting_requests
    ]
    assert untrusted
    assert Reason.BACKLOG_BOUND not in {d.reason for d in untrusted}


@pytest.mark.parametrize(("count", "restart"), [(4, 90.0), (7, 60.0)])
def test_a_restart_orders_nothing_before_it_has_seen_how_the_count_does(count, restart):
    """Its law is not trusted yet, and how the present count does is not remembered."""
    demand = 0.85 * SATURATION_PER_SECOND * (count - 0.6)
    story = _story(count, steady(demand)).until(restart)
    assert not story.decisions[-1].model.trusted
    stored = learned(story.state, story.world.now)
    story.state = restore(stored, story.world.now + 15.0)
    story.world.advance(restart + 20.0)
    story.until(restart + 90.0)
    assert [d.replicas_after for d in story.decisions if d.action is Action.SCALE_UP] == []
