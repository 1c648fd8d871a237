"""Rules that model the engine, WVA and Dynamo, against numbers computed by hand."""

import math

import pytest
from tests.unit.rule_world import SETTING, lengths, world

from servingslo.estimation.sample import EngineSample
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.baselines.dynamo import first_token, rate_within
from servingslo_lab.sim.baselines.wva import V1_DEFAULTS, v1_step, v2_replicas
from servingslo_lab.sim.baselines.wva_queueing import QueueAnalyzer


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        pytest.param({"a": (0.75, 0.0)}, 1, id="spare KV of 0.05 is below 0.1"),
        pytest.param({"a": (0.2, 3.0)}, 1, id="spare queue of 2 is below 3"),
        pytest.param({"a": (0.9, 0.0), "b": (0.5, 9.0)}, 1, id="all are saturated"),
        pytest.param({"a": (0.3, 0.0)}, 0, id="one pod stays"),
        pytest.param({"a": (0.3, 0.0), "b": (0.3, 0.0)}, -1, id="0.6 on one leaves 0.2"),
        pytest.param({"a": (0.4, 0.0), "b": (0.4, 0.0)}, 0, id="0.8 on one leaves nothing"),
        pytest.param(
            {"a": (0.95, 9.0), "b": (0.2, 0.0), "c": (0.2, 0.0)}, -1, id="saturated ones are left"
        ),
        pytest.param({}, 0, id="no pod is seen"),
    ],
)
def test_wva_v1_steps_by_spare_kv_and_spare_queue(peaks, expected):
    """KV below 0.80 and a queue below 5; +1, −1 or nothing."""
    assert v1_step(peaks, V1_DEFAULTS) == expected


@pytest.mark.parametrize(
    ("demand", "replicas", "ready", "expected"),
    [
        pytest.param(340.0, 3, 3, 4, id="340/0.85 needs 400"),
        pytest.param(341.0, 3, 3, 5, id="a little more needs one more"),
        pytest.param(341.0, 5, 3, 5, id="pending pods count"),
        pytest.param(140.0, 4, 4, 2, id="140/0.70 leaves 200 spare"),
        pytest.param(250.0, 3, 3, 3, id="neither"),
    ],
)
def test_wva_v2_keeps_demand_between_its_two_thresholds(demand, replicas, ready, expected):
    """With 100 tokens of capacity each: up above 0.85 of all, down below 0.70 of the ready."""
    found = v2_replicas(demand, 100.0, replicas=replicas, ready=ready, up=0.85, down=0.70)
    assert found == expected


def test_wva_v2_learns_what_a_full_pod_holds():
    """k2 is what the batch takes at first, then what pods with a queue were seen to hold."""
    v2 = world("wva-v2").rule
    engine = EngineSample(
        engine="0", kv_usage_ratio=0.5, kv_capacity_tokens=400_000.0, waiting=0.0,
        max_num_seqs=256, max_num_batched_tokens=8192,
    )  # fmt: skip
    full = EngineSample(engine="0", kv_usage_ratio=0.5, kv_capacity_tokens=400_000.0, waiting=5.0)
    # n = min(8192 × 200/1200, 256) = 256; n(I + O/2) = 281,600, below k1 = 0.8 × 400,000.
    assert v2._capacity(engine, 1000.0, 200.0) == pytest.approx(281_600.0)
    assert v2._capacity(full, 1000.0, 200.0) == pytest.approx(200_000.0)
    assert v2._capacity(engine, 1000.0, 200.0) == pytest.approx(200_000.0)
    assert v2._capacity(engine, 1000.0, 50.0) == pytest.approx(320_000.0 * 0.88, rel=0.2)


def analyzer(batch: int) -> QueueAnalyzer:
    """The analyzer with α 1, β 0.1, γ 0.01 for prompts of 10 and outputs of 4."""
    return QueueAnalyzer(alpha=1.0, beta=0.1, gamma=0.01, prompt=10.0, output=4.0, batch=batch)


def test_the_queueing_analyzers_service_rate():
    """T(2) = 1 + 2(0.28 + 0.12) = 1.8, P = 2.9, D = 2.02, μ(2) = 2/(2.9 + 4 × 2.02)."""
    assert analyzer(2).completion_rate(2) == pytest.approx(2 / 10.98)
    assert analyzer(1).completion_rate(1) == pytest.approx(1 / 8.98)


def test_the_queueing_analyzer_finds_the_rate_at_the_target():
    """At the rate found TTFT is the target; a target that nothing meets gives the least rate."""
    one = analyzer(4)
    rate = one.greatest_rate(8.0, math.inf)
    assert one.latencies(rate)[0] == pytest.approx(8.0, rel=1e-4)
    assert one.greatest_rate(0.1, 0.1) == pytest.approx(0.001 * one.completion_rate(1), rel=1e-3)


def test_dynamo_estimates_first_tokens_in_chunks_of_the_budget():
    """4 prompts of 1,000 in steps of 2,000 − 10: 3 steps of 20 ms, and 0.4 s of prefill."""
    engine = EngineSample(engine="0", running=10.0, waiting=3.0)
    found = first_token(SETTING.law, SETTING.limits, engine, 1000.0)
    assert found == pytest.approx(3 * 0.02 + 0.4)


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        pytest.param([45.0, 45.0, 45.0], 4, id="all miss TPOT: 10 + 45 ms"),
        pytest.param([45.0, 45.0, 30.0], 3, id="one holds"),
        pytest.param([10.0, 10.0, 10.0], 2, id="10 + 15 ms is below 0.8 × 50 ms"),
        pytest.param([25.0, 10.0, 10.0], 3, id="10 + 37.5 ms is not"),
    ],
)
def test_dynamo_load_loop_rises_if_all_miss_and_falls_if_all_would_hold(running, expected):
    """One step, at N/(N − 1) of the load on the way down."""
    loop = world("dynamo-load")
    engines = [{"running": n, "waiting": 0.0, "kv_usage_ratio": 0.1} for n in running]
    loop.look(3, engines=[{**e, **lengths(0.0, 100.0, 100.0)} for e in engines])
    assert loop.look(3, engines=[{**e, **lengths(9.0, 100.0, 100.0)} for e in engines]) == expected


def test_dynamo_load_loop_holds_while_pods_come():
    """Overload with a pod that is not ready."""
    loop = world("dynamo-load")
    busy = {"running": 49.0, "waiting": 9.0}
    loop.look(3, unready=1, each={**busy, **lengths(0.0, 100.0, 100.0)})
    assert loop.look(3, unready=1, each={**busy, **lengths(9.0, 100.0, 100.0)}) == 3


@pytest.mark.parametrize(
    ("kv", "waiting", "expected"),
    [
        pytest.param(0.9, 20.0, 4, id="scheduled and queued KV above 1"),
        pytest.param(0.7, 0.0, 3, id="between 0.6 and 1"),
        pytest.param(0.5, 0.0, 2, id="below 0.6"),
    ],
)
def test_dynamo_threshold_loop_reads_kv_and_queued_prompts(kv, waiting, expected):
    """Its default target: decode above 1.0 up, below 0.6 down."""
    loop = world("dynamo-threshold")
    shown = {"kv_usage_ratio": kv, "kv_capacity_tokens": 15_000.0, "waiting": waiting}
    loop.look(3, each={**shown, **lengths(0.0, 100.0, 100.0)})
    assert loop.look(3, each={**shown, **lengths(9.0, 100.0, 100.0)}) == expected


@pytest.mark.parametrize(
    ("per_sequence", "itl", "expected"),
    [
        pytest.param(1e-12, 0.05, 50.0, id="50 slots of 100 steps of 10 ms"),
        pytest.param(0.001, 0.03, 20 / 100 / 0.03, id="20 slots last 30 ms"),
    ],
)
def test_dynamo_throughput_loop_rates_an_engine_by_its_objective(per_sequence, itl, expected):
    """The batch whose steps last the objective, over output length and step time."""
    law = ServiceLaw(
        step_fixed_seconds=0.01, step_per_sequence_seconds=per_sequence,
        prefill_per_token_seconds=0.0, context_per_token_seconds=0.0,
    )  # fmt: skip
    limits = EngineLimits(max_num_seqs=50, max_num_batched_tokens=2000, kv_capacity_tokens=15_000)
    assert rate_within(law, limits, 100.0, 100.0, itl) == pytest.approx(expected)
