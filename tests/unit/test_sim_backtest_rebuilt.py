"""A trace rebuilt from metrics beside the one that made them."""

from dataclasses import replace

import numpy as np
import pytest

from servingslo.errors import InvalidInputError
from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.policy.inputs import Observation
from servingslo.runtimes.gateways import CountedWhen
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.traces.rebuilt import trace_from_metrics
from servingslo_lab.sim.traces.workloads import generated, step, uniform_lengths

FLEET = FleetSpec(engine="l4-small", cold_start=ColdStart(mean_seconds=30.0), initial_replicas=5)
TRACE = generated(
    step(4.0, 10.0, at_seconds=600.0, duration_seconds=1200.0),
    uniform_lengths((100, 900), (20, 200)),
    np.random.default_rng(5),
)


class Watcher:
    """Remembers what it sees, and may order more pods at half time."""

    def __init__(self, then: int) -> None:
        self.seen: list[Observation] = []
        self._then = then

    def decide(self, observation: Observation) -> Wanted:
        """The count of the hour."""
        self.seen.append(observation)
        return Wanted(replicas=self._then if observation.time_seconds > 500.0 else None)


def watched(then: int = 5, fleet: FleetSpec = FLEET) -> list[FleetSample]:
    """What a recording of the fleet would hold."""
    watcher = Watcher(then)
    simulate(fleet, TRACE, watcher, seed=1)
    return [FleetSample(time_seconds=o.time_seconds, pods=o.pods) for o in watcher.seen]


@pytest.mark.parametrize("then", [5, 9, 3], ids=["steady", "pods come", "pods go"])
def test_rates_and_lengths_are_those_of_the_trace(then):
    """Requests of each half within 5 %, mean lengths within 10 %."""
    found = trace_from_metrics(watched(then), np.random.default_rng(1))
    # The first sample is at 15 s, and scrapes are seen 5 s late.
    for low, high in ((60.0, 540.0), (660.0, 1140.0)):
        real = np.sum((TRACE.arrival_seconds >= low) & (TRACE.arrival_seconds < high))
        shifted = found.arrival_seconds + 10.0
        rebuilt = np.sum((shifted >= low) & (shifted < high))
        assert rebuilt == pytest.approx(real, rel=0.05)
    assert found.prompt_tokens.mean() == pytest.approx(TRACE.prompt_tokens.mean(), rel=0.1)
    assert found.output_tokens.mean() == pytest.approx(TRACE.output_tokens.mean(), rel=0.1)


def test_what_a_gateway_refused_arrived_too():
    """Engines saw none of it: two a second, but for the silence before the second scrape."""
    samples = [
        replace(
            sample,
            gateway=GatewaySample(
                counted=CountedWhen.PASSED_ON,
                instances=(
                    GatewayInstance(
                        name="envoy",
                        requests_total=9.0 * sample.time_seconds,
                        rejected_total=2.0 * sample.time_seconds,
                        age_seconds=5.0,
                    ),
                ),
            ),
        )
        for sample in watched()
    ]
    found = trace_from_metrics(samples, np.random.default_rng(1))
    alone = trace_from_metrics(watched(), np.random.default_rng(1))
    first, last = samples[0].time_seconds, samples[-1].time_seconds
    assert len(found) - len(alone) == pytest.approx(2.0 * (last - first), abs=2.0)
    half = found.duration_seconds / 2.0
    more = np.sum(found.arrival_seconds < half) - np.sum(alone.arrival_seconds < half)
    assert more == pytest.approx(2.0 * half, rel=0.05)


def test_metrics_without_requests_are_refused():
    """One sample says nothing, and neither do engines without lengths."""
    samples = watched()
    with pytest.raises(InvalidInputError, match="two or more"):
        trace_from_metrics(samples[:1], np.random.default_rng(1))
    bare = [
        replace(
            s,
            pods=tuple(
                replace(
                    pod,
                    engines=tuple(
                        replace(engine, prompt_tokens=None, output_tokens=None)
                        for engine in pod.engines
                    ),
                )
                for pod in s.pods
            ),
        )
        for s in samples
    ]
    with pytest.raises(InvalidInputError, match="histograms of prompt and output"):
        trace_from_metrics(bare, np.random.default_rng(1))
