"""A law from the names of card and model: what it says, what it may do, and for how long."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import TICK_SECONDS, World, reasons, run, steady
from test_estimation_stated_law import TRUE, after, rows, scaled

from servingslo.api.convert import targets_from_spec
from servingslo.errors import InvalidInputError, InvalidSpecError
from servingslo.estimation.law import trust
from servingslo.estimation.law.fit import LawState
from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.models.known_engines import known_engine
from servingslo.policy.inputs import Limits
from servingslo.policy.planner import observe
from servingslo.policy.stages import choose_reserve, measure_capacity
from servingslo.reasons import Action, Constraint, Reason
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

L4 = engine_kind("l4-small").law
SPEC = {
    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
    "objectives": [{"metric": "ttft", "percentile": 99, "threshold": "1s"}],
    "replicas": {"max": 8},
}


@pytest.mark.parametrize(
    ("card", "model", "gpus", "found"),
    [
        pytest.param("h100", "llama-3.1-8b", 1, ("h100", "llama-3.1-8b", True), id="names"),
        pytest.param(
            "NVIDIA-H100-80GB-HBM3",
            "meta-llama/Llama-3.1-8B-Instruct",
            1,
            ("h100", "llama-3.1-8b", True),
            id="product-and-repository",
        ),
        pytest.param(
            "NVIDIA L40S", "qwen3-30b-a3b", 2, ("l40s", "qwen3-30b-a3b", True), id="experts"
        ),
        pytest.param(
            "h200", "Llama-3.3-70B", 2, ("h200", "llama-3.1-70b", True), id="same-architecture"
        ),
        pytest.param(
            "NVIDIA H100 PCIe", "qwen3-8b", 1, ("h100-pcie", "qwen3-8b", False), id="other-form"
        ),
        pytest.param("h100", "acme-13b", 1, ("h100", "acme-13b", False), id="size-alone"),
        pytest.param(
            "h100", "llama-3.1-8b-awq", 1, ("h100", "llama-3.1-8b-awq", False), id="precision"
        ),
        pytest.param(
            "a100", "acme-30b-a3b", 1, ("a100", "acme-30b-a3b", False), id="experts-by-size"
        ),
    ],
)
def test_names_find_a_table_or_a_roofline(card, model, gpus, found):
    """Labels of nodes and names of repositories are read; another precision is another engine."""
    engine = known_engine(card, model, gpus)
    assert (engine.card.name, engine.model.name, engine.error_ratios is not None) == found
    assert engine.law.step_seconds(64, 256, 64 * 1000) > engine.law.step_seconds(1) > 0.0005
    assert engine.kv_tokens > 1000


@pytest.mark.parametrize(
    ("card", "model", "gpus", "field", "allowed"),
    [
        pytest.param("v100", "8b", 1, "card", "h200", id="card-unknown"),
        pytest.param("NVIDIA-A100-SXM4-80GB-MIG-1g", "8b", 1, "card", "whole card", id="part"),
        pytest.param("NVIDIA-A100-SXM4-40GB", "8b", 1, "card", "serviceLaw", id="less-memory"),
        pytest.param("h100", "acme", 1, "model", "name with the size", id="no-size"),
        pytest.param("h100", f"acme-1{'9' * 240}b", 1, "model", "0.05b to 10000b", id="too-large"),
        pytest.param("h100", "acme-0.01b", 1, "model", "0.05b to 10000b", id="too-small"),
        pytest.param("h100", "Qwen3-Embedding-8B", 1, "model", "generates", id="embeds"),
        pytest.param("h100", "Qwen3-Reranker-8B", 1, "model", "generates", id="ranks"),
        pytest.param("h100", "Llama-3.1-8B-Reward", 1, "model", "generates", id="rewards"),
        pytest.param("h100", "acme-8x7b", 1, "model", "30b-a3b", id="experts-uncounted"),
        pytest.param("h100", "acme-3b-a8b", 1, "model", "30b-a3b", id="active-beyond-all"),
        pytest.param("h100", "llama-3.1-70b", 1, "gpus", "2 or more", id="does-not-fit"),
        pytest.param("l4", "10000b", 1, "gpus", "no count up to 1024: the", id="never-fits"),
        pytest.param("l40s", "acme-34b", 4, "gpus", "1 to 2 of l40s", id="no-rule-over-pcie"),
    ],
)
def test_names_that_say_too_little_are_refused(card, model, gpus, field, allowed):
    """With the field, and what is known or would do."""
    with pytest.raises(InvalidInputError) as refused:
        known_engine(card, model, gpus)
    assert refused.value.field == field
    assert allowed in str(refused.value)


def test_a_spec_names_card_and_model():
    """For the GPUs of a replica; a law that is stated goes before it."""
    named = {**SPEC, "engine": {"card": "h100", "model": "llama-3.1-70b"}, "gpusPerReplica": 4}
    targets = targets_from_spec(named)
    assert targets.law_assumed
    assert targets.service_law == known_engine("h100", "llama-3.1-70b", 4).law
    law = {"stepFixedSeconds": 0.01, "stepPerSequenceSeconds": 0, "prefillPerTokenSeconds": 0}
    stated = targets_from_spec({**named, "serviceLaw": law})
    assert not stated.law_assumed
    assert stated.service_law.step_fixed_seconds == 0.01
    assert targets_from_spec(SPEC).service_law is None


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        pytest.param({"card": "h100"}, "spec.engine.card", id="no-model"),
        pytest.param({"model": "8b"}, "spec.engine.card", id="no-card"),
        pytest.param({"card": "abacus", "model": "8b"}, "spec.engine.card", id="card-unknown"),
        pytest.param({"card": "h100", "model": "x"}, "spec.engine.model", id="model-unknown"),
        pytest.param({"card": "l4", "model": "34b"}, "spec.gpusPerReplica", id="does-not-fit"),
    ],
)
def test_a_spec_whose_names_say_too_little_is_refused(engine, path):
    """By the path of the field."""
    with pytest.raises(InvalidSpecError) as refused:
        targets_from_spec({**SPEC, "engine": engine})
    assert path in str(refused.value)


def test_an_assumed_law_counts_no_longer_than_a_fit_needs():
    """The load stays alike, so that no fit can be trusted: from then on measurements decide."""
    constant = [rows(1)[0]] * 20
    short = LawState(fits=(after(constant[:7], TRUE),))
    enough = LawState(fits=(after(constant[:8], TRUE),))
    _, estimate = trust.law_in_force(short, TRUE, assumed=True)
    assert (estimate.source, estimate.reason) == ("assumed", Reason.LAW_ASSUMED)
    assert estimate.trusted
    _, later = trust.law_in_force(enough, TRUE, assumed=True)
    assert later.source != "assumed"
    _, stated = trust.law_in_force(enough, TRUE)
    assert (stated.source, stated.trusted) == ("spec", True)


def test_a_law_that_bends_is_judged_as_it_bends():
    """Its own windows refute it by nothing, and those of a line by what the bend is."""
    bent = replace(TRUE, loading_seconds=0.01, loading_tokens=20.0, hidden_tokens=64.0)
    own = after(rows(6, law=bent), bent).stated
    assert own.error_ratio < 0.01
    assert after(rows(6), bent).stated.error_ratio > 0.3


@pytest.fixture(scope="module")
def named():
    """A new workload that one replica cannot carry, its law 10 % off."""
    return _story(1.1).until(300)


def _story(ratio, **world):
    law = None if ratio is None else scaled(L4, ratio)
    world = {"rate": steady(10.0), "replicas": 1} | world
    return run(World(**world), replace(TARGETS, service_law=law, law_assumed=law is not None))


def test_the_first_order_comes_from_the_assumed_law(named):
    """At the first window with finished requests, in one step, and called assumed everywhere."""
    first = named.at(30.0)
    assert (first.model.source, first.model.trusted) == ("assumed", True)
    assert first.action is Action.SCALE_UP
    assert first.replicas_after >= 4
    assert Reason.LAW_ASSUMED in reasons(first)
    assert verdicts(first)[ConditionType.MODEL_TRUSTED].reason is Reason.LAW_ASSUMED
    assert " law=assumed " in log_line(first)
    assert "roughly; the law is assumed from spec.engine.card and model" in text(first)
    assert named.at(300.0).model.source in {"fit", "last-trusted"}


def test_an_assumed_law_forbids_no_step_up():
    """One that takes engines for ten times as fast needs no second: measured saturation does."""
    first = _story(0.1).until(30).at(30.0)
    assert first.model.source == "assumed"
    assert (first.binding, first.replicas_after) == (Constraint.SATURATION, 2)


def test_an_assumed_law_forbids_no_step_down():
    """One that takes engines for a quarter as fast: the fleet goes down as it does without."""
    calm = {"rate": steady(3.0), "replicas": 8}
    pessimist, without = _story(4.0, **calm).until(900), _story(None, **calm).until(900)
    assert without.at(900.0).replicas_after < 8
    assert pessimist.at(900.0).replicas_after <= without.at(900.0).replicas_after


def test_an_assumed_law_measures_no_shortage_and_chooses_no_reserve():
    """Both would be kept for the law that is fitted afterwards, and are errors of this one."""
    story = _story(1.1).until(300)
    at = 300.0 + TICK_SECONDS
    seen = observe(story.world.observe(at), TARGETS, Limits(), story.state, at)
    for source, learns in ((trust.LawSource.FIT, True), (trust.LawSource.ASSUMED, False)):
        law = replace(seen.context.estimate.law, source=source)
        estimate = replace(seen.context.estimate, law=law)
        context = replace(seen.context, estimate=estimate)
        for learner in (measure_capacity, choose_reserve):
            assert (learner(context, seen.state) is not seen.state) is learns
