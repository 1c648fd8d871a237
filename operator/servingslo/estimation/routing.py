"""How requests are routed, learnt from the spread of running requests over engines.

Independent queues (random routing) hold numbers with variance/mean F = 1/(1 − ρ), ρ the work ratio
(negative binomial law). Joining the least loaded makes each of c engines hold 1/c of one total
with that same F, so variance/mean is F/c, seen because engines are scraped at different moments.
The border is the geometric middle; without a trusted law ρ is unknown and nothing is concluded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.latency import Routing

# Joining the least loaded leaves this much even where all engines are seen at once.
LEAST_SPREAD_RATIO = 0.25
LARGEST_WORK_RATIO = 0.9
MEMORY_SAMPLES = 40.0
LEAST_SAMPLES = 12
LEAST_ENGINES = 2
# With fewer running than this per engine every rule looks the same.
LEAST_RUNNING = 4.0
# A pod that just started has not filled up yet.
SETTLED_SECONDS = 60.0
# The conclusion changes only when the spread passes the border by this factor.
HYSTERESIS_RATIO = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingState:
    """Moving average of spread / border, how many samples, and what was concluded."""

    excess_ratio: float = 0.0
    sample_count: int = 0
    random: bool = False


def learn_routing(
    state: RoutingState,
    engines: Sequence[tuple[PodSample, EngineSample]],
    work_ratio: float | None,
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
    if work_ratio is None or len(running) < LEAST_ENGINES:
        return state
    mean = sum(running) / len(running)
    if mean < LEAST_RUNNING:
        return state
    variance = sum((r - mean) ** 2 for r in running) / (len(running) - 1)
    independent = 1.0 / (1.0 - min(work_ratio, LARGEST_WORK_RATIO))
    pooled = max(independent / len(running), LEAST_SPREAD_RATIO)
    border = math.sqrt(independent * pooled)
    count = state.sample_count + 1
    excess_ratio = state.excess_ratio + (variance / mean / border - state.excess_ratio) / min(
        count, MEMORY_SAMPLES
    )
    limit = 1.0 / HYSTERESIS_RATIO if state.random else HYSTERESIS_RATIO
    return RoutingState(
        excess_ratio=excess_ratio,
        sample_count=count,
        random=count >= LEAST_SAMPLES and excess_ratio > limit,
    )


def routing_of(state: RoutingState) -> Routing:
    """Pooled until the spread over engines says otherwise."""
    return Routing.RANDOM if state.random else Routing.POOLED
