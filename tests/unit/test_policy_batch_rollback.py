"""A change of batch limits is judged by what is measured after it, and taken back where worse."""

import json
from dataclasses import dataclass, replace

import pytest
from policy_world import Run, World

from servingslo.estimation.sample import EngineLaunch
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    BatchingMode,
    BatchingTargets,
    Limits,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.knobs.catalogue import reconcile_knob
from servingslo.policy.knobs.engine_limits.aftermath import (
    VERIFY_AFTER_SECONDS,
    VERIFY_WITHIN_SECONDS,
)
from servingslo.policy.knobs.engine_limits.memory import memory_of
from servingslo.policy.knobs.trial.stages import REFUSED_SECONDS, Refusal
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Reason

TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
    ),
    replicas=ReplicaTargets(minimum=1, maximum=12),
    batching=BatchingTargets(mode=BatchingMode.AUTO),
)
ALLOWED = Limits(batching_apply_enabled=True)
FEW = 4
CALM_PER_SECOND, CROWD_PER_SECOND = 9.0, 30.0


@dataclass
class Rolled(Run):
    """A story whose changes of limits are rolled out; with more sequences steps take so long."""

    slowness: float = 1.0
    changes: int = 0
    # Whether writes are told as refused, and whether they were made all the same.
    refuses: bool = False
    rolls: bool = False

    def tick(self):
        """One tick, and the rollout that it orders."""
        decision = super().tick()
        batching = decision.batching
        if batching.apply:
            self.state = reconcile_knob(self.state, "batch-limits", written=not self.refuses)
        if batching.apply and (self.rolls or not self.refuses):
            self.changes += 1
            self.world.max_num_seqs = batching.recommended_max_num_seqs
            worse = self.slowness if batching.recommended_max_num_seqs > FEW else 1.0
            self.world.roll_out(f"t{1 + self.changes}", "vllm:1", worse)
        return decision


def story(slowness, launch=None, maximum=12):
    """Engines that may run four sequences only, until the limits found for them are in force."""
    world = World(
        rate=lambda _: CALM_PER_SECOND,
        replicas=4,
        max_num_seqs=FEW,
        cold_start=30.0,
        launch=launch,
    )
    targets = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=maximum))
    told = Rolled(world, targets, ALLOWED, slowness=slowness)
    while not told.changes and world.now < 1200.0:
        told.tick()
    assert told.changes == 1
    return told


def overrun(seconds):
    """The same with right limits on a fleet that cannot grow, and a crowd some time after them."""
    told = story(slowness=1.0, maximum=4)
    begins = told.world.now + 60.0

    def rate(at):
        return CROWD_PER_SECOND if begins <= at < begins + seconds else CALM_PER_SECOND

    told.world.rate = rate
    return told


def judged(told, seconds=900.0):
    """The decisions after the change, until it is judged or the time is over."""
    since = told.world.now
    while memory_of(told.state.knobs).verifying is not None and told.world.now < since + seconds:
        told.tick()
        if told.decisions[-1].batching.reason is Reason.BATCHING_ROLLED_BACK:
            break
    return told.between(since + 1.0, told.world.now)


def test_limits_that_make_the_objectives_worse_are_taken_back_and_refused_for_a_day():
    """Not before every new pod has served alone for long enough; then by a rollout of its own."""
    told = story(slowness=3.0)
    changed = memory_of(told.state.knobs).verifying
    back = judged(told)[-1]
    assert back.batching.reason is Reason.BATCHING_ROLLED_BACK
    assert back.batching.apply
    assert back.batching.recommended_max_num_seqs == FEW
    assert back.time_seconds - changed.at_seconds >= VERIFY_AFTER_SECONDS
    memory = memory_of(told.state.knobs)
    until = back.time_seconds + REFUSED_SECONDS
    assert memory.refusal == Refusal(setting=changed.after, until_seconds=until)
    assert memory.verifying.rollback
    step = next(s for s in back.steps if s.reason is Reason.BATCHING_ROLLED_BACK)
    assert (step.before, step.after) == (changed.after.max_num_seqs, FEW)
    told.until(told.world.now + 1200.0)
    assert told.changes == 2
    assert told.world.max_num_seqs == FEW
    again = [d.batching for d in told.between(back.time_seconds + 600.0, told.world.now)]
    wanted = [b for b in again if b.better is not None]
    assert wanted
    assert {b.reason for b in wanted} == {Reason.BATCHING_ROLLED_BACK}
    assert not any(b.apply for b in wanted)


@pytest.mark.parametrize(
    ("had", "removed"),
    [
        pytest.param((), ("max_num_seqs", "max_num_batched_tokens"), id="none"),
        pytest.param(("max_num_seqs",), ("max_num_batched_tokens",), id="one"),
        pytest.param(("max_num_seqs", "max_num_batched_tokens"), (), id="both"),
    ],
)
def test_flags_that_the_container_did_not_have_are_removed_again_also_after_a_restart(had, removed):
    """What is taken back is the command line as it was, not the numbers that were in force."""
    told = story(slowness=3.0, launch=EngineLaunch(flags=had))
    assert told.decisions[-1].batching.flags_removed == ()
    told.world.launch = EngineLaunch(flags=("max_num_seqs", "max_num_batched_tokens"))
    stored = json.loads(json.dumps(learned(told.state, told.world.now)))
    kept = memory_of(restore(stored, told.world.now).knobs)
    told.state = replace(
        told.state,
        knobs={"batch-limits": replace(kept, search=memory_of(told.state.knobs).search)},
    )
    back = judged(told)[-1].batching
    assert back.apply
    assert back.flags_removed == removed
    assert back.recommended_max_num_seqs == FEW


def test_a_take_back_whose_write_is_refused_is_ordered_again():
    """It is not done: the bad limits are still in force, and the next tick takes them back."""
    told = story(slowness=3.0)
    bad = told.world.max_num_seqs
    told.refuses = True
    back = judged(told)[-1]
    assert back.batching.apply
    assert told.world.max_num_seqs == bad
    told.refuses = False
    again = told.tick().batching
    assert again.apply
    assert (again.reason, again.recommended_max_num_seqs) == (Reason.BATCHING_ROLLED_BACK, FEW)
    assert told.world.max_num_seqs == FEW


def test_a_take_back_without_an_answer_that_was_made_is_known_for_done():
    """Its limits stay refused, and nothing waits an hour for limits that are not in force."""
    told = story(slowness=3.0)
    bad = memory_of(told.state.knobs).verifying.after
    told.refuses, told.rolls = True, True
    judged(told)
    told.refuses = False
    told.until(told.world.now + 600.0)
    memory = memory_of(told.state.knobs)
    assert told.world.max_num_seqs == FEW
    assert memory.verifying is None
    assert memory.refusal.setting == bad
    assert told.changes == 2


def test_a_crowd_after_a_change_does_not_take_right_limits_back():
    """What more requests than the limits were found for do to latency is no verdict on the limits.

    Nor is what those see who came with it, and waited until long after it was over.
    """
    told = overrun(seconds=300.0)
    changed = memory_of(told.state.knobs).verifying
    told.until(changed.at_seconds + 900.0)
    assert told.share_within(ttft=1.0, tpot=0.05, start=changed.at_seconds + 120.0) < 0.5
    assert memory_of(told.state.knobs).refusal is None
    assert told.changes == 1


def test_a_crowd_that_does_not_end_leaves_limits_unjudged_and_says_so():
    """An hour after the change the limits are kept, and others may be tried."""
    told = overrun(seconds=3600.0)
    told.until(memory_of(told.state.knobs).verifying.at_seconds + 420.0)
    memory = memory_of(told.state.knobs)
    old = replace(memory.verifying, at_seconds=told.world.now - VERIFY_WITHIN_SECONDS)
    told.state = replace(told.state, knobs={"batch-limits": replace(memory, verifying=old)})
    decision = told.tick()
    step = next(s for s in decision.steps if s.reason is Reason.BATCHING_NOT_JUDGED)
    assert (step.before, step.after) == (FEW, memory.verifying.after.max_num_seqs)
    assert step.inputs["rate_per_replica_per_second"] > step.inputs["judged_up_to_per_second"]
    assert memory_of(told.state.knobs).verifying is None
    assert memory_of(told.state.knobs).refusal is None


def test_limits_that_do_no_harm_stay():
    """The change is closed, and nothing is refused."""
    told = story(slowness=1.0)
    after = judged(told)
    assert memory_of(told.state.knobs).verifying is None
    assert memory_of(told.state.knobs).refusal is None
    assert told.changes == 1
    assert Reason.BATCHING_ROLLED_BACK not in {d.batching.reason for d in after}


def test_who_may_no_longer_change_limits_is_told_that_they_should_go_back():
    """And the change stays open, to be taken back once that is allowed again."""
    told = story(slowness=3.0)
    changed = memory_of(told.state.knobs).verifying
    told.limits = Limits()
    last = judged(told)[-1]
    assert last.batching.reason is Reason.BATCHING_ROLLED_BACK
    assert not last.batching.apply
    assert last.batching.recommended_max_num_seqs == FEW
    assert memory_of(told.state.knobs).verifying.at_seconds == changed.at_seconds
    assert memory_of(told.state.knobs).refusal is None
    told.limits = ALLOWED
    assert told.tick().batching.apply


def test_a_change_that_somebody_undid_is_forgotten():
    """After an hour of other limits than those ordered there is nothing to judge."""
    told = story(slowness=1.0)
    world, changed = told.world, memory_of(told.state.knobs).verifying
    world.max_num_seqs = FEW
    world.roll_out("by-hand", "vllm:1")
    told.until(told.world.now + 600.0)
    assert memory_of(told.state.knobs).verifying.at_seconds == changed.at_seconds
    told.targets = replace(told.targets, batching=BatchingTargets(mode=BatchingMode.RECOMMEND))
    told.until(changed.at_seconds + 3660.0)
    memory = memory_of(told.state.knobs)
    assert memory.verifying is None
    assert memory.refusal is None
