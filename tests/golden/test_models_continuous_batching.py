"""Worked and measured numbers of continuous batching.

The measured ones are of an independent step-level simulation with the Azure conversation lengths:
a 6.5 ms, b 0.04 ms, c 0.03 ms, d 0.05 ms per 1,000 context tokens, 256 sequences, budget 8,192, KV
400,000 tokens; and a KV-bound card with a 15, b 0.15, c 0.08, d 0.4, 64, 2,048, 60,000.
"""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtri
from tests.cards import H100, H100_LIMITS, L4_LIMITS
from tests.model_fleets import ReplicaGroup, predict

from servingslo.models.engine import capacity
from servingslo.models.engine.capacity import concurrency_cap, saturation_rate_per_second
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw, request_demand
from servingslo.models.fleet.latency import Routing
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.workload import LengthDistribution, Workload

TRACE = Path(__file__).parents[2] / "examples/traces/azure_llm_2023_conversation.csv"


def trace_lengths() -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens of the conversation trace."""
    with TRACE.open(newline="") as handle:
        rows = [(int(r["prompt_tokens"]), int(r["output_tokens"])) for r in csv.DictReader(handle)]
    table = np.array(rows, dtype=float)
    return table[:, 0], table[:, 1]


@pytest.fixture(scope="module")
def conversation() -> Workload:
    """The conversation lengths at 1 request per second."""
    prompts, outputs = trace_lengths()
    return Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples(prompts.tolist()),
        output=LengthDistribution.from_samples(outputs.tolist()),
        context_tokens_per_sequence=float(
            (outputs * (prompts + outputs / 2)).mean() / outputs.mean()
        ),
    )


def long_prompts(rate_per_second: float) -> Workload:
    """Prompts of about 2,000 and outputs of about 30 tokens, exponential."""
    shares = (np.arange(400) + 0.5) / 400
    deviates = -np.log1p(-shares)
    return Workload(
        arrival_rate_per_second=rate_per_second,
        prompt=LengthDistribution.from_samples((2000 * deviates).round().tolist()),
        output=LengthDistribution.from_samples((30 * deviates).round().clip(2).tolist()),
    )


def h100_with_budget(budget_tokens: int) -> EngineLimits:
    """The limits of the first card with another token budget."""
    return EngineLimits(
        max_num_seqs=256, max_num_batched_tokens=budget_tokens, kv_capacity_tokens=400_000
    )


def h100_at(
    workload: Workload, rate_per_replica: float, replica_count: int = 1,
    routing: Routing = Routing.POOLED,
) -> Prediction:  # fmt: skip
    """Prediction of the first card."""
    return predict(
        workload.at_rate(rate_per_replica * replica_count),
        ReplicaGroup(law=H100, limits=H100_LIMITS, replica_count=replica_count, routing=routing),
    )


def test_moments_of_the_conversation_trace(conversation):
    """1,155 and 211 tokens on average, 1,227 held; E[O·P] 8 % below the product of means."""
    prompts, outputs = trace_lengths()
    assert conversation.prompt.mean_tokens == pytest.approx(1155, abs=0.5)
    assert conversation.output.mean_tokens == pytest.approx(211, abs=0.5)
    assert conversation.held_tokens_per_sequence == pytest.approx(1227, abs=0.5)
    assert (outputs * prompts).mean() / (outputs.mean() * prompts.mean()) == pytest.approx(
        0.92, abs=0.005
    )


def test_work_of_a_request(conversation):
    """t_req = O·b + I·c + d·(O − 1)·k and T_fixed = O·a, by hand from the means."""
    demand = request_demand(conversation, H100)
    by_hand = 211.126 * 4e-5 + 1154.697 * 3e-5 + 5e-8 * 210.126 * 1226.979
    assert demand.marginal_seconds == pytest.approx(by_hand, rel=1e-5)
    assert demand.fixed_seconds == pytest.approx(211.126 * 6.5e-3, rel=1e-5)


def test_utilization_is_not_the_work_ratio(conversation):
    """At work ratio 0.8 utilization is 0.88 on this card."""
    demand = request_demand(conversation, H100)
    rate = 0.8 / demand.marginal_seconds
    prediction = h100_at(conversation, rate)
    assert prediction.work_ratio == pytest.approx(0.8)
    assert prediction.utilization == pytest.approx(0.88, abs=0.005)


def test_utilization_is_not_the_work_ratio_where_memory_binds(conversation):
    """At work ratio 0.8 utilization is 0.95 on a card whose KV cache binds.

    Its saturation is simulated at 8.35 to 8.41 requests per second. The stated 0.97 is that of the
    small card with 64 slots (test_simulated_worked_numbers.py).
    """
    law = ServiceLaw(
        step_fixed_seconds=11e-3,
        step_per_sequence_seconds=8e-5,
        prefill_per_token_seconds=5e-5,
        context_per_token_seconds=1e-7,
    )
    limits = EngineLimits(max_num_seqs=256, max_num_batched_tokens=4096, kv_capacity_tokens=200_000)
    rate = 0.8 / request_demand(conversation, law).marginal_seconds
    prediction = predict(
        conversation.at_rate(rate), ReplicaGroup(law=law, limits=limits, replica_count=1)
    )
    assert prediction.engine.saturation_rate_per_second == pytest.approx(8.38, abs=0.03)
    assert prediction.utilization == pytest.approx(rate / 8.38, abs=0.004)


def test_kv_bound_card_runs_about_49_sequences(conversation):
    """60,000 tokens at 1,227 a sequence: about 49."""
    assert concurrency_cap(conversation, L4_LIMITS) == pytest.approx(49, abs=0.5)
    assert concurrency_cap(conversation, H100_LIMITS) == 256


def test_token_budget_frontier_is_exact(conversation):
    """λ·I = (M − n)/(a + b·n + c·(M − n)) where the budget binds."""
    limits = h100_with_budget(512)
    demand = request_demand(conversation, H100)
    rate = saturation_rate_per_second(conversation, H100, limits)
    running = capacity.budget_concurrency(demand, limits)
    prefill = 512 - running
    step = (
        demand.step_fixed_seconds
        + demand.step_growth_seconds * running
        + demand.prefill_per_token_seconds * prefill
    )
    assert rate * demand.uncached_mean_tokens == pytest.approx(prefill / step, rel=0.002)


@pytest.mark.parametrize(
    ("budget_tokens", "keeps_up"), [(256, False), (512, True), (1024, True), (8192, True)]
)
def test_small_budget_never_keeps_up_with_long_prompts(budget_tokens, keeps_up):
    """Prompts of 2,000 at 9/s: measured, M = 256 never keeps up."""
    workload = long_prompts(9.0)
    limits = h100_with_budget(budget_tokens)
    assert (saturation_rate_per_second(workload, H100, limits) > 9.0) is keeps_up


@pytest.mark.parametrize(("budget_tokens", "keeps_up"), [(512, False), (1024, True), (8192, True)])
def test_small_budget_never_keeps_up_with_conversation(conversation, budget_tokens, keeps_up):
    """Conversation at 14.5/s: measured, M = 512 never keeps up."""
    limits = h100_with_budget(budget_tokens)
    assert (saturation_rate_per_second(conversation, H100, limits) > 14.5) is keeps_up


@pytest.mark.parametrize(
    ("routing", "p50_ms", "p99_ms"),
    [
        pytest.param(Routing.POOLED, 60.1, 74.9, id="least-loaded"),
        pytest.param(Routing.RANDOM, 50.1, 73.5, id="random"),
    ],
)
def test_least_loaded_routing_meets_the_start_of_a_step(routing, p50_ms, p99_ms):
    """Simulated on 8 replicas at half load with short prompts and slow steps: p50 is 20 % higher.

    Least-loaded routing sends arrivals where sequences have just left, so they wait for most of a
    step. a 23.4, b 0.039, c 0.0303 ms; lognormal prompts of 50 and outputs of 20 tokens, σ 0.4.
    """
    deviates = ndtri((np.arange(400) + 0.5) / 400)
    law = ServiceLaw(
        step_fixed_seconds=0.0234,
        step_per_sequence_seconds=3.9e-5,
        prefill_per_token_seconds=3.03e-5,
    )
    limits = EngineLimits(max_num_seqs=256, max_num_batched_tokens=2048, kv_capacity_tokens=60_000)
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples(np.floor(50 * np.exp(0.4 * deviates)).tolist()),
        output=LengthDistribution.from_samples(np.floor(20 * np.exp(0.4 * deviates)).tolist()),
    )
    rate = 0.5 * 8 * saturation_rate_per_second(workload, law, limits)
    prediction = predict(
        workload.at_rate(rate),
        ReplicaGroup(law=law, limits=limits, replica_count=8, routing=routing),
    )
    assert prediction.ttft_seconds(50.0) * 1e3 == pytest.approx(p50_ms, rel=0.05)
    assert prediction.ttft_seconds(99.0) * 1e3 == pytest.approx(p99_ms, rel=0.05)


def test_mean_objective_under_provisions(conversation):
    """TPOT p95 and p99 lie 1.5 to 2 times above the mean near the knee."""
    prediction = h100_at(conversation, 14.5)
    mean = prediction.itl_mean_seconds
    assert prediction.tpot_seconds(95.0) / mean >= 1.5
    assert prediction.tpot_seconds(99.0) / mean <= 2.0
