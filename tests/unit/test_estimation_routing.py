"""What is concluded of routing where fleets grow in bursts, and how it is learnt anew."""

import numpy as np
import pytest
from estimation_fleet import SimulatedFleet

from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.requests.routing import LARGEST_LOG_ODDS, RoutingState, learn_routing
from servingslo.models.fleet.latency import Routing as Learnt
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.traces.workloads import (
    LengthSource,
    RateCourse,
    constant,
    generated,
    uniform_lengths,
)

TALK = uniform_lengths((200, 2_000), (50, 400))
DOCUMENTS = uniform_lengths((1_000, 4_000), (10, 60))
# Rest that one replica carries, a burst for twelve of them, and half as much after it.
COURSE = RateCourse(
    times_seconds=(0.0, 300.0, 300.0, 600.0, 600.0, 1200.0),
    rates_per_second=(1.5, 1.5, 30.0, 30.0, 15.0, 15.0),
)
GROWN_SECONDS = 420.0
FIRST, GROWN = 1, 12


def concluded(routing: Routing, lengths: LengthSource) -> list[Learnt]:
    """What is concluded at every tick of a burst; others come two minutes after its begin."""
    fleet = SimulatedFleet(kind=engine_kind("l4-small"), replicas=FIRST, routing=routing)
    trace = generated(COURSE, lengths, np.random.default_rng(5))

    def grow(now: float) -> None:
        if now == GROWN_SECONDS:
            for number in range(FIRST, GROWN):
                fleet.add(f"pod-{number}", now)

    state, found = EstimatorState(), []
    for sample in fleet.run(
        trace.arrival_seconds,
        trace.prompt_tokens,
        trace.output_tokens,
        until=trace.duration_seconds,
        at_tick=grow,
    ):
        state, estimate = update(state, sample)
        found.append(estimate.routing)
    return found


@pytest.mark.parametrize("lengths", [TALK, DOCUMENTS], ids=["talk", "documents"])
def test_new_pods_beside_a_backlog_are_no_random_routing(lengths: LengthSource) -> None:
    """What waits at the old pods runs there for minutes, while the new ones fill up."""
    assert set(concluded(Routing.LEAST_LOADED, lengths)) == {Learnt.POOLED}


def test_random_routing_is_found_after_a_burst() -> None:
    """The backlog says nothing, and what comes after it does."""
    assert concluded(Routing.RANDOM, TALK)[-1] is Learnt.RANDOM


def test_a_wrong_conclusion_is_unlearnt_within_minutes_at_little_load() -> None:
    """Two run at each engine of a fleet whose routing was taken for random."""
    fleet = SimulatedFleet(kind=engine_kind("l4-small"), replicas=8)
    trace = generated(constant(4.0, 240.0), TALK, np.random.default_rng(5))
    taken = RoutingState(log_odds=LARGEST_LOG_ODDS, random=True)
    for sample in fleet.run(
        trace.arrival_seconds, trace.prompt_tokens, trace.output_tokens, until=240.0
    ):
        engines = [(pod, engine) for pod in sample.pods for engine in pod.engines]
        taken = learn_routing(taken, engines, 0.2, sample.time_seconds, steady=True)
    assert not taken.random
