"""Somebody puts batch limits back: named, left alone for longer each time, and tried again."""

import json
from dataclasses import dataclass, replace

import pytest
from canary_story import Story
from canary_story import story as story_of_canary
from policy_world import Run, World

from servingslo.explain.conditions.derived import conditions
from servingslo.explain.events import EventType, events
from servingslo.explain.text import text
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    LIMIT_FIELDS,
    BatchingMode,
    BatchingRollout,
    BatchingTargets,
    InForce,
    Limits,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.knobs.catalogue import reconcile_knob
from servingslo.policy.knobs.decisions import BATCH_LIMITS, CanaryAct
from servingslo.policy.knobs.engine_limits.canary import AFTER, TEMPLATE
from servingslo.policy.knobs.engine_limits.memory import (
    FIRST_LIMITS_PAUSE_SECONDS,
    LONGEST_LIMITS_PAUSE_SECONDS,
    BatchLimits,
    LimitReverts,
    count_limits_revert,
    expire_limits_reverts,
    memory_of,
)
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Reason

TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
    ),
    replicas=ReplicaTargets(minimum=4, maximum=4),
    batching=BatchingTargets(mode=BatchingMode.AUTO, rollout=BatchingRollout.ALL_AT_ONCE),
)
FEW = 4
GITOPS = "argocd-controller"


@dataclass
class Fought(Run):
    """A story in which GitOps puts the arguments back so long after each write; None: never.

    other: limits that are set in place of those from before.
    """

    after_seconds: float | None = 30.0
    by: str | None = GITOPS
    other: tuple | None = None
    template: tuple = (FEW, None)
    set_by: str | None = "helm"
    written: tuple = ()

    def __post_init__(self):
        given = self.world.observe
        self.world.observe = lambda at: replace(
            given(at), in_force={BATCH_LIMITS: self._in_force()}
        )

    def _in_force(self):
        named = zip(LIMIT_FIELDS, self.template, strict=True)
        values = {f"{TEMPLATE}{name}": value for name, value in named}
        return InForce(values=values, set_by=self.set_by)

    def tick(self):
        """One tick, the rollout that it orders, and what GitOps makes of it."""
        decision = super().tick()
        batching, now = decision.batching, self.world.now
        if batching.apply:
            self.state = reconcile_knob(self.state, "batch-limits", written=True)
            self.written = (*self.written, now)
            self._set(
                (batching.recommended_max_num_seqs, batching.recommended_max_num_batched_tokens),
                "servingslo-operator",
            )
        elif self.written and self.after_seconds is not None:
            ours = self.set_by == "servingslo-operator"
            if ours and now - self.written[-1] >= self.after_seconds:
                self._set(self.other or (FEW, None), self.by)
        return decision

    def _set(self, limits, by):
        self.template, self.set_by = limits, by
        self.world.max_num_seqs = limits[0]
        self.world.roll_out(f"t{self.world.now:.0f}", "vllm:1")

    def until_written(self, times=1):
        """Go on until limits were written so many times."""
        while len(self.written) < times:
            assert self.world.now < 7200.0 * times, {d.batching.reason for d in self.decisions}
            self.tick()
        return self


def story(**settings):
    """Engines that may run four sequences only, while more would serve within the objectives."""
    world = World(rate=lambda _: 9.0, replicas=4, max_num_seqs=FEW, cold_start=30.0)
    return Fought(world, TARGETS, Limits(batching_apply_enabled=True), **settings)


def verdict(decision):
    """Condition BatchingInSync."""
    told = conditions(decision, generation=1, now_seconds=0.0)
    return next(one for one in told if one.type == "BatchingInSync")


@pytest.mark.acceptance
def test_limits_that_are_put_back_are_left_alone_and_the_manager_is_named():
    """In the hour after one revert nothing is written, whatever is wanted; then once more."""
    told = story().until_written()
    first = told.written[0]
    told.until(first + FIRST_LIMITS_PAUSE_SECONDS)
    assert told.written == (first,)
    pause = told.between(first + 90.0, first + FIRST_LIMITS_PAUSE_SECONDS)
    assert {d.batching.reason for d in pause} == {Reason.BATCHING_REVERTED}
    condition = verdict(pause[-1])
    assert (condition.status, condition.reason) == ("False", Reason.BATCHING_REVERTED)
    for said in (condition.message, text(pause[-1])):
        assert f"put back to max_num_seqs {FEW}" in said
        assert f"once by {GITOPS}" in said
    pairs = zip(told.decisions[1:], told.decisions, strict=False)
    posted = [e for now, last in pairs for e in events(now, last)]
    warned = [e for e in posted if e.reason is Reason.BATCHING_REVERTED]
    assert len(warned) == 1
    assert warned[0].type is EventType.WARNING
    assert GITOPS in warned[0].message
    told.until_written(2)
    again = told.written[1]
    told.until(again + 1.5 * FIRST_LIMITS_PAUSE_SECONDS)
    assert len(told.written) == 2
    assert f"2 times in a row by {GITOPS}" in verdict(told.decisions[-1]).message


def test_limits_that_stand_are_judged_as_ever():
    """Without a revert later changes are made as they pay, and no pause is told."""
    told = story(after_seconds=None).until_written()
    told.until(told.written[0] + 1200.0)
    assert memory_of(told.state.knobs).reverts is None
    assert Reason.BATCHING_REVERTED not in {d.batching.reason for d in told.decisions}


def test_other_limits_than_before_are_a_decision_and_no_revert():
    """Somebody who sets limits of their own fights nobody: what is in force is planned from."""
    told = story(other=(6, 2048), by="kubectl-edit").until_written()
    told.until(told.written[0] + 300.0)
    assert memory_of(told.state.knobs).written is None
    assert memory_of(told.state.knobs).reverts is None


class _Canary(Story):
    """A canary whose template GitOps puts back."""

    def _in_force(self):
        found, standing = super()._in_force(), self.standing
        limits = (FEW, None)
        if standing is not None and not self.edited:
            limits = tuple(standing[f"{AFTER}{name}"] for name in LIMIT_FIELDS)
        named = {f"{TEMPLATE}{n}": v for n, v in zip(LIMIT_FIELDS, limits, strict=True)}
        return replace(found, values={**found.values, **named}, set_by=GITOPS)


def test_a_canary_that_is_put_back_is_left_and_its_manager_named():
    """The first pod's limits are left to whoever put them back, and not tried in the pause."""
    usual = story_of_canary()
    told = _Canary(usual.world, usual.targets, usual.limits)
    told.until_act(CanaryAct.HOLD)
    told.edited = True
    left = told.tick().batching
    assert (left.canary, left.reason) == (CanaryAct.LEAVE, Reason.BATCHING_LEFT_TO_USER)
    told.edited = False
    began = told.world.now
    told.until(began + 900.0)
    after = told.between(began + 15.0, began + 900.0)
    assert {d.batching.reason for d in after} == {Reason.BATCHING_REVERTED}
    assert not any(d.batching.apply for d in after)
    assert GITOPS in verdict(after[-1]).message


def test_a_client_is_named_as_one():
    """Kubectl in somebody's hand is no controller, and its limits are left alone all the same."""
    told = story(by="kubectl-edit").until_written()
    told.until(told.written[0] + 300.0)
    assert "by a client (kubectl-edit)" in verdict(told.decisions[-1]).message


def test_a_restart_of_the_operator_does_not_end_the_pause():
    """What is written and who put it back are in what survives a restart."""
    told = story().until_written()
    stored = json.loads(json.dumps(learned(told.state, told.world.now)))
    back = memory_of(restore(stored, told.world.now).knobs)
    assert back.written == memory_of(told.state.knobs).written
    told.until(told.written[0] + 120.0)
    stored = json.loads(json.dumps(learned(told.state, told.world.now)))
    assert (
        restore(stored, told.world.now).knobs["batch-limits"].reverts
        == memory_of(told.state.knobs).reverts
    )
    assert memory_of(told.state.knobs).reverts.pauses(told.world.now)


def test_a_write_that_was_refused_is_expected_nowhere():
    """Nothing of ours is in the template then, so nobody put anything back."""
    told = story(after_seconds=None)
    while not told.decisions or not told.decisions[-1].batching.apply:
        Run.tick(told)
    told.state = reconcile_knob(told.state, "batch-limits", written=False)
    assert memory_of(told.state.knobs).written is None


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param({"limits": [4], "count": 1, "at": 1.0}, id="one-limit"),
        pytest.param({"limits": [4, 2048], "count": 0, "at": 1.0}, id="never"),
        pytest.param({"limits": [4, 2048], "count": 1}, id="no-time"),
        pytest.param(7, id="no-mapping"),
    ],
)
def test_stored_reverts_that_cannot_be_are_none(stored):
    """An edited status pauses nothing."""
    document = {"version": 1, "batching": {"reverts": stored, "written": stored}}
    back = memory_of(restore(document, 100.0).knobs)
    assert (back.reverts, back.written) == (None, None)


def test_pauses_of_limits_double_from_an_hour_to_a_day():
    """Each further revert of the same limits is left alone for twice as long."""
    lengths, memory = [], None
    for _ in range(8):
        memory = count_limits_revert(
            memory, limits=BatchLimits(4, 2048), by=GITOPS, now_seconds=0.0
        )
        lengths.append(memory.until_seconds)
    assert lengths[:3] == [FIRST_LIMITS_PAUSE_SECONDS, 7200.0, 14400.0]
    assert lengths[-1] == LONGEST_LIMITS_PAUSE_SECONDS
    assert (
        count_limits_revert(memory, limits=BatchLimits(8, 2048), by=GITOPS, now_seconds=0.0).count
        == 1
    )


def test_reverts_of_limits_are_forgotten_once_ours_stand():
    """For as long as the last pause was."""
    memory = LimitReverts(limits=BatchLimits(4, 2048), count=2, at_seconds=0.0)
    early = expire_limits_reverts(memory, since_seconds=7200.0, now_seconds=14399.0)
    assert early is memory
    assert expire_limits_reverts(memory, since_seconds=7200.0, now_seconds=14400.0) is None
