"""A new workload with a service law in its spec, as timelines: simulated engines, the planner."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import TICK_SECONDS, World, reasons, run, steady

from servingslo.controller.reporting.status import status_fields
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.document import as_dict
from servingslo.explain.events import events
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text as text_of
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.reasons import Action, Reason
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

TRUE = engine_kind("l4-small").law
RATE = 10.0
# What 10/s need once the law is known, with a backlog to serve off at first.
ENOUGH = 4


def times(ratio):
    """The engine's law with every time so many times as long."""
    return ServiceLaw(
        step_fixed_seconds=TRUE.step_fixed_seconds * ratio,
        step_per_sequence_seconds=TRUE.step_per_sequence_seconds * ratio,
        prefill_per_token_seconds=TRUE.prefill_per_token_seconds * ratio,
        context_per_token_seconds=TRUE.context_per_token_seconds * ratio,
    )


def story(law, replicas=1):
    """A workload that is new, at a rate that one replica cannot carry."""
    return run(World(rate=steady(RATE), replicas=replicas), replace(TARGETS, service_law=law))


def told(decisions):
    """All events, in order."""
    pairs = zip([None, *decisions], decisions, strict=False)
    return [event for before, now in pairs for event in events(now, before)]


@pytest.fixture(scope="module")
def known():
    """Seven minutes with the law of the engine in the spec: replicas of the first five stay."""
    return story(TRUE).until(420)


def test_the_first_minute_is_sized_from_the_spec(known):
    """At the first window with finished requests, and trusted: objectives decide with the rest."""
    first = known.at(30.0)
    assert (first.model.trusted, first.model.source) == (True, "spec")
    assert first.action is Action.SCALE_UP
    assert first.replicas_after >= ENOUGH
    assert {need.constraint.value for need in first.needs} >= {"ttft", "tpot", "utilization"}
    assert all(d.model.trusted for d in known.between(30.0, 300.0))
    without = story(None).until(45)
    assert not any(d.model.trusted for d in without.decisions)


def test_everything_that_is_told_says_that_the_law_is_the_specs(known):
    """Decision, status, condition, event, log line and explanation, each in its words."""
    first, end = known.at(30.0), known.at(300.0)
    assert Reason.LAW_FROM_SPEC in reasons(first)
    assert Reason.LAW_FROM_SPEC not in reasons(end)
    status = status_fields(first, generation=1, last_batch_change_seconds=None)
    assert status["model"]["source"] == "spec"
    assert as_dict(first)["model"]["law"]["stepFixedSeconds"] == TRUE.step_fixed_seconds
    verdict = verdicts(first)[ConditionType.MODEL_TRUSTED]
    assert (verdict.status, verdict.reason) == (ConditionStatus.TRUE, Reason.LAW_FROM_SPEC)
    assert "spec.serviceLaw" in verdict.message
    assert " law=spec " in log_line(first)
    assert " law=" not in log_line(end)
    text = text_of(first)
    assert "How sure: fairly; the law is stated in spec.serviceLaw, not yet compared" in text
    assert "Model: trusted, from spec, 0 samples" in text
    assert "windows so far" in text_of(known.at(60.0))
    spoken = [(e.reason, e.message) for e in told(known.decisions) if e.key.startswith("ModelTr")]
    assert spoken == [
        (Reason.LAW_FROM_SPEC, verdict.message),
        (Reason.MODEL_TRUSTED, "service law from fit, in place of spec.serviceLaw"),
    ]


@pytest.mark.parametrize("ratio", [pytest.param(2.0, id="too-slow"), pytest.param(0.5, id="fast")])
def test_a_wrong_law_is_refused_and_measured_saturation_decides(ratio):
    """Within four windows, with a warning; the fit that comes is used as ever."""
    wrong = story(times(ratio)).until(300)
    sources = [(d.time_seconds, d.model.source, d.model.reason) for d in wrong.decisions]
    stated = [at for at, source, _ in sources if source == "spec"]
    refused = [at for at, _, why in sources if why is Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT]
    assert stated[-1] == 30.0 + 3 * TICK_SECONDS
    assert refused[0] == stated[-1] + TICK_SECONDS
    first = wrong.at(refused[0])
    assert not first.model.trusted
    assert " law=LawFromSpecDoesNotPredict " in log_line(first)
    verdict = verdicts(first)[ConditionType.MODEL_TRUSTED]
    assert (verdict.status, verdict.reason) == (
        ConditionStatus.FALSE,
        Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT,
    )
    warning = next(e for e in told(wrong.decisions) if e.reason is verdict.reason)
    assert (warning.type.value, warning.message) == ("Warning", verdict.message)
    step = next(s for s in first.steps if s.stage == "model")
    assert step.inputs["stated_error"] > 0.15
    end = wrong.at(300.0)
    assert (end.model.trusted, end.model.source) == (True, "fit")


def test_a_law_of_steps_without_a_start_decides_nothing():
    """It has no percentiles; measured saturation decides until a law fitted here is trusted."""
    empty = replace(TRUE, step_fixed_seconds=0.0, hidden_tokens=64.0)
    decisions = story(empty).until(60.0).decisions
    assert decisions
    assert not any(one.model.trusted for one in decisions)
