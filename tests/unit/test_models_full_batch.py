"""The time per output token while a batch is full, and the batch that then serves most in time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servingslo.models.fleet.full_batch import (
    best_full_batch,
    full_batch_moments,
    full_batch_now,
    full_batch_of,
)
from servingslo.models.fleet.latency import Objective, Routing, latency_model
from servingslo.models.objectives import LatencyMetric
from servingslo.models.tokens.output_laws import AtomLaw, Moments, time_per_output_token_law
from servingslo.models.workload import LengthDistribution, Workload
from servingslo_lab.sim.baselines.clairvoyant import Static
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.traces.trace import read_trace
from servingslo_lab.sim.traces.workloads import constant, generated, lengths_of

TRACE = read_trace(
    Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
)
FLEET = FleetSpec(engine="h100-8b")
WORKLOAD = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution.from_samples(TRACE.prompt_tokens.astype(float)),
    output=LengthDistribution.from_samples(TRACE.output_tokens.astype(float)),
)
MODEL = latency_model(WORKLOAD, FLEET.engine_law, FLEET.engine_limits)
ENGINE = MODEL.engine
DEMAND = ENGINE.demand
# Prompt tokens computed for each token decoded, I/(O − 1).
USUAL = DEMAND.uncached_mean_tokens / (DEMAND.output_mean_tokens - 1.0)
SECONDS, EDGE_SECONDS = 600.0, 60.0


def full_batch_tpot(count: int) -> AtomLaw:
    """Law over requests of the time per output token while as many run."""
    mean, deviation = full_batch_moments(ENGINE, [count])
    parts = [(np.ones_like(ENGINE.gaps.gaps), Moments(mean[0], deviation[0]))]
    bounds = ENGINE.least_step_seconds, ENGINE.most_step_seconds
    return time_per_output_token_law(ENGINE.gaps, parts, bounds)


def _overloaded(in_flight: int, offered_ratio: float = 2.0):
    """One engine that is offered more than it serves: the run, and who came while it was full."""
    rate = offered_ratio * MODEL.saturation_rate_per_second
    trace = generated(constant(rate, SECONDS), lengths_of(TRACE), np.random.default_rng(1))
    run = simulate(replace(FLEET, max_queued=in_flight), trace, Static(1), seed=1)
    came = run.arrival_seconds
    full = (came >= EDGE_SECONDS) & (came < SECONDS - EDGE_SECONDS) & np.isfinite(run.ttft_seconds)
    return run, full


def _tokens_in_time(count: int, threshold_seconds: float) -> float:
    """Tokens a second of requests in time, from what a step of a full batch takes."""
    started = count / (DEMAND.output_mean_tokens - 1.0)
    room = DEMAND.prefill_per_token_seconds * (ENGINE.budget_tokens - count)
    step = DEMAND.step_fixed_seconds + DEMAND.step_growth_seconds * count
    step += min(started * DEMAND.prefill_mean_seconds, max(room, 0.0))
    law = full_batch_tpot(count)
    return count / step * np.interp(threshold_seconds, law.seconds, law.probability, left=0.0)


@pytest.mark.parametrize("in_flight", [60, 120, 145])
def test_the_law_of_a_full_batch_is_what_an_overloaded_engine_does(in_flight):
    """A simulated engine that refuses half of what comes; prompts in progress by Little's law."""
    run, full = _overloaded(in_flight)
    seconds = SECONDS - 2.0 * EDGE_SECONDS
    prefilling = float(np.sum(run.ttft_seconds[full])) / seconds
    law = full_batch_tpot(round(in_flight - prefilling))
    observed = run.tpot_seconds[full & (run.output_tokens > 1) & np.isfinite(run.tpot_seconds)]
    for percentile, within in ((50, 0.04), (95, 0.08), (99, 0.1)):
        assert law.quantile(percentile / 100.0) == pytest.approx(
            float(np.percentile(observed, percentile)), rel=within
        )


def test_a_full_batch_has_a_shorter_tail_than_an_open_load_with_as_many_sequences():
    """No prefill by prefill: p99 is a fourth shorter at least, the mean step the same."""
    rate = 0.9 * MODEL.saturation_rate_per_second
    opened = MODEL.predict(rate, 1, Routing.POOLED)
    full = full_batch_tpot(round(opened.running_mean))
    assert full.quantile(0.5) == pytest.approx(opened.tpot_seconds(50.0), rel=0.1)
    assert full.quantile(0.99) < 0.75 * opened.tpot_seconds(99.0)


def test_a_token_takes_longer_the_more_sequences_run():
    """At every percentile."""
    laws = [full_batch_tpot(count) for count in (1, 20, 60, 120, 240)]
    for probability in (0.1, 0.5, 0.95, 0.99):
        seconds = [law.quantile(probability) for law in laws]
        assert seconds == sorted(seconds)
        assert seconds[0] < 0.5 * seconds[-1]


@pytest.mark.parametrize("slots", [12, 256, 1024])
@pytest.mark.parametrize("threshold_seconds", [0.03, 0.05, 0.08])
def test_the_best_batch_serves_as_much_in_time_as_any(threshold_seconds, slots):
    """Within 1 % of the most that a search of every batch finds."""
    found = best_full_batch(ENGINE, threshold_seconds, slots)
    most = max(_tokens_in_time(count, threshold_seconds) for count in range(1, slots + 1))
    assert 1 <= found <= slots
    assert _tokens_in_time(found, threshold_seconds) >= 0.99 * most


def test_the_best_batch_serves_most_in_time_when_simulated():
    """Half as many in flight leave capacity unused, half as many again are late."""
    threshold_seconds = 0.05
    best = best_full_batch(ENGINE, threshold_seconds, 256)
    in_time = {}
    for ratio in (0.5, 1.0, 1.5):
        run, full = _overloaded(round(ratio * best))
        in_time[ratio] = int(np.sum(run.tpot_seconds[full] <= threshold_seconds))
    assert in_time[1.0] > 1.1 * in_time[0.5]
    assert in_time[1.0] > 1.5 * in_time[1.5]


def test_one_sequence_is_the_best_batch_when_none_is_in_time():
    """A threshold below an idle step."""
    assert best_full_batch(ENGINE, 0.5 * DEMAND.step_fixed_seconds, 256) == 1


def _objective(metric: LatencyMetric, seconds: float, percentile: float = 95.0) -> Objective:
    return Objective(metric=metric, percentile=percentile, threshold_seconds=seconds)


def test_no_full_batch_is_known_when_no_objective_is_between_tokens():
    """Objectives of the first token and of the whole request say nothing about a batch."""
    objectives = [_objective(LatencyMetric.TTFT, 1.0), _objective(LatencyMetric.LATENCY, 20.0)]
    assert full_batch_of(ENGINE, objectives, 256) is None
    assert full_batch_of(ENGINE, [], 256) is None


def test_the_widest_threshold_between_tokens_is_what_in_time_means():
    """A p50 of 30 ms beside a p99 of 60 ms: as with the latter alone."""
    both = [
        _objective(LatencyMetric.TPOT, 0.03, 50.0),
        _objective(LatencyMetric.TPOT, 0.06, 99.0),
        _objective(LatencyMetric.TTFT, 5.0),
    ]
    found = full_batch_of(ENGINE, both, 256)
    assert found == best_full_batch(ENGINE, 0.06, 256)
    assert found > best_full_batch(ENGINE, 0.03, 256)


def test_a_batch_is_smaller_when_tokens_take_longer_than_predicted():
    """Observed 1.2 times the prediction: as with a threshold of 1/1.2; and larger the other way."""
    objectives = [_objective(LatencyMetric.TPOT, 0.05)]
    usual = full_batch_of(ENGINE, objectives, 256)
    slow = full_batch_of(ENGINE, objectives, 256, 1.2)
    assert slow == best_full_batch(ENGINE, 0.05 / 1.2, 256)
    assert slow < usual < full_batch_of(ENGINE, objectives, 256, 0.8)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0, 5.0])
def test_a_token_takes_as_long_in_the_batch_of_the_moment(ratio):
    """At any φ, a + n·(β + c·φ) is that of the usual batch, to one sequence."""
    prefill = ratio * USUAL
    per_token = DEMAND.prefill_per_token_seconds

    def step_seconds(count: int, prefill_tokens: float) -> float:
        each = DEMAND.step_growth_seconds + per_token * prefill_tokens
        return DEMAND.step_fixed_seconds + count * each

    now = full_batch_now(DEMAND, 128, prefill)
    assert (now < 128) is (ratio > 1.0)
    assert step_seconds(now, prefill) <= step_seconds(128, USUAL) * (1.0 + 1e-9)
    assert step_seconds(now + 1, prefill) > step_seconds(128, USUAL)
