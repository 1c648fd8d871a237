"""New batch limits go to one pod first, are compared with its siblings, and reach all or none."""

from dataclasses import replace

import pytest
from tests.features.batch_limits.canary_story import FEW, RATE_PER_SECOND, TARGETS, memory_of, story

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.features.batch_limits.canary import (
    LEAST_START_SECONDS,
)
from servingslo.features.batch_limits.decision import CanaryAct
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    Limits,
    SignalProblem,
)
from servingslo.policy.knobs.catalogue import is_trying
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


def test_a_step_that_is_refused_is_ordered_again() -> None:
    """What stands on the cluster is what counts: a verdict is given until it is carried out."""
    told = story()
    told.until_act(CanaryAct.HOLD)
    carried_out, told._carry_out = told._carry_out, lambda _: None
    told.until_act(CanaryAct.COMPLETE)
    told._carry_out = carried_out
    assert told.tick().batching.canary is CanaryAct.COMPLETE
    told.tick()
    assert not is_trying(told.state)


def test_an_order_that_is_refused_is_no_trial() -> None:
    """It is ordered again at the next tick, and status names no change until one stands."""
    told = story()
    carried_out, told._carry_out = told._carry_out, lambda _: None
    told.until_act(CanaryAct.START)
    assert is_trying(told.state)
    told._carry_out = carried_out
    assert told.tick().batching.canary is CanaryAct.START
    assert memory_of(told.state).last_change_seconds is None


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
    """Nothing is ordered; where it is permitted again, others are tried."""
    told = story()
    after = told.until_act(CanaryAct.HOLD).recommended_max_num_seqs
    permitted, told.limits = told.limits, Limits()
    batching = told.tick().batching
    assert (batching.reason, batching.apply) == (Reason.NOT_PERMITTED, False)
    assert "one pod's limits on trial are put back" in batching.detail
    assert (batching.current_max_num_seqs, batching.recommended_max_num_seqs) == (FEW, after)
    told._carry_out(replace(batching, canary=CanaryAct.TAKE_BACK))
    since = told.world.now
    while told.world.now < since + 120.0:
        batching = told.tick().batching
        assert not batching.apply
    assert batching.reason is Reason.NOT_PERMITTED
    assert told.state.knobs["batch-limits"].written is None
    told.limits = permitted
    assert told.until_act(CanaryAct.START).recommended_max_num_seqs > FEW


def test_where_no_pod_can_go_first_none_does() -> None:
    """The reason is told, and no limits are changed."""
    why = "strategy Recreate stops all pods at once"
    refused = SignalProblem(reason=Reason.BATCHING_CANARY_NOT_POSSIBLE, detail=why)
    told = story(refused=refused)
    told.until(900.0)
    assert not told.acts
    last = told.decisions[-1].batching
    assert (last.reason, last.detail) == (Reason.BATCHING_CANARY_NOT_POSSIBLE, why)


def _group(requests, engines, late_ratio, token_seconds=0.02):
    """Engines whose requests miss the first objective with this share, and keep the second."""
    late = late_ratio * requests
    ttft = HistogramDelta(upper_bounds=(1.0,), counts=(requests - late, late), sum=requests)
    tpot = HistogramDelta(
        upper_bounds=(0.05,), counts=(requests, 0.0), sum=token_seconds * requests
    )
    deltas = {LatencyMetric.TTFT: ttft, LatencyMetric.TPOT: tpot}
    return Sample(deltas=deltas, engines=engines)


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
def test_new_limits_are_taken_back_for_what_is_measured_first(new, old, worse) -> None:
    """Clients that give up are in no histogram: what a slow pod did not serve tells."""
    assert bool(worse_in_words(TARGETS.objectives, new, old)) is worse
