"""Engines of every runtime, read through a real Prometheus to a decision."""

from collections.abc import Iterator

import pytest
from tests.integration.runtime_pages import PODS, RATE_PER_SECOND, decisions_of
from tests.integration.toy_runtime import TOY
from tests.unit.added_runtimes import ADDED

from servingslo.api.runtime_profiles import runtimes_of
from servingslo.explain.log_line import log_line
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import RuntimeSource
from servingslo.reasons import Action, Reason
from servingslo.runtimes import catalogue
from servingslo.runtimes.catalogue import CATALOGUE, profile

pytestmark = pytest.mark.rig
# By namespace: each runtime by itself, the toy one, the one of the administrator's page, and pods
# that export two, without and with a statement which of them counts.
(OF_ADMINISTRATOR,) = runtimes_of(ADDED)
KNOWN = (*CATALOGUE, TOY, OF_ADMINISTRATOR)
EXPORTED = {one.name: (one,) for one in KNOWN} | {
    "two": (profile("vllm"), TOY),
    "two-stated": (profile("vllm"), TOY),
    "added-stated": (OF_ADMINISTRATOR,),
}
SPECS: dict[str, dict[str, object]] = {
    "two-stated": {"runtime": "vllm"},
    "added-stated": {"runtime": OF_ADMINISTRATOR.name},
    # It exports its limits.
    "trtllm": {"engine": {}},
    # A request is answered at once there, and batches form as is stated.
    "triton": {
        "objectives": [{"metric": "latency", "percentile": 95, "threshold": "1s"}],
        "engine": {"dynamicBatching": {"maxBatchSize": 8}},
    },
}
RECOGNIZED = tuple(one.name for one in KNOWN)


def _sized(decision: Decision) -> bool:
    """Whether the count follows from a known arrival rate and a trusted law."""
    rate = decision.demand.arrival_rate_per_second
    near = rate == pytest.approx(RATE_PER_SECOND * len(PODS), rel=0.1)
    return near and decision.model.trusted and bool(decision.needs)


def _needed(decision: Decision) -> list[tuple[str, int]]:
    return [(need.constraint, need.replicas) for need in decision.needs]


@pytest.fixture(scope="module")
def decisions() -> Iterator[dict[str, Decision]]:
    """The first of each namespace that is sized, and of the two runtimes the first that says so.

    Each by itself, as how late a page is scraped moves a window's rate on a busy machine; the toy
    runtime and vLLM together, once they need the same. The toy has its row in the catalogue; the
    administrator's was added when the operator started.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(catalogue, "CATALOGUE", (*CATALOGUE, TOY))
        patched.setattr(catalogue, "_ADDED", {OF_ADMINISTRATOR.name: OF_ADMINISTRATOR})
        kept: dict[str, Decision] = {}
        found: dict[str, Decision] = {}
        together = False
        for found in decisions_of(EXPORTED, KNOWN, SPECS):
            for name, one in found.items():
                several = one.metrics is Reason.SEVERAL_RUNTIMES
                if name not in kept and (several if name == "two" else _sized(one)):
                    kept[name] = one
            pair = {name: found[name] for name in ("toy", "vllm")}
            alike = _needed(found["toy"]) == _needed(found["vllm"])
            if alike and all(_sized(one) for one in pair.values()):
                kept |= pair
                together = True
            if together and len(kept) == len(found):
                break
        yield {**found, **kept}


@pytest.mark.parametrize("name", RECOGNIZED)
def test_a_runtime_is_recognized_and_sized(decisions, name):
    """What the pods export tells the runtime, its names tell the traffic, and both are told."""
    decision = decisions[name]
    assert _sized(decision), log_line(decision)
    assert (decision.runtime.name, decision.runtime.source) == (name, RuntimeSource.RECOGNIZED)
    assert f"runtime={name}" in log_line(decision)


def test_a_further_runtime_is_one_file_and_one_row(decisions):
    """The same traffic under another runtime's names asks for the same replicas, one by one."""
    ours, others = decisions["toy"].needs, decisions["vllm"].needs
    assert [need.constraint for need in ours] == [need.constraint for need in others]
    assert [n.replicas for n in ours] == [n.replicas for n in others]
    assert decisions["toy"].replicas_after == decisions["vllm"].replicas_after


def test_pods_that_export_two_runtimes_are_read_as_neither(decisions):
    """Nothing is guessed: the decision holds and names both, until one of them is stated."""
    decision = decisions["two"]
    assert (decision.action, decision.metrics) == (Action.HOLD, Reason.SEVERAL_RUNTIMES)
    assert decision.runtime.name is None
    assert "toy, vllm" in log_line(decision)


@pytest.mark.parametrize(
    ("namespace", "name"), [("two-stated", "vllm"), ("added-stated", OF_ADMINISTRATOR.name)]
)
def test_a_runtime_that_is_stated_is_the_only_one_read(decisions, namespace, name):
    """Of pods that export two, the names of the stated one alone count; so may be an added one."""
    decision = decisions[namespace]
    assert (decision.runtime.name, decision.runtime.source) == (name, RuntimeSource.STATED)
    assert _sized(decision), log_line(decision)
