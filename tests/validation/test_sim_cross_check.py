"""The product's simulator against another one, written apart from it, on the same arrivals."""

import numpy as np
import pytest
from tests.validation import step_simulation

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.fleets.cluster import FINISHING_SECONDS, Wanted, simulate
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.service import Routing, Service
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import compiled_backend
from servingslo_lab.sim.replicas.engine import Engine, Outcome
from servingslo_lab.sim.traces.trace import Trace

pytestmark = pytest.mark.slow("servingslo.models", "servingslo_lab.sim")

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


@pytest.mark.parametrize("routing", [Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.RANDOM])
def test_engines_of_the_rig_and_of_the_simulator_serve_every_request_alike(routing):
    """The rig looks every 50 ms on its own clock, the simulator at scrapes: nothing differs."""
    kind = engine_kind("l4-small")
    rng = np.random.default_rng(6)
    prompts, outputs = (lengths[:1500] for lengths in azure_like_lengths(rng))
    trace = Trace(
        arrival_seconds=step_simulation.poisson_arrivals(14.0, 1500, rng),
        prompt_tokens=prompts,
        output_tokens=outputs,
        duration_seconds=200.0,
    )
    fleet = FleetSpec(
        engine="l4-small", initial_replicas=3, max_queued=70, routing=routing, cached_ratio=0.3
    )
    result = simulate(fleet, trace, Still(), seed=4, backend=compiled_backend())
    service = Service(routing=routing, random_state=4)
    for name in "abc":
        one = Engine(law=kind.law, limits=kind.limits, requests=service.requests, max_queued=70)
        service.add(name, one, 0.0)
    records, looked = [], 0.0
    for arrival, prompt, output in zip(
        trace.arrival_seconds.tolist(), prompts.tolist(), outputs.tolist(), strict=True
    ):
        while looked < arrival:
            records += service.advance(looked)
            looked += 0.05
        service.offer(arrival=arrival, prompt_tokens=prompt, output_tokens=output, cached_ratio=0.3)
    records += service.advance(trace.duration_seconds + FINISHING_SECONDS)
    records.sort(key=lambda record: record.arrival_seconds)
    ttft = [np.inf if r.ttft_seconds is None else r.ttft_seconds for r in records]
    finished = [r.outcome is Outcome.FINISHED for r in records]

    assert len(records) == len(trace)
    assert ttft == pytest.approx(result.ttft_seconds, abs=1e-9)
    assert finished == (result.status == layout.FINISHED).tolist()
    assert 0 < sum(finished) < len(finished)
