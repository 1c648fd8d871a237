"""Demand of the whole resource, and the part of it that each pool has to serve.

The forecast is of the whole: how traffic is divided may change within minutes, as pods start and
leave, while demand does not. It is learnt from the windows that the pools' own forecasts are learnt
from. A pool's forecast is its share of the whole.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from servingslo.estimation.forecast import demand as forecasts
from servingslo.estimation.forecast.demand import Forecast
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.windows.freshness import DEFAULT_SCRAPE_SECONDS
from servingslo.policy import insights
from servingslo.policy.inputs import ForecastMode, Targets
from servingslo.policy.planner import Seen
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.context import TickContext, tick_context
from servingslo.reasons import Reason

# Memory of the share of requests that pass the prefill pool: as long as latencies are averaged
# twice over, and far longer than a request is on its way between two pools.
# Judgement; measured by the rows with 50 % of direct requests of the pools' benchmark.
THROUGH_MEMORY_SECONDS = 300.0
# The longest step that one comparison of the two pools' rates stands for.
LONGEST_STEP_SECONDS = 60.0
# A sample of the share counts up to here: as far above 1 as none is below it.
MOST_SAMPLED_RATIO = 2.0
# Standard errors by which a share is surely below 1.
SURE_DEVIATIONS = 3.0
# By which decode counts more than prefill in a window: one in forty by chance. With none, half
# direct requests of the pools' benchmark cost 4.6 times the static counts, instead of 1.35 times.
MORE_DEVIATIONS = 2.0


def whole_window(
    targets: FleetTargets, state: FleetState, seen: Mapping[str, Seen], now_seconds: float
) -> RateWindow | None:
    """What was newly counted of the arrivals of the whole resource; None if nothing was.

    Every request passes a decode pool once. Behind a prefill pool that is full, the decode pool
    sees fewer than arrive; so the rate is that of the prefill pool, over its share, unless the
    decode pool surely counts more. Of pools that serve whole requests it is the sum since the last
    tick that counted.
    """
    windows = {name: one.context.estimate.window for name, one in seen.items()}
    rates = pool_rates(seen)
    if targets.disaggregated:
        prefill, decode = (pool.name for pool in targets.path)
        first, last = windows[prefill], windows[decode]
        if first is None:
            return last if rates[prefill] is None else None
        passed = first.rate_per_second / (state.through_ratio or 1.0)
        if not passed:
            return last
        counted = rates[decode] or 0.0
        chance = MORE_DEVIATIONS * math.sqrt((passed + counted) / first.seconds)
        return replace(first, rate_per_second=counted if counted - passed > chance else passed)
    known = [window for window in windows.values() if window is not None]
    if not known or is_uncounted(seen):
        return None
    longest, at = max(window.seconds for window in known), state.demand.time_seconds
    return RateWindow(
        rate_per_second=sum(rate or 0.0 for rate in rates.values()),
        seconds=longest if at is None or now_seconds <= at else min(now_seconds - at, longest),
        dispersion=max(window.dispersion for window in known),
        error_ratio=max(window.error_ratio for window in known),
    )


def is_uncounted(seen: Mapping[str, Seen]) -> bool:
    """Whether requests may arrive at a pool that does not count them."""
    rates = pool_rates(seen)
    return any(rates[name] is None and _may_serve(one) for name, one in seen.items())


def _may_serve(seen: Seen) -> bool:
    """Whether a pod serves, or pods are unknown."""
    signals, observation = seen.context.signals, seen.context.observation
    gone = signals.no_metrics is not None and signals.no_metrics.reason is Reason.TARGET_NOT_FOUND
    return bool(signals.serving_pods) or (observation.desired_replicas is None and not gone)


def pool_rates(seen: Mapping[str, Seen]) -> dict[str, float | None]:
    """Arrivals of each pool, requests per second."""
    return {name: one.context.estimate.arrival_rate_per_second for name, one in seen.items()}


def learn_through_ratio(
    targets: FleetTargets, state: FleetState, seen: Mapping[str, Seen], now_seconds: float
) -> FleetState:
    """The memory with the share of requests that pass the prefill pool, as smoothed and as used.

    Behind a prefill pool where requests wait, the decode pool sees too few to compare. Learning
    begins at all requests: one comparison, such as of a pool that has just become ready, is no
    share, and the demand is the prefill pool's rate over it. Chance alone may show a share above
    1, so the smoothed one is cut and not the sample; and one that is not surely below 1 is 1.
    """
    if not targets.disaggregated:
        return state
    prefill, decode = (pool.name for pool in targets.path)
    rates = pool_rates(seen)
    first, last = rates[prefill], rates[decode]
    if not first or not last or seen[prefill].context.estimate.waiting_requests > first:
        return state
    ratio = min(first / last, MOST_SAMPLED_RATIO)
    before = 1.0 if state.smoothed_through_ratio is None else state.smoothed_through_ratio
    at = state.demand.time_seconds
    step = DEFAULT_SCRAPE_SECONDS if at is None else max(now_seconds - at, 0.0)
    weight = min(step, LONGEST_STEP_SECONDS) / THROUGH_MEMORY_SECONDS
    smoothed = min(before + weight * (ratio - before), 1.0)
    chance = SURE_DEVIATIONS * math.sqrt(2.0 / (last * THROUGH_MEMORY_SECONDS))
    used = smoothed if 1.0 - smoothed > chance else 1.0
    return replace(state, smoothed_through_ratio=smoothed, through_ratio=used)


def learn_demand(
    targets: FleetTargets,
    state: FleetState,
    seen: Mapping[str, Seen],
    now_seconds: float,
    history: RateHistory | None = None,
) -> FleetState:
    """The memory with this tick's window of the whole resource, and its past where it was read."""
    state = learn_through_ratio(targets, state, seen, now_seconds)
    known = state.demand
    if history is not None:
        days = targets.pools[0].targets.forecast.season_days
        known = forecasts.with_history(known, history, days)
    window = whole_window(targets, state, seen, now_seconds)
    if window is not None:
        known = forecasts.observe(known, window, now_seconds)
    return replace(state, demand=known)


def forecast_of(targets: FleetTargets, state: FleetState, now_seconds: float) -> Forecast:
    """The forecast of the whole resource."""
    found = forecasts.forecast(state.demand, now_seconds)
    if targets.pools[0].targets.forecast.mode is ForecastMode.OFF:
        found = replace(found, season=None, furthest_lead_seconds=0.0)
    return found


def replanned(
    context: TickContext, forecast: Forecast, targets: Targets | None = None
) -> TickContext:
    """The same tick with another forecast, and other objectives if targets are given."""
    again = tick_context(
        context.observation,
        targets or context.targets,
        context.limits,
        replace(context.state, prepared=context.prepared or context.state.prepared),
        context.now_seconds,
        signals=context.signals,
        estimate=replace(context.estimate, forecast=forecast),
        facts=context.facts,
    )
    return insights.looked(again)
