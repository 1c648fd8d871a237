"""What is known of a mix: verdicts follow from other loads, and are those of an evaluation."""

import math
from dataclasses import replace

import pytest
from policy_world import Run, World
from tests.benchmarks.run import TARGETS
from tests.sizing_cases import case

from servingslo.models.latency import LatencyMetric, Objective, Routing
from servingslo.policy.candidates import Candidates, Load
from servingslo.policy.inputs import Limits
from servingslo.policy.known import CLOSE_RATIO, MOST_POINTS, Known, Recall
from servingslo.policy.planner import plan
from servingslo.policy.state import PlannerState

ASKED = "ttft:p99", 4, Routing.POOLED
TTFT = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.5)
TICKS_SECONDS = 450.0


def recall(*points):
    """What is known after these pairs of a rate and seconds."""
    return Recall(Known(points={ASKED: points}))


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        pytest.param([], None, id="nothing-known"),
        pytest.param([(12.0, 0.4)], True, id="holds-at-a-higher-rate"),
        pytest.param([(12.0, 0.7)], None, id="fails-at-a-higher-rate"),
        pytest.param([(8.0, 0.7)], False, id="fails-at-a-lower-rate"),
        pytest.param([(8.0, 0.4)], None, id="holds-at-a-lower-rate"),
        pytest.param([(12.0, 0.495)], None, id="holds-by-less-than-the-noise"),
        pytest.param([(8.0, 0.505)], None, id="fails-by-less-than-the-noise"),
        pytest.param([(8.0, 0.7), (12.0, 0.4)], None, id="contradiction"),
    ],
)
def test_a_verdict_follows_from_other_rates(points, verdict):
    """What held at more holds at less, what failed at less fails at more, beyond the noise."""
    assert recall(*points).within(ASKED, 10.0, 0.5) is verdict


@pytest.mark.parametrize(
    ("points", "seconds"),
    [
        pytest.param([(10.0, 0.4)], 0.4, id="the-same-rate"),
        pytest.param([(9.0, 0.4), (11.0, 0.404)], 0.402, id="between-two"),
        pytest.param([(9.0, 0.4)], None, id="beyond"),
        pytest.param([(9.0, 0.4), (11.0, 0.5)], None, id="far-apart"),
    ],
)
def test_a_percentile_is_told_between_two_that_are_close(points, seconds):
    """On the line between them; nothing is told beyond what is known, or of what is far apart."""
    told = recall(*points).seconds(ASKED, 10.0)
    assert told == (None if seconds is None else pytest.approx(seconds))


def test_those_far_away_are_forgotten_and_what_is_no_number_is_not_kept():
    """As many are kept as a mix lasts, next to the last; what was known stays as it was."""
    before = Known()
    learning = Recall(before)
    learning.add(ASKED, 1.0, math.inf)
    assert not learning.changed
    for rate in (5.0, *range(1, MOST_POINTS), 0.5, 0.75):
        learning.add(ASKED, float(rate), 0.1)
    kept = [rate for rate, _ in learning.known.points[ASKED]]
    assert kept == [0.5, 0.75, *range(1, MOST_POINTS - 1)]
    assert not before.points


def test_candidates_evaluate_nothing_that_other_loads_tell():
    """A verdict that follows needs no prediction, and one that was evaluated is known after."""
    shared = Recall(Known())
    sizing_case = case(TTFT)
    busy = Candidates(sizing_case, Load(rate_per_second=30.0), shared)
    calm = Candidates(sizing_case, Load(rate_per_second=20.0), shared)
    plain = Candidates(sizing_case, Load(rate_per_second=20.0))
    assert busy.recalled(TTFT, 6) is None
    assert busy.meets(TTFT, 6)
    assert calm.recalled(TTFT, 6) is True
    assert calm.recalled(TTFT, 5) is None
    assert calm.meeting(TTFT, [5, 6]) == plain.meeting(TTFT, [5, 6])


def test_decisions_are_those_of_a_planner_that_evaluates_everything():
    """Tick by tick the counts, needs and bounds are the same, and what is told is as near."""
    world = World(rate=lambda at: 16.0 + 5.0 * math.sin(at / 100.0), replicas=8)
    seen = Run(world, TARGETS, Limits()).until(TICKS_SECONDS).observations
    remembering = forgetful = PlannerState()
    for observation in seen:
        at = observation.time_seconds
        found, remembering = plan(observation, TARGETS, Limits(), remembering, at)
        exact, forgetful = plan(observation, TARGETS, Limits(), forgetful, at)
        if forgetful.mix is not None:
            forgetful = replace(forgetful, mix=replace(forgetful.mix, known=Known()))
        for told, evaluated in zip(found.objectives, exact.objectives, strict=True):
            expected = evaluated.predicted_seconds
            close = None if expected is None else pytest.approx(expected, rel=2.0 * CLOSE_RATIO)
            assert told.predicted_seconds == close
        assert replace(found, objectives=()) == replace(exact, objectives=())
    assert remembering.mix.known.points
