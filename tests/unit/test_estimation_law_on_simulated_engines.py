"""The service law fitted from what simulated engines export, against the law they follow."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from estimation_fleet import SimulatedFleet, poisson

from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.models.workload import LengthDistribution
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.engine_kinds import EngineKind, engine_kind
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
# E[O·(P + O/2)]/E[O] of the trace: tokens that a running sequence holds.
CONTEXT_TOKENS = 1227.0


def _estimate(
    kind: EngineKind,
    rate_per_replica: float,
    *,
    replicas: int = 4,
    seconds: float = 600.0,
    routing: Routing = Routing.LEAST_LOADED,
    cached_ratio: float = 0.0,
) -> Estimate:
    rng = np.random.default_rng(7)
    trace = read_trace(TRACE)
    arrivals = poisson(rate_per_replica * replicas, seconds, rng)
    chosen = rng.integers(0, len(trace), len(arrivals))
    fleet = SimulatedFleet(kind=kind, replicas=replicas, routing=routing)
    state = EstimatorState()
    estimate: Estimate | None = None
    for sample in fleet.run(
        arrivals,
        np.array(trace.prompt_tokens)[chosen],
        np.array(trace.output_tokens)[chosen],
        until=seconds,
        cached_ratio=cached_ratio,
    ):
        state, estimate = update(state, sample)
    assert estimate is not None
    return estimate


@pytest.mark.parametrize(
    ("name", "rate", "a_error", "c_error", "step_error"),
    [
        pytest.param("h100-8b", 0.5, 0.04, 0.05, 0.03, id="h100-mostly-idle"),
        pytest.param("h100-8b", 5.0, 0.04, 0.10, 0.03, id="h100-ten-running"),
        pytest.param("h100-8b", 10.0, 0.04, 0.07, 0.04, id="h100-thirty-running"),
        pytest.param("h100-8b", 14.0, 0.06, 0.06, 0.06, id="h100-near-the-knee"),
        pytest.param("l4-small", 3.0, 0.10, 0.16, 0.06, id="l4-near-its-cache-bound"),
    ],
)
def test_fit_finds_the_law_of_the_engine(
    name: str, rate: float, a_error: float, c_error: float, step_error: float
) -> None:
    """a, c and the step time now and at twice the concurrency; b holds b + d·k̄ by design.

    c takes up part of the context cost, because windows with long prompts also attend to more:
    the more the dearer context is (the small card). Step times then come out low by as much.
    """
    kind = engine_kind(name)
    estimate = _estimate(kind, rate)
    law, truth = estimate.law.law, kind.law
    assert estimate.law.trusted, estimate.law
    assert law is not None
    assert law.step_fixed_seconds == pytest.approx(truth.step_fixed_seconds, rel=a_error)
    assert law.prefill_per_token_seconds == pytest.approx(
        truth.prefill_per_token_seconds, rel=c_error
    )
    now = estimate.running_requests / 4
    for sequences in (now, 2 * now):
        assert law.step_seconds(sequences) == pytest.approx(
            truth.step_seconds(sequences, context_tokens=CONTEXT_TOKENS * sequences),
            rel=step_error,
        )
    assert estimate.law.fit_error is not None
    assert estimate.law.fit_error < 0.03


def test_engines_that_begin_with_the_load_are_fitted_as_well_as_others() -> None:
    """Pods that are watched from their start on, which wait half a minute for the first request.

    Counted as busy, that half minute made the step time at twice the concurrency 23 % short.
    """
    kind, replicas, seconds = engine_kind("h100-8b"), 4, 300.0
    rng = np.random.default_rng(7)
    trace = read_trace(TRACE)
    arrivals = 40.0 + poisson(10.0 * replicas, seconds, rng)
    chosen = rng.integers(0, len(trace), len(arrivals))
    fleet = SimulatedFleet(kind=kind, replicas=replicas)
    fleet.ready_since.update(dict.fromkeys(fleet.ready_since, 0.0))
    prompts = np.array(trace.prompt_tokens)[chosen]
    outputs = np.array(trace.output_tokens)[chosen]
    state, estimate = EstimatorState(time_seconds=-15.0), None
    for sample in fleet.run(arrivals, prompts, outputs, until=seconds):
        state, estimate = update(state, sample)
    assert estimate is not None
    law = estimate.law.law
    assert estimate.law.trusted
    assert law is not None
    twice = 2 * estimate.running_requests / replicas
    truth = kind.law.step_seconds(twice, context_tokens=CONTEXT_TOKENS * twice)
    assert law.step_seconds(twice) == pytest.approx(truth, rel=0.08)


def _p99_tokens(lengths: LengthDistribution) -> float:
    """The least length at or above the 99th percentile."""
    return lengths.tokens[int(np.searchsorted(np.cumsum(lengths.weights), 0.99))]


def test_workload_is_what_was_sent() -> None:
    """Rate, lengths, cache share and context tokens of a known workload."""
    estimate = _estimate(engine_kind("h100-8b"), 8.0, cached_ratio=0.5)
    trace = read_trace(TRACE)
    workload = estimate.workload
    assert workload is not None
    assert workload.arrival_rate_per_second == pytest.approx(32.0, rel=0.12)
    assert workload.prompt.mean_tokens == pytest.approx(np.mean(trace.prompt_tokens), rel=0.05)
    assert workload.output.mean_tokens == pytest.approx(np.mean(trace.output_tokens), rel=0.05)
    assert _p99_tokens(workload.prompt) == pytest.approx(
        np.quantile(trace.prompt_tokens, 0.99), rel=0.2
    )
    # The p99 of outputs, 601 tokens, lies in a bucket of 500 to 1,000.
    assert 500 <= _p99_tokens(workload.output) <= 1000
    # The engine caches whole blocks of 16 tokens and computes at least one token.
    assert workload.cached_ratio == pytest.approx(0.49, abs=0.02)
    # Of the last two or three scrapes: a thousand requests.
    decoded = np.mean(trace.output_tokens) - 1.0
    assert estimate.prefill_tokens_per_token == pytest.approx(
        0.51 * np.mean(trace.prompt_tokens) / decoded, rel=0.15
    )
    assert workload.context_tokens_per_sequence == pytest.approx(CONTEXT_TOKENS, rel=0.08)
    assert workload.arrival_dispersion == pytest.approx(1.0, abs=0.3)


def test_output_length_counts_requests_that_still_run() -> None:
    """Early on only short outputs have ended: their mean is low, the estimate is not.

    It may be high: young requests end less often than the average one does.
    """
    trace = read_trace(TRACE)
    truth = float(np.mean(trace.output_tokens))
    fleet = SimulatedFleet(kind=engine_kind("l4-small"), replicas=8)
    rng = np.random.default_rng(3)
    arrivals = 12.0 + poisson(16.0, 18.0, rng)
    chosen = rng.integers(0, len(trace), len(arrivals))
    prompts = np.array(trace.prompt_tokens)[chosen]
    outputs = np.array(trace.output_tokens)[chosen]
    state = EstimatorState()
    estimate: Estimate | None = None
    for sample in fleet.run(arrivals, prompts, outputs, until=30.0):
        state, estimate = update(state, sample)
    assert estimate is not None
    ended = [fleet.scraped[name][1].output_tokens for name in fleet.engines]
    count = sum(h.count for h in ended if h is not None)
    naive = sum(h.sum for h in ended if h is not None) / count
    assert naive < 0.85 * truth
    assert estimate.output_tokens_mean is not None
    assert 0.9 * truth <= estimate.output_tokens_mean <= 1.5 * truth


def test_no_law_is_trusted_before_there_are_windows() -> None:
    """Two scrapes are one window: learning, with nothing to plan with."""
    estimate = _estimate(engine_kind("h100-8b"), 5.0, replicas=1, seconds=30.0)
    assert not estimate.law.trusted
    assert estimate.law.reason is Reason.MODEL_LEARNING


@pytest.fixture(scope="module")
def fitted() -> tuple[EstimatorState, FleetSample]:
    """What is known after three minutes of a fleet, and its last sample."""
    rng = np.random.default_rng(7)
    arrivals = poisson(10.0, 180.0, rng)
    prompts, outputs = rng.integers(100, 900, (2, len(arrivals)))
    fleet = SimulatedFleet(kind=engine_kind("h100-8b"), replicas=2)
    state = EstimatorState()
    for sample in fleet.run(arrivals, prompts, outputs, until=180.0):
        state, estimate = update(state, sample)
    assert (estimate.law.source, estimate.law.trusted) == ("fit", True)
    return state, sample


def _one_pod_renewed(sample: FleetSample, changed: dict[str, object], later: float) -> FleetSample:
    """The fleet with its youngest pod of another template; limits are those of its engine."""
    limits = {name: value for name, value in changed.items() if name == "max_num_seqs"}
    others = {name: value for name, value in changed.items() if name not in limits}
    old, new = sample.pods
    engines = tuple(replace(engine, **limits) for engine in new.engines)
    new = replace(new, name="new", template_hash="v2", age_seconds=60.0, engines=engines, **others)
    return replace(sample, time_seconds=sample.time_seconds + later, pods=(old, new))


@pytest.mark.parametrize(
    ("changed", "source"),
    [
        pytest.param({"image": "engine:2"}, "none", id="image"),
        pytest.param({"gpu_product": "another"}, "none", id="card"),
        pytest.param({"max_num_seqs": 64}, "last-trusted", id="limits"),
    ],
)
def test_the_law_belongs_to_the_newest_pods(
    fitted: tuple[EstimatorState, FleetSample], changed: dict[str, object], source: str
) -> None:
    """The first pod of another image or card ends the use of the law, new limits do not.

    The way back finds it again.
    """
    state, sample = fitted
    state, estimate = update(state, _one_pod_renewed(sample, changed, 15.0))
    assert estimate.law.reason is Reason.CONFIGURATION_CHANGED
    assert (estimate.law.source, estimate.law.trusted) == (source, source != "none")
    _, estimate = update(state, replace(sample, time_seconds=sample.time_seconds + 30.0))
    assert (estimate.law.source, estimate.law.trusted) == ("fit", True)
