"""Demand of the whole resource, and the part of it that each pool has to serve.

The forecast is of the whole: how traffic is divided may change within minutes, as pods start and
leave, while demand does not. A pool's forecast is its share of the whole.
"""

from collections.abc import Mapping
from dataclasses import replace

from servingslo.estimation.forecast import demand as forecasts
from servingslo.estimation.forecast.demand import Forecast
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.windows.freshness import DEFAULT_SCRAPE_SECONDS
from servingslo.policy.context import TickContext, tick_context
from servingslo.policy.inputs import ForecastMode, Targets
from servingslo.policy.planner import Seen
from servingslo.policy.pools.agreement import is_explained
from servingslo.policy.pools.inputs import FleetTargets, Role
from servingslo.policy.pools.state import FleetState

# Memory of the share of requests that pass the prefill pool: as long as latencies are averaged
# twice over, and far longer than a request is on its way between two pools.
# Judgement; measured by the rows with 50 % of direct requests of the pools' benchmark.
THROUGH_MEMORY_SECONDS = 300.0
# The longest step that one comparison of the two pools' rates stands for.
LONGEST_STEP_SECONDS = 60.0
# A sample of the share counts up to here: as far above 1 as none is below it.
MOST_SAMPLED_RATIO = 2.0


def whole_rate_per_second(
    targets: FleetTargets, seen: Mapping[str, Seen], through_ratio: float | None
) -> float | None:
    """The arrival rate of the whole resource; None while a pool's rate is unknown.

    Every request passes a decode pool once. Behind a prefill pool that is full, the decode pool
    sees fewer than arrive; so the rate is that of the prefill pool, over its share.
    """
    rates = pool_rates(seen)
    if not targets.disaggregated:
        known = [rate for rate in rates.values() if rate is not None]
        return sum(known) if known else None
    first = rates.get(_only(targets, Role.PREFILL))
    last = rates.get(_only(targets, Role.DECODE))
    if first is None or not through_ratio:
        return last
    return max(first / through_ratio, last or 0.0)


def pool_rates(seen: Mapping[str, Seen]) -> dict[str, float | None]:
    """Arrivals of each pool, requests per second."""
    return {name: one.context.estimate.arrival_rate_per_second for name, one in seen.items()}


def learn_through_ratio(
    targets: FleetTargets, state: FleetState, seen: Mapping[str, Seen], now_seconds: float
) -> float | None:
    """The share of requests that pass the prefill pool, smoothed; None while it is unknown.

    Behind a prefill pool where requests wait, the decode pool sees too few to compare. Learning
    begins at all requests: one comparison, such as of a pool that has just become ready, is no
    share, and the demand is the prefill pool's rate over it. Chance alone may show a share above
    1, so the smoothed one is cut and not the sample.
    """
    if not targets.disaggregated:
        return None
    prefill, decode = _only(targets, Role.PREFILL), _only(targets, Role.DECODE)
    rates = pool_rates(seen)
    first, last = rates.get(prefill), rates.get(decode)
    before = state.through_ratio
    if not first or not last or seen[prefill].context.estimate.waiting_requests > first:
        return before
    ratio = min(first / last, MOST_SAMPLED_RATIO)
    before = 1.0 if before is None else before
    at = state.demand.time_seconds
    step = DEFAULT_SCRAPE_SECONDS if at is None else max(now_seconds - at, 0.0)
    weight = min(step, LONGEST_STEP_SECONDS) / THROUGH_MEMORY_SECONDS
    return min(before + weight * (ratio - before), 1.0)


def learn_demand(
    targets: FleetTargets,
    state: FleetState,
    seen: Mapping[str, Seen],
    now_seconds: float,
    history: RateHistory | None = None,
) -> FleetState:
    """The memory with this tick's rate of the whole resource, and its past where it was read.

    Counts of prefill that decode contradicts are put off until its next reading; if that says the
    same, they count.
    """
    known = state.demand
    before = known.time_seconds
    if history is not None:
        days = targets.pools[0].targets.forecast.season_days
        known = forecasts.with_history(known, history, days)
    lasted = DEFAULT_SCRAPE_SECONDS if before is None else max(now_seconds - before, 1.0)
    doubted = _contradict(targets, seen, lasted) and not (
        state.doubted and _is_newly_counted(targets, seen, now_seconds)
    )
    through = learn_through_ratio(targets, state, seen, now_seconds)
    if doubted:
        return replace(state, demand=known, doubted=True)
    state = replace(state, through_ratio=through, demand=known, doubted=False)
    states = [one.state.estimator for one in seen.values()]
    rate = whole_rate_per_second(targets, seen, through)
    if rate is None or all(one.forecast.time_seconds != now_seconds for one in states):
        return state
    window = RateWindow(
        rate_per_second=rate,
        seconds=lasted,
        dispersion=max(one.arrivals.dispersion for one in states),
    )
    return replace(state, demand=forecasts.observe(known, window, now_seconds))


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
    return tick_context(
        context.observation,
        targets or context.targets,
        context.limits,
        replace(context.state, prepared=context.prepared or context.state.prepared),
        context.now_seconds,
        signals=context.signals,
        estimate=replace(context.estimate, forecast=forecast),
        facts=context.facts,
    )


def _contradict(targets: FleetTargets, seen: Mapping[str, Seen], seconds: float) -> bool:
    """Whether prefill counted requests that decode should have seen by now."""
    if not targets.disaggregated:
        return False
    prefill, decode = _only(targets, Role.PREFILL), _only(targets, Role.DECODE)
    rates = pool_rates(seen)
    first, last = rates.get(prefill), rates.get(decode)
    if first is None or last is None:
        return False
    return not is_explained(seen[prefill], seen[decode], first, last, seconds)


def _is_newly_counted(targets: FleetTargets, seen: Mapping[str, Seen], now_seconds: float) -> bool:
    """Whether prefill's requests were counted anew at this tick, and not only looked at again."""
    prefill = seen[_only(targets, Role.PREFILL)]
    return prefill.state.estimator.forecast.time_seconds == now_seconds


def _only(targets: FleetTargets, role: Role) -> str:
    """The name of the pool of this role."""
    return targets.of_role(role)[0].name
