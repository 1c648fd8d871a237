"""Decide the bound that a gateway enforces on requests in flight, by proxy, and when to write it.

The bound follows the replicas that serve. It is raised at once if more replicas can serve more,
lowered in steps, and lowered at once if a replica is lost. Demand does not move the bound, so the
bound and the replica count never chase each other.
"""

import math
from dataclasses import dataclass, replace

from servingslo.policy.inputs import AdmissionMode, InForce, SignalProblem
from servingslo.policy.knobs.decisions import GATEWAY_LIMITS, AdmissionDecision, LimitDecision
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.reasons import Reason

# Names of the values that the actuator found in force: the bound of each proxy (None if the object
# states none), and the bound to restore, present only if the current one is ours.
LIMIT, FORMER = "limit", "former"
# In-flight bounds drift by a few per cent with every mix, and each write restarts Envoy's counter
# of active requests. So the bound is written 5 % above what is needed, and lowered only if it is
# more than 15 % above.
HEADROOM = 1.05
LOWERED_ABOVE = 1.15
# A raise lets in a whole new bound of requests while earlier ones still run. If load is at the
# bound, that pays at once only if this much more is needed or more replicas serve. A request takes
# about eight seconds, so a smaller raise gains in a minute about as much as it harms.
RAISED_ABOVE = 1.2
# A step down, as a share of the bound, and the time between two steps. Envoy no longer counts
# requests that were in flight at a step (observed with 1.40: ten active under a limit of six). Most
# of them have ended by the next step.
LOWEST_STEP = 0.75
STEP_SECONDS = 60.0
# Requests spread over p proxies at random. With 97.7 % probability, a proxy gets at most this many
# standard deviations more than its share.
SPREAD_DEVIATIONS = 2.0
# Load below this share of the bound proves nothing about it.
PROVING_SHARE = 0.8
# Engines and gateway are scraped seconds apart, and neither counts requests on the way between
# them. So a bound counts as held while at most this many times the bound is in flight.
HELD_SHARE = 1.1
NOT_HELD_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitWrite:
    """A bound of each proxy: the replicas that it was for, and when it was ordered."""

    limit: int
    serving: int
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitMemory:
    """The bound that was written last, and whether load has shown that it holds.

    pending: until it is known whether it is in force. held: None until load was near it.
    over_since_seconds: since when more requests are in flight than it allows. above_since_seconds:
    since when it is more than replicas need. below_since_seconds: since when it is less than they
    could serve. Nothing of it survives a restart.
    """

    written: LimitWrite | None = None
    pending: LimitWrite | None = None
    held: bool | None = None
    over_since_seconds: float | None = None
    above_since_seconds: float | None = None
    below_since_seconds: float | None = None


def limit_decision(
    context: TickContext,
    admission: AdmissionDecision,
    memory: LimitMemory | None,
    *,
    acting: bool,
    room_ratio: float = 1.0,
) -> tuple[LimitDecision | None, LimitMemory | None]:
    """Decide the gateway's bound; return the decision and its memory.

    Without metrics it stays for as long as the replica count does before any fallback, so that one
    reading that fails lets no crowd in.

    acting: whether decisions about this workload are carried out. If they are not, or if no bound
    is requested, the decision is None, unless a bound of ours still stands. room_ratio: the bound
    as a ratio to what replicas need.
    """
    via, standing = context.targets.admission_via, context.observation.in_force.get(GATEWAY_LIMITS)
    asked = acting and context.targets.admission_mode is AdmissionMode.AUTO
    if via is None or standing is None or not (asked or FORMER in standing.values):
        return None, None
    limit = standing.values.get(LIMIT)
    told = LimitDecision(
        reason=Reason.LIMIT_UNVERIFIED,
        kind=via.kind,
        object_name=via.name,
        proxies=proxies_of(context),
        before=limit,
        after=limit,
    )
    if not asked:
        held = acting_limit(context.targets, context.limits) or told.reason
        detail = f"{limit} stands at each proxy until it is put back"
        return replace(told, reason=held, detail=detail), None
    if standing.refused is not None:
        return _refused(memory, told, standing, standing.refused)
    memory = confirmed(memory or LimitMemory(), standing)
    if context.briefly_blind:
        return replace(told, reason=bound_reason(memory)), memory
    per_replica, elsewhere = admission.in_flight_limit, context.facts.elsewhere
    serving = len(context.serving) + elsewhere.serving
    if per_replica is None or elsewhere.limit is None or not serving:
        return _opened(context, told, standing, memory)
    fleet = per_replica * len(context.serving) + elsewhere.limit
    needed = limit_of_each(math.ceil(room_ratio * fleet), told.proxies)
    memory = track_bound(standing, memory, needed=needed, now_seconds=context.now_seconds)
    wanted, reason = limit_to_write(
        standing,
        memory,
        needed=needed,
        serving=serving,
        full=_is_full(context, standing, told.proxies),
        now_seconds=context.now_seconds,
    )
    use = context.estimate.gateway
    refusing = use is not None and bool(use.refused_per_second)
    memory = judge_bound(context, memory, standing, told.proxies, refusing=refusing)
    told = replace(told, reason=bound_reason(memory), detail=_detail(context, memory))
    if wanted is not None and reason is not None:
        pending = LimitWrite(limit=wanted, serving=serving, at_seconds=context.now_seconds)
        told = replace(told, after=wanted, change_reason=reason)
        memory = replace(memory, pending=pending)
    return told, memory


def limit_of_each(in_flight: int, proxies: int) -> int:
    """The bound of one proxy such that all proxies together admit `in_flight`.

    Requests that reach p proxies at random are binomial: n/p at each, with variance n/p·(1 − 1/p).
    With one proxy there is nothing to spread.
    """
    mean = in_flight / proxies
    return math.ceil(mean + SPREAD_DEVIATIONS * math.sqrt(mean * (1.0 - 1.0 / proxies)))


def track_bound(
    standing: InForce, memory: LimitMemory, *, needed: int, now_seconds: float
) -> LimitMemory:
    """Track since when the bound in force has been below, or well above, what is needed."""
    limit, above, below = standing.values.get(LIMIT), memory.above_since_seconds, None
    # A small bound with its headroom, rounded up, is no more than should be written.
    if limit is None or limit <= max(LOWERED_ABOVE * needed, math.ceil(HEADROOM * needed)):
        above = None
    elif above is None:
        above = now_seconds
    if limit is not None and limit < needed:
        below = now_seconds if memory.below_since_seconds is None else memory.below_since_seconds
    return replace(memory, above_since_seconds=above, below_since_seconds=below)


def limit_to_write(
    standing: InForce,
    memory: LimitMemory,
    *,
    needed: int,
    serving: int,
    now_seconds: float,
    full: bool = False,
) -> tuple[int | None, Reason | None]:
    """The bound to write and why; (None, None) if the one in force stays.

    needed: least bound of a proxy at which it refuses nothing that ready replicas can serve. full:
    requests in flight are at or near the bound in force.
    """
    limit = standing.values.get(LIMIT)
    wanted = math.ceil(HEADROOM * needed)
    if FORMER not in standing.values or limit is None:
        return wanted, Reason.LIMIT_SET
    above_since, written = memory.above_since_seconds, memory.written
    if limit < needed:
        more = written is None or serving > written.serving
        since = memory.below_since_seconds
        recent = since is not None and now_seconds - since < STEP_SECONDS
        waits = full and recent and not more and needed < RAISED_ABOVE * limit
        return (None, None) if waits else (wanted, Reason.LIMIT_RAISED)
    if above_since is None:
        return None, None
    if written is not None and serving < written.serving:
        return wanted, Reason.LIMIT_LOWERED
    last = above_since if written is None else max(above_since, written.at_seconds)
    if now_seconds - last < STEP_SECONDS:
        return None, None
    # At least one less, which for a small bound is more than the share.
    return max(wanted, min(math.ceil(LOWEST_STEP * limit), limit - 1)), Reason.LIMIT_LOWERED


def proxies_of(context: TickContext) -> int:
    """How many proxies share the bound: as stated, else those read recently; at least one."""
    stated = context.targets.admission_proxies
    if stated is not None:
        return stated
    gateway = context.observation.gateway or context.facts.elsewhere.route
    stale_after = context.targets.fallback.stale_after_seconds
    seen = () if gateway is None else gateway.all_instances
    ages = [instance.age_seconds for instance in seen]
    return max(sum(1 for age in ages if age is not None and age <= stale_after), 1)


def _refused(
    memory: LimitMemory | None, told: LimitDecision, standing: InForce, problem: SignalProblem
) -> tuple[LimitDecision, LimitMemory | None]:
    """Stop changing the bound; remove it if it is ours, because it is no longer updated."""
    told = replace(told, reason=problem.reason, detail=problem.detail)
    if problem.reason is Reason.CLUSTER_UNAVAILABLE:
        return told, memory
    if FORMER not in standing.values:
        return told, None
    former = standing.values[FORMER]
    return replace(told, after=former, change_reason=Reason.LIMIT_PUT_BACK, puts_back=True), None


def _opened(
    context: TickContext, told: LimitDecision, standing: InForce, memory: LimitMemory
) -> tuple[LimitDecision, LimitMemory]:
    """Restore the former bound, because the capacity of the replicas is unknown.

    Not right after a restart: no crowd is let in until the capacity is known again.
    """
    if context.just_begun and FORMER in standing.values:
        return told, memory
    opened = replace(told, reason=Reason.LIMIT_OPENED)
    if FORMER in standing.values:
        return replace(
            opened,
            after=standing.values[FORMER],
            change_reason=Reason.LIMIT_OPENED,
            puts_back=True,
        ), LimitMemory()
    return opened, LimitMemory()


def confirmed(memory: LimitMemory, standing: InForce) -> LimitMemory:
    """Record whether the last ordered bound is in force."""
    if memory.pending is None:
        return memory
    if standing.values.get(LIMIT) != memory.pending.limit:
        return replace(memory, pending=None)
    return replace(memory, pending=None, written=memory.pending, over_since_seconds=None)


def _is_full(context: TickContext, standing: InForce, proxies: int) -> bool:
    """Whether requests in flight are at or near the bound."""
    limit, estimate = standing.values.get(LIMIT), context.estimate
    in_flight = estimate.running_requests + estimate.waiting_requests
    in_flight += context.facts.elsewhere.requests
    return limit is not None and in_flight >= PROVING_SHARE * limit * proxies


def judge_bound(
    context: TickContext,
    memory: LimitMemory,
    standing: InForce,
    proxies: int,
    *,
    refusing: bool,
) -> LimitMemory:
    """Judge whether the bound holds, as far as the present load shows it.

    Envoy lets requests from before a change finish, so nothing is concluded soon after one.
    """
    limit = standing.values.get(LIMIT) or 0
    in_flight = context.estimate.running_requests + context.estimate.waiting_requests
    return judge_load(
        standing,
        memory,
        near=_is_full(context, standing, proxies),
        over=in_flight > HELD_SHARE * limit * proxies,
        refusing=refusing,
        now_seconds=context.now_seconds,
    )


def judge_load(
    standing: InForce,
    memory: LimitMemory,
    *,
    near: bool,
    over: bool,
    refusing: bool,
    now_seconds: float,
) -> LimitMemory:
    """Judge whether a bound holds. near, over: what is in flight is near it, or more than it."""
    if standing.values.get(LIMIT) is None or FORMER not in standing.values:
        return replace(memory, held=None, over_since_seconds=None)
    written = memory.written
    if written is not None and now_seconds - written.at_seconds < STEP_SECONDS:
        return memory
    if not near:
        return replace(memory, over_since_seconds=None)
    if over:
        since = memory.over_since_seconds
        since = now_seconds if since is None else since
        lasting = now_seconds - since >= NOT_HELD_SECONDS
        return replace(memory, over_since_seconds=since, held=False if lasting else memory.held)
    return replace(memory, over_since_seconds=None, held=True if refusing else memory.held)


def bound_reason(memory: LimitMemory) -> Reason:
    """The result of the bound's check under load."""
    if memory.held is None:
        return Reason.LIMIT_UNVERIFIED
    return Reason.LIMIT_VERIFIED if memory.held else Reason.LIMIT_NOT_HELD


def _detail(context: TickContext, memory: LimitMemory) -> str:
    if memory.held is False:
        return "more is in flight than the bound allows: another route or policy leads past it"
    if memory.held is None and context.observation.gateway is None:
        return "refusals cannot be seen: no gateway is read"
    return ""
