"""Timelines with a history: the morning is met ahead of time, and a wrong season costs little."""

from dataclasses import replace

import numpy as np
import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import Run, World
from season_world import DAY, HOUR, MONDAY, history_of, office_rate

from servingslo.policy.inputs import (
    ForecastMode,
    ForecastTargets,
    Limits,
)
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason

TODAY = MONDAY + 14 * DAY
# The rise takes six minutes around nine.
BEGIN, RISE, END = (TODAY + hour * HOUR for hour in (8.7, 8.95, 9.2))


def offices(seconds, later_hours=0.0):
    """Two requests per second at night, eighteen in office hours."""
    return office_rate(seconds, low=2.0, high=18.0, later_hours=later_hours)


def told(rate, history):
    """The story from before nine until after it."""
    world = World(
        rate=lambda t: float(rate(t)), replicas=3, now=BEGIN, cold_start=120.0, history=history
    )
    return Run(world, TARGETS, Limits()).until(END)


def within(story, start=RISE):
    """Share of the requests since then that met both objectives."""
    return story.share_within(1.0, 0.05, start=start)


def replica_hours(story):
    """What was ordered, in replica hours."""
    return sum(d.replicas_after for d in story.decisions) * 15.0 / HOUR


@pytest.fixture(scope="module")
def seasonal():
    """The morning as it is usually, with two weeks of history."""
    return told(offices, history_of(offices))


@pytest.mark.acceptance
def test_the_morning_rise_is_met_ahead_of_time(seasonal):
    """With two weeks of history replicas are ready before they are needed; without, after."""
    plain = told(offices, None)
    assert within(seasonal) > 0.97
    assert within(seasonal) > within(plain) + 0.05
    assert seasonal.at(RISE).replicas_after > plain.at(RISE).replicas_after
    expected = [
        s for d in seasonal.decisions for s in d.steps if s.reason is Reason.SEASON_EXPECTED
    ]
    assert any(step.after > step.before for step in expected)
    assert replica_hours(seasonal) < 1.2 * replica_hours(plain)


def test_what_history_holds_is_said_once(seasonal):
    """The first decision names the season, what it is found from and how much it explains."""
    steps = [s for d in seasonal.decisions for s in d.steps if s.reason is Reason.SEASON_FOUND]
    assert steps == [s for s in seasonal.decisions[0].steps if s.stage == "forecast"]
    assert steps[0].after == "weekly"
    assert steps[0].inputs["days"] == 14
    assert steps[0].inputs["explained_ratio"] > 0.9


@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(
            lambda t: offices(t, later_hours=0.1),
            id="six-minutes-late",
            marks=pytest.mark.acceptance,
        ),
        pytest.param(lambda t: offices(np.asarray(t) + 5 * DAY), id="holiday"),
    ],
)
def test_a_season_of_another_pattern_costs_no_objective(rate):
    """At most one request in a hundred more misses, for at most a fifth more replica hours."""
    plain = told(rate, None)
    misled = told(rate, history_of(offices))
    assert within(misled, BEGIN) > within(plain, BEGIN) - 0.01
    assert replica_hours(misled) < 1.2 * replica_hours(plain)


def test_a_forecast_that_is_off_plans_for_the_present(seasonal):
    """Neither season nor slope: what is planned for never runs ahead of what arrives."""
    off = replace(TARGETS, forecast=ForecastTargets(mode=ForecastMode.OFF))
    state, decisions = PlannerState(), []
    for observation in seasonal.observations:
        decision, state = plan(observation, off, Limits(), state, observation.time_seconds)
        decisions.append(decision)
    rising = [
        (now, then)
        for now, then in zip(decisions, seasonal.decisions, strict=True)
        if RISE <= now.time_seconds <= RISE + 240.0
    ]
    assert all(
        now.demand.forecast_rate_per_second < 0.9 * then.demand.forecast_rate_per_second
        for now, then in rising
    )
    assert not any(s.reason is Reason.SEASON_EXPECTED for d in decisions for s in d.steps)
