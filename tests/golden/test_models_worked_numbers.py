"""Worked numbers from the literature, reproduced by the models.

MLSys: "Machine Learning Systems" (V. J. Reddi), appendix "Inference Foundations" or chapter "Model
Serving". Tradeoffs: "Serving and Systems Tradeoffs". Queueing: "Inference Is a Queueing System".
"""

import pytest
from tests.textbook import batching, queueing
from tests.textbook.batching import BatchLaw

from servingslo.models import cost
from servingslo.models.engine import admission

FOUNDATIONS = BatchLaw(fixed_seconds=0.050, per_request_seconds=0.0005)


def test_parts_of_the_deciding_form():
    """Formation 7/(2λ); Allen and Cunneen's wait with C_a² = 1/8; E[B] = 1 + λ·T in a window."""
    times = batching.batch_response(FOUNDATIONS, 100.0, 8)
    assert times.formation_seconds * 1e3 == pytest.approx(35.0)
    assert times.wait_seconds * 1e3 == pytest.approx(54.0 * 0.675 / 0.325 * 0.125 / 2)
    window = batching.batch_response(FOUNDATIONS, 100.0, 32, window_seconds=0.090)
    assert window.service_seconds == pytest.approx(FOUNDATIONS.service_seconds(10.0))


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
    """Window rules: 30 % of the objective; 0 with a full queue. Source: MLSys, Serving."""
    assert batching.window_limit_seconds(0.1) == pytest.approx(0.03)
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


def test_md1_waits_half_of_mm1():
    """M/D/1 waits half as long as M/M/1. Source: Pollaczek–Khinchine."""
    half = 0.5 * queueing.mm1_wait_seconds(0.2, 0.8)
    assert queueing.md1_wait_seconds(0.2, 0.8) == pytest.approx(half)


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


@pytest.mark.parametrize(
    ("utilization", "cost_per_megatoken"),
    [(1.0, 0.926), (0.3, 3.09), (0.5, 1.85), (0.7, 1.32), (0.9, 1.03)],
)
def test_cost_of_tokens(utilization, cost_per_megatoken):
    """$4/h at 1,200 tokens/s. Source: Tradeoffs, cost table."""
    assert cost.cost_per_megatoken(4.0, 1200.0 * utilization) == pytest.approx(
        cost_per_megatoken, abs=0.005
    )


def test_cost_of_the_llama_case():
    """2.68 s a request, 114 at once, 192 Mtok/h, $0.016 (output alone 39.2, $0.077). MLSys."""
    requests_per_second = 114 / (0.120 + 256 * 0.010)
    both = cost.megatokens_in_hour(requests_per_second * 1256)
    output = cost.megatokens_in_hour(requests_per_second * 256)
    assert both == pytest.approx(192, abs=0.5)
    assert output == pytest.approx(39.2, abs=0.05)
    assert 3.0 / both == pytest.approx(0.016, abs=0.0005)
    assert 3.0 / output == pytest.approx(0.077, abs=0.0005)
