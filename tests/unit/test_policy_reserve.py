"""The reserve: what the workload's own past asks for."""

import re
from dataclasses import replace

import pytest
from tests.unit.policy_world import REPLICAS_ONLY, Run, World, steady, stepped

from servingslo.controller.reporting.status import status_fields
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.requests.misses import Misses
from servingslo.models.fleet.fluid import Lived, Rule
from servingslo.policy.inputs import ForecastMode, ForecastTargets, Limits
from servingslo.policy.replicas.reserve_state import ReserveState, correction_ratio, count_misses
from servingslo.reasons import Constraint, Reason

LOW, HIGH = 2.0, 12.0


def past(*begins, lasts=6):
    """A day by minutes: a low rate, and bursts of some minutes at these minutes before its end."""
    rates = [LOW] * 1440
    for begin in begins:
        rates[1440 - begin : 1440 - begin + lasts] = [HIGH] * lasts
    fine = RateHistory(start_seconds=-86_400.0, bin_seconds=60.0, rates_per_second=tuple(rates))
    coarse = tuple(sum(rates[i : i + 5]) / 5 for i in range(0, 1440, 5))
    return RateHistory(
        start_seconds=-86_400.0, bin_seconds=300.0, rates_per_second=coarse, recent=fine
    )


def lived(history, targets=REPLICAS_ONLY):
    """Ten minutes at the low rate with this past."""
    world = World(rate=steady(LOW), replicas=2, history=history)
    return Run(world, targets, Limits()).until(600.0)


def test_bursts_that_return_are_waited_for():
    """A burst every hour keeps what it needs ready, in the first minutes of a new resource."""
    run = lived(past(*range(60, 1440, 60)))
    calm = lived(past())
    assert run.world.desired > calm.world.desired
    step = next(d for d in run.decisions if d.reason is Reason.RESERVE_BOUND)
    numbers = {name: value for one in step.steps for name, value in one.inputs.items()}
    needs = {need.constraint: need.replicas for need in step.needs}
    assert needs[Constraint.RESERVE] == step.replicas_after == run.world.desired
    assert numbers["reserve_missed_ratio"] <= 0.005
    told = status_fields(step, generation=1, last_batch_change_seconds=None)["reserve"]
    assert told["missed"] < told["cheaperMissed"]
    assert told["cheaperMeanReplicas"] < told["meanReplicas"]
    assert re.fullmatch(r"(greatest rate of \w+|rate at the lead time) x .*replicas", told["rule"])
    calm_status = status_fields(calm.decisions[-1], generation=1, last_batch_change_seconds=None)
    assert calm_status["reserve"] is None


def test_a_forecast_that_is_off_has_no_reserve():
    """Who asks for present demand gets it, whatever the past."""
    off = replace(REPLICAS_ONLY, forecast=ForecastTargets(mode=ForecastMode.OFF))
    run = lived(past(*range(60, 1440, 60)), off)
    assert all(d.reason is not Reason.RESERVE_BOUND for d in run.decisions)
    assert run.world.desired <= 2


def test_a_burst_of_its_own_minutes_is_kept_for_until_its_return_is_overdue():
    """Without any past: for five leads after it, and no longer."""
    world = World(rate=stepped((0, LOW), (600, HIGH), (840, LOW)), replicas=2)
    run = Run(world, REPLICAS_ONLY, Limits()).until(2100.0)
    needed = max(d.replicas_after for d in run.decisions)
    kept = [d for d in run.decisions if 1000.0 < d.time_seconds < 1150.0]
    late = [d for d in run.decisions if d.time_seconds > 1800.0]
    assert min(d.replicas_after for d in kept) >= 4
    assert needed >= 4
    assert max(d.replicas_after for d in late) <= 2


@pytest.mark.parametrize("history", [None, past(), past(700)])
def test_calm_and_what_came_once_cost_nothing(history):
    """Without a habit of bursts the count is that of demand."""
    run = lived(history)
    assert all(d.reason is not Reason.RESERVE_BOUND for d in run.decisions)
    assert run.world.desired <= 2


def test_the_attained_share_corrects_the_copy():
    """A copy that says ten times too many misses is believed less the longer both are seen."""
    rule = Lived(rule=Rule(0.0, 1.0), missed_ratio=0.05, habitual_ratio=0.05, mean_replicas=2.0)
    state, found = ReserveState(lived=rule), []
    for _ in range(12):
        for _ in range(60):
            state = count_misses(
                state,
                Misses(requests=600.0, least=0.0, most=0.0),
                target_ratio=0.99,
                seconds=60.0,
            )
        found.append(correction_ratio(state, 0.99))
    assert found == sorted(found, reverse=True)
    assert 0.1 <= found[-1] < 0.15 < found[0] < 0.25
    missed = replace(state, missed=50.0 * state.expected)
    assert correction_ratio(missed, 0.99) == 10.0
