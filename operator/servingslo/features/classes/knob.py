"""Lanes of classes: the highest has the fleet's bound, the lowest is closed first.

A lane is raised and lowered by the rules of the gateway's bound. One thing is added: while a higher
class is refused, lower lanes are lowered at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from servingslo.features.classes.decision import (
    HELD_READINGS,
    LANES_DECIDED,
    LEAST_LANE,
    SURGE_READINGS,
    ClassReport,
    LanesDecision,
    LaneState,
    held_of,
    lane_bounds,
)
from servingslo.policy import insights
from servingslo.policy.inputs import AdmissionMode, InForce
from servingslo.policy.knobs.decisions import ADMISSION, AdmissionDecision
from servingslo.policy.knobs.in_flight.gateway import (
    FORMER,
    HEADROOM,
    HELD_SHARE,
    LIMIT,
    STEP_SECONDS,
    LimitMemory,
    LimitWrite,
    confirmed,
    judge_load,
    limit_of_each,
    limit_to_write,
    proxies_of,
    track_bound,
)
from servingslo.policy.knobs.protocol import Outcome, PlainKnob, Turn
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.policy.replicas.saturation import saturation_need
from servingslo.policy.routes import LANES, ClassTargets
from servingslo.policy.rules.requirement import sizing_case
from servingslo.reasons import Reason

# In flight at or above this share of its lane, a class fills it.
_FULL_SHARE = 0.8
# Threads of a proxy that race may exceed a bound, which matters for lanes of a few requests.
# Source: Envoy, circuit breaking: "the limits are eventually consistent".
_RACING_REQUESTS = 1
# A sheddable class's lane is far off beyond this ratio to what it should be.
# Judgement; measured by the benchmark of classes.
FAR_OFF_RATIO = 1.25
_STANDING = "those in force stay until they are put back"


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesMemory:
    """Readings of what each class has in flight, newest last, and what was written of each lane."""

    held: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    lanes: Mapping[str, LimitMemory] = field(default_factory=dict)


class LanesKnob(PlainKnob):
    """The bound in flight of each class of requests, by priority."""

    name, key = LANES, LANES_DECIDED

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide the lanes; report the classes even if no lane is to be written."""
        context = turn.context
        if not context.targets.classes:
            return Outcome(None)
        known = memory if isinstance(memory, LanesMemory) else LanesMemory()
        known = replace(known, held=_readings(context, known.held))
        bounds, reason = _bounds(turn, known)
        standing = context.observation.in_force.get(LANES)
        decision = LanesDecision(
            reason=reason,
            detail=_unread(known) if reason is Reason.GATEWAY_SILENT else "",
            classes=tuple(_report(context, one, standing) for one in context.targets.classes),
            proxies=proxies_of(context),
        )
        writes = turn.acting and context.targets.admission_mode is AdmissionMode.AUTO
        if not writes or standing is None:
            told = _recommended(decision, bounds)
            if any(FORMER in lane_in_force(standing, one.name).values for one in decision.classes):
                held = acting_limit(context.targets, context.limits) or reason
                told = replace(decision, written=True, reason=held, detail=_STANDING)
            return Outcome(told, replace(known, lanes={}))
        decision = replace(decision, written=True)
        if standing.refused is not None:
            return Outcome(*_refused(decision, known, standing))
        if bounds is None and (context.briefly_blind or context.just_begun):
            return Outcome(decision, known)
        if bounds is None:
            back, cleared = _put_back(decision, known, Reason.LIMIT_OPENED, standing)
            silent = reason is Reason.GATEWAY_SILENT
            return Outcome(replace(back, reason=reason) if silent else back, cleared)
        return Outcome(*_written(context, decision, known, standing, bounds))


def lane_in_force(standing: InForce | None, name: str) -> InForce:
    """The values of one lane among those that the actuator found."""
    values = {} if standing is None else standing.values
    own = {key: values[f"{name}.{key}"] for key in (LIMIT, FORMER) if f"{name}.{key}" in values}
    return InForce(values=own)


def _readings(
    context: TickContext, held: Mapping[str, tuple[float, ...]]
) -> dict[str, tuple[float, ...]]:
    """The readings of this tick after the earlier ones; none of a class that is not read."""
    now = {name: flow.active for name, flow in context.estimate.classes.items()}
    return {
        one.name: (*held.get(one.name, ()), active)[-HELD_READINGS:]
        if (active := now.get(one.name)) is not None
        else ()
        for one in context.targets.classes
    }


def _bounds(turn: Turn, memory: LanesMemory) -> tuple[dict[str, int] | None, Reason]:
    """The bound of each class in flight over all proxies, and why; None to bound none.

    While no capacity is known, only measured saturation can show that the engines are full: then
    sheddable classes are closed, and others are not bounded.
    """
    context, admission = turn.context, turn.earlier.get(ADMISSION)
    classes = context.targets.classes
    if context.targets.admission_mode is AdmissionMode.OFF:
        return None, Reason.ADMISSION_OFF
    each = admission.in_flight_limit if isinstance(admission, AdmissionDecision) else None
    if each is None or context.prepared is None or not isinstance(admission, AdmissionDecision):
        full = saturation_need(context.estimate, context.targets, context.serving).ratio > 1.0
        closed = {one.name: LEAST_LANE for one in classes if not one.orders}
        return (closed if full and closed else None), Reason.ADMISSION_UNKNOWN
    if not all(memory.held.get(one.name) for one in classes):
        return None, Reason.GATEWAY_SILENT
    serving = len(context.serving)
    case = sizing_case(context, context.prepared)
    running = case.frontier.reading(
        attrgetter("running_mean"),
        case.load_factor * (admission.admitted_rate_per_second or 0.0),
        case.fleet(serving),
    )
    bounds = lane_bounds(
        classes,
        {name: held_of(readings) for name, readings in memory.held.items()},
        whole=each * serving,
        filled=int(running * context.estimate.engines_per_pod * serving),
    )
    return bounds, Reason.ADMISSION_RECOMMENDED


def _report(context: TickContext, one: ClassTargets, standing: InForce | None) -> ClassReport:
    flow, told = context.estimate.classes.get(one.name), insights.of_class(context, one)
    limit = lane_in_force(standing, one.name).values.get(LIMIT)
    rate = None if flow is None else flow.requests_per_second
    if flow is None or rate is None:
        return ClassReport(
            features=told,
            name=one.name, priority=one.priority, policy=one.policy, state=LaneState.UNSEEN,
            before=limit, after=limit,
        )  # fmt: skip
    admitted = max(rate - flow.rejected_per_second - flow.queueing_per_second, 0.0)
    refusing = flow.rejected_per_second > 0.0
    state = LaneState.FULL if refusing else LaneState.OPEN
    if limit is not None and limit <= math.ceil(HEADROOM * LEAST_LANE):
        state = LaneState.CLOSED
    return ClassReport(
        name=one.name,
        priority=one.priority,
        policy=one.policy,
        state=state,
        offered_per_second=rate,
        admitted_per_second=admitted,
        refused_per_second=flow.rejected_per_second,
        queueing_per_second=flow.queueing_per_second,
        in_flight=flow.active,
        mean_seconds=flow.active / admitted if flow.active is not None and admitted else None,
        before=limit,
        after=limit,
        features=told,
    )


def _recommended(decision: LanesDecision, bounds: Mapping[str, int] | None) -> LanesDecision:
    """The decision with the lanes that would be written."""
    if bounds is None:
        return decision
    classes = tuple(
        replace(one, after=limit_of_each(bounds[one.name], decision.proxies))
        if one.name in bounds
        else one
        for one in decision.classes
    )
    return replace(decision, classes=classes)


def _refused(
    decision: LanesDecision, memory: LanesMemory, standing: InForce
) -> tuple[LanesDecision, LanesMemory]:
    """Write no lane; remove those that are ours, because they are no longer updated."""
    problem = standing.refused
    assert problem is not None  # noqa: S101 - the caller asked
    told = replace(decision, reason=problem.reason, detail=problem.detail)
    if problem.reason is Reason.CLUSTER_UNAVAILABLE:
        return told, memory
    held = {one.name: lane_in_force(standing, one.name) for one in decision.classes}
    if not any(FORMER in lane.values for lane in held.values()):
        return told, replace(memory, lanes={})
    back, cleared = _put_back(told, memory, Reason.LIMIT_PUT_BACK, standing)
    return replace(back, reason=problem.reason), cleared


def _put_back(
    decision: LanesDecision, memory: LanesMemory, reason: Reason, standing: InForce
) -> tuple[LanesDecision, LanesMemory]:
    """Restore the bounds from before ours."""
    former = {one.name: lane_in_force(standing, one.name).values for one in decision.classes}
    classes = (
        replace(one, after=former[one.name][FORMER], change_reason=reason)
        if FORMER in former[one.name]
        else one
        for one in decision.classes
    )
    told = replace(decision, reason=reason, classes=tuple(classes))
    return replace(told, puts_back=bool(told.changed)), replace(memory, lanes={})


def _written(
    context: TickContext,
    decision: LanesDecision,
    memory: LanesMemory,
    standing: InForce,
    bounds: Mapping[str, int],
) -> tuple[LanesDecision, LanesMemory]:
    """The lanes to write now. A lane without a bound keeps what it has."""
    reports, lanes, now = [], dict(memory.lanes), context.now_seconds
    for one in decision.classes:
        lane = lane_in_force(standing, one.name)
        readings = memory.held.get(one.name, ())
        begins = FORMER not in lane.values and len(readings) < SURGE_READINGS
        # A first lane from the first requests is several times too small, and gateways follow late.
        if one.name not in bounds or begins:
            reports.append(one)
            continue
        needed = limit_of_each(bounds[one.name], decision.proxies)
        known = confirmed(memory.lanes.get(one.name, LimitMemory()), lane)
        known = track_bound(lane, known, needed=needed, now_seconds=now)
        known = _judged(known, lane, one, decision.proxies, now)
        told = replace(one, state=LaneState.UNBOUND) if known.held is False else one
        wanted, reason = _lane_to_write(context, decision, one, lane, known, needed)
        if wanted is not None:
            serving = len(context.serving)
            pending = LimitWrite(limit=wanted, serving=serving, at_seconds=now)
            known = replace(known, pending=pending)
            told = replace(told, after=wanted, change_reason=reason)
        reports.append(told)
        lanes[one.name] = known
    lanes_now = replace(decision, classes=tuple(reports))
    reason = _verified(lanes_now)
    detail = _passed_by(lanes_now) if reason is Reason.LIMIT_NOT_HELD else ""
    return replace(lanes_now, reason=reason, detail=detail), replace(memory, lanes=lanes)


def _judged(
    memory: LimitMemory, lane: InForce, one: ClassReport, proxies: int, now_seconds: float
) -> LimitMemory:
    """Whether the lane holds, by what the gateway itself has of the class in flight."""
    if one.in_flight is None:
        return replace(memory, over_since_seconds=None)
    allowed = (one.before or 0) * proxies
    return judge_load(
        lane,
        memory,
        near=one.in_flight >= _FULL_SHARE * allowed,
        over=one.in_flight > max(HELD_SHARE * allowed, allowed + _RACING_REQUESTS * proxies),
        refusing=bool(one.refused_per_second),
        now_seconds=now_seconds,
    )


def _lane_to_write(
    context: TickContext,
    decision: LanesDecision,
    one: ClassReport,
    lane: InForce,
    memory: LimitMemory,
    needed: int,
) -> tuple[int | None, Reason | None]:
    """The bound of each proxy to write and why; (None, None) if the one in force stays.

    The lane of a sheddable class is written only if it is far off, and at once to what it should
    be: Envoy's count begins anew with each write, so that each step lets in a whole lane.
    """
    before, now = one.before, context.now_seconds
    if one.priority >= 0 or before is None or FORMER not in lane.values:
        near = None if before is None else _FULL_SHARE * before * decision.proxies
        full = near is not None and (one.in_flight or 0.0) >= near
        serving = len(context.serving)
        return limit_to_write(
            lane, memory, needed=needed, serving=serving, now_seconds=now, full=full
        )
    pressed = any(
        other.refused_per_second and other.priority > one.priority for other in decision.classes
    )
    if before > (1.0 if pressed else FAR_OFF_RATIO) * needed:
        return needed, Reason.LIMIT_LOWERED
    written = memory.written
    settled = written is None or now - written.at_seconds >= STEP_SECONDS
    if needed > FAR_OFF_RATIO * before and settled:
        return needed, Reason.LIMIT_RAISED
    return None, None


def _verified(decision: LanesDecision) -> Reason:
    """Whether lanes hold; a lane that has refused requests is in force, as load has shown then."""
    if any(one.state is LaneState.UNBOUND for one in decision.classes):
        return Reason.LIMIT_NOT_HELD
    ours = any(one.refused_per_second and one.before is not None for one in decision.classes)
    return Reason.LIMIT_VERIFIED if ours else Reason.LIMIT_UNVERIFIED


def _unread(memory: LanesMemory) -> str:
    classes = _named([name for name, readings in memory.held.items() if not readings])
    return f"the gateway shows no requests in flight of {classes} within fallback.staleAfter"


def _named(names: Sequence[str]) -> str:
    return f"class{'es' if len(names) > 1 else ''} {', '.join(names)}"


def _passed_by(decision: LanesDecision) -> str:
    classes = _named([one.name for one in decision.classes if one.state is LaneState.UNBOUND])
    return f"more of {classes} is in flight than the lane allows: the policy does not reach Envoy"


PART = LanesKnob()
