"""Degradation in the planner: what it follows, what verifies a step, what ends it."""

import itertools
from dataclasses import replace

import pytest
from tests.features.degradation.degraded_world import DEGRADING, DegradedRun, SplitWorld, share_of
from tests.unit.policy_world import stepped

from servingslo.controller.reporting.status import status_fields
from servingslo.estimation.gateway.fallback import FallbackUse
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.text import text
from servingslo.features.degradation.capacity import FIRST_STEP_RATIO
from servingslo.features.degradation.steps import (
    FULL_SECONDS,
    GROWTH,
    STEP_SECONDS,
    StepMemory,
    Verdict,
    judge,
)
from servingslo.features.degradation.text import degradation_verdict
from servingslo.policy.inputs import InForce, Limits, Mode, SignalProblem
from servingslo.policy.routes import Elsewhere
from servingslo.reasons import Reason

# Three replicas carry about eight requests a second; the crowd is half as many more.
CALM, CROWD = 4.0, 15.0
BEGINS, ENDS = 600.0, 2100.0


def crowd(**world):
    """A crowd that three replicas cannot serve, for 25 minutes."""
    offered = stepped((0.0, CALM), (BEGINS, CROWD), (ENDS, CALM))
    return SplitWorld(rate=None, replicas=2, offered=offered, **world)


def story(world=None, **changed):
    """A run of that crowd."""
    return DegradedRun(world or crowd(), replace(DEGRADING, **changed), Limits())


@pytest.fixture(scope="module")
def played():
    """The whole crowd, once."""
    return story().until(3600.0)


def test_a_crowd_gets_every_replica_first_then_the_fallback_then_all_back(played):
    """In this order, and each step is at most twice the last, half a minute apart."""
    first = next(d for d in played.decisions if share_of(d).after > 0.0)
    assert first.replicas_before == 3
    assert share_of(first).change_reason is Reason.DEGRADATION_RAISED
    assert share_of(first).cause is Reason.MAX_REPLICAS_REACHED
    assert share_of(first).after <= FIRST_STEP_RATIO
    assert max(played.shares) <= 0.5
    changes = [d for d in played.decisions if share_of(d).change_reason is not None]
    for before, after in itertools.pairwise(changes):
        assert after.time_seconds - before.time_seconds >= STEP_SECONDS
        assert share_of(after).after <= max(FIRST_STEP_RATIO, GROWTH * share_of(after).before)
    assert played.share_at(ENDS) > 0.2
    assert played.shares[-1] == 0.0
    assert share_of(played.decisions[-1]).reason is Reason.NOT_DEGRADED


def test_it_keeps_the_objectives_of_those_who_stay(played):
    """Of the requests in the second half of the crowd; without a fallback most are late."""
    start, end = (BEGINS + ENDS) / 2.0, ENDS
    world = crowd()
    plain = replace(DEGRADING, features={}, elsewhere=None)
    without = DegradedRun(world, plain, Limits()).until(ENDS + 60)
    assert played.share_within(1.0, 0.05, start, end) > 0.9
    assert without.share_within(1.0, 0.05, start, end) < 0.5


def test_the_ledger_says_where_requests_went(played):
    """Offered is the truth, and the fallback's part is degraded."""
    decision = played.at(ENDS - 60.0)
    ledger = decision.demand.ledger
    assert ledger.offered_per_second == pytest.approx(CROWD, rel=0.35)
    share = played.share_at(ENDS - 90.0)
    assert ledger.degraded_per_second == pytest.approx(share * CROWD, rel=0.05)
    whole = ledger.admitted_per_second + ledger.degraded_per_second + ledger.queueing_per_second
    assert ledger.offered_per_second == pytest.approx(whole + (ledger.refused_per_second or 0.0))


def test_a_full_fallback_is_not_used_further():
    """It takes one request a second: the share goes back to what it took, and no higher."""
    world = crowd(takes=1.0)
    run = story(world).until(ENDS)
    full = [d for d in run.decisions if share_of(d).change_reason is Reason.FALLBACK_FULL]
    since = full[0].time_seconds
    later = [share for d, share in zip(run.decisions, run.shares, strict=True)
             if since < d.time_seconds < since + FULL_SECONDS]  # fmt: skip
    assert max(later) * CROWD <= 1.0
    assert verdicts(full[0])[ConditionType.FALLBACK_USABLE].status is ConditionStatus.FALSE


def test_a_fallback_that_nobody_counts_is_left():
    """Two minutes after the first step, and for a while nothing goes there."""
    run = story(crowd(counted=False)).until(BEGINS + 600.0)
    assert 0.0 < max(run.shares) <= FIRST_STEP_RATIO
    left = next(d for d in run.decisions if share_of(d).reason is Reason.FALLBACK_UNSEEN)
    assert share_of(left).puts_back
    after = run.between(left.time_seconds + 15.0, left.time_seconds + FULL_SECONDS - 15.0)
    assert {share_of(d).after for d in after} == {0.0}


def test_a_step_that_no_request_followed_is_not_verified():
    """A gateway that has not taken the weights over yet is waited for."""
    nothing = FallbackUse(
        requests_per_second=0.0,
        refused_per_second=0.0,
        refused_at_gateway_per_second=0.0,
        mean_seconds=None,
        requests=0.0,
        began_seconds=20.0,
    )
    step = StepMemory(share=0.05, since_seconds=0.0)
    assert judge(step, nothing, None, 30.0)[0] is Verdict.WAITING
    some = replace(nothing, requests_per_second=0.1, requests=1.0)
    verdict, step = judge(step, some, None, 30.0)
    assert (verdict, step.verified) == (Verdict.GOOD, 0.05)


def test_no_share_while_a_replica_more_can_be_had():
    """The same crowd with room for every replica that it needs."""
    run = story(replicas=replace(DEGRADING.replicas, maximum=64)).until(BEGINS + 900.0)
    assert set(run.shares) == {0.0}


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.PAUSED])
def test_nothing_is_decided_where_nothing_is_carried_out(mode):
    """The actuator then puts the owner's weights back."""
    run = story(mode=mode)
    run.tick()
    assert share_of(run.decisions[-1]) is None


def test_weights_that_may_not_be_changed_any_more_are_put_back():
    """The label is gone: ours go, and the reason is reported."""
    run = story().until(BEGINS + 400.0)
    assert run.world.share > 0.0
    run.refused = SignalProblem(reason=Reason.NOT_PERMITTED, detail="no label")
    decided = share_of(run.tick())
    assert decided.change_reason is Reason.WEIGHTS_PUT_BACK
    assert run.world.share == 0.0
    assert share_of(run.tick()).change_reason is None
    run.refused = SignalProblem(reason=Reason.CLUSTER_UNAVAILABLE, detail="no answer")
    assert share_of(run.tick()).reason is Reason.CLUSTER_UNAVAILABLE


def test_weights_that_stand_though_they_may_not_are_told():
    """With their share where they cannot be put back, and as unknown where they cannot be read."""
    run = story().until(BEGINS + 400.0)
    share = run.world.share
    run.refused = SignalProblem(reason=Reason.NOT_PERMITTED, detail="degradation is off")
    refused = replace(share_of(run.tick()).hold(), reason=Reason.WRITE_FAILED, detail="403")
    told = degradation_verdict(refused)
    assert told.message.startswith(f"Service/small: {100 * share:.1f} % of the requests go there")
    assert told.status is ConditionStatus.FALSE
    run.world.share = share
    decided = share_of(DegradedRun.tick(replace(run, limits=Limits(recommend_only=True))))
    assert (decided.after, decided.change_reason) == (share, None)
    assert decided.reason is Reason.KILL_SWITCH

    class Unread(DegradedRun):
        standing = InForce(refused=run.refused)

    decision = Unread(run.world, run.targets, Limits()).tick()
    assert share_of(decision).unread
    assert "an unknown share to Service/small" in text(decision)
    fields = status_fields(decision, generation=1, last_batch_change_seconds=None)
    assert "share" not in fields["degradation"]


def test_without_metrics_the_share_is_kept():
    """Nothing is known, so nothing moves."""
    run = story().until(BEGINS + 400.0)
    share = run.world.share
    run.world.hidden_pods = {pod.name for pod in run.world.pods}
    for _ in range(8):
        decided = share_of(run.tick())
    assert decided.reason is Reason.METRICS_MISSING
    assert run.world.share == share > 0.0


@pytest.mark.slow("servingslo.policy")
def test_a_degraded_request_counts_by_its_own_weight():
    """The promised share of a whole crowd: by weight 1 it is best, by 0 worst."""
    attained = []
    for weight in (0.0, 0.5, 1.0):
        wanted = Elsewhere(service="small", counts_as_ratio=weight)
        run = story(elsewhere=wanted).until(ENDS)
        attained.append(run.decisions[-1].promise.attained_ratio)
    assert attained[0] < attained[1] < attained[2]
