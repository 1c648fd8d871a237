"""The share of answered requests: counted, reported, remembered, and never sized by."""

from dataclasses import replace

import pytest
from tests.unit import api_cases
from tests.unit.classed_world import WITH, story
from tests.unit.policy_world import REPLICAS_ONLY, World, steady
from tests.unit.world_gateway import behind_gateway

from servingslo.adapters.gauges import metric_samples
from servingslo.api.convert import fleet_from_spec, targets_from_spec
from servingslo.controller.reporting.status import status_fields
from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.features.availability.answers import (
    MEMORY,
    REPORT,
    TARGET,
    AvailabilityTargets,
    availability_report,
    count_answers,
)
from servingslo.features.availability.text import availability_lines
from servingslo.policy.inputs import Limits
from servingslo.policy.planner import plan
from servingslo.policy.replicas.promise import PromiseState, after_window, misses_of
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stored_state import learned, lost_parts, restore
from servingslo.reasons import Reason

DAY_SECONDS = 86_400.0
ASKED = {TARGET.name: AvailabilityTargets(target_ratio=0.999)}
STATED = replace(REPLICAS_ONLY, features=ASKED)


def ledger(**rates: float | None) -> RequestLedger:
    """Ten requests a second, of which these end so."""
    known = {f"{name}_per_second": rate for name, rate in rates.items()}
    return RequestLedger(
        reason=Reason.GATEWAY_COUNTS, offered_per_second=10.0, admitted_per_second=10.0, **known
    )


def counted(*ledgers: RequestLedger) -> PromiseState:
    """After ticks of 15 s with these."""
    state = PromiseState()
    for tick, one in enumerate(ledgers):
        state = count_answers(
            state, one, period_seconds=DAY_SECONDS, now_seconds=1000.0 + 15.0 * tick
        )
    return state


def test_refused_failed_and_aborted_requests_are_not_answered() -> None:
    """One of each in ten a second: seven of ten are answered."""
    bad = ledger(refused=1.0, failed=1.0, aborted=1.0)
    state = counted(*[bad] * 5)
    report = availability_report(state, bad, target_ratio=0.999, period_seconds=DAY_SECONDS)
    assert report.answered_ratio == pytest.approx(0.7)
    assert report.observed_seconds == 60.0
    assert report.uncounted == ()


def test_what_no_one_counts_is_named() -> None:
    """A share of what is counted is not passed off as the whole."""
    half = ledger(refused=None, failed=None, aborted=0.5)
    report = availability_report(
        counted(half, half), half, target_ratio=0.99, period_seconds=DAY_SECONDS
    )
    (line,) = availability_lines(report)
    assert report.answered_ratio == pytest.approx(0.95)
    assert line == (
        "Availability: 95 % of requests answered, 99 % wanted, over 1m; "
        "no one counts refused and failed requests"
    )


def test_nothing_is_known_before_the_first_request_or_where_nothing_is_counted() -> None:
    """Unknown is not all."""
    silent = ledger(refused=None, failed=None, aborted=None)
    report = availability_report(
        counted(silent, silent), silent, target_ratio=0.99, period_seconds=DAY_SECONDS
    )
    assert report.answered_ratio is None
    assert report.uncounted == ("refused", "failed", "aborted")
    (line,) = availability_lines(report)
    assert line.startswith("Availability: no requests counted, 99 % wanted")


def test_it_survives_a_restart_and_a_broken_status() -> None:
    """The counts of a day are not lost with a pod; nothing is stored where none are kept."""
    known = PromiseState(requests=1e5, missed=42.0, seconds=3e4)
    stored = learned(PlannerState(features={MEMORY.name: known}), 0.0)
    assert MEMORY.of(restore(stored, 10.0).features) == known
    assert "availability" not in learned(PlannerState(), 0.0)
    broken = {**stored, "availability": {"requests": -1, "unanswered": 0, "seconds": 0}}
    assert MEMORY.of(restore(broken, 10.0).features) is None
    assert lost_parts(broken, 10.0) == ("availability",)


def test_lost_requests_lower_the_attained_share() -> None:
    """More replicas would not have answered them."""
    start = PromiseState(at_seconds=0.0)
    seen = misses_of({}, (), 5.0)
    changes = {"period_seconds": DAY_SECONDS, "now_seconds": 15.0}
    without = after_window(start, seen, **changes)
    lost = after_window(start, seen, lost=20.0, **changes)
    assert lost.missed == without.missed + 20.0
    assert lost.requests == without.requests + 20.0


def _told(targets, failed_per_second: float):
    """The decisions of a quarter of an hour, while the gateway counts so many failures."""
    world, state, found = World(steady(3.0), replicas=3), PlannerState(), []
    for tick in range(1, 61):
        at = 15.0 * tick
        sample = behind_gateway(world, lambda _at: 0.01)
        instance = replace(sample.instances[0], errors_total=failed_per_second * at)
        observation = replace(world.observe(at), gateway=replace(sample, instances=(instance,)))
        decision, state = plan(observation, targets, Limits(), state, at)
        found.append(decision)
        if decision.apply_replicas:
            world.scale(decision.replicas_after)
    return found


def test_a_plan_reports_it_and_orders_nothing_for_it() -> None:
    """A third of the requests fails: status and gauges say so, the counts are the same."""
    failing, well = _told(STATED, 1.0), _told(STATED, 0.0)
    assert [d.replicas_after for d in failing] == [d.replicas_after for d in well]
    last = failing[-1]
    assert REPORT.of(last.features).answered_ratio == pytest.approx(1.0 - 1.0 / 3.0, abs=0.06)
    fields = status_fields(last, generation=1, last_batch_change_seconds=None)
    assert fields["availability"]["met"] is False
    assert fields["availability"]["target"] == 0.999
    assert REPORT.of(well[-1].features).answered_ratio == 1.0
    samples = metric_samples(last)
    outcomes = {
        s.labels["outcome"]: s.value for s in samples if s.name == "servingslo_requests_per_second"
    }
    assert outcomes["failed"] == pytest.approx(1.0)
    assert {s.name for s in samples} >= {
        "servingslo_availability_ratio", "servingslo_availability_target_ratio",
    }  # fmt: skip


def test_without_an_objective_nothing_of_it_is_reported() -> None:
    """Neither in the decision nor in the status nor in the gauges."""
    last = _told(REPLICAS_ONLY, 1.0)[-1]
    assert REPORT.of(last.features) is None
    assert status_fields(last, generation=1, last_batch_change_seconds=None)["availability"] is None
    assert "servingslo_availability_ratio" not in {s.name for s in metric_samples(last)}


@pytest.mark.parametrize("name", ["chat", "job"])
def test_availability_is_of_the_classes_that_order_replicas(name):
    """A tenth of all requests fails: chat's count, the job's do not."""
    told = story(replace(WITH, features=ASKED), failed_per_second={name: 0.8})
    told.until(900.0)
    report = REPORT.of(told.decisions[-1].features)
    assert report.uncounted == ()
    assert report.answered_ratio == pytest.approx(0.8 if name == "chat" else 1.0, abs=0.06)


def test_the_objective_is_a_ratio_and_is_counted_by_one_pool_alone() -> None:
    """A share in percent; of prefill and decode, the pool that the route is read for has it."""
    assert TARGET.of(targets_from_spec(api_cases.changed({})).features) == ASKED[TARGET.name]
    fleet = fleet_from_spec(api_cases.changed({"availability": {"target": "99.9%"}}, "pooled"))
    asked = {pool.name: TARGET.of(pool.targets.features) for pool in fleet.pools}
    assert asked == {"prefill": None, "decode": ASKED[TARGET.name]}
