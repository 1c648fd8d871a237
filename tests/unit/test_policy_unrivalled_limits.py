"""Limits that all others clearly fall short of are found by bounds; the answer is the search's."""

import pytest

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import LatencyModel, Objective, Routing
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.inputs import BatchingTargets
from servingslo.policy.knobs.engine_limits import search
from servingslo.policy.knobs.engine_limits.memory import BatchLimits
from servingslo.policy.knobs.engine_limits.search import BatchCase, best_limits
from servingslo.policy.replicas.sizing import Load, SizingCase

LAW = ServiceLaw(
    step_fixed_seconds=6.5e-3, step_per_sequence_seconds=0.4e-3, prefill_per_token_seconds=0.03e-3
)
LIMITS = EngineLimits(max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=400_000.0)
CHATS = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution.from_samples([200.0 * 8.0 ** (i / 10) for i in range(11)]),
    output=LengthDistribution.from_samples([float(tokens) for tokens in range(20, 600, 20)]),
)
TPOT_SECONDS = (0.018, 0.03, 0.05, 0.1)
CURRENT = tuple(
    BatchLimits(max_num_seqs=sequences, max_num_batched_tokens=budget)
    for sequences in (8, 32, 64, 200)
    for budget in (512, 2048, 3000)
)


def batch_case(tpot_seconds, targets=None):
    """Chats, with this inter-token objective."""
    objectives = (
        Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0),
        Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=tpot_seconds),
    )
    case = SizingCase(
        frontier=Frontier(LatencyModel(CHATS, LAW, LIMITS)),
        routing=Routing.POOLED,
        objectives=objectives,
        utilization_target_ratio=0.85,
        kv_cache_target_ratio=0.9,
        largest_count=1000,
    )
    return BatchCase(
        workload=CHATS, law=LAW, limits=LIMITS, case=case,
        load=Load(rate_per_second=30.0), objectives=objectives,
        targets=targets or BatchingTargets(),
    )  # fmt: skip


@pytest.fixture
def answers(monkeypatch):
    """The plans found with bounds and without, and whether bounds were enough, by case."""
    enough = []
    bounded = search._is_unrivalled

    def noted(*known):
        enough.append(bounded(*known))
        return enough[-1]

    def found(batch, current):
        monkeypatch.setattr(search, "_is_unrivalled", noted)
        with_bounds = best_limits(batch, current)
        monkeypatch.setattr(search, "_is_unrivalled", lambda *_: False)
        return with_bounds, best_limits(batch, current), enough[-1]

    return found


@pytest.mark.parametrize("tpot_seconds", TPOT_SECONDS)
def test_bounds_change_no_answer(answers, tpot_seconds):
    """Every plan equals that of the whole search, to the digit."""
    for current in CURRENT:
        with_bounds, without, _ = answers(batch_case(tpot_seconds), current)
        assert with_bounds == without


def test_a_batch_that_is_too_large_for_its_tokens_needs_no_search(answers):
    """Its rivals are so small that they cannot serve what it carries."""
    large = BatchLimits(max_num_seqs=64, max_num_batched_tokens=2048)
    _, without, enough = answers(batch_case(0.03), large)
    assert enough
    assert without.better == without.today


def test_a_small_batch_has_rivals(answers):
    """Where a larger batch is safe, all limits are searched."""
    small = BatchLimits(max_num_seqs=8, max_num_batched_tokens=2048)
    with_bounds, _, enough = answers(batch_case(0.05), small)
    assert not enough
    assert with_bounds.better != with_bounds.today


def test_least_batch_of_the_tenant_is_no_rival_where_it_misses(answers):
    """Bounds respect the batches that the tenant allows."""
    targets = BatchingTargets(min_sequences=16, max_sequences=48)
    for current in CURRENT:
        with_bounds, without, _ = answers(batch_case(0.03, targets), current)
        assert with_bounds == without


def test_budget_whose_full_step_just_fits_is_a_rival_too(answers):
    """256 tokens with 42 sequences carry as much as 2,048 with 44."""
    _, _, enough = answers(
        batch_case(0.03), BatchLimits(max_num_seqs=44, max_num_batched_tokens=2048)
    )
    assert not enough


def test_limits_in_force_are_compared_on_the_frontier_of_the_plan():
    """So that their rates start the searches of the next mix; no other limits' rates are there."""
    batch = batch_case(0.03)
    in_force = BatchLimits(LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens)
    best_limits(batch, in_force)
    frontier = batch.case.frontier
    assert {fleet.engines for _, fleet in frontier.crossings} >= {search.COMPARED_REPLICAS}
    known = dict(frontier.crossings)
    best_limits(batch, in_force._replace(max_num_seqs=64))
    assert frontier.crossings == known
