"""What is told of a decision: once, only what changed, and never to a namesake."""

import logging
from importlib import import_module

import pytest
from tests.unit.controller_fakes import NAME, Operator, record_of
from tests.unit.policy_world import World, steady

from servingslo.cli.decision_document import last_document
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.errors import ClusterUnavailableError, NotFoundError
from servingslo.explain.conditions.derived import verdicts
from servingslo.policy.inputs import SignalProblem
from servingslo.reasons import Reason

DOWN = ClusterUnavailableError("no answer within 5 s")


def quiet() -> Operator:
    """Two replicas under a load that never changes."""
    operator = Operator(world=World(rate=steady(4.0), replicas=2))
    operator.apply(record_of())
    return operator


async def test_an_unchanged_status_is_not_written():
    """Numbers that drift within noise wait; most ticks of a quiet workload write nothing."""
    operator = quiet()
    await operator.ticks(20)
    written = len(operator.resources.patches)
    await operator.ticks(20)
    assert len(operator.resources.patches) - written < 10
    before = len(operator.resources.patches)
    await operator.look()  # the same moment again
    await operator.look()
    assert len(operator.resources.patches) == before


async def test_a_decision_is_logged_once_until_it_changes(caplog):
    """The same hold is repeated every ten minutes and not with every tick."""
    caplog.set_level(logging.INFO)
    operator = quiet()
    await operator.ticks(20)
    caplog.clear()
    await operator.ticks(40)  # ten minutes
    lines = [line for line in caplog.messages if line.startswith("decided ")]
    assert 1 <= len(lines) <= 4


async def test_a_hold_that_lasts_has_one_line_that_says_why(caplog):
    """After five minutes, with the conditions' sentence, and not again while it stays the same."""
    caplog.set_level(logging.INFO)
    operator = Operator(world=World(rate=steady(40.0), replicas=2))
    operator.apply(record_of(replicas={"min": 1, "max": 2}))
    await operator.ticks(80)
    (line,) = (line for line in caplog.messages if line.startswith("why "))
    assert "held_by=MaxReplicasReached" in line
    assert "held_for=5m" in line
    assert "wanted, 2 set" in line or "detail=" in line


async def test_a_refused_spec_is_told_once():
    """The message names the field and what is allowed; a new generation is told anew."""
    operator = Operator()
    operator.apply(record_of(objectives=[]))
    await operator.ticks(3)
    assert operator.events.reasons() == [Reason.INVALID_SPEC]
    assert operator.resources.condition("Ready") == ("False", Reason.INVALID_SPEC)
    (_, event) = operator.events.posted[0]
    assert "objectives" in event.message
    operator.apply(record_of(objectives=[], generation=2))
    await operator.ticks(2)
    assert operator.events.reasons() == [Reason.INVALID_SPEC] * 2
    assert operator.resources.status()["observedGeneration"] == 2


async def test_a_deletion_meanwhile_is_no_failure():
    """The watch is behind: the resource is gone, or a namesake stands in its place."""
    operator = quiet()
    operator.resources.records.clear()
    await operator.tick()
    operator.resources.put(record_of(uid="uid-2"))
    await operator.tick()
    assert operator.resources.patches == []
    assert operator.resources.status() == {}
    assert operator.counted("servingslo_failures_total", part="status") == 0


@pytest.mark.parametrize(
    ("refusal", "failures"),
    [
        pytest.param(DOWN, True, id="unavailable"),
        pytest.param(NotFoundError("namespace is going"), False, id="namespace-gone"),
    ],
)
async def test_events_that_cannot_be_posted_stop_nothing(refusal, failures):
    """The status is written all the same; a namespace that is going is no failure."""
    operator = Operator()
    operator.events.down = refusal
    operator.apply(record_of(objectives=[]))
    await operator.tick()
    assert operator.resources.condition("Ready")[1] == Reason.INVALID_SPEC
    assert (operator.counted("servingslo_failures_total", part="events") > 0) is failures


async def test_what_was_learnt_is_saved_every_few_minutes():
    """At first sight, with the first law that is trusted, and then every five minutes."""
    operator = quiet()
    await operator.ticks(45)  # eleven minutes
    saved = [patch for patch in operator.resources.patches if "learned" in patch]
    assert 3 <= len(saved) <= 5
    assert learned_of(operator.resources.status())


async def test_earlier_decisions_are_kept_newest_first():
    """The line of the last decision first, and no more than three."""
    operator = quiet()
    for generation, least in enumerate((3, 4, 3, 5, 3, 6, 4, 5, 6, 7, 8, 9), start=2):
        operator.apply(record_of(generation=generation, replicas={"min": least, "max": 12}))
        await operator.ticks(2)
    lines = operator.resources.status()["decisions"]
    assert len(lines) == 3
    times = [line.split(" ", 1)[0] for line in lines]
    assert times == sorted(times, reverse=True)
    assert operator.resources.status()["lastDecision"]["time"] == times[0]


async def test_a_pause_keeps_the_time_it_began():
    """The condition does not flutter while nothing is decided, and nothing more is written."""
    operator = quiet()
    await operator.tick()
    operator.apply(record_of(generation=2, mode="Paused"))
    await operator.tick()
    began = operator.resources.status()["conditions"]
    written = len(operator.resources.patches)
    await operator.ticks(5)
    assert operator.resources.status()["conditions"] == began
    assert len(operator.resources.patches) == written
    assert NAME in operator.resources.records


async def test_a_pause_leaves_no_number_of_the_decision_before():
    """A paused resource has no wish; after it the numbers are back, with what was learnt."""
    told = {"replicas", "observed", "bindingConstraint"}
    operator = quiet()
    await operator.ticks(4)
    before = operator.resources.status()
    assert told <= before.keys()
    operator.apply(record_of(generation=2, mode="Paused"))
    await operator.tick()
    paused = operator.resources.status()
    assert not told & paused.keys()
    assert paused["decisions"] == before["decisions"]
    operator.apply(record_of(generation=3))
    await operator.ticks(2)
    assert told <= operator.resources.status().keys()


async def test_what_fails_is_a_warning_and_what_is_decided_is_not(caplog):
    """Without Prometheus the line of the decision is a warning; a pod that starts is none."""
    caplog.set_level(logging.INFO)
    operator = quiet()
    await operator.ticks(4)
    assert {r.levelname for r in caplog.records if r.message.startswith("decided ")} == {"INFO"}
    caplog.clear()
    operator.fleet.metrics_down = SignalProblem(
        reason=Reason.PROMETHEUS_UNAVAILABLE, detail="no answer within 5 s"
    )
    await operator.ticks(2)
    (line,) = (r for r in caplog.records if r.message.startswith("decided "))
    assert line.levelname == "WARNING"
    assert "reason=PrometheusUnavailable" in line.message


async def test_the_reason_column_says_what_is_wrong_first():
    """An invalid spec, a pause and a missed objective are named; else why the count is so."""
    operator = quiet()
    await operator.ticks(30)
    status = operator.resources.status()
    assert status["reason"] == last_document(status)["reason"]
    operator.fleet.metrics_down = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="x")
    await operator.ticks(2)
    assert operator.resources.status()["reason"] == Reason.PROMETHEUS_UNAVAILABLE
    operator.apply(record_of(objectives=[], generation=2))
    await operator.ticks(2)
    assert operator.resources.status()["reason"] == Reason.INVALID_SPEC
    assert operator.resources.status()["summary"].startswith("spec.objectives: ")
    operator.apply(record_of(mode="Paused", generation=3))
    await operator.ticks(2)
    assert operator.resources.status()["reason"] == Reason.PAUSED
    assert operator.resources.status()["summary"] == "spec.mode is Paused: nothing is decided"


async def test_each_decision_is_judged_once(monkeypatch):
    """Its events, its conditions, its summary and the events after it share the verdicts."""
    operator = quiet()
    await operator.ticks(20)
    judged = []

    def counted(decision):
        judged.append(decision)
        return verdicts(decision)

    for user in (
        "controller.reporting.reporter",
        "explain.events",
        "explain.headline",
        "explain.conditions.derived",
    ):
        monkeypatch.setattr(import_module(f"servingslo.{user}"), "verdicts", counted)
    await operator.ticks(4)
    assert len(judged) == 4
    assert len({decision.time_seconds for decision in judged}) == 4
