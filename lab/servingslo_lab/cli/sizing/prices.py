"""What an objective costs: the same sizing with one thing changed at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from servingslo.models.fleet.latency import Objective
from servingslo.policy.replicas.sizing import Sizing
from servingslo.units import format_duration
from servingslo_lab.cli.sizing.answer import Question, is_feasible, sized
from servingslo_lab.cli.sizing.inputs import objective_name

# Around the stated value, as people would try them; where no count meets it, from the least that
# one does, rounded up to what is met with certainty.
THRESHOLD_FACTORS = (0.5, 0.6, 0.75, 1.25, 1.5, 2.0)
FEASIBLE_FACTORS = (1.02, 1.25, 1.5, 2.0)
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
TOLERATED_FAILURES = (0, 1, 2)
UTILIZATION_TARGETS = (0.7, 0.85, 0.95)
COLD_START = "cold start"
COLD_STARTS_SECONDS = (15.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One thing changed, and what it makes of the count.

    what: the thing. stated, instead: its value as stated and as tried. replicas: None where no
    count meets the objectives. replicas_more: against the stated value, negative for fewer.
    """

    what: str
    stated: str
    instead: str
    replicas: int | None
    replicas_more: int | None
    cost_more_per_hour: float | None
    currency: str = "USD"


def prices(question: Question) -> tuple[Price, ...]:
    """The price of each objective by threshold and percentile, and of what surrounds them.

    Cold start has a price only where the arrival rate grows while a replica starts.
    """
    base, sizing = sized(question)
    return tuple(
        _price(question, base, what, stated, instead, changed)
        for what, stated, instead, changed in _changes(question, sizing)
    )


def _changes(question: Question, sizing: Sizing) -> Iterator[tuple[str, str, str, Question]]:
    least = {need.objective: need.least_feasible for need in sizing.needs}
    for index, objective in enumerate(question.objectives):
        yield from _objective_changes(question, index, objective, least[objective])
    stated = question.replicas.tolerated_failures
    for failures in TOLERATED_FAILURES:
        if failures != stated:
            bounds = replace(question.replicas, tolerated_failures=failures)
            changed = replace(question, replicas=bounds)
            yield "tolerated failures", str(stated), str(failures), changed
    target = question.utilization_target_ratio
    for ratio in UTILIZATION_TARGETS:
        if ratio != target:
            changed = replace(question, utilization_target_ratio=ratio)
            yield "utilization target", f"{target:g}", f"{ratio:g}", changed
    if question.growth_per_second2 > 0:
        cold_start = question.cold_start_seconds
        for seconds in COLD_STARTS_SECONDS:
            if seconds != cold_start:
                yield (
                    COLD_START,
                    format_duration(cold_start),
                    format_duration(seconds),
                    replace(question, cold_start_seconds=seconds),
                )


def _objective_changes(
    question: Question, index: int, objective: Objective, least_feasible: float | None
) -> Iterator[tuple[str, str, str, Question]]:
    threshold = objective.threshold_seconds
    around = threshold if least_feasible is None else least_feasible
    for factor in THRESHOLD_FACTORS if least_feasible is None else FEASIBLE_FACTORS:
        tried = float(f"{around * factor:.3g}")
        yield (
            objective_name(objective),
            format_duration(threshold),
            format_duration(tried),
            _with_objective(question, index, replace(objective, threshold_seconds=tried)),
        )
    others = {
        o.percentile
        for place, o in enumerate(question.objectives)
        if o.metric is objective.metric and place != index
    }
    for percentile in PERCENTILES:
        if percentile != objective.percentile and percentile not in others:
            yield (
                f"{objective.metric.value} ≤ {format_duration(threshold)}",
                f"p{objective.percentile:g}",
                f"p{percentile:g}",
                _with_objective(question, index, replace(objective, percentile=percentile)),
            )


def _with_objective(question: Question, index: int, objective: Objective) -> Question:
    objectives = list(question.objectives)
    objectives[index] = objective
    return replace(question, objectives=tuple(objectives))


def _price(
    question: Question, base: int, what: str, stated: str, instead: str, changed: Question
) -> Price:
    count, sizing = sized(changed)
    feasible = is_feasible(changed, sizing)
    price = question.replica_hourly
    more = count - base
    return Price(
        what=what,
        stated=stated,
        instead=instead,
        replicas=count if feasible else None,
        replicas_more=more if feasible else None,
        cost_more_per_hour=None if price is None or not feasible else price * more,
        currency=question.currency,
    )
