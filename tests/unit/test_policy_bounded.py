"""A fleet behind a bound: what the gateway refuses is demand, however idle the engines look."""

from dataclasses import dataclass, replace

import pytest
from policy_world import World, run, steady

from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.policy.inputs import Observation
from servingslo.runtimes.gateways import CountedWhen

RATE_PER_SECOND = 12.0
SECONDS = 600.0


@dataclass
class BoundedWorld(World):
    """A gateway that is read refuses what comes while so many requests are in flight."""

    bound: int = 1_000_000

    def __post_init__(self) -> None:
        """Count before the engines."""
        super().__post_init__()
        self.requests = self.refused = 0
        pass_on = self.service.offer

        def offer(*, arrival: float, **request: int) -> None:
            self.requests += 1
            self.records += self.service.advance(arrival)
            if self.service.in_flight >= self.bound:
                self.refused += 1
            else:
                pass_on(arrival=arrival, **request)

        self.service.offer = offer

    def observe(self, at: float) -> Observation:
        """With what the gateway counts."""
        observation = super().observe(at)
        instance = GatewayInstance(
            name="envoy",
            age_seconds=0.0,
            requests_total=float(self.requests),
            rejected_total=float(self.refused),
            queued=0.0,
        )
        gateway = GatewaySample(counted=CountedWhen.PASSED_ON, instances=(instance,))
        return replace(observation, gateway=gateway)


def _settled(bound: int) -> int:
    """Replicas at the end of a story at a steady rate that begins with three."""
    world = BoundedWorld(rate=steady(RATE_PER_SECOND), replicas=3, bound=bound)
    return run(world).until(SECONDS).decisions[-1].replicas_after


@pytest.fixture(scope="module")
def unbounded() -> int:
    """Replicas without a bound."""
    return _settled(1_000_000)


@pytest.mark.parametrize("bound", [2, 24])
def test_a_fleet_behind_a_bound_never_looks_idle(bound: int, unbounded: int) -> None:
    """At least the share of first tries that is planned for, 2 of 3, however tight the bound."""
    assert unbounded >= 3
    assert _settled(bound) >= (2 * unbounded) // 3
