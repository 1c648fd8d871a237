"""The fluid copy of a fleet, next to a step-by-step one."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servingslo.models.fleet.fluid import (
    Replica,
    Rule,
    cheapest_floor,
    habit_of,
    live,
    wanted_replicas,
)

BIN = 30.0
ONE = Replica(
    planned_per_second=8.0,
    kept_per_second=9.0,
    saturation_per_second=10.0,
    lead_seconds=120.0,
    wait_seconds=0.5,
)
RATES = st.lists(st.floats(0.0, 200.0), min_size=8, max_size=80).map(np.array)
RULES = st.builds(
    Rule,
    st.sampled_from((0.0, 60.0, 300.0)),
    st.sampled_from((1.0, 1.3)),
    st.integers(0, 12),
)


def missed_step_by_step(rule, rates):
    """The share of requests that miss, from a loop over bins that keeps a queue."""
    lead = math.ceil(ONE.lead_seconds / BIN)
    ordered, backlog, was_late, missed = [], 0.0, False, 0.0
    for place, rate in enumerate(rates):
        known = np.concatenate((rates[:1], rates[:place]))
        ordered.append(wanted_replicas(rule, known, ONE, BIN))
        serving = min(ordered[-lead:])
        backlog = max(backlog + (rate - serving * ONE.saturation_per_second) * BIN, 0.0)
        late = backlog > ONE.wait_seconds * serving * ONE.saturation_per_second + 1e-7
        beyond = (rate / serving - ONE.kept_per_second) / (10.0 - 9.0)
        missed += rate * (1.0 if late or was_late else min(max(beyond, 0.0), 1.0))
        was_late = late
    return missed / max(sum(rates), 1e-9), sum(ordered) / len(ordered)


@given(rule=RULES, rates=RATES)
def test_the_copy_equals_a_queue_lived_step_by_step(rule, rates):
    """The vectorized copy misses what a loop over the bins misses, and orders as many."""
    lived = live(rule, rates, ONE, BIN)
    missed, ordered = missed_step_by_step(rule, rates)
    assert math.isclose(lived.mean_replicas, ordered)
    assert math.isclose(lived.missed_ratio, missed, rel_tol=1e-6, abs_tol=1e-3)


@given(window=st.sampled_from((0.0, 60.0, 600.0)), rates=RATES)
def test_the_floor_is_the_least_that_keeps_the_share(window, rates):
    """One replica fewer would miss more than allowed."""
    found = cheapest_floor(Rule(window, 1.0), rates, ONE, BIN, most_missed=0.01)
    if found.habitual_ratio <= 0.01 and found.rule.floor > 0:
        less = live(found.rule._replace(floor=found.rule.floor - 1), rates, ONE, BIN)
        assert less.habitual_ratio > 0.01


def bursts(*begins, minutes=300, low=8.0, high=80.0, lasts=5):
    """Rates by bin: a low level, and bursts of some minutes that begin at these minutes."""
    minute = np.arange(minutes * 2) / 2.0
    inside = np.zeros(len(minute), dtype=bool)
    for begin in begins:
        inside |= (minute >= begin) & (minute < begin + lasts)
    return np.where(inside, high, low)


def test_what_came_once_is_no_habit():
    """A single burst asks for no floor; three ask for what the burst needs."""
    plain = Rule(0.0, 1.0)
    once = cheapest_floor(plain, bursts(100), ONE, BIN, most_missed=0.005)
    often = cheapest_floor(plain, bursts(60, 150, 240), ONE, BIN, most_missed=0.005)
    assert (once.rule.floor, once.habitual_ratio) == (0, 0.0)
    assert once.missed_ratio > 0.05
    assert often.rule.floor >= 8
    assert often.habitual_ratio <= 0.005


def test_a_burst_is_a_habit_until_its_return_is_overdue():
    """One that has just ended asks for a floor, and so does one that others followed in time."""
    plain, open_seconds = Rule(0.0, 1.0), 1_200.0
    found = []
    for begins in ((280,), (200,), (245, 262, 280), (50, 280)):
        rates = bursts(*begins)
        habit = habit_of(rates, ONE, BIN, open_seconds).begins
        floor = cheapest_floor(plain, rates, ONE, BIN, most_missed=0.005, habit=habit).rule.floor
        found.append((habit, floor >= 8))
    assert found == [(560, True), (600, False), (490, True), (560, True)]
