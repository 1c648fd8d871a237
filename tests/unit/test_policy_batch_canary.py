"""New batch limits go to one pod first, are compared with its siblings, and reach all or none."""

from dataclasses import dataclass, replace

import pytest
from policy_world import Pod, Run, World

from servingslo.estimation.histograms import HistogramDelta
from servingslo.models.latency import LatencyMetric, Objective
from servingslo.policy import batch_canary
from servingslo.policy.batch_canary import (
    AFTER,
    BEFORE,
    COMPARED_WITHIN_SECONDS,
    EDITED,
    HELD,
    LEAST_START_SECONDS,
    NEW_PODS,
    SINCE,
    STUCK,
    WARM_UP_SECONDS,
    requests_needed,
)
from servingslo.policy.batch_watch import KNOB
from servingslo.policy.batching_decision import CanaryAct
from servingslo.policy.inputs import (
    BatchingMode,
    BatchingRollout,
    BatchingTargets,
    InForce,
    Limits,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.state import LIMIT_FIELDS, PlannerState, reconcile_batching
from servingslo.reasons import Reason

TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
    ),
    replicas=ReplicaTargets(minimum=4, maximum=4),
    batching=BatchingTargets(mode=BatchingMode.AUTO),
)
ALLOWED = Limits(batching_apply_enabled=True)
FEW = 4
RATE_PER_SECOND = 9.0
OLD, NEW = "t1", "t2"


class Fleet(World):
    """A world in which pods of the new template have limits, and a speed, of their own."""

    new_max_num_seqs = None

    def _start_ready(self):
        old = self.max_num_seqs
        for pod in self.pods:
            if pod.ready_at <= self.now and pod.name not in self.service.engines:
                self.max_num_seqs = self.new_max_num_seqs if pod.template == NEW else old
                self.service.add(pod.name, self._engine(pod.slowness), self.now)
        self.max_num_seqs = old


@dataclass
class Story(Run):
    """What the cluster does with a canary: the new pod's steps take `slowness` times as long.

    comes: whether it becomes ready at all. edited: somebody changes the template meanwhile.
    """

    slowness: float = 1.0
    comes: bool = True
    edited: bool = False
    refused: SignalProblem | None = None
    standing: dict | None = None
    acts: tuple = ()

    def tick(self):
        """One tick, and what it orders of the canary."""
        given = self.world.observe
        self.world.observe = lambda at: replace(given(at), in_force={KNOB: self._in_force()})
        try:
            decision = super().tick()
        finally:
            self.world.observe = given
        batching = decision.batching
        if batching.apply:
            self.acts += (batching,)
            self.state = reconcile_batching(self.state, written=True)
            self._carry_out(batching)
        return decision

    def until_act(self, act, within=2400.0):
        """Tick until this is ordered; its decision."""
        end = self.world.now + within
        while self.world.now < end:
            batching = self.tick().batching
            if batching.apply and batching.canary is act:
                return batching
        told = {d.batching.reason for d in self.decisions}
        raise AssertionError(f"no {act} within {within} s: {told}")

    def _in_force(self):
        values = {} if self.standing is None else {**self.standing, EDITED: int(self.edited)}
        return InForce(values=values, refused=self.refused)

    def _carry_out(self, batching):
        world = self.world
        if batching.canary is CanaryAct.START:
            before = (batching.current_max_num_seqs, batching.current_max_num_batched_tokens)
            after = (
                batching.recommended_max_num_seqs,
                batching.recommended_max_num_batched_tokens,
            )
            named = [(f"{BEFORE}{n}", v) for n, v in zip(LIMIT_FIELDS, before, strict=True)]
            named += [(f"{AFTER}{n}", v) for n, v in zip(LIMIT_FIELDS, after, strict=True)]
            self.standing = {SINCE: int(world.now), HELD: 0, NEW_PODS: 1, **dict(named)}
            world.new_max_num_seqs = after[0]
            world.rollout = True
            ready_at = world.now + world.cold_start if self.comes else float("inf")
            world.pods.append(Pod("llama-new", world.now, ready_at, NEW, slowness=self.slowness))
        elif batching.canary is CanaryAct.HOLD:
            self.standing[HELD] = 1
        else:
            self.standing = None
            world.rollout = False
            gone = [pod for pod in world.pods if pod.template == NEW]
            if batching.canary is CanaryAct.TAKE_BACK:
                for pod in gone:
                    world.pods.remove(pod)
                    if pod.name in world.service.engines:
                        world.service.remove(pod.name, world.now, drain=True)


def story(targets=TARGETS, **settings):
    """Engines that may run four sequences only, while more would serve within the objectives."""
    world = Fleet(rate=lambda _: RATE_PER_SECOND, replicas=4, max_num_seqs=FEW, cold_start=30.0)
    return Story(world, targets, ALLOWED, **settings)


def test_good_limits_reach_one_pod_first_and_then_all() -> None:
    """One pod, held there, compared over a number of requests known beforehand, then the rest."""
    told = story()
    start = told.until_act(CanaryAct.START)
    assert start.reason is Reason.BATCHING_CANARY_STARTED
    assert start.recommended_max_num_seqs > FEW
    assert told.until_act(CanaryAct.HOLD, within=30.0).reason is Reason.BATCHING_CANARY_HELD
    held = told.world.now
    done = told.until_act(CanaryAct.COMPLETE)
    assert done.reason is Reason.BATCHING_CHANGED
    assert done.recommended_max_num_seqs == start.recommended_max_num_seqs
    assert f"{requests_needed(TARGETS.objectives)} requests compared" in {
        d.batching.detail.split(" of ")[-1] for d in told.decisions if d.batching.detail
    }
    assert told.world.now - held < 30.0 + WARM_UP_SECONDS + COMPARED_WITHIN_SECONDS
    assert [batching.canary for batching in told.acts] == [
        CanaryAct.START,
        CanaryAct.HOLD,
        CanaryAct.COMPLETE,
    ]


@pytest.mark.parametrize("slowness", [1.7, 3.0])
def test_limits_that_slow_their_pod_are_taken_back_and_not_tried_again(slowness: float) -> None:
    """Worse than the siblings over the same time: the former limits, and none that way for long."""
    told = story(slowness=slowness)
    told.until_act(CanaryAct.START)
    back = told.until_act(CanaryAct.TAKE_BACK)
    assert back.reason is Reason.BATCHING_ROLLED_BACK
    assert back.recommended_max_num_seqs == FEW
    assert "elsewhere" in back.detail
    told.until(told.world.now + 1800.0)
    assert len(told.acts) == 3
    assert told.decisions[-1].batching.reason is Reason.BATCHING_ROLLED_BACK


def test_pods_that_block_the_way_back_are_evicted_while_they_do() -> None:
    """A StatefulSet waits for them for ever; nothing else is done about limits meanwhile."""
    told = story()
    told.until_act(CanaryAct.START)
    told.until_act(CanaryAct.HOLD)
    told.standing = {STUCK: 1}
    assert told.until_act(CanaryAct.FREE, within=30.0).reason is Reason.BATCHING_CANARY_FAILED
    assert told.standing is None


def test_a_crowd_during_the_comparison_is_not_the_limits_fault() -> None:
    """What all pods suffer alike takes nothing back."""
    told = story()
    told.until_act(CanaryAct.HOLD)
    told.world.rate = lambda _: 3.0 * RATE_PER_SECOND
    assert told.until_act(CanaryAct.COMPLETE).reason is Reason.BATCHING_CHANGED


def test_a_pod_that_does_not_come_is_taken_back() -> None:
    """Image, room or a crash: after three usual starts, two minutes at least, the change goes."""
    told = story(comes=False)
    told.until_act(CanaryAct.START)
    began = told.world.now
    back = told.until_act(CanaryAct.TAKE_BACK)
    assert back.reason is Reason.BATCHING_CANARY_FAILED
    assert LEAST_START_SECONDS < told.world.now - began <= LEAST_START_SECONDS + 60.0


def test_without_requests_nothing_is_concluded() -> None:
    """A comparison that traffic does not fill ends after a quarter of an hour: no change."""
    told = story()
    told.until_act(CanaryAct.HOLD)
    told.world.rate = lambda _: 1e-6
    back = told.until_act(CanaryAct.TAKE_BACK)
    assert back.reason is Reason.BATCHING_CANARY_NOT_COMPARED


def test_somebody_elses_template_is_left_alone() -> None:
    """Whoever edits the template meanwhile has the last word."""
    told = story()
    told.until_act(CanaryAct.HOLD)
    told.edited = True
    left = told.tick().batching
    assert (left.canary, left.reason) == (CanaryAct.LEAVE, Reason.BATCHING_LEFT_TO_USER)


def test_a_restarted_operator_ends_what_it_had_begun() -> None:
    """The memory is gone; what stands on the cluster is enough, also to judge it."""
    told = story()
    told.until_act(CanaryAct.HOLD)
    told.until(told.world.now + 120.0)
    told.state = PlannerState()
    done = told.until_act(CanaryAct.COMPLETE)
    assert done.recommended_max_num_seqs > FEW


def test_where_no_pod_can_go_first_none_does() -> None:
    """The reason is told; with AllAtOnce the same limits are applied to all pods."""
    why = "strategy Recreate stops all pods at once"
    refused = SignalProblem(reason=Reason.BATCHING_CANARY_NOT_POSSIBLE, detail=why)
    told = story(refused=refused)
    told.until(900.0)
    assert not told.acts
    last = told.decisions[-1].batching
    assert (last.reason, last.detail) == (Reason.BATCHING_CANARY_NOT_POSSIBLE, why)
    batching = replace(TARGETS.batching, rollout=BatchingRollout.ALL_AT_ONCE)
    other = story(replace(TARGETS, batching=batching), refused=refused)
    while not other.decisions or not other.decisions[-1].batching.apply:
        assert other.world.now < 900.0
        Run.tick(other)
    assert other.decisions[-1].batching.canary is None


def _group(requests, engines, late_ratio):
    """Engines whose requests miss the first objective with this share, and keep the second."""
    late = late_ratio * requests
    ttft = HistogramDelta(upper_bounds=(1.0,), counts=(requests - late, late), sum=requests)
    tpot = HistogramDelta(upper_bounds=(0.05,), counts=(requests, 0.0), sum=0.02 * requests)
    deltas = {LatencyMetric.TTFT: ttft, LatencyMetric.TPOT: tpot}
    return batch_canary._Group(deltas=deltas, engines=engines)


@pytest.mark.parametrize(
    ("new", "old", "worse"),
    [
        pytest.param(_group(107, 1, 1.0), _group(630, 3, 1.0), True, id="fewer-and-late"),
        pytest.param(_group(107, 1, 0.02), _group(630, 3, 1.0), False, id="fewer-in-time"),
        pytest.param(_group(200, 1, 1.0), _group(630, 3, 1.0), False, id="as-many-in-a-crowd"),
        pytest.param(_group(200, 1, 0.2), _group(630, 3, 0.05), True, id="later"),
        pytest.param(_group(40, 1, 0.15), _group(630, 3, 0.05), False, id="too-few-to-tell"),
    ],
)
def test_who_serves_fewer_and_late_is_worse(new, old, worse) -> None:
    """Clients that give up are in no histogram: what a slow pod did not serve tells."""
    context = Run(None, TARGETS, ALLOWED)
    assert bool(batch_canary._worse(context, new, old)) is worse
