"""The error budget in a plan: by its pessimistic end, small, bounded, and never at a bound."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.unit import api_cases
from tests.unit.classed_world import WITH
from tests.unit.policy_world import REPLICAS_ONLY as TARGETS
from tests.unit.policy_world import World, run, steady

from servingslo.adapters.gauges import metric_samples
from servingslo.api.convert import targets_from_spec
from servingslo.controller.recordings.recording import observation_line, observations
from servingslo.controller.reporting.status import status_fields
from servingslo.errors import InvalidInputError
from servingslo.estimation.requests.misses import Misses
from servingslo.explain.document import as_dict
from servingslo.features.error_budget.insight import PART
from servingslo.features.error_budget.report import (
    BURN_SECONDS,
    OLDEST_READING_SECONDS,
    READING,
    REPORT,
    WINDOW,
    BudgetReading,
    WindowMisses,
    budget_report,
)
from servingslo.policy.inputs import AdmissionMode, Observation, ReplicaTargets
from servingslo.policy.pools.insights import FleetInsight

WINDOW_SECONDS = 28 * 86400.0
BUDGETED = replace(
    TARGETS,
    features={WINDOW.name: WINDOW_SECONDS},
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
        time_seconds=now,
        namespace="a",
        name="b",
        features={READING.name: _reading(missed, **changes)},
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
    stated = replace(BUDGETED, stated_share_ratio=0.999)
    assert _report(0.004, stated).remaining_ratio == pytest.approx(-3.0)


def test_without_one_or_with_an_old_reading_nothing_is_reported():
    """A reading that nobody asked for, or of long ago, is none."""
    assert _report(1.0, TARGETS) is None
    assert _report(1.0, now=OLDEST_READING_SECONDS + 1) is None


class _Spent(World):
    """A world of which each observation brings a reading in which so many requests missed."""

    share = 0.0

    def observe(self, at):
        return replace(super().observe(at), features={READING.name: _reading(self.share, at)})


def _end(share, targets=BUDGETED):
    world = _Spent(rate=steady(9.0), replicas=4)
    world.share = share
    return run(world, targets).until(900).at(900.0)


def test_a_reading_of_days_moves_no_quantile():
    """What steers it is the share that was attained tick by tick; the budget sets its target."""
    calm, spent = _end(0.0), _end(0.05)
    assert spent.demand.forecast_rate_per_second == calm.demand.forecast_rate_per_second
    assert REPORT.of(spent.features).remaining_ratio < REPORT.of(calm.features).remaining_ratio


def test_a_spent_budget_lowers_no_bound():
    """What ready replicas may take in does not depend on what was missed in days."""
    calm, spent = _end(0.0), _end(0.05)
    assert spent.replicas.ready == calm.replicas.ready
    assert spent.admission.in_flight_limit >= calm.admission.in_flight_limit
    assert spent.admission.queue_limit >= calm.admission.queue_limit


def test_without_an_error_budget_readings_change_nothing():
    """Decisions are those without a reading."""
    plain = replace(BUDGETED, features={})
    assert _end(1.0, plain) == _end(0.0, plain)


def test_what_is_stated_is_the_promise_and_its_period():
    """Its own value is the window; a class keeps the share that is stated."""
    found = targets_from_spec(api_cases.changed({}))
    assert WINDOW.of(found.features) == found.promise_period_seconds == WINDOW_SECONDS
    assert found.promised_share_ratio == 0.995
    plain = targets_from_spec(api_cases.changed({"errorBudget": {"window": "7d"}}))
    assert (plain.stated_share_ratio, WINDOW.of(plain.features)) == (None, 7 * 86400.0)


def test_status_gauges_and_document_have_it():
    """The status its own field, each burn window a sample, the document the report."""
    decision = _end(0.04)
    told = status_fields(decision, generation=1, last_batch_change_seconds=None)["errorBudget"]
    assert told == {
        "remaining": 0.2, "remainingAtMost": 0.2, "fastBurn": 0.8, "slowBurn": 0.8, "covered": 1.0
    }  # fmt: skip
    rates = {
        one.labels["window"]: one.value
        for one in metric_samples(decision)
        if one.name == "servingslo_error_budget_burn_rate"
    }
    assert list(rates) == ["5m", "30m", "1h", "6h", "3d"]
    assert as_dict(decision)["errorBudget"]["coveredRatio"] == 1.0


def test_a_class_has_its_own_in_status_gauges_and_text():
    """By its own misses, and its own target where none is stated."""
    sized = replace(WITH, features={WINDOW.name: WINDOW_SECONDS})
    whole = _reading(0.01)
    last = replace(whole.windows[-1], classes={"chat": Misses(requests=100.0, least=0.0, most=1.0)})
    reading = replace(whole, windows=(*whole.windows[:-1], last))
    context = SimpleNamespace(
        targets=sized,
        observation=SimpleNamespace(features={READING.name: reading}),
        features={REPORT.name: budget_report(sized, Observation(
            time_seconds=0.0, namespace="a", name="b", features={READING.name: reading}
        ))},
    )  # fmt: skip
    chat, job = sized.classes
    left = PART.of_class(context, chat)
    assert left == pytest.approx(1.0 - 0.01 / (1.0 - chat.target_ratio))
    assert PART.of_class(context, job) is None


def test_of_several_pools_the_whole_has_it():
    """Whichever of them it was read with."""
    each = ({}, {REPORT.name: _report(0.04)})
    decisions = dict(enumerate(SimpleNamespace(features=features) for features in each))
    tick = SimpleNamespace(decisions=decisions)
    assert FleetInsight(REPORT).whole(tick, {}) == (_report(0.04), None)


def test_a_recording_has_it_and_earlier_ones_are_read():
    """They had it beside the fields of the kernel; what cannot be one is refused by its name."""
    observation = Observation(
        time_seconds=1.0, namespace="a", name="b", features={READING.name: _reading(0.04)}
    )
    line = observation_line(observation)
    assert next(observations([line])) == observation
    entry = json.loads(line)
    before = {**entry, **entry.pop("features")}
    del before["features"]
    assert next(observations([json.dumps(before)])) == observation
    without = next(observations([json.dumps({**before, READING.name: None})]))
    assert without.features == {}
    before[READING.name]["windows"] = 3
    with pytest.raises(InvalidInputError, match=r"line 1: error_budget\.windows"):
        next(observations([json.dumps(before)]))
