"""Worked numbers from the literature, reproduced by the models.

MLSys: "Machine Learning Systems" (V. J. Reddi), appendix "Inference Foundations" or chapter "Model
Serving". Tradeoffs: "Serving and Systems Tradeoffs". Queueing: "Inference Is a Queueing System".
"""

import math

import pytest

from servingslo.models import admission, batching, cost, error_budget, kv_cache, queueing
from servingslo.models.batching import BatchLaw

FOUNDATIONS = BatchLaw(fixed_seconds=0.050, per_request_seconds=0.0005)
SERVING = BatchLaw(fixed_seconds=0.005, per_request_seconds=0.0006)


@pytest.mark.parametrize(
    ("batch", "service_ms", "throughput", "utilization", "wait_ms", "formation_ms", "total_ms"),
    [
        pytest.param(1, 50.5, 19.8, 5.05, math.inf, 5.0, math.inf, id="1"),
        pytest.param(4, 52.0, 76.9, 1.30, math.inf, 20.0, math.inf, id="4"),
        pytest.param(8, 54.0, 148.1, 0.675, 56.1, 40.0, 150.1, id="8"),
        pytest.param(16, 58.0, 275.9, 0.363, 16.5, 80.0, 154.5, id="16"),
        pytest.param(32, 66.0, 484.8, 0.206, 8.6, 160.0, 234.6, id="32"),
    ],
)
def test_textbook_batch_table(
    batch, service_ms, throughput, utilization, wait_ms, formation_ms, total_ms
):
    """Dynamic batching at 100/s, 50 ms + 0.5 ms a request. Source: MLSys, Foundations, table."""
    times = batching.textbook_batch_response(FOUNDATIONS, 100.0, batch)
    assert times.service_seconds * 1e3 == pytest.approx(service_ms, abs=0.05)
    assert FOUNDATIONS.throughput_per_second(batch) == pytest.approx(throughput, abs=0.06)
    # The table rounds 1.30 and 0.206; its 0.363 is 0.3625.
    assert times.utilization == pytest.approx(utilization, abs=0.0006)
    assert times.wait_seconds * 1e3 == pytest.approx(wait_ms, abs=0.05)
    assert times.formation_seconds * 1e3 == pytest.approx(formation_ms)
    assert times.response_seconds * 1e3 == pytest.approx(total_ms, abs=0.05)


def test_least_batch_for_three_quarters_utilization():
    """B_min = 7.14, used as 8. Source: MLSys, Foundations, equation 2."""
    least = batching.least_batch(FOUNDATIONS, 100.0, 0.75)
    assert least == pytest.approx(7.14, abs=0.005)
    assert math.ceil(least) == 8


def test_least_batch_is_infinite_when_no_batch_is_enough():
    """ρ* ≤ λ·t_req: add replicas. Source: MLSys, Foundations, equation 2."""
    assert batching.least_batch(FOUNDATIONS, 1500.0, 0.75) == math.inf


def test_littles_law_of_the_batch_of_16():
    """15.45 in system, 5.8 in service, 9.65 waiting. Source: MLSys, Foundations, Little's law."""
    times = batching.textbook_batch_response(FOUNDATIONS, 100.0, 16)
    in_system = queueing.little_in_system(100.0, times.response_seconds)
    in_service = queueing.little_in_system(100.0, times.service_seconds)
    assert in_system == pytest.approx(15.45, abs=0.005)
    assert in_service == pytest.approx(5.8)
    assert in_system - in_service == pytest.approx(9.65, abs=0.005)


def test_general_service_waits_longer():
    """E[T²] in place of T²: batches as variable as exponential ones wait twice 56.1 ms. MLSys."""
    times = batching.textbook_batch_response(FOUNDATIONS, 100.0, 8, service_dispersion=1.0)
    assert times.wait_seconds * 1e3 == pytest.approx(2 * 56.08, abs=0.01)


def test_parts_of_the_deciding_form():
    """Formation 7/(2λ); Allen and Cunneen's wait with C_a² = 1/8; E[B] = 1 + λ·T in a window."""
    times = batching.batch_response(FOUNDATIONS, 100.0, 8)
    assert times.formation_seconds * 1e3 == pytest.approx(35.0)
    assert times.wait_seconds * 1e3 == pytest.approx(54.0 * 0.675 / 0.325 * 0.125 / 2)
    window = batching.batch_response(FOUNDATIONS, 100.0, 32, window_seconds=0.090)
    assert window.service_seconds == pytest.approx(FOUNDATIONS.service_seconds(10.0))


def test_textbook_formation_ends_with_the_window():
    """B/(2λ) while the batch fills in time, else T/2. Source: MLSys, Foundations, formation."""
    assert batching.textbook_formation_seconds(100.0, 8, 0.1) == pytest.approx(0.040)
    assert batching.textbook_formation_seconds(100.0, 16, 0.1) == pytest.approx(0.050)


def test_largest_batch_that_is_stable_and_meets_the_objective():
    """Step 5: of up to 32, 280 ms at p99 allow 22; below B_min(1) = 5.3 none is stable. MLSys."""
    best = batching.largest_dynamic_batch(FOUNDATIONS, 100.0, 0.280, 32)
    assert best == 22
    assert batching.largest_dynamic_batch(FOUNDATIONS, 100.0, 10.0, 32) == 32
    assert batching.largest_dynamic_batch(FOUNDATIONS, 100.0, 10.0, 5) is None
    times = batching.batch_response(FOUNDATIONS, 100.0, best + 1)
    tail = -math.log(0.01) * times.wait_seconds
    assert best / 100.0 + tail + times.service_seconds > 0.280


@pytest.mark.parametrize(
    ("batch", "total_ms", "throughput"),
    [
        pytest.param(1, 15.6, 64, id="1"),
        pytest.param(4, 17.4, 230, id="4"),
        pytest.param(8, 19.8, 404, id="8"),
        pytest.param(16, 24.6, 650, id="16"),
        pytest.param(32, 34.2, 935, id="32"),
    ],
)
def test_window_and_service_by_batch(batch, total_ms, throughput):
    """10 ms window and 5 ms + 0.6 ms·b. Source: MLSys, Model Serving, batch size table."""
    total = 0.010 + SERVING.service_seconds(batch)
    assert total * 1e3 == pytest.approx(total_ms)
    assert batch / total == pytest.approx(throughput, abs=0.9)


def test_poisson_batch_in_a_window():
    """At 500/s and 10 ms: mean 5, p99 11; 13.0 and 21.6 ms. Source: MLSys, Model Serving."""
    assert batching.window_batch_mean(500.0, 0.010) == pytest.approx(5.0)
    assert queueing.poisson_quantile(5.0, 0.99) == 11
    assert batching.window_mean_seconds(SERVING, 500.0, 0.010) * 1e3 == pytest.approx(13.0)
    assert batching.window_p99_seconds(SERVING, 500.0, 0.010) * 1e3 == pytest.approx(21.6)


@pytest.mark.parametrize(
    ("batch", "service_ms", "total_ms"),
    [pytest.param(1, 2.0, 2.0, id="1"), pytest.param(32, 15.0, 46.0, id="32")],
)
def test_batching_tax(batch, service_ms, total_ms):
    """Formation (B − 1)/(2λ) at 500/s: 2 ms and 31 + 15 ms. Source: MLSys, Model Serving."""
    law = BatchLaw(fixed_seconds=service_ms / 1e3, per_request_seconds=0.0)
    times = batching.batch_response(law, 500.0, batch)
    total = times.formation_seconds + times.service_seconds
    assert total * 1e3 == pytest.approx(total_ms)


def test_window_is_a_third_of_the_objective_at_most():
    """Window rules: 30 % of the objective; √(S/λ); 0 with a full queue. Source: MLSys, Serving."""
    assert batching.window_limit_seconds(0.1) == pytest.approx(0.03)
    assert batching.optimal_window_seconds(0.1, 0.01, 400.0) == pytest.approx(0.005)
    assert batching.optimal_window_seconds(0.012, 0.01, 100.0) == pytest.approx(0.002)
    assert batching.adaptive_window_seconds(8, 8, 100.0, 0.1) == 0.0
    assert batching.adaptive_window_seconds(6, 8, 100.0, 0.1) == pytest.approx(0.02)
    assert batching.adaptive_window_seconds(0, 8, 100.0, 0.1) == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("utilization", "multiple"),
    [(0.5, 2.0), (0.7, 3.3), (0.8, 5.0), (0.9, 10.0), (0.95, 20.0)],
)
def test_mm1_multiples(utilization, multiple):
    """Time in M/M/1 over service time. Source: MLSys, Model Serving, utilization table."""
    assert queueing.mm1_response_seconds(1.0, utilization) == pytest.approx(multiple, abs=0.05)


def test_mm1_p99_is_4_6_means():
    """p99 ≈ 4.6·S/(1 − ρ). Source: MLSys, Model Serving."""
    assert queueing.mm1_response_quantile_seconds(1.0, 0.5, 99.0) == pytest.approx(9.2, abs=0.02)
    assert queueing.exponential_tail_p99_seconds(1.0) == pytest.approx(4.6, abs=0.01)
    assert queueing.light_tail_p99_seconds(1.0, 0.1) == pytest.approx(1.233)


def test_md1_waits_half_of_mm1():
    """M/D/1 waits half as long as M/M/1. Source: Pollaczek–Khinchine."""
    half = 0.5 * queueing.mm1_wait_seconds(0.2, 0.8)
    assert queueing.md1_wait_seconds(0.2, 0.8) == pytest.approx(half)


def test_replicas_for_a_utilization_target():
    """λ = 180, μ = 40, ρ* = 0.7 → 7 at ρ = 0.643. Source: Tradeoffs."""
    count = queueing.replica_count_for_utilization(180.0, 40.0, 0.7)
    assert count == 7
    assert 180.0 / (count * 40.0) == pytest.approx(0.643, abs=0.0005)


def test_capacity_plan_with_headroom():
    """5,000/s at 1,143/s and 0.72 → 7, with 30 % → 10, 48.6 % after a failure. Source: MLSys."""
    plan = queueing.capacity_plan(5000.0, 1143.0, 0.72, 1.3)
    assert plan.base_count == 7
    assert plan.replica_count == 10
    assert plan.utilization_after_failure == pytest.approx(0.486, abs=0.0005)
    assert plan.survives_failure


@pytest.mark.parametrize(
    ("rate", "seconds", "in_flight"),
    [(900, 0.120, 108), (900, 0.180, 162), (1050, 0.180, 189), (20, 1.5, 30)],
)
def test_littles_law(rate, seconds, in_flight):
    """In flight = rate · time. Source: Queueing (first three), Tradeoffs (last)."""
    assert queueing.little_in_system(rate, seconds) == pytest.approx(in_flight)


def test_kv_bytes_of_llama_3_8b_with_full_heads():
    """0.5 MiB a token; 137,329 tokens in 72 GB, 109 requests. Source: MLSys, Model Serving."""
    per_token = kv_cache.kv_bytes_per_token(32, 32, 128, 2)
    assert per_token == 0.5 * 2**20
    capacity = kv_cache.kv_capacity_tokens(72e9, 0.0, 0.0, per_token)
    assert int(capacity) == 137_329
    assert kv_cache.concurrent_requests(capacity, 1256) == 109
    # The book rounds to 0.5 MB a token.
    rounded = kv_cache.kv_capacity_tokens(72e9, 0.0, 0.0, 0.5e6)
    assert rounded == pytest.approx(144_000)
    assert kv_cache.concurrent_requests(rounded, 1256) == 114
    # The real model has 8 KV heads.
    assert kv_cache.kv_bytes_per_token(32, 8, 128, 2) == 131_072


def test_kv_bytes_of_a_70b_model_with_grouped_queries():
    """80 layers, hidden 8192, 8× grouped: 1.34 GB at 4,096 tokens. Source: MLSys, equation 3."""
    per_token = kv_cache.kv_bytes_per_token(80, 8, 128, 2)
    assert kv_cache.kv_bytes(per_token, 4096) / 1e9 == pytest.approx(1.34, abs=0.005)


def test_kv_concurrency_of_an_80_gigabyte_card():
    """80 − 28 − 8 = 44 GB, 0.55 GB a request → 80 requests. Source: Tradeoffs."""
    capacity = kv_cache.kv_capacity_tokens(80e9, 28e9, 8e9, 1.0)
    assert capacity == pytest.approx(44e9)
    assert kv_cache.concurrent_requests(capacity, 0.55e9) == 80


def test_paged_waste_is_half_a_block_each():
    """Half a block a sequence, below 4 % at usual lengths. Source: Kwon et al., SOSP 2023."""
    assert kv_cache.paged_waste_tokens(16, 100) == 800
    assert kv_cache.paged_waste_tokens(16, 1) / 1227 < 0.04


@pytest.mark.parametrize(
    ("held", "reserved", "waste"),
    [
        pytest.param(204, 1000, 0.796, id="least-that-was-used"),
        pytest.param(382, 1000, 0.618, id="most-that-was-used"),
        pytest.param(1227, 4096, 0.70, id="conversation-in-4096"),
    ],
)
def test_contiguous_allocation_wastes_most(held, reserved, waste):
    """60 to 80 %: 20.4 to 38.2 % of memory held tokens. Source: Kwon et al., SOSP 2023; MLSys.

    The conversation trace holds 1,227 tokens a sequence; 4,096 reserved waste 70 %.
    """
    found = kv_cache.contiguous_waste_ratio(held, reserved)
    assert found == pytest.approx(waste, abs=0.001)
    assert 60 <= round(100 * found) <= 80


def test_queue_bound_of_four_workers():
    """4 workers at 10 ms: 400/s, 200 to 300 ms of drain is 80 to 120. Source: MLSys, Serving."""
    assert admission.queue_bound(400.0, 0.200) == 80
    assert admission.queue_bound(400.0, 0.300) == 120


def test_shed_ratio_is_one_for_all_replicas():
    """max(0, 1 − λ_admitted/λ): 400 of 500 admitted sheds 20 %. Source: MLSys, Serving."""
    assert admission.shed_ratio(500.0, 400.0) == pytest.approx(0.2)
    assert admission.shed_ratio(300.0, 400.0) == 0.0
    assert admission.shed_ratio(0.0, 400.0) == 0.0


def test_background_is_shed_before_long_context_before_interactive():
    """Shedding by class: 100/s each of three, 150/s admitted. Source: Queueing, priorities."""
    loads = [
        admission.ClassLoad(traffic_class=kind, rate_per_second=100.0, wait_budget_seconds=0.2)
        for kind in admission.TrafficClass
    ]
    shed = {
        s.traffic_class.name: s.shed_ratio for s in admission.shed_by_class(loads, 150.0, 150.0)
    }
    assert shed == {"BACKGROUND": 1.0, "LONG_CONTEXT": 0.5, "INTERACTIVE": 0.0}


def test_retries_are_an_echo_of_unique_demand():
    """Offered is unique·(1 + retries per rejection): 30 % rejected, tried again. Queueing."""
    offered = admission.offered_rate_per_second(100.0, 0.3, 1.0)
    # Each try is rejected with the same probability: 100·(1 + 0.3 + 0.09 + …).
    assert offered == pytest.approx(100.0 / 0.7)
    assert admission.unique_rate_per_second(offered, 0.3, 1.0) == pytest.approx(100.0)
    assert admission.offered_rate_per_second(100.0, 0.5, 2.0) == math.inf


@pytest.mark.parametrize(
    ("offered", "servers", "blocked", "delayed"),
    [
        pytest.param(1.0, 1, 0.5, 1.0, id="1"),
        pytest.param(1.0, 2, 0.2, 1 / 3, id="2"),
        pytest.param(2.0, 3, 0.2105, 0.4444, id="3"),
    ],
)
def test_erlang_b_and_c(offered, servers, blocked, delayed):
    """Small cases by hand: B = (aᶜ/c!)/Σ aᵏ/k!, C from B. Source: Harchol-Balter, chapter 15."""
    assert queueing.erlang_b(offered, servers) == pytest.approx(blocked, abs=1e-4)
    if offered < servers:
        assert queueing.erlang_c(offered, servers) == pytest.approx(delayed, abs=1e-4)


def test_one_slow_call_in_a_hundred_slows_most_of_a_fan_out():
    """1 % slow, 100 calls: 63 % see one. Source: Dean and Barroso, The Tail at Scale."""
    assert queueing.any_of_many_slow_probability(0.01, 100) == pytest.approx(0.63, abs=0.005)


@pytest.mark.parametrize(
    ("utilization", "cost_per_megatoken"),
    [(1.0, 0.926), (0.3, 3.09), (0.5, 1.85), (0.7, 1.32), (0.9, 1.03)],
)
def test_cost_of_tokens(utilization, cost_per_megatoken):
    """$4/h at 1,200 tokens/s. Source: Tradeoffs, cost table."""
    assert cost.cost_per_megatoken(4.0, 1200.0, utilization) == pytest.approx(
        cost_per_megatoken, abs=0.005
    )


def test_cost_of_the_llama_case():
    """2.68 s a request, 114 at once, 192 Mtok/h, $0.016 (output alone 39.2, $0.077). MLSys."""
    budget = cost.LatencyBudget(
        queue_seconds=0.0, prefill_seconds=0.120, tpot_seconds=0.010, gap_count=256
    )
    assert budget.total_seconds == pytest.approx(2.68)
    requests_per_second = 114 / budget.total_seconds
    both = cost.megatokens_in_hour(requests_per_second * 1256)
    output = cost.megatokens_in_hour(requests_per_second * 256)
    assert both == pytest.approx(192, abs=0.5)
    assert output == pytest.approx(39.2, abs=0.05)
    assert 3.0 / both == pytest.approx(0.016, abs=0.0005)
    assert 3.0 / output == pytest.approx(0.077, abs=0.0005)


def test_error_budget_of_two_million_requests():
    """0.5 % of 2,000,000 is 10,000. Source: Tradeoffs."""
    assert error_budget.error_budget_requests(0.995, 2_000_000) == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("share", "hours", "threshold"), [(0.02, 1, 14.4), (0.05, 6, 6.0), (0.10, 72, 1.0)]
)
def test_burn_rate_thresholds(share, hours, threshold):
    """Alerting thresholds of a 30 day budget. Source: The SRE Workbook, chapter 5, table 5-8."""
    days_30 = 30 * 86400.0
    assert error_budget.burn_threshold(share, hours * 3600.0, days_30) == pytest.approx(threshold)


def test_latency_budget_of_a_request():
    """30 + 250 + 80·25 + 15 = 2,295 ms, TTFT 280 ms. Source: Tradeoffs."""
    budget = cost.LatencyBudget(
        queue_seconds=0.030, prefill_seconds=0.250, tpot_seconds=0.025, gap_count=80,
        post_seconds=0.015,
    )  # fmt: skip
    assert budget.ttft_seconds == pytest.approx(0.280)
    assert budget.total_seconds == pytest.approx(2.295)
    assert cost.gap_count(81) == 80


def test_degradation_with_the_highest_quality_in_time():
    """1,600 ms: of 2500/900/1200/1500 ms at 1.00/0.92/0.95/0.97 the last. Source: Tradeoffs."""
    modes = [
        cost.DegradedMode(name=str(ms), latency_seconds=ms / 1e3, quality=quality)
        for ms, quality in ((2500, 1.00), (900, 0.92), (1200, 0.95), (1500, 0.97))
    ]
    chosen = cost.best_degradation(modes, 1.6)
    assert chosen is not None
    assert chosen.quality == 0.97
    assert cost.best_degradation(modes, 0.5) is None
