"""Batch limits as part of one plan: what goes with them, what a change costs, when it is made."""

from dataclasses import replace

import pytest
from tests.unit.policy_world import REPLICAS_ONLY as STATED_TARGETS
from tests.unit.policy_world import STATED_WINDOW, Run, World, run, steady

from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.text import text as text_of
from servingslo.features.batch_limits import knob
from servingslo.features.batch_limits.knob import PAYBACK_SECONDS
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import LatencyModel, Objective, Routing
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.inputs import (
    BatchingMode,
    BatchingTargets,
    CostTargets,
    Limits,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.replicas.sizing import Load, SizingCase, carried_rate_per_second
from servingslo.policy.rules.batch_search import BatchCase, BatchLimits, best_limits
from servingslo.policy.rules.step_down import count_tried
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

LAW = ServiceLaw(
    step_fixed_seconds=6.5e-3, step_per_sequence_seconds=0.4e-3, prefill_per_token_seconds=0.03e-3
)
LIMITS = EngineLimits(max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=400_000.0)
DOCUMENTS = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution.from_samples([2000.0 * 8.0 ** (i / 40) for i in range(41)]),
    output=LengthDistribution.from_samples([float(tokens) for tokens in range(4, 61)]),
)
TTFT = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.5)


TODAY = BatchLimits(max_num_seqs=256, max_num_batched_tokens=8192)


def judged(tpot_seconds, law=LAW, limits=LIMITS):
    """What a count of engines for documents is judged by with this inter-token objective."""
    tpot = Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=tpot_seconds)
    return SizingCase(
        frontier=Frontier(LatencyModel(DOCUMENTS, law, limits)),
        routing=Routing.POOLED,
        objectives=(TTFT, tpot),
        utilization_target_ratio=0.85,
        kv_cache_target_ratio=0.9,
        largest_count=1000,
    )


def found(tpot_seconds, current=TODAY):
    """The plans for 30 documents a second with this inter-token objective."""
    case = judged(tpot_seconds)
    batch = BatchCase(
        workload=DOCUMENTS, law=LAW, limits=LIMITS, case=case,
        load=Load(rate_per_second=30.0), objectives=case.objectives,
    )  # fmt: skip
    return best_limits(batch, current)


def slower(ratio):
    """The law of engines that take so many times as long for everything."""
    return ServiceLaw(
        step_fixed_seconds=LAW.step_fixed_seconds * ratio,
        step_per_sequence_seconds=LAW.step_per_sequence_seconds * ratio,
        prefill_per_token_seconds=LAW.prefill_per_token_seconds * ratio,
    )


@pytest.mark.parametrize("full_steps", [1.01, 1.02, 1.03, 1.04, 1.05, 1.1, 1.2])
def test_limits_found_by_a_law_five_per_cent_too_fast_carry_what_it_says(full_steps):
    """Where a step of 1,024 tokens all but takes what a token may, they fit by such a law alone."""
    step_seconds = LAW.step_fixed_seconds + 1024 * LAW.prefill_per_token_seconds
    tpot_seconds = full_steps * step_seconds
    better = found(tpot_seconds).better
    limits = replace(
        LIMITS,
        max_num_seqs=better.max_num_seqs,
        max_num_batched_tokens=better.max_num_batched_tokens,
    )
    said, true = (
        carried_rate_per_second(judged(tpot_seconds, law, limits), (), 4)
        for law in (LAW, slower(1.05))
    )
    assert true > 0.9 * said


@pytest.mark.parametrize("tpot_seconds", [0.035, 0.05, 0.065])
def test_the_token_budget_follows_from_the_inter_token_objective(tpot_seconds):
    """A step full of prefill keeps it, whatever power of two is near, and uses most of it."""
    budget = found(tpot_seconds).better.max_num_batched_tokens
    full_step = LAW.step_fixed_seconds + LAW.prefill_per_token_seconds * budget
    assert 0.7 * tpot_seconds < full_step < tpot_seconds


def test_plans_hold_replicas_limits_and_bound():
    """With the smaller budget fewer replicas do, and no less may be in flight at each."""
    both = found(0.05)
    assert both.today.max_num_batched_tokens == TODAY.max_num_batched_tokens
    assert both.better.replicas < both.today.replicas
    assert both.better.in_flight_limit >= both.today.in_flight_limit > 1


@pytest.mark.parametrize("tpot_seconds", [0.04, 0.05, 0.2])
def test_limits_that_were_found_are_found_again(tpot_seconds):
    """Once in force they stay, and so they do where a batch a little larger would do as well."""
    better = found(tpot_seconds).better
    for sequences in (better.max_num_seqs, int(0.9 * better.max_num_seqs)):
        current = BatchLimits(
            max_num_seqs=sequences, max_num_batched_tokens=better.max_num_batched_tokens
        )
        again = found(tpot_seconds, current)
        assert again.better is again.today


TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        replace(TTFT, percentile=95.0),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
    ),
    replicas=ReplicaTargets(minimum=1, maximum=12),
    batching=BatchingTargets(mode=BatchingMode.AUTO),
)
ALLOWED = Limits(batching_apply_enabled=True)


def story(replicas=4, targets=TARGETS, limits=ALLOWED):
    """Fifteen minutes of engines that may run four sequences only."""
    world = World(rate=lambda _: 9.0, replicas=replicas, max_num_seqs=4)
    return Run(world, targets, limits).until(900)


def test_both_plans_stand_side_by_side_with_the_price_of_the_change():
    """Replicas of either, what is saved, what the rollout costs and when that is paid."""
    judged = [d for d in story(limits=Limits()).decisions if d.batching.better is not None]
    assert judged
    for decision in judged:
        batching = decision.batching
        assert batching.today.max_num_seqs == 4
        assert batching.better.max_num_seqs == batching.recommended_max_num_seqs > 4
        assert batching.replicas_saved == batching.today.replicas - batching.better.replicas > 0
        rollout = batching.rollout
        assert rollout.restarted_replicas == decision.replicas_before
        assert rollout.payback_seconds == pytest.approx(
            rollout.surge_replica_seconds / batching.replicas_saved
        )


def test_a_stated_price_tells_what_the_count_costs_and_the_change_saves():
    """Replicas times the price of their cards; tokens at the measured rate and lengths."""
    priced = replace(TARGETS, cost=CostTargets(gpu_hourly=2.5, gpus_per_replica=2, currency="EUR"))
    decisions = story(targets=priced, limits=Limits()).decisions
    told = [d for d in decisions if d.batching.better is not None and d.cost is not None]
    assert told
    for decision in told:
        cost, demand = decision.cost, decision.demand
        assert cost.currency == "EUR"
        assert cost.per_hour == 5.0 * decision.replicas_after
        assert cost.saved_per_hour == 5.0 * decision.batching.replicas_saved
        generated = demand.arrival_rate_per_second * demand.output_tokens_mean * 3600.0 / 1e6
        assert cost.per_million_output_tokens == pytest.approx(cost.per_hour / generated)
        assert cost.per_million_tokens < cost.per_million_output_tokens


def test_nothing_is_said_of_costs_without_a_price():
    """Unknown is None, never zero."""
    assert {d.cost for d in story(limits=Limits()).decisions} == {None}


def test_limits_that_another_controller_keeps_are_recommended_with_the_reason():
    """No pod is restarted; the condition has the limits, and who would put them back."""
    kept = SignalProblem(reason=Reason.KIND_NOT_SUPPORTED, detail="LLMInferenceService/l keeps it")

    class Kept(World):
        def observe(self, at):
            return replace(super().observe(at), batching_change_refused=kept)

    world = Kept(rate=lambda _: 9.0, replicas=4, max_num_seqs=4)
    decisions = Run(world, TARGETS, ALLOWED).until(900).decisions
    assert not any(d.batching.apply for d in decisions)
    refused = [d for d in decisions if d.batching.reason is Reason.KIND_NOT_SUPPORTED]
    assert refused[-1].batching.recommended_max_num_seqs > 4
    message = verdicts(refused[-1])[ConditionType.BATCHING_IN_SYNC].message
    assert "max_num_seqs 4 →" in message
    assert kept.detail in message


@pytest.fixture
def searched(monkeypatch):
    """The last search of batch limits in a story, to be asked again for another context."""
    asked, search = [], knob._searched

    def noted(*inputs):
        asked.append(inputs)
        return search(*inputs)

    monkeypatch.setattr(knob, "_searched", noted)
    story(10, replace(TARGETS, behavior=STATED_WINDOW), Limits())
    context, prepared, load, current, _ = asked[-1]
    return context, lambda context: search(context, prepared, load, current, None)


def test_limits_are_searched_as_far_as_a_law_that_bends_is_known(searched):
    """Limits in force are compared for as many replicas as the law asks, not one more or fewer."""
    context, search = searched
    free = search(context)

    def known_for(sequences):
        law = replace(context.estimate.law, reach_sequences=sequences)
        return replace(context, estimate=replace(context.estimate, law=law))

    assert search(known_for(6.0)).best.max_num_seqs == 6 < free.best.max_num_seqs
    few = replace(known_for(3.0), current=free.today.replicas + 4)
    assert count_tried(few, few.prepared) == few.current
    found = search(few)
    assert found.best.max_num_seqs == found.current.max_num_seqs == 4
    assert found.today.replicas == free.today.replicas


def test_a_change_waits_until_the_count_has_fallen():
    """Pods that are about to go are not started anew first."""
    decisions = story(10, replace(TARGETS, behavior=STATED_WINDOW)).decisions
    at = next(i for i, d in enumerate(decisions) if d.batching.apply)
    assert any(d.batching.reason is Reason.STABILIZED for d in decisions[:at])
    assert decisions[at].replicas_before < 10
    assert Reason.STABILIZED not in {step.reason for step in decisions[at].steps}


def test_a_rollout_that_does_not_pay_for_itself_is_only_shown():
    """With a cold start of hours the surge pods cost more than is saved, and no maximum binds."""
    slow = replace(
        TARGETS,
        cold_start_seconds=2.0 * PAYBACK_SECONDS,
        replicas=replace(TARGETS.replicas, maximum=40),
    )
    judged = [d.batching for d in story(targets=slow).decisions if d.batching.better is not None]
    assert judged
    assert not any(b.apply for b in judged)
    assert {b.reason for b in judged} == {Reason.BATCHING_GAIN_TOO_SMALL}


def test_limits_that_keep_objectives_beyond_the_maximum_of_todays_are_worth_a_rollout():
    """There may be no count to save; the text says what is gained instead."""
    few = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=7))
    decisions = story(targets=few).decisions
    gained = [
        d
        for d in decisions
        if d.batching.better is not None and not d.batching.today.meets_objectives
    ]
    assert any(d.batching.better.meets_objectives for d in gained)
    for decision in gained:
        text = text_of(decision)
        assert "requests in flight at each, which miss an objective" in text
        meets = decision.batching.better.meets_objectives
        assert (": meets the objectives; today's limits do not" in text) == meets


def test_a_fleet_that_is_short_at_its_maximum_gets_limits_with_which_it_carries_more():
    """Also where it stays short: nothing is saved, and more is served."""
    short = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=2))
    applied = next(d for d in story(replicas=2, targets=short).decisions if d.batching.apply)
    batching = applied.batching
    assert not batching.better.meets_objectives
    assert (batching.replicas_saved, batching.rollout.payback_seconds) == (0, None)
    assert "serves more, but still misses an objective" in text_of(applied)


@pytest.mark.parametrize("others", [True, False], ids=["with-others", "alone"])
def test_where_no_limits_keep_an_objective_those_in_force_stay(others):
    """Some requests keep it, and limits that are good for the others would cost it those."""
    vain = replace(TTFT, threshold_seconds=0.001)
    goals = (*TARGETS.objectives, vain) if others else (vain,)
    decisions = story(targets=replace(TARGETS, objectives=goals)).decisions
    judged = [d.batching for d in decisions if d.batching.today is not None]
    assert judged
    assert {b.reason for b in judged} == {Reason.BATCHING_IN_SYNC}
    assert {b.today.meets_objectives for b in judged} == {False}
    assert {b.replicas_saved for b in judged} <= {None, 0}
    assert not any(b.apply for b in judged)


def test_no_pod_is_restarted_for_a_law_that_may_yet_be_refuted():
    """Other batch limits are recommended at once and applied when a fit recommends them."""
    auto = replace(
        STATED_TARGETS,
        service_law=engine_kind("l4-small").law,
        replicas=ReplicaTargets(minimum=2, maximum=2),
        batching=BatchingTargets(mode=BatchingMode.AUTO),
    )
    world = World(rate=steady(3.0), replicas=2, max_num_seqs=8)
    tuned = run(world, auto, Limits(batching_apply_enabled=True)).until(150)
    stated = [d for d in tuned.decisions if d.model.source == "spec"]
    assert {d.batching.recommended_max_num_seqs for d in stated} != {8}
    assert {d.batching.reason for d in stated} == {Reason.LAW_FROM_SPEC}
    applied = [d for d in tuned.decisions if d.batching.apply]
    assert {d.model.source for d in applied} == {"fit"}
