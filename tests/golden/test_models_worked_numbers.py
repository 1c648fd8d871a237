"""Worked numbers from the literature, reproduced by the models.

MLSys: "Machine Learning Systems" (V. J. Reddi), appendix "Inference Foundations" or chapter "Model
Serving". Tradeoffs: "Serving and Systems Tradeoffs". Queueing: "Inference Is a Queueing System".
"""

import math

import pytest
from tests.textbook import batching, queueing
from tests.textbook.batching import BatchLaw

from servingslo.models import burn_rates as error_budget
from servingslo.models import cost
from servingslo.models.engine import admission

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


def test_queue_bound_of_four_workers():
    """4 workers at 10 ms: 400/s, 200 to 300 ms of drain is 80 to 120. Source: MLSys, Serving."""
    assert admission.queue_bound(400.0, 0.200) == 80
    assert admission.queue_bound(400.0, 0.300) == 120


def test_shed_ratio_is_one_for_all_replicas():
    """max(0, 1 − λ_admitted/λ): 400 of 500 admitted sheds 20 %. Source: MLSys, Serving."""
    assert admission.shed_ratio(500.0, 400.0) == pytest.approx(0.2)
    assert admission.shed_ratio(300.0, 400.0) == 0.0
    assert admission.shed_ratio(0.0, 400.0) == 0.0


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


def test_error_budget_of_two_million_requests():
    """0.5 % of 2,000,000 is 10,000. Source: Tradeoffs."""
    assert error_budget.error_budget_requests(0.995, 2_000_000) == pytest.approx(10_000)


def test_cost_of_the_llama_case():
    """2.68 s a request, 114 at once, 192 Mtok/h, $0.016 (output alone 39.2, $0.077). MLSys."""
    requests_per_second = 114 / (0.120 + 256 * 0.010)
    both = cost.megatokens_in_hour(requests_per_second * 1256)
    output = cost.megatokens_in_hour(requests_per_second * 256)
    assert both == pytest.approx(192, abs=0.5)
    assert output == pytest.approx(39.2, abs=0.05)
    assert 3.0 / both == pytest.approx(0.016, abs=0.0005)
    assert 3.0 / output == pytest.approx(0.077, abs=0.0005)
