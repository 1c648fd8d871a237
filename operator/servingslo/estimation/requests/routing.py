"""Learn how requests are routed, from the spread of running requests over engines.

Independent queues (random routing) hold numbers with variance/mean F = 1/(1 − ρ), ρ the work ratio
(negative binomial law). Joining the least loaded makes each of c engines hold 1/c of one total with
the same F, so variance/mean is F/c, plus two disturbances: engines are scraped at different
moments, and the numbers are whole. Each tick is evidence for one or the other: the ratio of the
likelihoods of the observed spread, by the law of a sample variance of normal numbers. Without a
trusted law ρ is unknown and nothing is concluded.
Source: A. Wald, "Sequential Tests of Statistical Hypotheses", 1945, with a bound on the evidence,
so that a conclusion is unlearnt as fast as it was learnt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.fleet.latency import Routing

# Joining the least loaded leaves this spread even if all engines are scraped at once.
LEAST_SPREAD_RATIO = 0.25
# Variance of a number's fractional part: at most a quarter.
WHOLE_NUMBERS_VARIANCE = 0.25
LARGEST_WORK_RATIO = 0.9
LEAST_ENGINES = 2
# With fewer running requests than this per engine every rule looks the same.
LEAST_RUNNING = 1.0
# Waiting requests, as a share of running ones, that are no backlog: the arrivals within a step.
LARGEST_WAITING_RATIO = 0.25
# A new pod has not filled up yet, and engines are not level right after a backlog is gone.
SETTLED_SECONDS = 60.0
# Evidence in log odds: the most per tick, because successive ticks show the same requests; the most
# in total; and the value that changes the conclusion, either way.
LARGEST_LOOK = 1.0
LARGEST_LOG_ODDS = 6.0
CONCLUDED_LOG_ODDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingState:
    """Log odds that routing is random, and the conclusion.

    behind_count: engines with a backlog. unlevel_seconds: when demand last moved or their number
    changed, None if neither was observed.
    """

    log_odds: float = 0.0
    random: bool = False
    behind_count: int = 0
    unlevel_seconds: float | None = None


def learn_routing(
    state: RoutingState,
    engines: Sequence[tuple[PodSample, EngineSample]],
    work_ratio: float | None,
    now_seconds: float,
    *,
    steady: bool,
) -> RoutingState:
    """Return the state after one more tick.

    Engines with a backlog are left out: their requests were sent before the other engines were
    there, whatever the present routing is. steady: whether demand is steady; while it moves,
    engines differ because they are scraped at different moments.
    """
    serving = [
        (pod, engine)
        for pod, engine in engines
        if engine.running is not None and pod.ready and not pod.deleting
    ]
    behind = sum(_is_behind(engine) for _, engine in serving)
    if not steady or behind != state.behind_count:
        return replace(state, behind_count=behind, unlevel_seconds=now_seconds)
    running = [
        engine.running or 0.0
        for pod, engine in serving
        if not _is_behind(engine)
        and (pod.ready_for_seconds is None or pod.ready_for_seconds >= SETTLED_SECONDS)
    ]
    since = state.unlevel_seconds
    level = since is None or now_seconds - since >= SETTLED_SECONDS
    if work_ratio is None or not level or len(running) < LEAST_ENGINES:
        return state
    mean = sum(running) / len(running)
    if mean < LEAST_RUNNING:
        return state
    seen = _evidence(running, mean, work_ratio)
    log_odds = min(max(state.log_odds + seen, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)
    random = log_odds > (-CONCLUDED_LOG_ODDS if state.random else CONCLUDED_LOG_ODDS)
    return replace(state, log_odds=log_odds, random=random)


def _is_behind(engine: EngineSample) -> bool:
    """Return whether more requests wait at an engine than arrive within a step."""
    return (engine.waiting or 0.0) > max(LARGEST_WAITING_RATIO * (engine.running or 0.0), 1.0)


def _evidence(running: Sequence[float], mean: float, work_ratio: float) -> float:
    """Log likelihood ratio of random over pooled routing for this spread, within bounds."""
    independent = 1.0 / (1.0 - min(work_ratio, LARGEST_WORK_RATIO))
    whole = WHOLE_NUMBERS_VARIANCE / mean
    pooled = max(independent / len(running) + whole, LEAST_SPREAD_RATIO)
    freedom = len(running) - 1
    spread = sum((r - mean) ** 2 for r in running) / freedom / mean
    ratio = independent / pooled
    seen = 0.5 * freedom * (spread * (1.0 / pooled - 1.0 / independent) - math.log(ratio))
    return min(max(seen, -LARGEST_LOOK), LARGEST_LOOK)


def routing_of(state: RoutingState) -> Routing:
    """Return the routing: pooled until the spread over engines shows otherwise."""
    return Routing.RANDOM if state.random else Routing.POOLED
