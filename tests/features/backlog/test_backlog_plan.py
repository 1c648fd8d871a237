"""A backlog in the planner: done in time, live requests first, what is reported of it."""

import math
from dataclasses import replace

import pytest
from tests.features.backlog.backlog_world import CLASSED, stated, story
from tests.unit.policy_world import REPLICAS_ONLY, steady

from servingslo.adapters.gauges import metric_samples
from servingslo.controller.reporting.status import status_fields
from servingslo.explain.events import events
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.features.backlog.deadlines import BacklogMemory, Cohort, Unit
from servingslo.features.backlog.insight import PART
from servingslo.features.backlog.report import NO_CLASS, NO_LAW, NOT_COUNTED, REPORT, SILENT
from servingslo.policy.inputs import ReplicaTargets
from servingslo.reasons import Constraint, Reason

BEGIN = 600.0


def backlog(decision):
    """What was reported of it."""
    return REPORT.of(decision.features)


@pytest.fixture(scope="module")
def told():
    """Chat at 4/s on two replicas, and work for four, due half an hour after it arrived."""
    return story(steady(4.0), {BEGIN: 12_000.0}, stated(1800.0)).until(BEGIN + 1200.0)


def test_replicas_are_ordered_for_the_deadline_and_live_requests_do_not_pay(told):
    """No more than the bound asks for; chat keeps its share, and the work is on its way."""
    ordered = next(d for d in told.decisions if d.reason is Reason.DEADLINE_BOUND)
    assert BEGIN < ordered.time_seconds <= BEGIN + 60.0
    assert ordered.binding is Constraint.DEADLINE
    assert 3 <= ordered.replicas_after <= 5
    assert told.share_within(1.0, 0.05) >= 0.95
    gone = 12_000.0 - told.left()
    assert gone >= 0.5 * 12_000.0
    assert not any(backlog(d).infeasible for d in told.decisions)


def test_a_rate_is_leased_from_the_first_trusted_law_on(told):
    """None before; then what the replicas leave, more with more of them."""
    assert backlog(told.at(15.0)).problem == NO_LAW
    assert backlog(told.at(15.0)).rate_per_second == 0.0
    before, after = backlog(told.at(BEGIN)), backlog(told.decisions[-1])
    assert 0.0 < before.rate_per_second < after.rate_per_second


def test_it_is_reported_everywhere(told):
    """Status, gauges, log line, explanation."""
    last = told.at(BEGIN + 300.0)
    report = backlog(last)
    fields = status_fields(last, generation=1, last_batch_change_seconds=None)["backlog"]
    assert fields["replicas"] == report.replicas
    assert fields["feasible"] is True
    gauges = {s.name: (s.labels, s.value) for s in metric_samples(last)}
    assert gauges["servingslo_backlog_rate_per_second"] == (
        {"unit": "requests"},
        report.rate_per_second,
    )
    assert "backlog_rate=" in log_line(last)
    assert "requests, the first due in" in text(last)


def test_an_impossible_deadline_is_said_at_once_with_the_count_that_would_do():
    """Three replicas at most: all of them are ordered, and what is late is said."""
    few = replace(CLASSED, replicas=ReplicaTargets(minimum=1, maximum=3))
    told = story(steady(4.0), {300.0: 6_000.0}, stated(900.0, targets=few)).until(330.0)
    report = backlog(told.decisions[-1])
    assert report.infeasible
    assert report.replicas == 3
    assert report.enough_replicas > 3
    assert 0.1 < report.late_ratio < 1.0
    assert "is or will be late at 3 replicas" in text(told.decisions[-1])
    assert "backlog_late=" in log_line(told.decisions[-1])


@pytest.mark.parametrize("unit", Unit)
def test_without_a_sheddable_class_nothing_is_planned(unit):
    """Live demand would not be known."""
    plain = stated(900.0, unit=unit, targets=REPLICAS_ONLY)
    told = story(steady(4.0), {0.0: 6_000.0}, plain).until(60.0)
    report = backlog(told.decisions[-1])
    assert (report.problem, report.rate_per_second, report.replicas) == (NO_CLASS, 0.0, None)
    assert f"not planned: {NO_CLASS}" in text(told.decisions[-1])


def test_without_a_backlog_nothing_is_reported():
    """Nor planned."""
    told = story(steady(4.0), targets=CLASSED).until(60.0)
    assert backlog(told.decisions[-1]) is None
    assert not [s for s in metric_samples(told.decisions[-1]) if "backlog_left" in s.name]


def test_when_work_arrived_survives_a_restart():
    """A malformed store is none."""
    memory = BacklogMemory(at_seconds=90.0, cohorts=(Cohort(arrived_seconds=30.0, left=2.5),))
    assert PART.load(PART.dump(memory), 100.0) == memory
    for bad in (None, 3, {}, {"at": 1.0, "waiting": [[1.0]]}, {"at": 1.0, "waiting": [[1, -1]]}):
        assert PART.load(bad, 100.0) is None


def test_no_stored_time_is_of_the_future():
    """A clock was ahead, or a hand wrote it: new readings count at once, and no date overflows."""
    ahead = PART.load({"at": 900.0, "waiting": [[30.0, 2.0], [1e14, 3.0]]}, 100.0)
    cohorts = (Cohort(arrived_seconds=30.0, left=2.0), Cohort(arrived_seconds=100.0, left=3.0))
    assert ahead == BacklogMemory(at_seconds=100.0, cohorts=cohorts)
    assert PART.load({"at": 1.0, "waiting": [[math.inf, 3.0]]}, 100.0) is None
    assert PART.load({"at": 1.0, "waiting": [[1.0, 10**400]]}, 100.0) is None


def test_as_much_is_done_in_time_as_is_stated():
    """What is known to be sent is noisy: that makes no work younger than it is."""
    due = 900.0
    told = story(steady(4.0), {300.0: 5_000.0}, stated(due)).until(300.0 + due)
    in_time = sum(part for arrived, sent, part in told.done if sent - arrived <= due)
    assert in_time >= 0.99 * 5_000.0
    assert max(d.replicas_after for d in told.decisions) <= 6


def test_an_exporter_that_starts_again_makes_no_work_younger():
    """For two readings nothing exports the length: the plan goes on by what waited."""
    told = story(steady(4.0), {300.0: 6_000.0}, stated(1800.0)).until(600.0)
    held, due = told.decisions[-1].replicas_after, backlog(told.decisions[-1]).due_seconds
    told.silent = True
    told.until(630.0)
    told.silent = False
    told.until(645.0)
    for decision in told.decisions[-3:]:
        report = backlog(decision)
        assert (report.problem, decision.replicas_after) == ("", held)
        assert report.left > 0.0
    assert backlog(told.decisions[-1]).due_seconds == pytest.approx(due - 45.0, abs=1.0)


def test_work_wakes_a_target_that_sleeps_until_it_is_done():
    """Without any live request; then it sleeps again."""
    asleep = ReplicaTargets(minimum=0, maximum=12, idle_seconds=60.0)
    targets = stated(3600.0, targets=replace(CLASSED, replicas=asleep))
    told = story(lambda at: 4.0 if at < 300.0 else 0.0, {900.0: 500.0}, targets).until(930.0)
    woken = next(d for d in told.decisions if d.time_seconds > 600.0 and d.replicas_after)
    assert told.at(900.0).replicas_after == 0
    assert (woken.reason, woken.time_seconds) == (Reason.DEADLINE_BOUND, 915.0)
    assert [one.constraint for one in woken.needs] == [Constraint.DEADLINE]
    told.until(1800.0)
    assert told.left() == 0.0
    assert told.decisions[-1].replicas_after == 0


def test_what_no_order_can_reach_orders_nothing():
    """The dispatcher was away until the last minute: a replica would serve too late."""
    told = story(steady(4.0), {300.0: 400.0}, stated(300.0), sends=False).until(570.0)
    report = backlog(told.decisions[-1])
    assert report.infeasible
    assert report.late_ratio > 0.5
    assert report.replicas <= 4


def test_a_dispatcher_that_is_away_is_reported_and_what_is_late_is_done_soon():
    """Replicas are ordered for it for some minutes only; it is back after the deadline."""
    told = story(steady(4.0), {300.0: 3_000.0}, stated(900.0), sends=False).until(1230.0)
    before, away = told.decisions[-2:]
    assert max(d.replicas_after for d in told.decisions) > away.replicas_after
    assert (backlog(away).problem, backlog(away).replicas) == (SILENT, None)
    assert backlog(away).rate_per_second > 0.0
    assert f"Backlog: {SILENT}" in text(away)
    first = next(d for d in told.decisions if backlog(d).problem == SILENT)
    (event,) = [e for e in events(first, None) if e.reason is Reason.DISPATCHER_SILENT]
    assert SILENT in event.message
    assert not [e for e in events(away, before) if e.reason is Reason.DISPATCHER_SILENT]
    told.sends = True
    report = backlog(told.until(1275.0).decisions[-1])
    assert (report.infeasible, report.due_seconds) == (True, 0.0)
    assert report.late_ratio == pytest.approx(1.0, abs=0.01)
    assert report.enough_replicas is None
    assert "the first late: " in text(told.decisions[-1])
    assert told.until(1275.0 + 900.0).left() == 0.0


def test_work_that_the_gateway_does_not_count_orders_nothing():
    """Each request of it would be live demand, which orders more, by which more is sent.

    One at a time may be sent: some gateways count a class from its first request on.
    """
    told = story(steady(4.0), {300.0: 50_000.0}, stated(20_000.0), counted=("chat",)).until(900.0)
    assert {backlog(d).problem for d in told.decisions} == {NO_LAW, NOT_COUNTED}
    assert max(d.replicas_after for d in told.decisions) <= 3
    assert 0.0 < backlog(told.decisions[-1]).rate_per_second < 0.1
    told.counted = ("chat", "job")
    report = backlog(told.until(990.0).decisions[-1])
    assert (report.problem, report.rate_per_second > 0.1) == ("", True)


DAY = 7200.0
QUIET = replace(CLASSED, replicas=ReplicaTargets(minimum=2, maximum=12))


def day(at):
    """A day in two hours, of live requests that two replicas serve at any time."""
    return 0.3 + 3.0 * math.sin(math.pi * at / DAY) ** 2


@pytest.mark.slow("servingslo.features.backlog", "servingslo.policy.rules")
@pytest.mark.timeout(900)
def test_a_day_together_takes_fewer_gpu_hours_than_apart():
    """Apart: chat alone, and replicas of its own for the work, of which one serves 3.7/s.

    Two of them, held from its arrival until it is due; or as many as are used up exactly, gone at
    once when it is done. All of it is done in time, and chat does not pay.
    """
    due = 6000.0
    together = story(day, {900.0: 24_000.0}, stated(due, targets=QUIET)).until(DAY)
    chat = story(day, targets=QUIET).until(DAY)
    held = chat.replica_seconds + 2 * due
    ideal = chat.replica_seconds + 24_000.0 / 3.7
    assert together.left() == 0.0
    assert max(sent - arrived for arrived, sent, _ in together.done) <= due
    assert together.share_within(1.0, 0.05) >= 0.95
    assert together.replica_seconds <= 0.7 * held
    assert together.replica_seconds <= 0.85 * ideal
