"""The product's simulator against another one, written apart from it, on the same arrivals."""

import numpy as np
import pytest
import step_simulation

from servingslo.models.service_time import EngineLimits, ServiceLaw
from servingslo.sim.backend import compiled_backend
from servingslo.sim.catalogue import engine_kind
from servingslo.sim.cluster import Wanted, simulate
from servingslo.sim.fleet import FleetSpec
from servingslo.sim.trace import Trace

COUNT = 6000


class Still:
    """An autoscaler that wants nothing."""

    def decide(self, _: object) -> Wanted:
        """Leave everything as it is."""
        return Wanted()


def azure_like_lengths(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Heavy-tailed prompts and outputs with the means of the Azure conversation trace."""
    prompts = np.clip(rng.lognormal(6.6, 0.95, COUNT), 8, 8000).astype(np.int64)
    outputs = np.clip(rng.lognormal(5.0, 0.85, COUNT), 2, 1500).astype(np.int64)
    return prompts, outputs


def both(law: ServiceLaw, limits: EngineLimits, rate: float) -> tuple[dict, dict]:
    """Times to the first token and per further token, by both simulators, of the same requests."""
    rng = np.random.default_rng(11)
    arrivals = step_simulation.poisson_arrivals(rate, COUNT, rng)
    prompts, outputs = azure_like_lengths(rng)
    other = step_simulation.simulate(
        step_simulation.Fleet(
            a=law.step_fixed_seconds,
            b=law.step_per_sequence_seconds,
            c=law.prefill_per_token_seconds,
            d=law.context_per_token_seconds,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            kv_capacity_tokens=int(limits.kv_capacity_tokens),
        ),
        arrivals,
        prompts,
        outputs,
        rng,
    )
    trace = Trace(
        arrival_seconds=arrivals,
        prompt_tokens=prompts,
        output_tokens=outputs,
        duration_seconds=float(arrivals[-1]) + 1.0,
    )
    fleet = FleetSpec(law=law, limits=limits)
    ours = simulate(fleet, trace, Still(), seed=0, backend=compiled_backend())
    start, end = 0.15 * arrivals[-1], 0.95 * arrivals[-1]
    counted = (arrivals >= start) & (arrivals < end) & np.isfinite(ours.tpot_seconds)
    return (
        {"ttft": ours.ttft_seconds[counted], "tpot": ours.tpot_seconds[counted]},
        {"ttft": other.ttft, "tpot": other.tpot},
    )


def test_schedules_are_the_same_where_the_models_are_the_same():
    """Without costs of batch and context both must produce every single time alike."""
    law = ServiceLaw(
        step_fixed_seconds=0.01, step_per_sequence_seconds=0.0, prefill_per_token_seconds=0.00008
    )
    limits = EngineLimits(
        max_num_seqs=48, max_num_batched_tokens=512, kv_capacity_tokens=10_000_000
    )
    ours, other = both(law, limits, rate=5.0)

    assert ours["ttft"] == pytest.approx(other["ttft"], abs=1e-7)
    assert ours["tpot"] == pytest.approx(other["tpot"], abs=1e-7)


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        pytest.param("h100-8b", 6.0, id="h100-half-load"),
        pytest.param("h100-8b", 12.0, id="h100-high-load"),
        pytest.param("l4-small", 1.5, id="l4-half-load"),
        pytest.param("l4-small", 2.6, id="l4-memory-bound"),
    ],
)
def test_percentiles_agree_on_the_fleets_of_the_benchmark(kind, rate):
    """They count the batch of a prefill step differently by one sequence, and no more."""
    one = engine_kind(kind)
    ours, other = both(one.law, one.limits, rate)

    for name in ("ttft", "tpot"):
        for percent, tolerance in ((50, 0.02), (95, 0.05), (99, 0.08)):
            mine, theirs = (np.percentile(x[name], percent) for x in (ours, other))
            assert mine == pytest.approx(theirs, rel=tolerance), (name, percent)
