"""The law that bends: its fit to step times, and the laws of latency that follow from it."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from step_tables import DENSE, EXPERTS, steps, table

from servingslo.models.engine.capacity import saturation
from servingslo.models.engine.law_fit import fit, predicted_seconds
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw, request_demand
from servingslo.models.fleet.latency import LatencyModel, Routing
from servingslo.models.workload import LengthDistribution, Workload
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.traces.trace import read_trace
from servingslo_lab.sim.traces.workloads import constant, generated, lengths_of

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
LINE = ServiceLaw(
    step_fixed_seconds=6.5e-3,
    step_per_sequence_seconds=4e-5,
    prefill_per_token_seconds=3e-5,
    context_per_token_seconds=5e-8,
)
BENT = replace(LINE, loading_seconds=2e-2, loading_tokens=24.0, hidden_tokens=192.0)
LIMITS = EngineLimits(max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=400_000)
# What a law of steps may be off, as asked of it: the mean, and the 95th percentile.
MEAN_ERROR, TAIL_ERROR = 0.04, 0.10
# Fitted on so many sequences alone, judged on four times as many.
FITTED_SEQUENCES = 64.0
# Seconds of a simulated load, and of its warm-up, which does not count.
LOAD_SECONDS, WARM_SECONDS = 900.0, 120.0


def conversation() -> Workload:
    """Requests of the conversation trace, one a second."""
    trace = read_trace(TRACE)
    prompts, outputs = (np.array(t, float) for t in (trace.prompt_tokens, trace.output_tokens))
    held = outputs * (prompts + outputs / 2.0)
    return Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples(prompts),
        output=LengthDistribution.from_samples(outputs),
        context_tokens_per_sequence=float(held.mean() / outputs.mean()),
    )


@dataclass
class OneReplica:
    """A policy that keeps one replica."""

    tick_seconds: float = 15.0

    def decide(self, _observation: object) -> Wanted:
        """One."""
        return Wanted(replicas=1)


def played(name: str, rate_per_second: float, limits: EngineLimits = LIMITS) -> RunResult:
    """One engine with the table's step times under conversation."""
    rng = np.random.default_rng(1)
    trace = generated(constant(rate_per_second, LOAD_SECONDS), lengths_of(read_trace(TRACE)), rng)
    fleet = FleetSpec(steps=table(name), limits=limits, initial_replicas=1, max_replicas=1)
    return simulate(fleet, trace, OneReplica(), seed=1)


@pytest.mark.parametrize("name", [EXPERTS, DENSE])
def test_a_law_fitted_on_few_sequences_holds_for_many(name: str) -> None:
    """Measured kernels, fitted up to 64 sequences: up to 256 within what is asked."""
    law, every = fit(steps(name, FITTED_SEQUENCES)).law, steps(name)
    errors = np.abs(predicted_seconds(law, every) / every.seconds - 1.0)
    assert errors.mean() <= MEAN_ERROR
    assert np.quantile(errors, 0.95) <= TAIL_ERROR


def test_a_known_law_is_found_again() -> None:
    """Steps of a law on the grid give that law."""
    seen = steps(EXPERTS)
    exact = seen._replace(seconds=predicted_seconds(BENT, seen))
    assert predicted_seconds(fit(exact).law, seen) == pytest.approx(exact.seconds, rel=1e-6)


def test_means_of_rows_are_those_of_single_steps() -> None:
    """The law of one step and the columns of the fit are the same."""
    seen = steps(EXPERTS)
    alone = [
        BENT.step_seconds(n, p, n * k)
        for n, p, k in zip(seen.sequences, seen.prefill_tokens, seen.context_tokens, strict=True)
    ]
    assert predicted_seconds(BENT, seen) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("sequences", [2.0, 32.0, 200.0])
def test_a_tangent_touches_the_law(sequences: float) -> None:
    """There it has the law's step, context included."""
    workload = conversation()
    demand = request_demand(workload, BENT, sequences, 8192.0)
    context = workload.held_tokens_per_sequence * sequences
    line = demand.step_fixed_seconds + demand.step_growth_seconds * sequences
    assert line == pytest.approx(BENT.step_seconds(sequences, 0.0, context), rel=1e-9)


# Percentiles of a law beside a simulation: as far as those of a line are off on an engine whose law
# is a line (docs/lab/findings.md).
@pytest.mark.parametrize(
    ("name", "rate"), [(EXPERTS, 3.0), (EXPERTS, 8.0), (EXPERTS, 14.0), (DENSE, 8.0), (DENSE, 14.0)]
)
def test_percentiles_follow_the_bends(name: str, rate: float) -> None:
    """On measured step times, where a line is off by up to 40 %: TPOT and TTFT, half and p95."""
    result = played(name, rate)
    found = LatencyModel(conversation(), fit(steps(name)).law, LIMITS).predict(
        rate, 1, Routing.RANDOM
    )
    late = result.arrival_seconds > WARM_SECONDS
    gaps, first = result.tpot_seconds[late & (result.output_tokens > 1)], result.ttft_seconds[late]
    assert found.tpot_seconds(50.0) == pytest.approx(np.quantile(gaps, 0.5), rel=0.08)
    assert found.ttft_seconds(50.0) == pytest.approx(np.quantile(first, 0.5), rel=0.08)
    assert found.tpot_seconds(95.0) == pytest.approx(np.quantile(gaps, 0.95), rel=0.20)
    assert found.ttft_seconds(95.0) == pytest.approx(np.quantile(first, 0.95), rel=0.15)


def test_a_small_token_budget_hides_more_prefill() -> None:
    """Chunked prompts hide under each of their steps: an engine of 512 tokens serves by the law.

    An overloaded engine serves its saturation rate; the last tenth of a prompt's chunks are alike.
    """
    limits = replace(LIMITS, max_num_batched_tokens=512)
    law = fit(steps(DENSE)).law
    found = saturation(conversation(), law, limits)
    result = played(DENSE, 1.5 * found.rate_per_second, limits)
    served = (result.arrival_seconds + result.latency_seconds <= LOAD_SECONDS).sum()
    assert served / LOAD_SECONDS == pytest.approx(found.rate_per_second, rel=0.06)
