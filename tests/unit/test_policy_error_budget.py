"""The error budget in a plan: by its pessimistic end, small, bounded, and never at a bound."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import World, run, steady

from servingslo.estimation.requests.misses import BudgetReading, WindowMisses
from servingslo.policy.inputs import AdmissionMode, ErrorBudgetTargets, Observation, ReplicaTargets
from servingslo.policy.replicas.promise import (
    BURN_SECONDS,
    OLDEST_READING_SECONDS,
    budget_report,
)

WINDOW_SECONDS = 28 * 86400.0
BUDGETED = replace(
    TARGETS,
    error_budget=ErrorBudgetTargets(window_seconds=WINDOW_SECONDS),
    replicas=ReplicaTargets(minimum=1, maximum=40),
    admission_mode=AdmissionMode.RECOMMEND,
)


def _reading(missed, at=0.0, least=None):
    """A reading in which this share missed in every window, at most."""
    low = missed if least is None else least
    windows = tuple(
        WindowMisses(seconds=s, requests=1000.0, least=1000.0 * low, most=1000.0 * missed)
        for s in (*BURN_SECONDS, WINDOW_SECONDS)
    )
    return BudgetReading(time_seconds=at, windows=windows, covered_ratio=1.0)


def _report(missed, targets=BUDGETED, now=0.0, **changes):
    observation = Observation(
        time_seconds=now, namespace="a", name="b", error_budget=_reading(missed, **changes)
    )
    return budget_report(targets, observation)


def test_the_budget_is_spent_at_its_pessimistic_end():
    """5 % may miss: of 4 % that may have missed a fifth is left, of 2 % that surely did more."""
    found = _report(0.04, least=0.02)
    assert found.target_ratio == 0.95
    assert found.remaining_ratio == pytest.approx(0.2)
    assert found.remaining_most_ratio == pytest.approx(0.6)
    assert [burn.rate for burn in found.burn_rates] == pytest.approx([0.8] * len(BURN_SECONDS))


def test_a_stated_target_is_another_budget():
    """The smallest percentile stands in only where no target is stated."""
    stated = replace(BUDGETED, error_budget=ErrorBudgetTargets(target_ratio=0.999))
    assert _report(0.004, stated).remaining_ratio == pytest.approx(-3.0)


def test_without_one_or_with_an_old_reading_nothing_is_reported():
    """A reading that nobody asked for, or of long ago, is none."""
    assert _report(1.0, replace(BUDGETED, error_budget=None)) is None
    assert _report(1.0, now=OLDEST_READING_SECONDS + 1) is None


class _Spent(World):
    """A world of which each observation brings a reading in which so many requests missed."""

    share = 0.0

    def observe(self, at):
        return replace(super().observe(at), error_budget=_reading(self.share, at))


def _end(share, targets=BUDGETED):
    world = _Spent(rate=steady(9.0), replicas=4)
    world.share = share
    return run(world, targets).until(900).at(900.0)


def test_a_reading_of_days_moves_no_quantile():
    """What steers it is the share that was attained tick by tick; the budget sets its target."""
    calm, spent = _end(0.0), _end(0.05)
    assert spent.demand.forecast_rate_per_second == calm.demand.forecast_rate_per_second
    assert spent.error_budget.remaining_ratio < calm.error_budget.remaining_ratio


def test_a_spent_budget_lowers_no_bound():
    """What ready replicas may take in does not depend on what was missed in days."""
    calm, spent = _end(0.0), _end(0.05)
    assert spent.replicas.ready == calm.replicas.ready
    assert spent.admission.in_flight_limit >= calm.admission.in_flight_limit
    assert spent.admission.queue_limit >= calm.admission.queue_limit


def test_without_an_error_budget_readings_change_nothing():
    """Decisions are those without a reading."""
    plain = replace(BUDGETED, error_budget=None)
    assert _end(1.0, plain) == _end(0.0, plain)
