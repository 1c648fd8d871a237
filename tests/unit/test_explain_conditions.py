"""Conditions and events: what they say, since when, and how often."""

from dataclasses import replace

import pytest
from tests.golden.decisions import BLIND, NOON_SECONDS, SCALE_UP

from servingslo.adapters.gauges import metric_samples
from servingslo.api.v1alpha1.status import MAX_SUMMARY_LENGTH
from servingslo.explain.conditions import derived
from servingslo.explain.conditions.cause import NOT_READY_REASONS
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType, Verdict
from servingslo.explain.conditions.derived import conditions, not_ready
from servingslo.explain.conditions.stalled import GRACE_SECONDS
from servingslo.explain.events import events
from servingslo.explain.headline import answer_line, headline
from servingslo.explain.log_line import log_line, material_change
from servingslo.explain.text import text
from servingslo.policy.decision_parts import DecisionStep, LimitsUse, ObjectiveReport
from servingslo.reasons import Action, Reason


def _of(decision, previous=(), now=NOON_SECONDS):
    found = conditions(decision, previous, generation=1, now_seconds=now)
    return {condition.type: condition for condition in found}


def _objective(low, high, percentile=99.0):
    return ObjectiveReport(
        metric="ttft",
        percentile=percentile,
        threshold_seconds=0.5,
        share_low_ratio=low,
        share_high_ratio=high,
    )


@pytest.mark.parametrize(
    ("shares", "status", "reason"),
    [
        pytest.param([(0.995, 0.997)], "True", Reason.WITHIN_OBJECTIVES, id="both-above"),
        pytest.param([(0.99, 0.99)], "True", Reason.WITHIN_OBJECTIVES, id="exactly-met"),
        pytest.param([(0.9, 0.98)], "False", Reason.OBJECTIVES_MISSED, id="both-below"),
        pytest.param(
            [(0.98, 0.995)], "Unknown", Reason.BELOW_BUCKET_RESOLUTION, id="ends-disagree"
        ),
        pytest.param([(None, None)], "Unknown", Reason.NO_TRAFFIC, id="no-requests"),
        pytest.param([], "Unknown", Reason.NO_TRAFFIC, id="nothing-known-yet"),
        pytest.param(
            [(1.0, 1.0), (0.5, 0.6)], "False", Reason.OBJECTIVES_MISSED, id="one-of-two-missed"
        ),
        pytest.param(
            [(0.98, 0.995), (0.5, 0.6)], "False", Reason.OBJECTIVES_MISSED, id="missed-beats-coarse"
        ),
        pytest.param(
            [(1.0, 1.0), (0.98, 1.0)],
            "Unknown",
            Reason.BELOW_BUCKET_RESOLUTION,
            id="coarse-beats-met",
        ),
        pytest.param(
            [(1.0, 1.0), (None, None)], "Unknown", Reason.NO_TRAFFIC, id="silence-beats-met"
        ),
    ],
)
def test_slo_met_is_only_claimed_where_buckets_can_tell(shares, status, reason):
    """The share within the threshold is an interval; the answer is honest about its width."""
    decision = replace(SCALE_UP, objectives=tuple(_objective(*share) for share in shares))
    condition = _of(decision)["SLOMet"]
    assert (condition.status, condition.reason) == (status, reason)


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        pytest.param((0.1, 0.2), Reason.INFEASIBLE_OBJECTIVE, id="missed"),
        pytest.param((None, None), Reason.INFEASIBLE_OBJECTIVE, id="no-requests"),
        pytest.param((0.995, 0.997), Reason.WITHIN_OBJECTIVES, id="met-all-the-same"),
    ],
)
def test_an_objective_that_no_count_meets_says_what_could_be_met(shares, reason):
    """The least feasible value stands in the condition and in one event, to two digits."""
    step = DecisionStep(
        stage="sizing",
        knob="replicas",
        before=3,
        after=3,
        reason=Reason.INFEASIBLE_OBJECTIVE,
        inputs={"metric": "ttft", "percentile": 99.0, "least_feasible_seconds": 0.6183},
    )
    plain = replace(SCALE_UP, objectives=(_objective(0.995, 0.997),))
    decision = replace(plain, objectives=(_objective(*shares),), steps=(step,))
    condition = _of(decision)["SLOMet"]
    assert condition.reason is reason
    told = [event for event in events(decision, plain) if event.reason is reason]
    if reason is Reason.INFEASIBLE_OBJECTIVE:
        assert condition.status == "False"
        assert condition.message.endswith("the least feasible value is 0.62s")
        assert [event.message for event in told] == [condition.message]
    else:
        assert told == []


def test_each_condition_speaks_of_its_own_trouble():
    """An autoscaler on the target is no news of metrics, and the other way round."""
    conflict = {"limited_by": Reason.SCALER_CONFLICT, "detail": "hpa/llama scales it as well"}
    found = _of(replace(SCALE_UP, metrics=Reason.METRICS_PARTIAL, **conflict))
    assert found["MetricsFresh"].message == "some samples are missing"
    step = DecisionStep(
        stage="signals",
        knob="replicas",
        before=5,
        after=5,
        reason=Reason.PROMETHEUS_UNAVAILABLE,
        inputs={"detail": "refused"},
    )
    found = _of(replace(BLIND, steps=(step,), **conflict))
    assert found["MetricsFresh"].message == "Prometheus does not answer: refused"
    assert found["ScalingLimited"].message.endswith("hpa/llama scales it as well")


def test_slo_met_is_unknown_while_metrics_are_not_fresh():
    """An old share says nothing about now."""
    decision = replace(SCALE_UP, metrics=Reason.METRICS_STALE)
    assert _of(decision)["SLOMet"].reason is Reason.METRICS_STALE
    assert _of(decision)["SLOMet"].status == "Unknown"


@pytest.mark.parametrize("reason", sorted(NOT_READY_REASONS))
@pytest.mark.parametrize("where", ["reason", "limited_by"])
def test_ready_is_false_when_the_target_is_not_ours_to_scale(reason, where):
    """Hands off is told as Ready=False with its reason, wherever the planner put it."""
    condition = _of(replace(SCALE_UP, **{where: reason}, detail="hpa/llama"))["Ready"]
    assert (condition.status, condition.reason) == ("False", reason)
    assert condition.message == "hpa/llama"


def test_transition_time_moves_only_with_the_status():
    """A new reason or message of the same status keeps the time of the transition."""
    first = _of(SCALE_UP)
    limited = replace(SCALE_UP, limited_by=Reason.MAX_REPLICAS_REACHED)
    second = _of(limited, tuple(first.values()), NOON_SECONDS + 15)
    assert second["ScalingLimited"].last_transition_seconds == NOON_SECONDS + 15
    other = replace(SCALE_UP, limited_by=Reason.ADMINISTRATOR_LIMIT)
    third = _of(other, tuple(second.values()), NOON_SECONDS + 30)
    assert third["ScalingLimited"].reason is Reason.ADMINISTRATOR_LIMIT
    assert third["ScalingLimited"].last_transition_seconds == NOON_SECONDS + 15
    assert third["Ready"].last_transition_seconds == NOON_SECONDS


def test_not_ready_keeps_what_was_known_before():
    """A bad spec says nothing about metrics or model: only Ready changes."""
    before = conditions(SCALE_UP, generation=1, now_seconds=NOON_SECONDS)
    after = not_ready(
        Reason.INVALID_SPEC,
        "spec.replicas.max: 0",
        before,
        generation=2,
        now_seconds=NOON_SECONDS + 9,
    )
    ready = after[0]
    assert (ready.type, ready.status, ready.reason) == ("Ready", "False", Reason.INVALID_SPEC)
    assert (ready.observed_generation, ready.last_transition_seconds) == (2, NOON_SECONDS + 9)
    stalled = after[-1]
    assert (stalled.type, stalled.status, stalled.reason) == ("Stalled", "True", ready.reason)
    assert after[1:-1] == before[1:]
    failed = not_ready(
        Reason.INTERNAL_ERROR, "a fault", after, generation=2, now_seconds=NOON_SECONDS + 20
    )
    assert [one.type for one in failed] == [one.type for one in before]


def test_a_lacking_target_stalls_after_the_time_in_which_it_may_be_applied():
    """A resource may be applied before its target; when that is there, nothing is said of it."""
    lacking = replace(BLIND, limited_by=Reason.TARGET_NOT_FOUND, detail="no Deployment llama")
    found = []
    for waited, decision in (
        (0, lacking),
        (GRACE_SECONDS - 1, lacking),
        (GRACE_SECONDS, lacking),
        (GRACE_SECONDS + 9, lacking),
        (GRACE_SECONDS + 10, SCALE_UP),
        (GRACE_SECONDS + 20, lacking),
    ):
        found.append(_of(decision, found[-1].values() if found else (), NOON_SECONDS + waited))
    stalled = [one["Stalled"].status if "Stalled" in one else None for one in found]
    assert stalled == ["False", "False", "True", "True", None, "False"]
    reasons = {one["Stalled"].reason for one in found if "Stalled" in one}
    assert reasons == {Reason.TARGET_NOT_FOUND}


def test_advice_is_in_no_conflict_and_a_new_spec_may_pass_again():
    """Recommend next to an HPA stalls nothing, nor does what comes and goes."""
    owned = replace(BLIND, limited_by=Reason.SCALER_CONFLICT, detail="an HPA")
    told = derived.verdicts(owned)
    at = {"generation": 1, "now_seconds": NOON_SECONDS}
    for acts in (True, False):
        found = {one.type for one in derived.stamped_conditions(told, (), **at, acts=acts)}
        assert ("Stalled" in found) == acts
    lacking = derived.verdicts(replace(BLIND, limited_by=Reason.TARGET_CONFLICT, detail="older"))
    first = derived.stamped_conditions(lacking, (), generation=1, now_seconds=NOON_SECONDS)
    late = {"now_seconds": NOON_SECONDS + GRACE_SECONDS}
    stalled = derived.stamped_conditions(lacking, first, generation=1, **late)
    again = derived.stamped_conditions(lacking, stalled, generation=2, **late)
    assert [each[-1].status for each in (first, stalled, again)] == ["False", "True", "False"]
    lacks = Verdict(ConditionStatus.FALSE, Reason.NOT_PERMITTED, "a right is missing")
    for type_, stalls in ((ConditionType.FALLBACK_USABLE, True), ("BatchingInSync", False)):
        healthy = {**derived.verdicts(SCALE_UP), ConditionType(type_): lacks}
        found = {one.type for one in derived.stamped_conditions(healthy, (), **at)}
        assert ("Stalled" in found) == stalls


def _told(decision, previous):
    return [event.reason for event in events(decision, previous)]


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        pytest.param(
            {"limited_by": Reason.MAX_REPLICAS_REACHED}, [Reason.MAX_REPLICAS_REACHED], id="max"
        ),
        pytest.param({"limited_by": Reason.STABILIZED}, [], id="routine-guards-are-silent"),
        pytest.param(
            {"limited_by": Reason.SCALER_CONFLICT, "reason": Reason.SCALER_CONFLICT},
            [Reason.SCALER_CONFLICT],
            id="a-conflict-is-told-once-not-twice",
        ),
        pytest.param(
            {
                "metrics": Reason.METRICS_STALE,
                "reason": Reason.METRICS_STALE,
                "limited_by": Reason.METRICS_STALE,
                "action": Action.HOLD,
            },
            [Reason.METRICS_STALE],
            id="stale",
        ),
        pytest.param(
            {
                "steps": (
                    DecisionStep(
                        stage="observe",
                        knob="replicas",
                        before=3,
                        after=6,
                        reason=Reason.REPLICAS_CHANGED_BY_USER,
                    ),
                )
            },
            [Reason.REPLICAS_CHANGED_BY_USER],
            id="hand-edit",
        ),
    ],
)
def test_a_change_that_matters_is_told(change, reasons):
    """What a person may have to act on becomes an event; daily routine does not."""
    assert _told(replace(SCALE_UP, **change), SCALE_UP) == reasons


def test_flags_that_could_not_be_read_are_told_and_make_nothing_unready():
    """In the message of Ready, in the log, where they are news once, and in explain."""
    why = "key run.yaml of ConfigMap vllm is no YAML at line 2, column 1"
    told = replace(SCALE_UP, limits=replace(SCALE_UP.limits, unread=why))
    ready = _of(told)["Ready"]
    assert ready.status == "True"
    assert why in ready.message
    assert "spec.engine.maxSequences" in ready.message
    assert f'limits_unread="{why}"' in log_line(told)
    assert why in text(told)
    assert material_change(SCALE_UP, told)
    assert not material_change(told, told)


def test_a_limit_counts_what_is_wanted_beside_what_is_set():
    """The noun goes with the number before it."""
    for wanted, set_to, words in (2, 1, "2 replicas wanted, 1 set"), (1, 1, "held at 1 replica:"):
        decision = replace(
            SCALE_UP,
            recommended_replicas=wanted,
            replicas_after=set_to,
            limited_by=Reason.KILL_SWITCH,
        )
        assert _of(decision)["ScalingLimited"].message.startswith(words)


def test_a_limit_that_was_not_read_is_unknown_beside_one_that_was():
    """No source is made up for it."""
    limits = LimitsUse(max_num_batched_tokens=2048, max_num_batched_tokens_source="args")
    told = text(replace(SCALE_UP, limits=limits))
    assert "Limits: max_num_seqs unknown, max_num_batched_tokens 2048 (args)" in told


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence_as_its_answer(reason):
    """Whatever a decision is for or limited by, `kubectl describe` gets words."""
    for decided in (SCALE_UP, BLIND):
        for limited_by, detail in ((None, ""), (reason, ""), (reason, "a detail of it")):
            decision = replace(decided, reason=reason, limited_by=limited_by, detail=detail)
            answer = answer_line(decision)
            assert len(answer.split()) > 2
            assert len(answer) <= MAX_SUMMARY_LENGTH


@pytest.mark.parametrize(
    ("reason", "stage", "status", "fresh"),
    [
        pytest.param(Reason.PENDING_PODS, "signals", "Unknown", None, id="starts"),
        pytest.param(Reason.TARGET_NOT_FOUND, "ownership", "Unknown", None, id="gone"),
        pytest.param(Reason.METRICS_MISSING, "signals", "False", 0, id="not-scraped"),
    ],
)
def test_the_gauge_of_fresh_metrics_says_what_the_condition_says(reason, stage, status, fresh):
    """A first pod that loads for ten minutes, or a missing target, is no lost signal."""
    step = DecisionStep(stage=stage, knob="replicas", before=1, after=1, reason=reason, inputs={})
    decision = replace(
        BLIND, reason=reason, limited_by=reason, metrics=Reason.METRICS_MISSING, steps=(step,)
    )
    assert _of(decision)["MetricsFresh"].status == status
    found = {sample.name: sample.value for sample in metric_samples(decision)}
    assert found.get("servingslo_metrics_fresh") == fresh


def test_a_target_at_zero_by_hand_is_not_one_without_metrics():
    """Nothing is scraped at 0 replicas: who set them is the reason, of the column too."""
    decision = replace(
        BLIND, reason=Reason.SCALED_TO_ZERO_BY_USER, limited_by=Reason.SCALED_TO_ZERO_BY_USER,
        metrics=Reason.METRICS_MISSING, steps=(), replicas_before=0, replicas_after=0,
        detail="the operator decides again at 1 replica or more",
    )  # fmt: skip
    found = _of(decision)
    fresh = found["MetricsFresh"]
    assert (fresh.status, fresh.reason) == ("Unknown", Reason.SCALED_TO_ZERO_BY_USER)
    assert headline(tuple(found.values()), decision) is Reason.SCALED_TO_ZERO_BY_USER
    assert "the operator decides again at 1 replica or more" in answer_line(decision)
    assert "metrics" not in answer_line(decision)
    # No alert that the signal is lost.
    known = {sample.name for sample in metric_samples(decision)}
    assert "servingslo_metrics_fresh" not in known
    assert "servingslo_replicas_current" in known
