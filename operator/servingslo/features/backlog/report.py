"""What a backlog needs and may be sent now: from the law, the forecast, and what is due."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from servingslo.features.backlog.deadlines import (
    READING,
    TARGETS,
    BacklogReading,
    BacklogTargets,
    Unit,
    Work,
)
from servingslo.features.backlog.demand_bound import (
    Outlook,
    late_already,
    late_requests,
    least_count,
    least_late_count,
    served_by,
    times_ahead,
)
from servingslo.plugins import Key
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.demand import SCRAPE_SECONDS, planned_probability
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.sizing import SizingCase, carried_rate_per_second, size
from servingslo.policy.rules.requirement import sizing_case

# Twenty readings: a queue whose length is unknown for longer is not planned for.
OLDEST_READING_SECONDS = 300.0
# Of the greatest rate within the objectives, what work fills: at that rate itself two minutes in
# five miss more than objectives allow. Judgement; measured by the simulated story of the tests.
FILLED_RATIO = 0.9
# Replicas are released only if fewer would finish so much more: else they are back in minutes.
RELEASE_RATIO = 1.125
# What is late, or what no order can reach in time, is done in one lead after that of an order.
LATE_LEADS = 2.0
NO_CLASS = "no class of requests below priority 0 carries it"
NO_LAW = "the latency law is not trusted yet"
SILENT = "what may be sent is not sent: is the dispatcher away?"
NO_LENGTH = "nothing exports the queue's length: it is empty, or its name is wrong"
UNREAD = "the queue's length was not read"
NOT_COUNTED = "the gateway does not count the requests of each class"
NO_METRICS = "metrics of the engines are missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogReport:
    """The backlog at a tick, in its unit.

    rate_per_second: what may be sent now. left: what waits. due_seconds: in how many seconds the
    first of it is due, 0 if it is late. late_ratio: of what waits, at these replicas. replicas: the
    least that finish it in time, or if `infeasible` the least with which no more is late than with
    all that are allowed: then enough_replicas is the count that would do, None if none of those
    examined does. problem: why nothing is planned; '' if it is.
    """

    unit: Unit
    rate_per_second: float = 0.0
    left: float | None = None
    due_seconds: float | None = None
    late_ratio: float | None = None
    replicas: int | None = None
    infeasible: bool = False
    enough_replicas: int | None = None
    problem: str = ""


REPORT: Key[BacklogReport] = Key(TARGETS.name, BacklogReport)


def fresh_reading(context: TickContext) -> BacklogReading | None:
    """The last reading; None without one of these minutes."""
    found = READING.of(context.observation.features)
    return found if found is not None and is_recent(context, found.time_seconds) else None


def is_recent(context: TickContext, time_seconds: float) -> bool:
    """Whether the length at that time still says what waits."""
    return context.now_seconds - time_seconds <= OLDEST_READING_SECONDS


def units_per_request(context: TickContext, unit: Unit) -> float | None:
    """1, or the mean tokens of a request: those of the engines' mix; None while it is unknown."""
    if unit is Unit.REQUESTS:
        return 1.0
    if (prepared := prepared_model(context)) is None:
        return None
    mix = prepared.workload
    return mix.prompt.mean_tokens + mix.output.mean_tokens


def prepared_model(context: TickContext) -> PreparedModel | None:
    """The model to plan with; at zero that of the last replicas."""
    return context.prepared or (None if context.current else context.state.prepared)


def problem_of(context: TickContext) -> str:
    """Why a backlog is not planned for; '' if it is."""
    if context.targets.classes == () or all(one.orders for one in context.targets.classes):
        return NO_CLASS
    if context.signals.no_metrics is not None:
        return NO_METRICS
    known = context.demand is not None and prepared_model(context) is not None
    if not known or not context.estimate.law.trusted:
        return NO_LAW
    return "" if _are_counted(context) else NOT_COUNTED


def _are_counted(context: TickContext) -> bool:
    """Whether work that is sent is known from live requests: else each sent one orders more."""
    if context.state.estimator.arrivals.sheddable is not None:
        return True
    flows = [context.estimate.classes.get(one.name) for one in context.targets.classes]
    return all(flow is not None and flow.problem is None for flow in flows)


def backlog_report(
    context: TickContext, stated: BacklogTargets, work: Sequence[Work], *, silent: bool
) -> BacklogReport:
    """What may be sent now, and what the work needs.

    silent: nobody sends it. Nothing is ordered then, and one request may be sent at least, by which
    a dispatcher that is back is seen; so is a class that was not counted before its first request.
    """
    each, prepared = units_per_request(context, stated.unit), prepared_model(context)
    reading = fresh_reading(context)
    left = None if reading is None else reading.left
    if (problem := problem_of(context)) or prepared is None or each is None:
        rate = (each or 0.0) / _lease_seconds(context) if problem == NOT_COUNTED else 0.0
        return BacklogReport(
            unit=stated.unit, left=left, rate_per_second=rate, problem=problem or NO_LAW
        )
    case, found = sizing_case(context, prepared), BacklogReport(unit=stated.unit)
    if work:
        waits = sum(one.requests for one in work) * each
        found = replace(found, problem=SILENT) if silent else _planned(context, stated, work, case)
        found = replace(found, left=waits if left is None else left)
    elif left is None:
        found = replace(found, problem=UNREAD if reading is None else NO_LENGTH)
    else:
        found = replace(found, left=left)
    rate = _spare_per_second(context, case, found)
    if found.problem == SILENT:
        rate = max(rate, 1.0 / _lease_seconds(context))
    return replace(found, rate_per_second=rate * each)


def _spare_per_second(context: TickContext, case: SizingCase, found: BacklogReport) -> float:
    """What may be sent until the next rate: of the replicas that no decision releases meanwhile."""
    live = 0 if context.demand is None else size(case, context.demand.scale_up_load).replicas
    kept = max(context.bounds.minimum, found.replicas or 0, live)
    count = min(len(context.serving), context.current, kept)
    ahead = _live_per_second(context, (0.0, _lease_seconds(context)))
    return max(_carried_by(case)(count) - ahead, 0.0)


def _planned(
    context: TickContext, stated: BacklogTargets, work: Sequence[Work], case: SizingCase
) -> BacklogReport:
    """The least count for the work, or what is late at the most that is allowed."""
    carried, serving = _carried_by(case), min(len(context.serving), context.current)
    outlook = outlook_of(context, work)
    whole, most = sum(one.requests for one in work), context.bounds.maximum
    allowed = (1.0 - stated.on_time_ratio) * whole - late_already(work)
    search = partial(
        least_count, outlook=outlook, allowed=max(allowed, 0.0), carried=carried, serving=serving
    )
    replicas, enough = search(work, most=most), None
    infeasible = replicas is None or allowed < 0.0
    if replicas is None:
        enough = search(work, most=max(case.largest_count, most)) if allowed >= 0.0 else None
        replicas = _least_late(context, work, carried, serving)
    elif replicas < context.current:
        more = tuple(replace(one, requests=RELEASE_RATIO * one.requests) for one in work)
        held = search(more, most=context.current)
        replicas = min(context.current, most) if held is None else min(held, most)
    late = late_requests(work, outlook, served_by(outlook, carried(serving), carried(replicas)))
    return BacklogReport(
        unit=stated.unit,
        due_seconds=min(0.0 if one.late else one.due_seconds for one in work),
        late_ratio=late / whole,
        replicas=replicas,
        infeasible=infeasible,
        enough_replicas=enough,
    )


def _least_late(
    context: TickContext, work: Sequence[Work], carried: Callable[[int], float], serving: int
) -> int:
    """The least count at which as little is late as at all that are allowed.

    What is due before an order serves is done soon after: in the time of two orders.
    """
    soon = LATE_LEADS * context.lead_seconds
    after = tuple(replace(one, due_seconds=max(one.due_seconds, soon)) for one in work)
    return max(
        least_late_count(
            one,
            outlook_of(context, one),
            carried=carried,
            serving=serving,
            most=context.bounds.maximum,
        )
        for one in (work, after)
    )


def outlook_of(context: TickContext, work: Sequence[Work]) -> Outlook:
    """Live demand until the last of the work is due."""
    times = times_ahead(work, context.lead_seconds)
    return Outlook(
        times_seconds=times,
        live_per_second=tuple(_live_per_second(context, (at,)) for at in times),
        lead_seconds=context.lead_seconds,
    )


def _carried_by(case: SizingCase) -> Callable[[int], float]:
    """The fleet rate that work may fill up to, at a count."""

    @cache
    def carried(count: int) -> float:
        if count <= 0:
            return 0.0
        return FILLED_RATIO * carried_rate_per_second(case, case.infeasible, count)

    return carried


def _lease_seconds(context: TickContext) -> float:
    """How long a rate stands until the next one is seen: a tick, and a scrape of the gauge."""
    return context.limits.tick_seconds + SCRAPE_SECONDS


def _live_per_second(context: TickContext, times: Sequence[float]) -> float:
    """Live demand that is planned for, the greatest of these times ahead."""
    forecast = context.estimate.forecast
    chance = planned_probability(forecast, context.lead_seconds)
    return max(forecast.quantile_per_second(at, chance) for at in times)
