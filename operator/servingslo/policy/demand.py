"""The demand that a plan is made for: arrivals and backlog when capacity ordered now serves."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.forecast import Forecast
from servingslo.models.objective_metrics import ROW_OF
from servingslo.policy.inputs import Limits, Targets
from servingslo.policy.prepared_model import PreparedModel
from servingslo.policy.sizing import Load

# Prometheus' default scrape interval: a change is seen one scrape after it happened, on average.
SCRAPE_SECONDS = 15.0
# Quantile of the demand at the lead time that is planned for, before what a spent budget adds.
# The percentile laws already cover the fluctuations around a known rate, and an objective allows
# misses, so in calm the quantile only covers the uncertainty of the rate itself; in a surge every
# request behind the backlog misses, so the quantile rises with the probability that this is one, or
# a jump, which the first window of one looks like. Chosen on simulated fleets (Azure conversation
# trace, ramp, diurnal, surge): see docs/lab/planner.md.
CALM_PROBABILITY = 0.65
SURGE_PROBABILITY = 0.9
# A replica given away must not be missed before it could be had again, in a surge still less. What
# lies between this quantile and the one that orders is kept and not bought. On the same fleets.
DOWN_CALM_PROBABILITY = 0.8
DOWN_SURGE_PROBABILITY = 0.95
# The lead that the calm quantile was chosen at. A shortage lasts until what is ordered against it
# is there, so the odds of none grow with the lead: by its root, on the same fleets with cold starts
# of 30 and 240 s; bounded to four times either way of the lead.
PLAIN_LEAD_SECONDS = 120.0
LARGEST_LEAD_RATIO = 4.0
# What both quantiles were chosen for: one request in a hundred may miss. Where fewer may, the odds
# of enough capacity grow by the cube root of how many fewer, and the other way round; over days of
# three targets (docs/lab/planner.md). What is planned for is never below the median.
PLAIN_MISS_RATIO = 0.01
MISS_ODDS_EXPONENT = 1.0 / 3.0
LEAST_PROBABILITY = 0.5
# Where a season rises and falls within a lead its peak may lie between: looked at in quarters. What
# has no season moves one way for as long.
LEAD_PARTS = 4
# A backlog is served off within this time after the capacity for it is ready. Requests behind a
# backlog miss their objective for as long as it lasts, so shorter is better and costs more.
DRAIN_SECONDS = 15.0
# Waits that a queue may cause where no objective speaks of waiting, in seconds.
DEFAULT_WAIT_BUDGET_SECONDS = 1.0
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand now and at the lead time.

    lead_seconds: cold start and reaction. scale_up_load: to have capacity for then. probability: of
    the forecast's quantile that it is. plain_probability: the same without the margin.
    margin_score: what the error budget adds to the normal score in calm. target_odds: what the
    objectives' targets make of the odds of enough capacity, see `target_odds`. idle: nothing
    arrives and nothing is in the system.
    """

    lead_seconds: float
    rate_per_second: float
    mean_at_lead_per_second: float
    backlog_at_lead_requests: float
    scale_up_load: Load
    probability: float
    plain_probability: float
    margin_score: float
    target_odds: float
    idle: bool


def lead_seconds(estimate: Estimate, targets: Targets, limits: Limits) -> float:
    """Time from a change of demand to serving it: scrape, tick and cold start."""
    return cold_start_seconds(estimate, targets) + limits.tick_seconds + SCRAPE_SECONDS


def cold_start_seconds(estimate: Estimate, targets: Targets) -> float:
    """Time from the order of a replica until it is ready: stated, else measured."""
    stated = targets.cold_start_seconds
    return estimate.cold_start.mean_seconds if stated is None else stated


def target_odds(targets: Targets) -> float:
    """How much better than at 99 % the odds of enough capacity must be; 1 without objectives."""
    allowed = min(
        (1.0 - objective.percentile / 100.0 for objective in targets.objectives),
        default=PLAIN_MISS_RATIO,
    )
    return float((PLAIN_MISS_RATIO / allowed) ** MISS_ODDS_EXPONENT)


def wait_budget_seconds(targets: Targets, prepared: PreparedModel | None) -> float:
    """How long a request may wait for a slot and still meet the objectives, in seconds.

    The least of the queue-time thresholds, and of the TTFT and latency thresholds less what a
    request takes when it is alone, at the objective's percentile.
    """
    budgets = []
    for objective in targets.objectives:
        if not ROW_OF[objective.metric].waits:
            continue
        alone = 0.0
        if prepared is not None:
            alone = prepared.frontier.unloaded_seconds(objective.metric, objective.percentile)
        budgets.append(max(objective.threshold_seconds - alone, 0.0))
    return min(budgets, default=DEFAULT_WAIT_BUDGET_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas that serve now and that are starting, and what one of them can carry.

    saturation_rate_per_second: of one replica; None while no law is known.
    """

    serving: int
    coming: int
    saturation_rate_per_second: float | None


def expected_demand(
    estimate: Estimate,
    fleet: Fleet,
    *,
    lead: float,
    wait_budget: float,
    margin_score: float = 0.0,
    odds: float = 1.0,
) -> Demand | None:
    """Demand at the lead time; None while no arrival rate is known.

    margin_score: what the error budget adds to the normal score of the quantile planned for.
    odds: of enough capacity, over those at a target of 99 % (`target_odds`).
    """
    rate = estimate.arrival_rate_per_second
    if rate is None or not estimate.forecast.known:
        return None
    mean = estimate.forecast.mean_per_second(lead)
    probability = planned_probability(estimate.forecast, lead, margin_score, odds)
    high = estimate.forecast.quantile_per_second(lead, probability)
    known = estimate.forecast.recurrence
    if known is not None and rate <= known.furthest_per_second:
        # A rise that recurs goes as far as those before it, until it has gone further.
        mean, high = min(mean, known.rate_per_second), min(high, known.rate_per_second)
    backlog = _backlog_at_lead(
        estimate.backlog_requests,
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
        plain_probability=planned_probability(estimate.forecast, lead, 0.0, odds),
        margin_score=margin_score,
        target_odds=odds,
        idle=rate <= 0.0 and estimate.running_requests + estimate.waiting_requests <= 0.0,
    )


def step_down_load(
    estimate: Estimate, demand: Demand, implied_arrival_rate_per_second: float = 0.0
) -> Load:
    """The load that must still be carried after a step down: the most until the lead time is over.

    What is given away now is back one lead time after it is missed, so the odds of keeping enough
    grow with long leads as those of ordering do; short ones do not lower them, because what dips
    for a few scrapes does so at any lead. Where rises recur that nothing foretells, what they reach
    is kept.
    implied_arrival_rate_per_second: the rate that what runs now speaks of, see `step_down`.
    """
    forecast = estimate.forecast
    share = forecast.unsettled_probability
    odds = max(_lead_odds(demand.lead_seconds), 1.0) * demand.target_odds
    calm = _with_odds(DOWN_CALM_PROBABILITY, odds, DOWN_SURGE_PROBABILITY)
    probability = quantile_with_margin(
        calm + (DOWN_SURGE_PROBABILITY - calm) * share,
        demand.margin_score * (1.0 - share),
    )
    parts = 1 if forecast.season is None else LEAD_PARTS
    times = (demand.lead_seconds * part / parts for part in range(parts + 1))
    highest = max(
        *(forecast.quantile_per_second(at, probability) for at in times),
        implied_arrival_rate_per_second,
    )
    if forecast.recurrence is not None:
        highest = max(highest, forecast.recurrence.rate_per_second)
    return Load(rate_per_second=highest, drain_per_second=demand.scale_up_load.drain_per_second)


def planned_probability(
    forecast: Forecast, lead_seconds: float, margin_score: float, odds: float = 1.0
) -> float:
    """The quantile of demand to plan for: the calm one, or a surge's as far as this is one.

    The calm one rises with the lead, which a shortage lasts for, and with the target. The margin
    counts in calm alone: budget that is gone does not come back by more than a surge needs.
    odds: of enough capacity, over those at a target of 99 %.
    """
    share = forecast.unsettled_probability
    calm = _with_odds(CALM_PROBABILITY, _lead_odds(lead_seconds) * odds, SURGE_PROBABILITY)
    probability = calm + (SURGE_PROBABILITY - calm) * share
    return quantile_with_margin(probability, margin_score * (1.0 - share))


def quantile_with_margin(probability: float, score: float) -> float:
    """The probability whose normal score is this much larger; within (0, 1)."""
    return _NORMAL.cdf(_NORMAL.inv_cdf(probability) + score)


def _lead_odds(lead_seconds: float) -> float:
    """By how much the odds of enough capacity grow with the lead."""
    ratio = lead_seconds / PLAIN_LEAD_SECONDS
    return math.sqrt(min(max(ratio, 1.0 / LARGEST_LEAD_RATIO), LARGEST_LEAD_RATIO))


def _with_odds(probability: float, ratio: float, highest: float) -> float:
    """The probability whose odds are so many times as large, from the median to the highest."""
    odds = probability / (1.0 - probability) * ratio
    return min(max(odds / (1.0 + odds), LEAST_PROBABILITY), highest)


def _backlog_at_lead(
    waiting: float, fleet: Fleet, *, mean_rate: float, lead: float, wait_budget: float
) -> float:
    """Requests that will wait too long when capacity ordered now is ready.

    What waits now grows by what arrives beyond the capacity that serves, with half of what is on
    its way: it becomes ready within the lead time, earlier or later. What the fleet serves within
    the wait budget is no backlog but an ordinary queue.
    """
    if fleet.saturation_rate_per_second is None:
        return waiting
    capacity = (fleet.serving + 0.5 * fleet.coming) * fleet.saturation_rate_per_second
    grown = max(waiting + (mean_rate - capacity) * lead, 0.0)
    return max(grown - capacity * wait_budget, 0.0)
