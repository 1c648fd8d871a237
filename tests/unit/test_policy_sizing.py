"""Sizing: each constraint's own need, the one that binds, and what cannot be met."""

from dataclasses import replace

import pytest
from tests.cards import H100, H100_LIMITS
from tests.sizing_cases import WORKLOAD, case, sized

from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import Objective, Routing, latency_model
from servingslo.models.fleet.objective_metrics import metric_seconds
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution
from servingslo.policy.inputs import BatchingTargets
from servingslo.policy.replicas.sizing import Load, carried_rate_per_second, least_safe_count, size
from servingslo.policy.rules.batch_search import (
    TOKEN_BUDGETS,
    BatchCase,
    BatchLimits,
    best_limits,
    largest_batch,
)
from servingslo.reasons import Constraint


def objective(metric, threshold, percentile=95.0):
    """An objective."""
    return Objective(metric=metric, percentile=percentile, threshold_seconds=threshold)


def test_utilization_alone_is_rate_over_capacity():
    """⌈λ / (ρ*·λ_sat)⌉, exactly."""
    plain = case()
    capacity = plain.saturation_per_second
    for count in (1, 3, 7):
        exact = count * 0.85 * capacity
        assert sized(plain, exact).replicas == count
        assert sized(plain, exact * 1.001).replicas == count + 1


def test_an_objective_on_a_percentile_binds_before_utilization():
    """Sizing on means would order fewer: the percentile is named as what binds."""
    tight = case(objective(LatencyMetric.TPOT, 0.012, 99.0))
    answer = sized(tight, 100.0)
    assert answer.binding is Constraint.TPOT
    assert answer.replicas > sized(case(), 100.0).replicas


def test_an_objective_that_an_idle_fleet_misses_does_not_size():
    """A breath above what a single request needs: no count meets it, so it asks for none."""
    alone = case().model.predict(1e-6, 1, Routing.POOLED)
    alone = metric_seconds(alone, LatencyMetric.TTFT, 99.0)
    near = case(objective(LatencyMetric.TTFT, alone * 1.001, 99.0))
    answer = sized(near, 60.0)
    need = next(n for n in answer.needs if n.constraint is Constraint.TTFT)
    assert need.replicas is None
    assert alone * 1.001 < need.least_feasible < alone * 1.2
    assert answer.infeasible == near.objectives
    assert answer.replicas == sized(case(), 60.0).replicas


def test_the_wait_that_a_request_alone_leaves_is_planned_no_smaller_than_the_error_of_lengths():
    """Its count would be decided by the error; beyond it, the objective sizes as it does."""
    alone = case().model.predict(1e-6, 1, Routing.POOLED)
    alone = metric_seconds(alone, LatencyMetric.TTFT, 99.0)
    near, clear = (objective(LatencyMetric.TTFT, alone * ratio, 99.0) for ratio in (1.15, 1.3))
    answer = sized(case(near, length_error_ratio=0.2), 60.0)
    at_error = sized(case(objective(LatencyMetric.TTFT, alone * 1.2, 99.0)), 60.0)
    assert answer.infeasible == ()
    assert sized(case(), 60.0).replicas < at_error.replicas == answer.replicas
    assert answer.replicas < sized(case(near), 60.0).replicas
    missed = sized(
        case(objective(LatencyMetric.TTFT, alone * 0.9, 99.0), length_error_ratio=0.2), 60.0
    )
    assert missed.infeasible
    assert missed.needs[-1].least_feasible == pytest.approx(alone)
    assert sized(case(clear, length_error_ratio=0.2), 60.0) == sized(case(clear), 60.0)


def test_a_hard_objective_still_sizes_where_more_replicas_would_help():
    """The largest count is too few, not too idle: its end is asked for."""
    alone = case().model.predict(1e-6, 1, Routing.POOLED)
    alone = metric_seconds(alone, LatencyMetric.TTFT, 99.0)
    hard = case(objective(LatencyMetric.TTFT, alone * 1.5, 99.0), largest_count=6)
    answer = sized(hard, 60.0)
    assert answer.infeasible == ()
    assert answer.replicas == 6


def test_a_small_cache_binds_by_memory():
    """Where memory is short, KV use is named."""
    small = replace(H100_LIMITS, kv_capacity_tokens=40_000.0, max_num_seqs=512)
    cramped = case(model=latency_model(WORKLOAD, H100, small), kv_cache_target_ratio=0.5)
    assert sized(cramped, 60.0).binding is Constraint.KV_CACHE


def test_a_backlog_asks_for_capacity_to_drain_it():
    """Arrivals and backlog together, while it drains."""
    plain = case()
    answer = sized(plain, 50.0, drain=60.0)
    assert answer.binding is Constraint.BACKLOG
    assert answer.replicas > sized(plain, 50.0).replicas


def test_an_objective_below_a_single_request_is_infeasible_and_does_not_size():
    """No count helps, so none is ordered for it; the least feasible value is told."""
    hopeless = objective(LatencyMetric.TPOT, 0.001)
    answer = sized(case(hopeless), 50.0)
    assert answer.infeasible == (hopeless,)
    assert answer.replicas == sized(case(), 50.0).replicas
    need = next(n for n in answer.needs if n.constraint is Constraint.TPOT)
    assert need.replicas is None
    assert need.least_feasible > 0.001


def test_what_was_observed_worse_than_predicted_sizes_larger():
    """Calibration multiplies the prediction."""
    goal = objective(LatencyMetric.TPOT, 0.014, 99.0)
    honest = sized(case(goal), 100.0).replicas
    assert sized(case(goal, calibration={"tpot": 1.25}), 100.0).replicas > honest


def test_a_pod_of_several_engines_carries_as_many_times_more():
    """Data-parallel pods: the model is of one engine."""
    single, double = sized(case(), 100.0), sized(case(engines_per_replica=2), 100.0)
    assert double.replicas == -(-single.replicas // 2)


def test_spare_replicas_must_be_lost_without_harm():
    """N−1 with one tolerated failure needs one more."""
    goal = objective(LatencyMetric.TPOT, 0.014, 99.0)
    judged, load = case(goal), Load(rate_per_second=100.0)
    plain = least_safe_count(judged, load, (), lowest=1, current=40)
    spare = least_safe_count(judged, load, (), lowest=1, current=40, spare=2)
    assert spare == plain + 2


def batch_case(*objectives, law=H100):
    """What batch limits are judged by, for these objectives."""
    model = latency_model(WORKLOAD, law, H100_LIMITS)
    return BatchCase(
        workload=WORKLOAD,
        law=law,
        limits=H100_LIMITS,
        case=case(*objectives, model=model),
        load=Load(rate_per_second=100.0),
        objectives=objectives,
        targets=BatchingTargets(),
    )


@pytest.mark.parametrize("threshold", [0.015, 0.02, 0.03, 0.05])
def test_a_looser_inter_token_objective_allows_no_smaller_batch(threshold):
    """The largest batch grows with the threshold."""
    tight = largest_batch(batch_case(objective(LatencyMetric.TPOT, threshold)), 2048)
    loose = largest_batch(batch_case(objective(LatencyMetric.TPOT, threshold * 1.5)), 2048)
    assert loose is not None
    assert (tight or 0) <= loose


def test_a_token_budget_that_breaks_the_inter_token_objective_is_reduced():
    """Long prompts, short outputs: a full prefill step is longer than the objective allows."""
    prompts = LengthDistribution(tokens=(1000.0, 4000.0, 8000.0), weights=(0.5, 0.4, 0.1))
    work = replace(
        WORKLOAD, prompt=prompts, output=LengthDistribution(tokens=(10.0, 40.0), weights=(0.5, 0.5))
    )
    goals = (objective(LatencyMetric.TPOT, 0.05, 99.0), objective(LatencyMetric.TTFT, 1.0, 99.0))
    plain = batch_case(*goals)
    batch = replace(
        plain, workload=work, case=case(*goals, model=latency_model(work, H100, H100_LIMITS))
    )
    batch = replace(batch, load=Load(rate_per_second=40.0))
    found = best_limits(batch, BatchLimits(max_num_seqs=256, max_num_batched_tokens=8192))
    assert found.better.max_num_batched_tokens < 8192
    assert found.better.replicas < found.today.replicas


def sized_under(batch, sequences, budget):
    """What the load needs under these limits, with nothing known before."""
    limits = replace(batch.limits, max_num_seqs=sequences, max_num_batched_tokens=budget)
    frontier = Frontier(latency_model(batch.workload, batch.law, limits))
    return size(replace(batch.case, frontier=frontier), batch.load)


@pytest.mark.parametrize(
    ("ttft", "tpot", "rate"), [(1.0, 0.05, 60.0), (0.5, 0.03, 100.0), (2.0, 0.02, 140.0)]
)
def test_no_limits_of_a_grid_need_fewer_replicas_than_those_found(ttft, tpot, rate):
    """Every pair of ten batches and the budgets: the search finds no dearer plan."""
    goals = (objective(LatencyMetric.TTFT, ttft), objective(LatencyMetric.TPOT, tpot))
    batch = replace(batch_case(*goals), load=Load(rate_per_second=rate))
    found = best_limits(batch, BatchLimits(max_num_seqs=256, max_num_batched_tokens=2048))
    largest = H100_LIMITS.kv_capacity_tokens * 0.9 / WORKLOAD.held_tokens_per_sequence
    plans = [
        sized_under(batch, sequences, budget)
        for sequences in (8, 16, 32, 48, 64, 96, 128, 192, 256, 384)
        for budget in TOKEN_BUDGETS
        if sequences <= min(largest, budget)
    ]
    assert found.better.meets_objectives
    assert found.better.replicas <= min(plan.replicas for plan in plans if not plan.infeasible)
    assert found.better.replicas <= found.today.replicas


@pytest.mark.parametrize("budget", [1536, 2048, 2560, 3072, 4096, 6144, 8192])
def test_the_greatest_rate_is_held_and_a_little_more_is_not(budget):
    """Talk with a third of long prompts: at every token budget the rate found is the crossing."""
    mixed = replace(
        WORKLOAD,
        prompt=LengthDistribution(
            tokens=(1155.0, *range(6000, 12001, 500)), weights=(0.7, *(0.3 / 13,) * 13)
        ),
        output=LengthDistribution(tokens=(30.0, 211.0), weights=(0.3, 0.7)),
    )
    goals = (objective(LatencyMetric.TTFT, 1.0, 99.0), objective(LatencyMetric.TPOT, 0.05, 99.0))
    limits = replace(H100_LIMITS, max_num_batched_tokens=budget)
    held = case(*goals, model=latency_model(mixed, H100, limits))
    rate = carried_rate_per_second(held, (), 4)
    assert 14.5 < rate < 19.6
    limits = [held.kv_limit, *map(held.limit, goals)]
    at, above = held.predicted(4, 0.9995 * rate), held.predicted(4, 1.005 * rate)
    assert all(limit.of(at) <= limit.most for limit in limits)
    assert not all(limit.of(above) <= limit.most for limit in limits)


@pytest.mark.parametrize("threshold", [2.0, 4.0, 8.0])
def test_an_end_to_end_objective_sizes_by_its_percentile(threshold):
    """The least count at which the latency percentile is within its threshold."""
    goal = objective(LatencyMetric.LATENCY, threshold, 95.0)
    held = case(goal)
    found = sized(held, 150.0)
    need = next(need for need in found.needs if need.constraint is Constraint.LATENCY)
    if need.least_feasible is not None:
        assert held.predicted(held.largest_count, 150.0).latency_seconds(95.0) > threshold
        return
    assert held.predicted(need.replicas, 150.0).latency_seconds(95.0) <= threshold
    fewer = held.predicted(need.replicas - 1, 150.0)
    assert fewer.utilization > 0.95 or fewer.latency_seconds(95.0) > threshold
