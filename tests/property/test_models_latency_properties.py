"""Invariants of the percentile laws of continuous batching.

1. Every percentile of every metric rises with load.
2. Quantiles are ordered; TTFT is at least a prefill step, TPOT at least an idle step.
3. Little's law ties running sequences, rate and time in the engine.
4. The stability frontier is exact: finite just below λ_sat, infinite from it on.
5. Limits: light load gives the bare steps; one replica is the same pooled and random.
6. More replicas at the same fleet rate are never slower, so that sizing never shrinks.
7. Pooled routing is never slower at the tail than random, but for part of a step.
8. Corners give numbers: everything cached, one token, no marginal work, one slot, a tiny budget.
9. Burstier arrivals are never faster at the tail.
10. A load is the same evaluated alone and among others.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.model_fleets import ReplicaGroup, predict

from servingslo.models.engine.capacity import saturation
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw, request_demand
from servingslo.models.fleet.latency import LatencyModel, Routing
from servingslo.models.fleet.objective_metrics import metric_seconds, prepare
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

# Numerical noise of the inversion: a percentile may fall by this much between two loads.
NOISE = 0.02
# With all slots taken prompts follow departures, so that gaps vary less than just below the cap.
EVENED = 0.10
METRICS = tuple(LatencyMetric)

laws = st.builds(
    ServiceLaw,
    step_fixed_seconds=st.floats(4e-3, 3e-2),
    step_per_sequence_seconds=st.floats(1e-5, 3e-4),
    prefill_per_token_seconds=st.floats(5e-6, 1e-4),
    context_per_token_seconds=st.floats(0.0, 3e-7),
)
limits = st.builds(
    EngineLimits,
    max_num_seqs=st.sampled_from([16, 64, 256]),
    max_num_batched_tokens=st.sampled_from([2048, 8192]),
    kv_capacity_tokens=st.sampled_from([60_000.0, 400_000.0]),
)


def lengths(mean: float, spread: float) -> LengthDistribution:
    """Lognormal-like lengths on a dozen points."""
    weights = [math.exp(-0.5 * (k / 2.5) ** 2) for k in range(-6, 7)]
    total = sum(weights)
    points = [max(1.0, mean * math.exp(spread * k / 2.5)) + 1e-6 * k for k in range(-6, 7)]
    return LengthDistribution(tokens=tuple(points), weights=tuple(w / total for w in weights))


def mix(prompt: float, output: float, spread: float, cached: float) -> Workload:
    """Lengths of these means; the rate is set later."""
    return Workload(
        arrival_rate_per_second=1.0,
        prompt=lengths(prompt, spread),
        output=lengths(output, spread),
        cached_ratio=cached,
    )


workloads = st.builds(
    mix,
    prompt=st.floats(50, 2000),
    output=st.floats(20, 500),
    spread=st.floats(0.2, 0.9),
    cached=st.sampled_from([0.0, 0.5]),
)


def group(law, limit, count=1, routing=Routing.POOLED):
    """A replica group."""
    return ReplicaGroup(law=law, limits=limit, replica_count=count, routing=routing)


@settings(deadline=None, max_examples=60)
@given(
    workload=workloads, law=laws, limit=limits, low=st.floats(0.05, 0.9), more=st.floats(0.03, 0.3)
)
@example(  # Short outputs at 16 slots, near saturation: most steps are full of prefill.
    workload=mix(1198.0, 20.0, 0.8, 0.0),
    law=ServiceLaw(
        step_fixed_seconds=9e-3, step_per_sequence_seconds=1e-4, prefill_per_token_seconds=9e-5
    ),
    limit=EngineLimits(max_num_seqs=16, max_num_batched_tokens=2048, kv_capacity_tokens=60_000.0),
    low=0.75,
    more=0.22,
)
@example(  # The same where the token budget bounds.
    workload=mix(1612.0, 20.0, 0.7, 0.0),
    law=ServiceLaw(
        step_fixed_seconds=6.4e-3, step_per_sequence_seconds=2e-4, prefill_per_token_seconds=1e-4
    ),
    limit=EngineLimits(
        max_num_seqs=256, max_num_batched_tokens=2048, kv_capacity_tokens=400_000.0
    ),
    low=0.73, more=0.24,
)  # fmt: skip
@example(  # Nodes over the running sequences move across what the budget carries.
    workload=mix(1276.0, 20.0, 0.506, 0.0),
    law=ServiceLaw(
        step_fixed_seconds=1.767e-2, step_per_sequence_seconds=1e-5,
        prefill_per_token_seconds=5.23e-5, context_per_token_seconds=1.48e-7,
    ),
    limit=EngineLimits(
        max_num_seqs=256, max_num_batched_tokens=2048, kv_capacity_tokens=400_000.0
    ),
    low=0.85, more=0.12,
)  # fmt: skip
def test_percentiles_rise_with_load(workload, law, limit, low, more):
    """1. A busier replica is never faster; gaps may even out by 10 % when all slots are taken."""
    top = saturation(workload, law, limit).rate_per_second
    high = min(low + more, 0.97)
    first = predict(workload.at_rate(low * top), group(law, limit))
    second = predict(workload.at_rate(high * top), group(law, limit))
    for metric in METRICS:
        for percentile in (50.0, 95.0, 99.0):
            fast = metric_seconds(first, metric, percentile)
            slow = metric_seconds(second, metric, percentile)
            full = metric is LatencyMetric.TPOT and second.laws.running.wait_probability > 0.1
            noise = EVENED if full else NOISE
            assert fast <= slow * (1 + noise), (metric, percentile)
    assert first.running_mean <= second.running_mean * (1 + 1e-6)
    assert first.kv_usage_quantile(99.0) <= second.kv_usage_quantile(99.0) + 1e-9


@settings(deadline=None, max_examples=60)
@given(
    workload=workloads,
    law=laws,
    limit=limits,
    ratio=st.floats(0.01, 0.97),
    count=st.integers(1, 12),
)
def test_quantiles_are_ordered_and_above_the_physical_floor(workload, law, limit, ratio, count):
    """2. p50 ≤ p90 ≤ p99 ≤ p99.9, and nothing is faster than an idle engine."""
    top = saturation(workload, law, limit).rate_per_second
    prediction = predict(workload.at_rate(ratio * top * count), group(law, limit, count))
    for metric in METRICS:
        values = [metric_seconds(prediction, metric, q) for q in (50.0, 90.0, 99.0, 99.9)]
        assert values == sorted(values)
    assert prediction.tpot_seconds(50.0) >= law.step_fixed_seconds
    least_prompt = workload.prompt.tokens[0] * (1 - workload.cached_ratio)
    floor = law.step_fixed_seconds + law.prefill_per_token_seconds * least_prompt
    assert prediction.ttft_seconds(50.0) >= floor * (1 - NOISE)
    assert 0.0 <= prediction.laws.running.wait_probability <= 1.0
    assert 0.0 <= prediction.kv_usage_ratio <= 1.0


@settings(deadline=None, max_examples=60)
@given(workload=workloads, law=laws, limit=limits, ratio=st.floats(0.05, 0.85))
def test_littles_law_of_running_sequences(workload, law, limit, ratio):
    """3. Running sequences are the rate times prefill and gaps, where none waits for a slot."""
    top = saturation(workload, law, limit).rate_per_second
    rate = ratio * top
    prediction = predict(workload.at_rate(rate), group(law, limit))
    gaps = workload.output.mean_tokens - 1.0
    decoding = rate * gaps * prediction.itl_mean_seconds
    # The rest are in prefill: at most TTFT; the tail law is not the mean, hence the slack.
    in_prefill = rate * prediction.ttft_seconds(90.0)
    assert decoding <= prediction.running_mean * 1.12
    assert prediction.running_mean <= decoding * 1.12 + in_prefill + 1.0


@settings(deadline=None, max_examples=60)
@given(workload=workloads, law=laws, limit=limits, count=st.integers(1, 8))
def test_stability_frontier_is_exact(workload, law, limit, count):
    """4. Stable just below λ_sat, and infinite at it."""
    top = saturation(workload, law, limit).rate_per_second * count
    below = predict(workload.at_rate(0.999 * top), group(law, limit, count))
    above = predict(workload.at_rate(1.000001 * top), group(law, limit, count))
    assert below.stable
    assert not above.stable
    for metric in METRICS:
        assert math.isfinite(metric_seconds(below, metric, 99.0))
        assert metric_seconds(above, metric, 99.0) == math.inf
    assert above.running_mean == math.inf


@settings(deadline=None, max_examples=60)
@given(workload=workloads, law=laws, limit=limits)
def test_light_load_is_the_bare_engine(workload, law, limit):
    """5. At hardly any load a gap is one step of one sequence, and nobody waits."""
    prediction = predict(workload.at_rate(1e-4), group(law, limit))
    demand = request_demand(workload, law)
    step = demand.step_fixed_seconds + demand.step_growth_seconds
    assert prediction.itl_mean_seconds == pytest.approx(step, rel=0.01)
    assert prediction.queue_seconds(99.9) == 0.0


@settings(deadline=None, max_examples=40)
@given(workload=workloads, law=laws, limit=limits, ratio=st.floats(0.05, 0.95))
def test_one_replica_is_the_same_pooled_and_random(workload, law, limit, ratio):
    """5. Routing means nothing with one replica."""
    loaded = workload.at_rate(ratio * saturation(workload, law, limit).rate_per_second)
    pooled = predict(loaded, group(law, limit))
    random = predict(loaded, group(law, limit, routing=Routing.RANDOM))
    for metric in METRICS:
        assert metric_seconds(pooled, metric, 99.0) == metric_seconds(random, metric, 99.0)


@settings(deadline=None, max_examples=60)
@given(
    workload=workloads, law=laws, limit=limits, ratio=st.floats(0.3, 0.95),
    count=st.integers(1, 12), routing=st.sampled_from(Routing),
)  # fmt: skip
@example(  # Most find a replica idle: the median is a bare step, and rises with a replica less.
    workload=mix(1508.0, 20.0, 0.227, 0.0),
    law=ServiceLaw(
        step_fixed_seconds=4e-3, step_per_sequence_seconds=1e-5, prefill_per_token_seconds=9.98e-5
    ),
    limit=EngineLimits(max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=60_000.0),
    ratio=0.597,
    count=11,
    routing=Routing.POOLED,
)
def test_one_more_replica_is_never_slower(workload, law, limit, ratio, count, routing):
    """6. At the same fleet rate every percentile falls or stays.

    But for gaps that evened out, and for half a step of the first token in a pool, see 8.
    """
    rate = ratio * count * saturation(workload, law, limit).rate_per_second
    few = predict(workload.at_rate(rate), group(law, limit, count, routing))
    many = predict(workload.at_rate(rate), group(law, limit, count + 1, routing))
    for metric in METRICS:
        for percentile in (50.0, 99.0):
            slow = metric_seconds(few, metric, percentile)
            full = metric is LatencyMetric.TPOT and few.laws.running.wait_probability > 0.1
            slow *= 1 + (EVENED if full else NOISE)
            if routing is Routing.POOLED and metric in {LatencyMetric.TTFT, LatencyMetric.LATENCY}:
                slow += 0.5 * few.itl_mean_seconds
            assert metric_seconds(many, metric, percentile) <= slow


@settings(deadline=None, max_examples=40)
@given(
    workload=workloads, law=laws, limit=limits, ratio=st.floats(0.2, 0.9), count=st.integers(2, 12)
)
def test_pooled_tail_is_not_above_random(workload, law, limit, ratio, count):
    """7. Sharing arrivals lengthens no tail, but for half a step of the first token.

    Arrivals go where sequences have just left, so that they come early in a step and wait for most
    of it; evenly they would wait for half. A simulation shows the same.
    """
    rate = ratio * count * saturation(workload, law, limit).rate_per_second
    pooled = predict(workload.at_rate(rate), group(law, limit, count))
    random = predict(workload.at_rate(rate), group(law, limit, count, Routing.RANDOM))
    for metric in METRICS:
        limit_seconds = metric_seconds(random, metric, 99.0) * (1 + NOISE)
        if metric in {LatencyMetric.TTFT, LatencyMetric.LATENCY}:
            limit_seconds += 0.5 * random.itl_mean_seconds
        assert metric_seconds(pooled, metric, 99.0) <= limit_seconds


@settings(deadline=None, max_examples=100)
@given(
    prompt=st.sampled_from([1.0, 30.0, 2000.0, 20_000.0]),
    output=st.sampled_from([1.0, 2.0, 100.0, 5000.0]),
    spread=st.sampled_from([0.01, 0.5, 1.5]),
    cached=st.sampled_from([0.0, 0.5, 1.0]),
    dispersion=st.sampled_from([0.5, 1.0, 5.0, 50.0]),
    law=st.builds(
        ServiceLaw,
        step_fixed_seconds=st.sampled_from([1e-4, 5e-3, 0.03]),
        step_per_sequence_seconds=st.sampled_from([0.0, 1e-5, 3e-4]),
        prefill_per_token_seconds=st.sampled_from([0.0, 1e-6, 1e-4]),
        context_per_token_seconds=st.sampled_from([0.0, 1e-7]),
    ),
    limit=st.builds(
        EngineLimits,
        max_num_seqs=st.sampled_from([1, 4, 64, 1024]),
        max_num_batched_tokens=st.sampled_from([64, 512, 8192]),
        kv_capacity_tokens=st.sampled_from([30_000.0, 1_000_000.0]),
    ),
    ratio=st.sampled_from([1e-7, 0.01, 0.5, 0.95, 0.999]),
    count=st.sampled_from([1, 2, 64, 1000]),
    routing=st.sampled_from(Routing),
)
@example(  # A prompt that fills its steps to the last token, but for rounding.
    prompt=2000.0, output=5000.0, spread=0.5, cached=0.0, dispersion=5.0,
    law=ServiceLaw(
        step_fixed_seconds=1e-4, step_per_sequence_seconds=0.0, prefill_per_token_seconds=0.0,
        context_per_token_seconds=0.0,
    ),
    limit=EngineLimits(
        max_num_seqs=64, max_num_batched_tokens=64, kv_capacity_tokens=1_000_000.0
    ),
    ratio=0.95, count=2, routing=Routing.RANDOM,
)  # fmt: skip
def test_corners_give_ordered_numbers(
    prompt, output, spread, cached, dispersion, law, limit, ratio, count, routing
):  # fmt: skip
    """8. Below saturation every percentile is finite, at least 0, and ordered."""
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=lengths(prompt, spread),
        output=lengths(output, spread),
        cached_ratio=cached,
        arrival_dispersion=dispersion,
    )
    rate = ratio * count * saturation(workload, law, limit).rate_per_second
    prediction = predict(workload.at_rate(rate), group(law, limit, count, routing))
    for metric in METRICS:
        values = [metric_seconds(prediction, metric, q) for q in (50.0, 95.0, 99.9)]
        assert all(math.isfinite(value) and value >= 0.0 for value in values), metric
        assert values == sorted(values)


@settings(deadline=None, max_examples=40)
@given(workload=workloads, law=laws, limit=limits, ratio=st.floats(0.2, 0.85), more=st.floats(1, 9))
def test_bursts_lengthen_the_tail(workload, law, limit, ratio, more):
    """9. TTFT and TPOT p99 rise with the index of dispersion."""
    rate = ratio * saturation(workload, law, limit).rate_per_second
    steady = predict(workload.at_rate(rate), group(law, limit))
    bursty = predict(replace(workload.at_rate(rate), arrival_dispersion=more), group(law, limit))
    for metric in (LatencyMetric.TTFT, LatencyMetric.TPOT):
        slow = metric_seconds(bursty, metric, 99.0)
        # Where prompts begin to queue for the token budget the law has a small step.
        assert metric_seconds(steady, metric, 99.0) <= slow * (1 + 2.0 * NOISE), metric


@settings(deadline=None, max_examples=40)
@given(
    workload=workloads,
    law=laws,
    limit=limits,
    loads=st.lists(st.tuples(st.floats(0.01, 1.05), st.integers(1, 40)), min_size=2, max_size=8),
    dispersion=st.sampled_from([1.0, 1.5, 5.0]),
    routing=st.sampled_from(Routing),
)
def test_loads_evaluated_together_are_what_each_is_alone(
    workload, law, limit, loads, dispersion, routing
):
    """10. What is shared is the call, never a result."""
    mix = replace(workload, arrival_dispersion=dispersion)
    model = LatencyModel(mix, law, limit)
    rates = [ratio * model.saturation_rate_per_second * count for ratio, count in loads]
    counts = [count for _, count in loads]
    together = model.predict_many(rates, counts, routing)
    for metric in METRICS:
        prepare(together, metric)
    for prediction, rate, count in zip(together, rates, counts, strict=True):
        alone = model.predict(rate, count, routing)
        assert prediction.stable == alone.stable
        assert prediction.kv_usage_quantile(95.0) == pytest.approx(alone.kv_usage_quantile(95.0))
        for metric in METRICS:
            for percentile in (50.0, 99.0):
                expected = metric_seconds(alone, metric, percentile)
                found = metric_seconds(prediction, metric, percentile)
                # The transforms that are inverted are known to so much (`models/rows.py`).
                assert found == pytest.approx(expected, rel=1e-6), (metric, percentile)


@pytest.mark.parametrize(
    ("sequences", "budget", "prompt_tokens", "utilization"),
    [(8, 1024, 3400.0, 0.9), (16, 704, 1000.0, 0.97), (16, 2048, 2000.0, 0.99)],
)
def test_one_replica_beside_a_pool_has_the_law_that_it_has_alone(
    sequences, budget, prompt_tokens, utilization
):
    """A replica by itself has no vacancies that arrivals could fill: their share is 0, not 0/0."""
    mix = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution(
            tokens=(prompt_tokens // 3, prompt_tokens, 2 * prompt_tokens), weights=(0.4, 0.4, 0.2)
        ),
        output=LengthDistribution(tokens=(6.0, 24.0, 60.0), weights=(0.4, 0.4, 0.2)),
    )
    spec = engine_kind("l4-small")
    tight = replace(spec.limits, max_num_seqs=sequences, max_num_batched_tokens=budget)
    model = LatencyModel(mix, spec.law, tight)
    rate = utilization * model.saturation_rate_per_second
    together = model.predict_many([rate, 2.0 * rate], [1, 2], Routing.POOLED)
    prepare(together, LatencyMetric.TTFT)
    alone = model.predict(rate, 1, Routing.POOLED).ttft_seconds(95.0)
    assert together[0].ttft_seconds(95.0) == pytest.approx(alone, rel=1e-6)
