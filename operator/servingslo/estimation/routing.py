"""How requests are routed, learnt from the spread of running requests over engines."""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.latency import Routing

# Independent queues have variance / mean of at least 1 (Poisson, wider near saturation); joining
# the least loaded keeps engines within a few requests of each other. The border lies between, with
# room for gauges that were scraped seconds apart.
RANDOM_SPREAD_RATIO = 0.8
POOLED_SPREAD_RATIO = 0.6
MEMORY_SAMPLES = 40.0
LEAST_SAMPLES = 8
LEAST_ENGINES = 2
# With fewer running than this per engine every rule looks the same.
LEAST_RUNNING = 2.0
# A pod that just started has not filled up yet.
SETTLED_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingState:
    """Moving average of variance over mean of running requests, and what was concluded."""

    spread_ratio: float = 0.0
    sample_count: int = 0
    random: bool = False


def learn_routing(
    state: RoutingState, engines: Sequence[tuple[PodSample, EngineSample]]
) -> RoutingState:
    """The state after one more look at the fleet."""
    running = [
        engine.running
        for pod, engine in engines
        if engine.running is not None
        and pod.ready
        and not pod.deleting
        and (pod.ready_for_seconds is None or pod.ready_for_seconds >= SETTLED_SECONDS)
    ]
    if len(running) < LEAST_ENGINES:
        return state
    mean = sum(running) / len(running)
    if mean < LEAST_RUNNING:
        return state
    variance = sum((r - mean) ** 2 for r in running) / (len(running) - 1)
    count = state.sample_count + 1
    spread = state.spread_ratio + (variance / mean - state.spread_ratio) / min(
        count, MEMORY_SAMPLES
    )
    border = POOLED_SPREAD_RATIO if state.random else RANDOM_SPREAD_RATIO
    return RoutingState(
        spread_ratio=spread,
        sample_count=count,
        random=count >= LEAST_SAMPLES and spread > border,
    )


def routing_of(state: RoutingState) -> Routing:
    """Pooled until the spread over engines says otherwise."""
    return Routing.RANDOM if state.random else Routing.POOLED
