"""The first lines of an explanation: why, what holds it, how sure, what would change it."""

from dataclasses import replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import Run, World, steady, stepped
from tests.golden.decisions import SCALE_UP

from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.policy.decision_parts import ColdStartReport, DecisionStep, PredictedLatency
from servingslo.policy.inputs import Limits, ReplicaTargets
from servingslo.policy.report import with_latencies
from servingslo.reasons import Action, Constraint, Reason


def told(decision):
    """The lines before the details, by their first word."""
    head = text(decision).split("\nDetails:")[0].splitlines()
    return {line.partition(":")[0]: line.partition(": ")[2] for line in head[1:]}


def test_a_step_up_tells_why_how_sure_and_what_else_there_was():
    """Everything that a person on call asks stands before the details."""
    world = World(rate=lambda seconds: 6.0 if seconds < 300 else 20.0, replicas=3)
    targets = replace(TARGETS, replicas=ReplicaTargets(minimum=3, maximum=12))
    story = Run(world, targets, Limits()).until(345)
    up = next(d for d in story.between(300.0, 345.0) if d.action is Action.SCALE_UP)
    lines = told(up)
    needed = next(n.replicas for n in up.needs if n.constraint is up.binding)
    assert f"asks for {needed} replicas at " in lines["Because"]
    assert "/s now" in lines["Because"]
    assert lines["How sure"].startswith("the model is trusted")
    assert f"{up.replicas_after - 1} would" in lines["Otherwise"]
    assert f"{up.replicas_after + 1} would do" in lines["Otherwise"]
    assert "Held by" not in lines


def test_a_model_that_is_not_trusted_is_said_to_be():
    """In the first minute measured saturation decides, and the text says so."""
    story = Run(World(rate=lambda _seconds: 6.0, replicas=3), TARGETS, Limits()).until(30)
    sure = told(story.at(30.0))["How sure"]
    assert sure.startswith("little; the model is still learning")


@pytest.mark.parametrize(
    ("start", "line"),
    [
        pytest.param(
            ColdStartReport(
                seconds=92.0,
                source="measured",
                sample_count=5,
                scheduling_seconds=2.0,
                image_seconds=40.0,
                loading_seconds=50.0,
            ),
            "1m32s, measured on 5 starts: scheduling 2s, image 40s, loading 50s",
            id="measured",
        ),
        pytest.param(
            ColdStartReport(
                seconds=92.0,
                source="measured",
                sample_count=1,
                scheduling_seconds=2.0,
                loading_seconds=90.0,
            ),
            "1m32s, measured on 1 start: scheduling 2s, image and loading 1m30s",
            id="not-split",
        ),
        pytest.param(
            ColdStartReport(seconds=120.0, source="prior"),
            "2m, assumed until one is measured",
            id="prior",
        ),
        pytest.param(ColdStartReport(seconds=120.0, source="stated"), "2m, as stated", id="stated"),
        pytest.param(
            ColdStartReport(
                seconds=30.0,
                source="stated",
                sample_count=4,
                scheduling_seconds=2.0,
                loading_seconds=90.0,
            ),
            "30s, as stated; 4 starts took 1m32s: scheduling 2s, image and loading 1m30s",
            id="stated-and-seen",
        ),
    ],
)
def test_a_cold_start_tells_how_it_is_known_and_what_it_is_made_of(start, line):
    """What was stated stands beside what was measured."""
    assert f"  a cold start takes {line}" in text(replace(SCALE_UP, cold_start=start))


def test_a_prediction_tells_how_observations_corrected_it():
    """Only where they did."""
    first = replace(SCALE_UP.objectives[0], calibration_ratio=1.21)
    corrected = text(replace(SCALE_UP, objectives=(first,)))
    assert "predicted 0.38s (the model's × 1.21, by what was observed)" in corrected
    assert "the model's ×" not in text(SCALE_UP)


def test_counts_that_cannot_be_judged_are_told_by_their_utilization():
    """A law that is not trusted yet: no count is said to do, and none to miss an objective."""
    story = Run(World(rate=lambda _seconds: 6.0, replicas=3), TARGETS, Limits()).until(60)
    unsure = next(d for d in story.decisions if d.predicted_counts and not d.model.trusted)
    lines = told(unsure)
    assert "would run at " in lines["Otherwise"]
    assert "None" not in text(unsure)


def test_a_count_that_holds_for_now_is_not_said_to_hold_until_a_replica_could_be_had_again():
    """Where a step down is refused as unsafe, one fewer does for the demand planned for alone."""
    world = World(rate=stepped((0, 14.0), (600, 9.0)), replicas=5)
    story = Run(world, TARGETS, Limits()).until(800)
    unsafe = next(
        d
        for d in story.decisions
        if d.limited_by is Reason.STEP_DOWN_UNSAFE and d.predicted_counts[0].meets_objectives
    )
    lines = told(unsafe)
    fewer, more = lines["Otherwise"].split("; ")
    assert lines["Held by"] == "fewer would not be enough until a new replica could be ready"
    assert fewer.startswith(f"{unsafe.recommended_replicas - 1} would do at ")
    assert fewer.endswith(" for the demand planned for, not until a new replica could be ready")
    assert "planned for" not in more


def test_errors_of_percentiles_are_told_where_they_were_corrected():
    """A person reads the error of the fit, and what predictions were off by beside it."""
    assert told(SCALE_UP)["How sure"].startswith(
        "the model is trusted, its error is 4.3 %, its percentiles were off by 12.0 %"
    )
    right = replace(SCALE_UP, model=replace(SCALE_UP.model, relative_error=0.0))
    assert "percentiles" not in told(right)["How sure"]
    wrong = replace(SCALE_UP, model=replace(SCALE_UP.model, relative_error=0.3))
    assert "large error" not in text(SCALE_UP)
    assert "large error" in text(wrong)


GUARDS = [
    pytest.param("step-down", reason, id=reason.value)
    for reason in (
        Reason.METRICS_PARTIAL,
        Reason.METRICS_STALE,
        Reason.ROLLOUT_IN_PROGRESS,
        Reason.WARMING_UP,
        Reason.BACKLOG_BOUND,
        Reason.MODEL_LEARNING,
        Reason.MODEL_DOES_NOT_PREDICT,
        Reason.MODEL_NOT_IDENTIFIABLE,
        Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT,
    )
] + [
    pytest.param("behavior", Reason.STABILIZED, id="stabilized"),
    pytest.param("behavior", Reason.SCALE_DOWN_POLICY, id="policy"),
    pytest.param("bounds", Reason.MIN_REPLICAS_REACHED, id="minimum"),
    pytest.param("administrator", Reason.ADMINISTRATOR_LIMIT, id="administrator"),
]


@pytest.mark.parametrize(("stage", "reason"), GUARDS)
def test_a_count_that_would_do_stands_with_the_guard_that_refused_it(stage, reason):
    """In words, whichever of them it was; of counts that no guard refused it is silent."""
    would = replace(SCALE_UP.predicted_counts[0], meets_objectives=True)
    step = DecisionStep(stage=stage, knob="replicas", before=4, after=5, reason=reason)
    decision = replace(
        SCALE_UP, predicted_counts=(would,), steps=(*SCALE_UP.steps, step), limited_by=reason
    )
    lines = told(decision)
    assert lines["Otherwise"].startswith("4 would do at 80.0 % utilization for the demand planned")
    why = lines["Otherwise"].partition(", but ")[2]
    assert why == lines["Held by"]
    assert reason.value not in why
    fell = replace(step, before=5, after=4)
    free = told(replace(decision, steps=(fell,), limited_by=None))
    assert free["Otherwise"] == "4 would do at 80.0 % utilization"


def test_every_guard_that_refused_a_count_is_named():
    """A rollout and the first minutes hold the same step down."""
    world = World(rate=stepped((0, 14.0), (60, 5.0)), replicas=6)
    world.rollout = True
    story = Run(world, TARGETS, Limits()).until(105)
    held = next(
        d
        for d in story.decisions
        if d.limited_by is Reason.ROLLOUT_IN_PROGRESS and d.predicted_counts[0].meets_objectives
    )
    fewer = told(held)["Otherwise"].split("; 7")[0]
    assert "but a rollout is in progress" in fewer
    assert "but the workload has been observed for too short a time" in fewer


def test_the_latency_that_binds_stands_beside_the_other_counts():
    """Where it was evaluated for who is told."""
    latency = PredictedLatency(metric="ttft", percentile=99.0, seconds=0.91)
    never = PredictedLatency(metric="tpot", percentile=95.0)
    count = replace(SCALE_UP.predicted_counts[0], latencies=(latency, never))
    decision = replace(SCALE_UP, predicted_counts=(count,), binding=Constraint.TTFT)
    assert told(decision)["Otherwise"].endswith("utilization, ttft p99 0.91s")
    assert "ttft p99 0.91s, tpot p95 without bound" in text(decision)


def test_the_quantile_is_told_and_a_need_beyond_the_search_is_no_number():
    """Which quantile is planned for; what was not looked at is 'more than' it."""
    targets = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=12))
    story = Run(World(rate=stepped((0, 6.0), (600, 120.0)), replicas=3), targets, Limits())
    calm, rise = story.until(615).at(600.0), story.at(615.0)
    assert "quantile of demand" in told(calm)["How sure"]
    assert told(rise)["How sure"].endswith("planned for the 90.0 % quantile of demand")
    needs = {need.constraint: need for need in rise.needs}
    assert needs[Constraint.TTFT].replicas is None
    assert needs[Constraint.TTFT].more_than == 24
    assert "ttft needs more than 24" in text(rise)
    assert "ttft:>24" in log_line(rise)
    asked = needs[rise.binding].replicas
    assert asked > 24
    assert f"asks for {asked} replicas" in told(rise)["Because"]
    assert "cannot be met" not in text(rise)


def test_who_explains_is_told_up_to_which_demand_the_count_holds():
    """More than is there, less than one replica more holds."""
    story = Run(World(rate=steady(20.0), replicas=7), TARGETS, Limits()).until(600)
    decision = with_latencies(story.at(600.0), story.state.sized)
    most = {count.replicas: count.greatest_rate_per_second for count in decision.predicted_counts}
    wanted = decision.recommended_replicas
    planned = decision.demand.forecast_rate_per_second
    assert most[wanted - 1] < planned <= most[wanted] < most[wanted + 1]
    assert f"{wanted} would hold up to {most[wanted]:.3g} requests/s" in told(decision)["Otherwise"]
    assert f"holds up to {most[wanted]:.3g} requests/s" in text(decision)
