"""Invariants of the planner.

1. Sizing never shrinks as the arrival rate rises, nor as the backlog does.
2. The count that sizing answers satisfies every constraint, and one fewer breaks one.
3. Hints save evaluations and change no answer.
4. Guards are idempotent: a proposal that has passed them passes again unchanged.
5. Nothing is ordered outside the bounds, except on the way back into them.
6. Without sight no replica is taken away, whatever is observed.
7. The same observations give the same decisions.
8. No decision carries NaN or infinity, whatever is observed.
9. Every hold has a reason that is not a step's success, and every change a constraint or guard.
10. What was stored is restored, and garbage restores to something that can plan.
"""

import json
import math
from dataclasses import fields, is_dataclass, replace
from enum import Enum

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.models.latency import LatencyMetric, Objective, Routing, latency_model
from servingslo.models.service_time import EngineLimits, ServiceLaw
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy import guards
from servingslo.policy.behavior import Behavior, BehaviorState
from servingslo.policy.guards import Bounds, Proposal, StepDownBlock
from servingslo.policy.inputs import (
    FallbackBehavior,
    FallbackTargets,
    Limits,
    Mode,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.planner import plan
from servingslo.policy.sizing import Candidates, Load, SizingCase, least_safe_count, size
from servingslo.policy.state import PlannerState, learned, restore
from servingslo.reasons import Action, Reason

LAW = ServiceLaw(
    step_fixed_seconds=0.0065,
    step_per_sequence_seconds=0.00004,
    prefill_per_token_seconds=0.00003,
    context_per_token_seconds=5e-8,
)
LIMITS = EngineLimits(max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=400_000)
WORKLOAD = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution(tokens=(100.0, 900.0, 3000.0), weights=(0.4, 0.4, 0.2)),
    output=LengthDistribution(tokens=(20.0, 150.0, 600.0), weights=(0.3, 0.5, 0.2)),
)
OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.6),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.03),
    Objective(metric=LatencyMetric.QUEUE_TIME, percentile=99.0, threshold_seconds=0.2),
)
CASE = SizingCase(
    model=latency_model(WORKLOAD, LAW, LIMITS),
    routing=Routing.POOLED,
    objectives=OBJECTIVES,
    utilization_target_ratio=0.85,
    kv_cache_target_ratio=0.9,
    largest_count=64,
)
TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama")
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

rates = st.floats(min_value=0.0, max_value=400.0)
drains = st.floats(min_value=0.0, max_value=100.0)


def sized(rate, drain=0.0, hints=None, case=CASE):
    """The sizing of a case under a load."""
    load = Load(rate_per_second=rate, drain_per_second=drain)
    return size(Candidates(case, load), hints or {})


@QUICK
@given(rates, rates, drains, drains)
def test_sizing_never_shrinks_as_demand_rises(rate, more_rate, drain, more_drain):
    """Invariant 1: monotone in rate and in backlog."""
    low = sized(rate, drain).replicas
    high = sized(rate + more_rate, drain + more_drain).replicas
    assert high >= low


@QUICK
@given(rates, drains)
def test_the_answer_satisfies_every_constraint_and_one_fewer_does_not(rate, drain):
    """Invariant 2: least sufficient count."""
    answer = sized(rate, drain)
    needs = [need.replicas for need in answer.needs]
    candidates = Candidates(CASE, Load(rate_per_second=rate, drain_per_second=drain))
    if all(need is not None for need in needs):
        assert answer.replicas == min(max(needs), CASE.largest_count)
    if answer.replicas < CASE.largest_count:
        assert all(candidates.meets(objective, answer.replicas) for objective in OBJECTIVES)
        assert candidates.fits_cache(answer.replicas)
        assert candidates.at(answer.replicas).utilization <= 0.85 + 1e-9
    fewer = answer.replicas - 1
    if fewer >= 1:
        utilization = candidates.at(fewer).utilization
        draining = (rate + drain) / (fewer * CASE.model.saturation_rate_per_second)
        broken = (
            utilization > 0.85
            or (drain > 0 and draining > 0.95)
            or not candidates.fits_cache(fewer)
            or not all(candidates.meets(objective, fewer) for objective in OBJECTIVES)
        )
        assert broken


@QUICK
@given(rates, st.dictionaries(
    st.sampled_from(["kv-cache", "ttft:p99", "tpot:p95", "queueTime:p99"]),
    st.integers(min_value=1, max_value=200),
))  # fmt: skip
def test_hints_change_no_answer(rate, hints):
    """Invariant 3: searching from elsewhere finds the same."""
    assert sized(rate, hints=hints) == sized(rate)


@QUICK
@given(rates, st.integers(1, 40), st.integers(0, 40), st.integers(0, 3))
def test_a_safe_count_holds_with_the_spare_ones_lost(rate, lowest, extra, spare):
    """Invariant 2 for steps down: what is called safe survives the failures it is meant for."""
    current = lowest + extra
    candidates = Candidates(CASE, Load(rate_per_second=rate))
    safe = least_safe_count(candidates, (), lowest=lowest, current=current, spare=spare)
    assert lowest <= safe <= current
    if safe < current:
        left = safe - spare
        assert left >= 1
        assert all(candidates.meets(objective, left) for objective in OBJECTIVES)


counts = st.integers(min_value=1, max_value=30)


@QUICK
@given(
    wanted=st.integers(0, 60),
    current=counts,
    safe=counts,
    ends=st.tuples(st.integers(1, 10), st.integers(1, 40)),
    blocked=st.booleans(),
    step=st.one_of(st.none(), st.integers(1, 10)),
)
def test_guards_are_idempotent_and_stay_inside_the_bounds(
    wanted, current, safe, ends, blocked, step
):
    """Invariants 4 and 5: a second pass changes nothing; a change never leaves the bounds."""
    bounds = Bounds(
        minimum=min(ends), maximum=max(ends), maximum_reason=Reason.MAX_REPLICAS_REACHED
    )
    blocks = (StepDownBlock(reason=Reason.WARMING_UP, inputs={}),) if blocked else ()

    def passed(proposal):
        proposal = guards.block_step_down(proposal, current=current, blocks=blocks)
        proposal = guards.check_step_down(proposal, current=current, safe_replicas=safe)
        proposal = guards.clamp(proposal, bounds)
        proposal, _ = guards.apply_behavior(
            proposal,
            BehaviorState(),
            behavior=Behavior(),
            current=current,
            bounds=bounds,
            now_seconds=0.0,
        )
        return guards.limit_step(proposal, current=current, max_step=step)

    once = passed(Proposal(replicas=wanted))
    twice = passed(once)
    assert twice.replicas == once.replicas
    if bounds.minimum <= current <= bounds.maximum:
        assert twice.steps == once.steps
    inside = bounds.minimum <= once.replicas <= bounds.maximum
    on_the_way = abs(once.replicas - current) == step
    assert inside or on_the_way
    if step is not None:
        assert abs(once.replicas - current) <= step


@st.composite
def histograms(draw):
    """A cumulative histogram of few observations."""
    counts = draw(st.lists(st.integers(0, 50), min_size=4, max_size=4))
    places = ((0.01, 0.1), (0.11, 1.0), (1.1, 100.0), (101.0, 1000.0))
    cumulative = [float(sum(counts[: i + 1])) for i in range(4)]
    return HistogramSample(
        upper_bounds=(0.1, 1.0, 100.0, math.inf),
        cumulative_counts=tuple(cumulative),
        # Where in its bucket each observation lies is open, that it lies there is not.
        sum=sum(c * draw(st.floats(*ends)) for c, ends in zip(counts, places, strict=True)),
        count=cumulative[-1],
    )


@st.composite
def engines(draw):
    """An engine of which anything may be unknown."""
    gauge = st.one_of(st.none(), st.floats(0.0, 500.0))
    counter = st.one_of(st.none(), st.floats(0.0, 1e7))
    age = st.one_of(st.none(), st.floats(0.0, 400.0))
    histogram = st.one_of(st.none(), histograms())
    limit = st.one_of(st.none(), st.integers(1, 512))
    return EngineSample(
        engine="0",
        gauges_age_seconds=draw(age),
        counters_age_seconds=draw(age),
        histograms_age_seconds=draw(age),
        running=draw(gauge),
        waiting=draw(gauge),
        kv_usage_ratio=draw(st.one_of(st.none(), st.floats(0.0, 1.0))),
        kv_capacity_tokens=draw(st.one_of(st.none(), st.floats(1.0, 1e6))),
        max_num_seqs=draw(limit),
        max_num_batched_tokens=draw(st.one_of(st.none(), st.integers(16, 16384))),
        prompt_tokens_total=draw(counter),
        generation_tokens_total=draw(counter),
        finished_total=draw(st.dictionaries(st.sampled_from(["stop", "abort"]), st.floats(0, 1e6))),
        preempted_total=draw(counter),
        ttft_seconds=draw(histogram),
        inter_token_seconds=draw(histogram),
        time_per_output_token_seconds=draw(histogram),
        queue_seconds=draw(histogram),
        prompt_tokens=draw(histogram),
        output_tokens=draw(histogram),
        iteration_tokens=draw(histogram),
        nan_metrics=draw(st.sampled_from([(), ("vllm:num_requests_running",)])),
    )


@st.composite
def pods(draw, name):
    """A pod in any condition."""
    ready = draw(st.booleans())
    return PodSample(
        name=name,
        template_hash="a",
        ready=ready,
        deleting=draw(st.booleans()),
        age_seconds=draw(st.one_of(st.none(), st.floats(0.0, 1e5))),
        ready_after_seconds=draw(st.one_of(st.none(), st.floats(1.0, 500.0))) if ready else None,
        ready_for_seconds=draw(st.one_of(st.none(), st.floats(0.0, 1e5))) if ready else None,
        restarts=draw(st.integers(0, 2)),
        unschedulable_reason=draw(st.sampled_from([None, "Insufficient nvidia.com/gpu"])),
        engines=tuple(draw(st.lists(engines(), max_size=2))),
    )


PROBLEMS = (
    Reason.PROMETHEUS_UNAVAILABLE,
    Reason.METRICS_PARTIAL,
    Reason.SCALER_CONFLICT,
    Reason.TARGET_NOT_FOUND,
)


@st.composite
def stories(draw):
    """A few ticks of a workload about which anything may be true."""
    ticks = draw(st.integers(1, 6))
    names = draw(st.lists(st.sampled_from(["p0", "p1", "p2"]), unique=True, max_size=3))
    desired = draw(st.one_of(st.none(), st.integers(0, 12)))
    return tuple(
        Observation(
            time_seconds=15.0 * tick,
            namespace="inference",
            name="llama",
            desired_replicas=desired,
            current_replicas=desired,
            rollout_in_progress=draw(st.booleans()),
            pods=tuple(draw(pods(name)) for name in names),
            problems=tuple(
                SignalProblem(reason=reason)
                for reason in draw(st.lists(st.sampled_from(PROBLEMS), max_size=1))
            ),
        )
        for tick in range(1, ticks + 1)
    )


@st.composite
def all_targets(draw):
    """Valid targets."""
    low, high = sorted(draw(st.tuples(st.integers(1, 10), st.integers(1, 10))))
    return Targets(
        target=TARGET,
        objectives=OBJECTIVES[: draw(st.integers(1, 3))],
        mode=draw(st.sampled_from(Mode)),
        replicas=ReplicaTargets(
            minimum=low, maximum=high, tolerated_failures=draw(st.integers(0, 2))
        ),
        fallback=FallbackTargets(
            behavior=draw(st.sampled_from(FallbackBehavior)),
            replicas=draw(st.one_of(st.none(), st.integers(1, 20))),
            stale_after_seconds=60.0,
        ),
    )


def told(story, targets, limits=None):
    """The decisions of a story, and the memory at its end."""
    state, decisions = PlannerState(), []
    for observation in story:
        decision, state = plan(
            observation, targets, limits or Limits(), state, observation.time_seconds
        )
        decisions.append(decision)
    return decisions, state


def numbers(value):
    """Every float inside a decision."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Enum | str):
        return
    elif is_dataclass(value):
        for field in fields(value):
            yield from numbers(getattr(value, field.name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from numbers(inner)


@QUICK
@given(stories(), all_targets())
def test_whatever_is_observed_a_decision_is_sane(story, targets):
    """Invariants 5, 6, 8 and 9, over anything that a reader may hand over."""
    decisions, _ = told(story, targets)
    for observation, decision in zip(story, decisions, strict=True):
        assert all(math.isfinite(number) for number in numbers(decision))
        before, after = decision.replicas_before, decision.replicas_after
        assert before == observation.desired_replicas
        if before is None or after is None:
            assert decision.action is Action.HOLD
            assert not decision.apply_replicas
            continue
        assert decision.apply_replicas == (after != before)
        assert (decision.action is Action.HOLD) == (after == before)
        if decision.metrics is not Reason.METRICS_FRESH and after < before:
            assert after == targets.replicas.maximum
            assert decision.limited_by is not Reason.PROMETHEUS_UNAVAILABLE
        if decision.apply_replicas:
            assert targets.mode is Mode.AUTO
            assert targets.replicas.minimum <= after <= targets.replicas.maximum
        assert decision.steps
        assert decision.reason is not Reason.METRICS_FRESH


@QUICK
@given(stories(), all_targets())
def test_the_same_observations_give_the_same_decisions(story, targets):
    """Invariant 7: replay is exact."""
    assert told(story, targets) == told(story, targets)


@QUICK
@given(stories(), all_targets(), st.one_of(st.none(), st.integers(1, 6)), st.integers(1, 3))
def test_the_administrators_bounds_hold(story, targets, largest, step):
    """Invariant 5 for the administrator: neither the count nor the step exceeds what is set."""
    limits = Limits(max_replicas=largest, max_step=step)
    decisions, _ = told(story, targets, limits)
    for decision in decisions:
        if decision.apply_replicas:
            change = decision.replicas_after - decision.replicas_before
            assert abs(change) <= step
            if largest is not None and change > 0:
                assert decision.replicas_after <= largest


@QUICK
@given(stories(), all_targets())
def test_blind_planners_take_nothing_away(story, targets):
    """Invariant 6: with Prometheus away every decision keeps or raises the count."""
    problem = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE)
    dark = tuple(replace(observation, problems=(problem,)) for observation in story)
    for decision in told(dark, targets)[0]:
        if decision.replicas_before is not None:
            assert decision.replicas_after >= decision.replicas_before


@QUICK
@given(stories(), all_targets())
def test_what_was_learnt_is_small_and_comes_back(story, targets):
    """Invariant 10: at most 4 KiB of plain JSON, and storing what was restored changes nothing."""
    _, state = told(story, targets)
    stored = json.loads(json.dumps(learned(state, 1000.0), allow_nan=False))
    assert len(json.dumps(stored, separators=(",", ":"))) <= 4096
    again = json.loads(json.dumps(learned(restore(stored, 1000.0), 1000.0)))
    assert again["behavior"] == stored["behavior"]
    assert again["batching"] == stored["batching"]


garbage = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["version", "behavior", "up", "down", "recommendations", "batching",
                             "verifying", "before", "after", "at", "estimator", "laws"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


@QUICK
@given(garbage, st.dictionaries(st.sampled_from(["behavior", "batching", "estimator"]), garbage))
def test_garbage_in_the_status_stops_no_plan(whole, parts):
    """Invariant 10: whatever somebody wrote into the status, the next plan works."""
    targets = Targets(target=TARGET, objectives=OBJECTIVES)
    observation = Observation(
        time_seconds=100.0, namespace="inference", name="llama", desired_replicas=2
    )
    for stored in (whole, {"version": 1} | parts):
        decision, _ = plan(observation, targets, Limits(), restore(stored, 100.0), 100.0)
        assert decision.replicas_after == 2
