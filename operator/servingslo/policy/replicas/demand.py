"""The demand of a plan: arrivals and backlog at the time when capacity ordered now serves."""

from dataclasses import dataclass

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.forecast.demand import Forecast
from servingslo.estimation.pods.cold_start import MEASURED
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.policy.inputs import Limits, Targets
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.sizing import Load

# Prometheus' default scrape interval: on average, a change is observed one scrape after it
# happened.
SCRAPE_SECONDS = 15.0
# Quantile of the demand that is planned for in a surge. Every request behind a backlog misses, so
# the quantile rises with the probability of a surge, or of a jump: the first window of a surge
# looks like one.
SURGE_PROBABILITY = 0.9
# Quantile of the demand that is planned for in calm, at a lead of two minutes. What it does not
# keep, the reserve shows. At 0.75 a day with cold starts of 300 s keeps 98.7 %, at 0.8 99.7
# (docs/designs/0017-reserve.md).
CALM_PROBABILITY = 0.8
# A released replica must not be missed before a new one could be ready, even less in a surge. So a
# step down is planned at a normal score larger by 0.6. Chosen from pairs tried on the guard's rows
# (docs/lab/findings.md).
DOWN_PROBABILITY = 0.925
DOWN_SURGE_PROBABILITY = 0.95
# The lead for which quantiles are stated. A shortage lasts until the ordered replicas are ready, so
# its cost grows with the lead. The odds of enough capacity that are planned for grow with it,
# bounded to four times either way.
PLAIN_LEAD_SECONDS = 120.0
LARGEST_LEAD_RATIO = 4.0
# The quantile that is planned for is never below the median.
LEAST_PROBABILITY = 0.5
# If a season rises and falls within a lead, its peak may be inside: the lead is checked in
# quarters. Without a season, demand moves one way for that long.
LEAD_PARTS = 4
# A backlog is served within this time after the capacity for it is ready. Requests behind a backlog
# miss their objective while it lasts, so a shorter time is better and costs more.
DRAIN_SECONDS = 15.0
# Waits that a queue may cause if no objective limits waiting, in seconds.
DEFAULT_WAIT_BUDGET_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand now and at the lead time.

    lead_seconds: cold start and reaction. scale_up_load: the load for which to have capacity then.
    probability: of the forecast's quantile in that load. idle: no requests arrive and none are in
    the system.
    """

    lead_seconds: float
    rate_per_second: float
    mean_at_lead_per_second: float
    backlog_at_lead_requests: float
    scale_up_load: Load
    probability: float
    idle: bool


def lead_seconds(estimate: Estimate, targets: Targets, limits: Limits) -> float:
    """Time from a change of demand to serving it: scrape, tick and cold start."""
    return cold_start_seconds(estimate, targets) + limits.tick_seconds + SCRAPE_SECONDS


def cold_start_seconds(estimate: Estimate, targets: Targets) -> float:
    """Time from the order of a replica until it is ready: stated, else measured."""
    stated = targets.cold_start_seconds
    return estimate.cold_start.mean_seconds if stated is None else stated


def known_cold_start_seconds(estimate: Estimate, targets: Targets) -> float | None:
    """The cold start if it is stated or measured; None while it is only assumed."""
    known = targets.cold_start_seconds is not None or estimate.cold_start.source == MEASURED
    return cold_start_seconds(estimate, targets) if known else None


def wait_budget_seconds(targets: Targets, prepared: PreparedModel | None) -> float:
    """How long a request may wait for a slot and still meet the objectives, in seconds.

    The least of the queue-time thresholds, and of the TTFT and latency thresholds minus the time of
    a request alone, at the objective's percentile.
    """
    frontier = None if prepared is None else prepared.frontier
    left = (
        o.threshold_seconds - (frontier.unloaded_seconds(o.metric, o.percentile) if frontier else 0)
        for o in targets.objectives
        if ROW_OF[o.metric].waits
    )
    return max(min(left, default=DEFAULT_WAIT_BUDGET_SECONDS), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas that serve now and that are starting, and what one of them can carry.

    saturation_rate_per_second: of one replica; None while no law is known. queued_requests: those
    that wait at engines. They stay there: no new replica serves them.
    """

    serving: int
    coming: int
    saturation_rate_per_second: float | None
    queued_requests: float = 0.0


def expected_demand(
    estimate: Estimate,
    fleet: Fleet,
    *,
    lead: float,
    wait_budget: float,
) -> Demand | None:
    """Demand at the lead time; None while no arrival rate is known."""
    rate = estimate.arrival_rate_per_second
    if rate is None or not estimate.forecast.known:
        return None
    mean = estimate.forecast.mean_per_second(lead)
    probability = planned_probability(estimate.forecast, lead)
    # Most rises that are sure go on for a lead, and an order for one that ends costs some minutes.
    high = max(
        estimate.forecast.quantile_per_second(lead, probability),
        estimate.forecast.risen_per_second(lead),
    )
    backlog = _backlog_at_lead(
        max(estimate.backlog_requests - fleet.queued_requests, 0.0) * estimate.ordering_ratio,
        fleet,
        mean_rate=0.5 * (rate + mean),
        lead=lead,
        wait_budget=wait_budget,
    )
    return Demand(
        lead_seconds=lead,
        rate_per_second=rate,
        mean_at_lead_per_second=mean,
        backlog_at_lead_requests=backlog,
        scale_up_load=Load(rate_per_second=high, drain_per_second=backlog / DRAIN_SECONDS),
        probability=probability,
        idle=rate <= 0.0 and estimate.running_requests + estimate.waiting_requests <= 0.0,
    )


def step_down_load(
    estimate: Estimate, demand: Demand, implied_arrival_rate_per_second: float = 0.0
) -> Load:
    """The load that must still be carried after a scale-down: the largest within the lead time.

    A released replica is back one lead time after it is missed. So the odds of keeping enough grow
    with long leads, like those of an order. Short leads do not lower them, because a dip of a few
    scrapes happens at any lead.
    implied_arrival_rate_per_second: the rate that explains the running requests, see `step_down`.
    """
    forecast = estimate.forecast
    probability = step_down_probability(forecast, demand.lead_seconds)
    parts = 1 if forecast.season is None else LEAD_PARTS
    times = (demand.lead_seconds * part / parts for part in range(parts + 1))
    highest = max(
        *(forecast.quantile_per_second(at, probability) for at in times),
        implied_arrival_rate_per_second,
    )
    return Load(rate_per_second=highest, drain_per_second=demand.scale_up_load.drain_per_second)


def planned_probability(forecast: Forecast, lead_seconds: float) -> float:
    """The quantile of demand to plan for: the calm one, moved to a surge's as far as this is one.

    The calm one rises with the lead, because a shortage lasts for a lead.
    """
    share = forecast.unsettled_probability
    calm = _with_odds(CALM_PROBABILITY, _lead_odds(lead_seconds), SURGE_PROBABILITY)
    return calm + (SURGE_PROBABILITY - calm) * share


def step_down_probability(forecast: Forecast, lead_seconds: float) -> float:
    """The quantile of demand to be carried after a scale-down, see `step_down_load`."""
    odds = max(_lead_odds(lead_seconds), 1.0)
    calm = _with_odds(DOWN_PROBABILITY, odds, DOWN_SURGE_PROBABILITY)
    return calm + (DOWN_SURGE_PROBABILITY - calm) * forecast.unsettled_probability


def _lead_odds(lead_seconds: float) -> float:
    """Factor by which the odds of enough capacity grow with the lead."""
    ratio = lead_seconds / PLAIN_LEAD_SECONDS
    return min(max(ratio, 1.0 / LARGEST_LEAD_RATIO), LARGEST_LEAD_RATIO)


def _with_odds(probability: float, ratio: float, highest: float) -> float:
    """The probability with this many times the odds, between the median and the highest."""
    odds = probability / (1.0 - probability) * ratio
    return min(max(odds / (1.0 + odds), LEAST_PROBABILITY), highest)


def _backlog_at_lead(
    waiting: float, fleet: Fleet, *, mean_rate: float, lead: float, wait_budget: float
) -> float:
    """Requests that will wait too long when capacity ordered now is ready.

    waiting: requests that no engine has yet. The backlog grows by arrivals beyond the serving
    capacity, with half of the starting pods counted: they become ready within the lead time,
    earlier or later. Requests that the fleet serves within the wait budget are no backlog but an
    ordinary queue.
    """
    if fleet.saturation_rate_per_second is None:
        return waiting
    capacity = (fleet.serving + 0.5 * fleet.coming) * fleet.saturation_rate_per_second
    grown = max(waiting + (mean_rate - capacity) * lead, 0.0)
    return max(grown - capacity * wait_budget, 0.0)
