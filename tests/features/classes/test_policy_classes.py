"""Classes in the planner: who orders replicas, whose lane closes first, and what is reported."""

import json
from dataclasses import replace

import pytest
from tests.unit.classed_world import THREE, WITH, story

from servingslo.adapters.gauges import metric_samples
from servingslo.estimation.gateway.classes import Sheddable
from servingslo.estimation.requests.arrivals import ArrivalState, count_classes
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.estimation.windows.freshness import DEFAULT_STALE_AFTER_SECONDS as STALE_SECONDS
from servingslo.explain.changes import change_line
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.events import events
from servingslo.explain.log_line import further_lines
from servingslo.explain.text import text
from servingslo.features.classes.actuator import lanes_change
from servingslo.features.classes.decision import LANES_DECIDED, SURGE_READINGS, LaneState
from servingslo.policy.inputs import AdmissionMode, SignalProblem
from servingslo.policy.knobs.in_flight.gateway import (
    NOT_HELD_SECONDS,
    STEP_SECONDS,
)
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Reason
from servingslo.runtimes.gateways import CountedWhen


def lanes(decision):
    """What was decided of the classes."""
    return LANES_DECIDED.of(decision.knobs)


@pytest.mark.parametrize("lost_at", [None, 600.0], ids=["read", "lost-once"])
def test_a_silent_gateway_keeps_the_last_known_part(lost_at):
    """The job does not order replicas because its counters are missing for a while."""
    told = story(silent_from=600.0, lost_at=lost_at)
    told.until(660.0)
    assert told.decisions[-1].demand.arrival_rate_per_second == pytest.approx(4.0, rel=0.4)


@pytest.mark.parametrize("lost_at", [None, 600.0], ids=["read", "lost-once"])
def test_the_last_known_part_ends_when_it_is_too_old(lost_at):
    """From then on all that the engines count is demand."""
    told = story(silent_from=600.0, lost_at=lost_at)
    told.until(600.0 + STALE_SECONDS + 60.0)
    assert told.decisions[-1].demand.arrival_rate_per_second > 6.0


def test_lanes_are_put_back_when_a_gateway_stays_silent():
    """Readings are used until they are too old, as all are; then the condition names the class."""
    told = story(silent_from=900.0)
    told.until(900.0)
    before = dict(told.standing)
    assert before["job"] is not None
    told.until(900.0 + STALE_SECONDS - 30.0)
    assert None not in told.standing.values()
    told.until(900.0 + STALE_SECONDS + 30.0)
    assert told.standing == {"chat": None, "job": None}
    decision = told.decisions[-1]
    assert lanes(decision).reason is Reason.GATEWAY_SILENT
    message = verdicts(decision)[ConditionType.ADMISSION_BOUND].message
    assert "no requests in flight of classes chat, job" in message


@pytest.mark.parametrize("how", ["no-answer", "no-instance"])
def test_a_class_keeps_its_last_count_until_it_is_too_old(how):
    """A reading without its counters does not take away what its share lets it order."""
    one = GatewayInstance(name="proxy", age_seconds=0.0, requests_total=50.0, active=4.0)
    sample = GatewaySample(counted=CountedWhen.PASSED_ON, instances=(one,))
    later = replace(sample, instances=(replace(one, requests_total=140.0),))
    gap = {} if how == "no-answer" else {"job": replace(sample, instances=())}
    state, _ = count_classes(ArrivalState(), {"job": sample}, frozenset(), 0.0, 60.0)
    state, _ = count_classes(state, {"job": later}, frozenset(), 15.0, 60.0)
    state, flows = count_classes(state, gap, frozenset(), 75.0, 60.0)
    assert flows["job"].requests_per_second == pytest.approx(6.0)
    assert not flows["job"].is_new
    state, flows = count_classes(state, gap, frozenset(), 76.0, 60.0)
    assert "job" not in flows or flows["job"].problem is Reason.GATEWAY_SILENT


def test_the_first_requests_of_a_job_wait_as_its_own():
    """Envoy exports no queue of a route before its first request; then all wait at once."""

    def samples(waiting):
        chat = GatewayInstance(name="proxy", age_seconds=0.0, requests_total=50.0, queued=0.0)
        job = replace(chat, requests_total=0.0, queued=waiting)
        return {
            name: GatewaySample(counted=CountedWhen.PASSED_ON, instances=(one,))
            for name, one in (("chat", chat), ("job", job))
        }

    state, _ = count_classes(ArrivalState(), samples(None), frozenset({"job"}), 0.0, 60.0)
    state, flows = count_classes(state, samples(90.0), frozenset({"job"}), 15.0, 60.0)
    assert flows["job"].requests_per_second == pytest.approx(6.0)
    assert state.sheddable is not None
    assert state.sheddable.offered_ratio == 1.0


def test_the_last_known_part_goes_with_the_last_sheddable_class():
    """Without a class that orders no replicas, all requests are demand again."""
    known = Sheddable(offered_ratio=0.5, admitted_per_second=4.0, rejected_per_second=0.0)
    state = ArrivalState(sheddable=known)
    assert count_classes(state, {}, frozenset({"job"}), 0.0, 60.0)[0].sheddable is known
    assert count_classes(state, {}, frozenset(), 0.0, 60.0)[0].sheddable is None


def test_lanes_are_restored_when_they_may_not_be_written_any_more():
    """And the reason of the actuator is reported."""
    told = story()
    told.until(600.0)
    assert told.standing["job"] is not None
    told.refusal = SignalProblem(reason=Reason.NOT_PERMITTED, detail="class job: no label")
    decision = told.tick()
    assert lanes(decision).puts_back
    assert told.standing == {"chat": None, "job": None}
    assert lanes(told.tick()).reason is Reason.NOT_PERMITTED
    assert "class job: no label" in verdicts(decision)[ConditionType.ADMISSION_BOUND].message


def test_a_first_lane_waits_for_readings():
    """The first requests say little of the mix; a lane that is there at a restart stays."""
    told = story()
    told.until(900.0)
    written = [d for d in told.decisions if lanes(d).classes[1].change_reason is not None]
    assert told.decisions.index(written[0]) >= SURGE_READINGS - 1
    again = replace(told, state=replace(told.state, knobs={}), decisions=[])
    before = dict(told.standing)
    again.tick()
    assert lanes(again.decisions[0]).classes[1].before == before["job"]
    assert not lanes(again.decisions[0]).puts_back


def test_a_restart_leaves_the_lanes():
    """No crowd is let in because the operator was replaced, and knows no capacity at first."""
    told = story()
    told.until(900.0)
    before = dict(told.standing)
    assert before["job"] is not None
    stored = json.loads(json.dumps(learned(told.state, told.world.now)))
    told.state = restore(stored, told.world.now)
    assert told.tick().admission.reason is Reason.ADMISSION_UNKNOWN
    assert told.standing == before


def test_mode_recommend_reports_lanes_and_writes_none():
    """The wanted lane stands beside what is in force."""
    told = story(replace(WITH, admission_mode=AdmissionMode.RECOMMEND))
    told.until(600.0)
    assert told.standing == {}
    chat, job = lanes(told.decisions[-1]).classes
    assert (chat.before, job.change_reason) == (None, None)
    assert chat.after > job.after


def test_who_is_refused_is_reported_by_class():
    """State, rates, lane: in the line, the text, the gauges and the change."""
    told = story(THREE, rate=4.0, refused_per_second={"job": 5.0})
    told.until(600.0)
    last = told.decisions[-1]
    chat, job = lanes(last).classes
    assert (chat.state, job.state) == (LaneState.OPEN, LaneState.FULL)
    assert job.refused_per_second == pytest.approx(5.0)
    lines = list(further_lines(last))
    assert "class=job priority=-10 state=Full" in lines[1]
    assert "job (priority -10): Full" in text(last)
    gauges = {
        (one.labels["class"], one.labels["outcome"]): one.value
        for one in metric_samples(last)
        if one.name == "servingslo_class_requests_per_second"
    }
    assert gauges["job", "refused"] == pytest.approx(5.0)
    written = next(d for d in told.decisions if lanes_change(d) is not None)
    line = change_line(lanes_change(written))
    assert "target=BackendTrafficPolicy/chat,job-lane knob=lanes lane_chat=unknown->" in line


@pytest.mark.parametrize(
    ("passed_by", "refused", "reported"),
    [
        pytest.param(-1.0, 5.0, False, id="held"),
        pytest.param(1.0, 5.0, False, id="race-of-workers"),
        pytest.param(40.0, 0.0, True, id="passed-by"),
    ],
)
def test_a_lane_that_does_not_hold_is_reported(passed_by, refused, reported):
    """After a minute of readings above it: state, condition, gauge and event name the class."""
    told = story(THREE, rate=4.0, refused_per_second={"job": refused}, passed_by=passed_by)
    told.until(600.0)
    reasons = {lanes(one).reason for one in told.decisions}
    assert (Reason.LIMIT_NOT_HELD in reasons) is reported
    assert (
        LaneState.UNBOUND in {lanes(one).classes[1].state for one in told.decisions}
    ) is reported
    if not reported:
        return
    first = next(
        n for n, d in enumerate(told.decisions) if lanes(d).reason is Reason.LIMIT_NOT_HELD
    )
    before, now = told.decisions[first - 1], told.decisions[first]
    written = [d.time_seconds for d in told.decisions[:first] if lanes(d).classes[1].change_reason]
    assert now.time_seconds - written[-1] >= STEP_SECONDS + NOT_HELD_SECONDS
    assert lanes(now).classes[0].state is not LaneState.UNBOUND
    verdict = verdicts(now)[ConditionType.ADMISSION_BOUND]
    assert verdict.status is ConditionStatus.FALSE
    assert "more of class job is in flight" in verdict.message
    gauges = [one for one in metric_samples(now) if one.name == "servingslo_admission_bound"]
    assert [one.labels["reason"] for one in gauges] == ["LimitNotHeld"]
    assert [one.reason for one in events(now, before)] == [Reason.LIMIT_NOT_HELD]
