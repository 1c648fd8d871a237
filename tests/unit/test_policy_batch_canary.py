"""New batch limits go to one pod first, are compared with its siblings, and reach all or none."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from canary_story import FEW, RATE_PER_SECOND, TARGETS, story
from policy_world import Run

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.inputs import (
    BatchingRollout,
    Limits,
    ReplicaTargets,
    SignalProblem,
)
from servingslo.policy.knobs.decisions import CanaryAct
from servingslo.policy.knobs.engine_limits.aftermath import VERIFY_WITHIN_SECONDS
from servingslo.policy.knobs.engine_limits.canary import (
    LEAST_START_SECONDS,
    STUCK,
    Canary,
    _expected_ratio,
)
from servingslo.policy.knobs.engine_limits.memory import BatchLimits
from servingslo.policy.knobs.trial.comparison import (
    ERROR_RATIO,
    Sample,
    requests_needed,
    share_variance,
    worse_in_words,
)
from servingslo.policy.knobs.trial.stages import COMPARED_WITHIN_SECONDS, WARM_UP_SECONDS
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.engine_kinds import engine_kind


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
    needed = requests_needed(share_variance(TARGETS.objectives), ERROR_RATIO, 2.0)
    assert f"{needed} requests compared" in {
        d.batching.detail.split(" of ")[-1] for d in told.decisions if d.batching.detail
    }
    assert told.world.now - held < 30.0 + WARM_UP_SECONDS + COMPARED_WITHIN_SECONDS
    assert [batching.canary for batching in told.acts] == [
        CanaryAct.START,
        CanaryAct.HOLD,
        CanaryAct.COMPLETE,
    ]


@pytest.mark.parametrize(
    "slowness", [3.0, *(pytest.param(s, marks=pytest.mark.acceptance) for s in (1.7, 20.0))]
)
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


@pytest.mark.parametrize("seed", [27, 33])
def test_a_pod_whose_batch_is_larger_than_usual_is_not_refuted_by_the_law(seed: int) -> None:
    """Close to saturation batches differ by chance, and the time of a token with them."""
    ttft, tpot = TARGETS.objectives
    targets = replace(
        TARGETS,
        objectives=(ttft, replace(tpot, threshold_seconds=0.08)),
        replicas=ReplicaTargets(minimum=3, maximum=3),
    )
    told = story(targets, rate=7.0, seed=seed)
    assert told.until_act(CanaryAct.COMPLETE).reason is Reason.BATCHING_CHANGED


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


def test_a_trial_that_may_not_go_on_is_told_until_it_is_put_back() -> None:
    """Nothing is ordered; where it is permitted again, others are tried within about an hour."""
    told = story()
    after = told.until_act(CanaryAct.HOLD).recommended_max_num_seqs
    permitted, told.limits = told.limits, Limits()
    batching = told.tick().batching
    assert (batching.reason, batching.apply) == (Reason.NOT_PERMITTED, False)
    assert "one pod's limits on trial are put back" in batching.detail
    assert (batching.current_max_num_seqs, batching.recommended_max_num_seqs) == (FEW, after)
    told._carry_out(replace(batching, canary=CanaryAct.TAKE_BACK))
    since = told.world.now
    while told.world.now < since + VERIFY_WITHIN_SECONDS:
        batching = told.tick().batching
        assert not batching.apply
    assert batching.reason is Reason.NOT_PERMITTED
    assert told.state.knobs["batch-limits"].written is None
    told.limits = permitted
    assert told.until_act(CanaryAct.START).recommended_max_num_seqs > FEW


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


def _group(requests, engines, late_ratio, token_seconds=0.02):
    """Engines whose requests miss the first objective with this share, and keep the second."""
    late = late_ratio * requests
    ttft = HistogramDelta(upper_bounds=(1.0,), counts=(requests - late, late), sum=requests)
    tpot = HistogramDelta(
        upper_bounds=(0.05,), counts=(requests, 0.0), sum=token_seconds * requests
    )
    deltas = {LatencyMetric.TTFT: ttft, LatencyMetric.TPOT: tpot}
    return Sample(deltas=deltas, mean_seconds=token_seconds, engines=engines, seconds=60.0)


@pytest.mark.parametrize(
    ("new", "old", "worse"),
    [
        pytest.param(_group(107, 1, 1.0), _group(630, 3, 1.0), True, id="fewer-and-late"),
        pytest.param(_group(107, 1, 0.02), _group(630, 3, 1.0), False, id="fewer-in-time"),
        pytest.param(_group(200, 1, 1.0), _group(630, 3, 1.0), False, id="as-many-in-a-crowd"),
        pytest.param(_group(200, 1, 0.2), _group(630, 3, 0.05), True, id="later"),
        pytest.param(_group(40, 1, 0.15), _group(630, 3, 0.05), False, id="too-few-to-tell"),
        # Tokens take twice as long: at three requests a second no batch says so, at nine one does.
        pytest.param(_group(200, 1, 0.0, 0.04), _group(600, 3, 0.0), True, id="slower"),
        pytest.param(
            _group(540, 1, 0.0, 0.15), _group(1620, 3, 0.0, 0.075), False, id="larger-batch"
        ),
        pytest.param(_group(200, 1, 0.0, 0.04), _group(600, 3, 0.5), False, id="slower-in-time"),
        pytest.param(_group(200, 1, 0.0, 0.04), _group(300, 3, 0.0), False, id="slower-and-more"),
    ],
)
def test_new_limits_are_taken_back_for_what_is_measured_first(new, old, worse) -> None:
    """Clients that give up are in no histogram: what a slow pod did not serve tells."""
    lengths = [LengthDistribution(tokens=(tokens,), weights=(1.0,)) for tokens in (600.0, 120.0)]
    prepared = SimpleNamespace(
        workload=Workload(arrival_rate_per_second=1.0, prompt=lengths[0], output=lengths[1]),
        law=engine_kind("l4-small").law,
    )
    limits = BatchLimits(max_num_seqs=256, max_num_batched_tokens=2048)
    canary = Canary(since_seconds=0.0, before=limits, after=limits)
    expected = _expected_ratio(SimpleNamespace(prepared=prepared), canary, new, old)
    assert bool(worse_in_words(TARGETS.objectives, new, old, expected)) is worse
