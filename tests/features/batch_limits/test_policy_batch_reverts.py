"""A client puts batch limits back: it is named, and limits are left to it for a day."""

import json
from dataclasses import dataclass, replace

import pytest
from tests.features.batch_limits.canary_story import FEW, Story, memory_of, story

from servingslo.explain.conditions.derived import conditions
from servingslo.explain.events import EventType, events
from servingslo.explain.text import text
from servingslo.features.batch_limits.canary import TEMPLATE
from servingslo.features.batch_limits.decision import CanaryAct
from servingslo.policy.inputs import LIMIT_FIELDS
from servingslo.policy.knobs.trial.stages import REFUSED_SECONDS
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Reason

GITOPS = "argocd-controller"


@dataclass
class Fought(Story):
    """A story with the template's limits, and whoever set them last."""

    template: tuple = (FEW, None)
    set_by: str | None = "helm"

    def _in_force(self):
        found = super()._in_force()
        named = {f"{TEMPLATE}{n}": v for n, v in zip(LIMIT_FIELDS, self.template, strict=True)}
        return replace(found, values={**found.values, **named}, set_by=self.set_by)

    def _carry_out(self, batching):
        super()._carry_out(batching)
        wanted = (batching.recommended_max_num_seqs, batching.recommended_max_num_batched_tokens)
        back = batching.canary is CanaryAct.TAKE_BACK
        if batching.canary is CanaryAct.START or back:
            self.template, self.set_by = ((FEW, None) if back else wanted), "servingslo-operator"

    def puts_back(self, limits=(FEW, None), by=GITOPS):
        """Another client sets these."""
        self.template, self.set_by = limits, by
        self.edited = self.standing is not None


def fought():
    """Engines that may run four sequences only, while more would serve within the objectives."""
    usual = story()
    return Fought(usual.world, usual.targets, usual.limits)


def verdict(decision):
    """Condition BatchingInSync."""
    told = conditions(decision, generation=1, now_seconds=0.0)
    return next(one for one in told if one.type == "BatchingInSync")


@pytest.mark.parametrize(
    ("act", "by", "said"),
    [
        pytest.param(CanaryAct.HOLD, GITOPS, f"by {GITOPS}", id="first-pod"),
        pytest.param(CanaryAct.COMPLETE, "kubectl-edit", "by a client (kubectl-edit)", id="all"),
    ],
)
def test_limits_that_are_put_back_are_left_alone_and_the_manager_is_named(act, by, said) -> None:
    """From the first pod, or from all of them; a restart of the operator does not end the pause."""
    told = fought()
    told.until_act(act)
    told.tick()
    told.puts_back(by=by)
    first = told.tick().batching
    if act is CanaryAct.HOLD:
        assert (first.canary, first.reason) == (CanaryAct.LEAVE, Reason.BATCHING_LEFT_TO_USER)
    told.edited, began = False, told.world.now
    told.until(began + 900.0)
    after = told.between(began + 15.0, began + 900.0)
    assert {d.batching.reason for d in after} == {Reason.BATCHING_REVERTED}
    assert not any(d.batching.apply for d in after)
    condition = verdict(after[-1])
    assert (condition.status, condition.reason) == ("False", Reason.BATCHING_REVERTED)
    for words in (condition.message, text(after[-1])):
        assert f"put back to max_num_seqs {FEW}" in words
        assert said in words
    pairs = zip(told.decisions[1:], told.decisions, strict=False)
    warned = [
        e for now, last in pairs for e in events(now, last) if e.reason is Reason.BATCHING_REVERTED
    ]
    assert [e.type for e in warned] == [EventType.WARNING]
    stored = json.loads(json.dumps(learned(told.state, told.world.now)))
    reverted = memory_of(restore(stored, told.world.now)).reverted
    assert reverted == memory_of(told.state).reverted
    assert reverted.pauses(reverted.at_seconds + REFUSED_SECONDS - 1.0)
    assert not reverted.pauses(reverted.at_seconds + REFUSED_SECONDS)


def test_limits_that_stand_are_no_revert() -> None:
    """Nor is the way back of a canary, which the operator takes itself."""
    for slowness in (1.0, 3.0):
        told = fought()
        told.slowness = slowness
        told.until_act(CanaryAct.COMPLETE if slowness == 1.0 else CanaryAct.TAKE_BACK)
        told.until(told.world.now + 120.0)
        assert memory_of(told.state).reverted is None


def test_other_limits_than_before_are_a_decision_and_no_revert() -> None:
    """Whoever sets limits of their own fights nobody: what is in force is planned from."""
    told = fought()
    told.until_act(CanaryAct.COMPLETE)
    told.tick()
    told.puts_back((6, 2048), "kubectl-edit")
    told.tick()
    assert memory_of(told.state).written is None
    assert memory_of(told.state).reverted is None


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param({"limits": [4], "at": 1.0}, id="one-limit"),
        pytest.param({"limits": [4, 2048]}, id="no-time"),
        pytest.param(7, id="no-mapping"),
    ],
)
def test_stored_reverts_that_cannot_be_are_none(stored) -> None:
    """An edited status pauses nothing."""
    document = {"version": 1, "batching": {"reverted": stored, "written": stored}}
    back = memory_of(restore(document, 100.0))
    assert (back.reverted, back.written) == (None, None)
