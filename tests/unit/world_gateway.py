"""What an Envoy in front of a simulated world counts."""

from bisect import bisect_left
from dataclasses import replace

from tests.unit.policy_world import World

from servingslo.estimation.sample import GatewayInstance, GatewaySample, HistogramSample
from servingslo.runtimes.gateways import CountedWhen
from servingslo_lab.sim.fleets.service import Service, WhenNoEngine

# Envoy's own edges; the last is open.
EDGES = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, float("inf"))


def behind_gateway(world: World, delay) -> GatewaySample:
    """What an Envoy in front of the world counts; delay: on the way, by the time of arrival."""
    ended = [r for r in world.records if r.finish_seconds is not None]
    times = [r.finish_seconds - r.arrival_seconds + delay(r.arrival_seconds) for r in ended]
    counts = [0] * len(EDGES)
    for seconds in times:
        counts[bisect_left(EDGES, seconds)] += 1
    cumulative = [float(sum(counts[: place + 1])) for place in range(len(EDGES))]
    held = sum(e.running + e.waiting for e in world.service.engines.values())
    instance = GatewayInstance(
        name="envoy-0",
        age_seconds=2.0,
        requests_total=float(len(world.records)) + held,
        rejected_total=0.0,
        errors_total=0.0,
        aborted_total=0.0,
        latency_seconds=HistogramSample(
            upper_bounds=EDGES, cumulative_counts=tuple(cumulative), sum=sum(times),
            count=cumulative[-1],
        ),
    )  # fmt: skip
    return GatewaySample(counted=CountedWhen.PASSED_ON, instances=(instance,))


class Gated(World):
    """A world behind a gateway that counts requests as they pass, and holds what finds no engine.

    silent: nothing is known of the gateway.
    """

    silent = False
    not_woken = ""

    def __post_init__(self):
        super().__post_init__()
        engines = self.service.engines
        self.service = Service(when_no_engine=WhenNoEngine.WAIT)
        for name in engines:
            self.service.add(name, self._engine(), self.now)
        self.offered = 0
        offer = self.service.offer

        def counted(**request):
            self.offered += 1
            offer(**request)

        self.service.offer = counted

    def observe(self, at):
        """As the world shows it, with the gateway's counters."""
        waiting = self.service.waiting_at_gateway
        instance = GatewayInstance(
            name="envoy-0",
            age_seconds=1.0,
            requests_total=float(self.offered - waiting),
            queued=float(waiting),
        )
        instances = () if self.silent else (instance,)
        sample = GatewaySample(counted=CountedWhen.PASSED_ON, instances=instances)
        return replace(super().observe(at), gateway=sample, not_woken=self.not_woken)
