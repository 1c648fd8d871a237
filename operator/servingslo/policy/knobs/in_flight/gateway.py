"""The bound that a gateway enforces: what each proxy may have in flight, and when to write it.

It follows the replicas that serve: raised at once when more of them can take more, lowered in
steps, and at once when one is lost. What demand does moves no bound, so that a bound and the
replica count never chase each other.
"""

import math
from dataclasses import replace

from servingslo.policy.context import TickContext
from servingslo.policy.inputs import AdmissionMode, InForce, SignalProblem
from servingslo.policy.knobs.decisions import GATEWAY_LIMITS, AdmissionDecision, LimitDecision
from servingslo.policy.knobs.in_flight.memory import LimitMemory, LimitWrite
from servingslo.reasons import Reason

# Knob of the actuator that writes it, and names of what it found in force: the bound of each proxy
# (None where the object states none), and the one to go back to, given where the present one is
# ours.
LIMIT, FORMER = "limit", "former"
# In-flight bounds drift by a few per cent with every mix, and each write restarts Envoy's counter
# of active requests: the bound is written a little above what is needed, and lowered only when it
# is above that by as much again twice.
HEADROOM = 1.05
LOWERED_ABOVE = 1.15
# A raise lets in a whole bound's worth anew while what was let in before still runs. With load at
# the bound that pays at once only where so much more is needed, or more replicas serve: a request
# takes some eight seconds, so what a smaller raise lets in more in a minute is about what it harms.
RAISED_ABOVE = 1.2
# A step down, as a share of the bound, and the time between two: requests that were in flight at
# one, which Envoy counts no more (seen with 1.40: ten active under a limit of six), have mostly
# ended by the next.
LOWEST_STEP = 0.75
STEP_SECONDS = 60.0
# Requests spread over p proxies at random: one of them has at most so many standard deviations
# above its share, 97.7 % of the time.
SPREAD_DEVIATIONS = 2.0
# Load below this share of the bound proves nothing about it.
PROVING_SHARE = 0.8
# Engines and gateway are scraped seconds apart, and what is on its way is at neither: a bound holds
# while no more than this share above it is in flight.
HELD_SHARE = 1.1
NOT_HELD_SECONDS = 60.0


def limit_decision(
    context: TickContext,
    admission: AdmissionDecision,
    memory: LimitMemory | None,
    *,
    acting: bool,
) -> tuple[LimitDecision | None, LimitMemory | None]:
    """What the gateway's bound is and what it is to be, and what is remembered of it.

    acting: whether decisions about this workload are carried out; where not, or where no bound is
    asked for, there is none.
    """
    via, standing = context.targets.admission_via, context.observation.in_force.get(GATEWAY_LIMITS)
    asked = acting and context.targets.admission_mode is AdmissionMode.AUTO
    if not asked or via is None or standing is None:
        return None, None
    told = LimitDecision(
        reason=Reason.LIMIT_UNVERIFIED,
        kind=via.kind,
        object_name=via.name,
        proxies=proxies_of(context),
        before=standing.values.get(LIMIT),
        after=standing.values.get(LIMIT),
    )
    if standing.refused is not None:
        return _refused(memory, told, standing, standing.refused)
    memory = _confirmed(memory or LimitMemory(), standing)
    per_replica, serving = admission.in_flight_limit, len(context.serving)
    if per_replica is None or not serving:
        return _opened(told, standing)
    needed = limit_of_each(per_replica * serving, told.proxies)
    memory = held_against(standing, memory, needed=needed, now_seconds=context.now_seconds)
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
    memory = judged(context, memory, standing, told.proxies, refusing=refusing)
    told = replace(told, reason=verdict(memory), detail=_detail(context, memory))
    if wanted is None or reason is None:
        return told, memory
    pending = LimitWrite(limit=wanted, serving=serving, at_seconds=context.now_seconds)
    return (
        replace(told, after=wanted, change_reason=reason),
        replace(memory, pending=pending),
    )


def limit_of_each(in_flight: int, proxies: int) -> int:
    """The bound of one proxy so that all together let in as many, however they are spread.

    Requests that come to p proxies at random are binomial: n/p at each, with variance
    n/p·(1 − 1/p). With one proxy there is nothing to spread.
    """
    mean = in_flight / proxies
    return math.ceil(mean + SPREAD_DEVIATIONS * math.sqrt(mean * (1.0 - 1.0 / proxies)))


def held_against(
    standing: InForce, memory: LimitMemory, *, needed: int, now_seconds: float
) -> LimitMemory:
    """The memory with since when the bound in force has been below or well above what is needed."""
    limit, above, below = standing.values.get(LIMIT), memory.above_since_seconds, None
    if limit is None or limit <= LOWERED_ABOVE * needed:
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
    """The bound to write and why; (None, None) where the one in force stays.

    needed: least bound of a proxy at which it refuses nothing that ready replicas can serve.
    full: as much is in flight as the one in force allows, or nearly.
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
    return max(wanted, math.ceil(LOWEST_STEP * limit)), Reason.LIMIT_LOWERED


def proxies_of(context: TickContext) -> int:
    """How many proxies share the bound: as stated, else as many as are read, at least one."""
    stated = context.targets.admission_proxies
    if stated is not None:
        return stated
    gateway = context.observation.gateway
    stale_after = context.targets.fallback.stale_after_seconds
    seen = () if gateway is None else gateway.all_instances
    ages = [instance.age_seconds for instance in seen]
    return max(sum(1 for age in ages if age is not None and age <= stale_after), 1)


def _refused(
    memory: LimitMemory | None, told: LimitDecision, standing: InForce, problem: SignalProblem
) -> tuple[LimitDecision, LimitMemory | None]:
    """The bound may not be changed any more: one of ours that nobody follows now is taken out."""
    told = replace(told, reason=problem.reason, detail=problem.detail)
    if problem.reason is Reason.CLUSTER_UNAVAILABLE:
        return told, memory
    if FORMER not in standing.values:
        return told, None
    former = standing.values[FORMER]
    return replace(told, after=former, change_reason=Reason.LIMIT_PUT_BACK, puts_back=True), None


def _opened(told: LimitDecision, standing: InForce) -> tuple[LimitDecision, LimitMemory]:
    """Nothing is known of what replicas can serve: the bound that stood before ours takes over."""
    opened = replace(told, reason=Reason.LIMIT_OPENED)
    if FORMER in standing.values:
        return replace(
            opened,
            after=standing.values[FORMER],
            change_reason=Reason.LIMIT_OPENED,
            puts_back=True,
        ), LimitMemory()
    return opened, LimitMemory()


def _confirmed(memory: LimitMemory, standing: InForce) -> LimitMemory:
    """The memory after it is seen whether what was ordered last is in force."""
    if memory.pending is None:
        return memory
    if standing.values.get(LIMIT) != memory.pending.limit:
        return replace(memory, pending=None)
    return replace(memory, pending=None, written=memory.pending, over_since_seconds=None)


def _is_full(context: TickContext, standing: InForce, proxies: int) -> bool:
    """Whether so much is in flight that the bound is at work, or nearly."""
    limit, estimate = standing.values.get(LIMIT), context.estimate
    in_flight = estimate.running_requests + estimate.waiting_requests
    return limit is not None and in_flight >= PROVING_SHARE * limit * proxies


def judged(
    context: TickContext,
    memory: LimitMemory,
    standing: InForce,
    proxies: int,
    *,
    refusing: bool,
) -> LimitMemory:
    """Whether the bound holds, as far as the present load can tell.

    What ran before a change is let go on by Envoy, so nothing is concluded soon after one.
    """
    limit = standing.values.get(LIMIT)
    if limit is None or FORMER not in standing.values:
        return replace(memory, held=None, over_since_seconds=None)
    written, now_seconds = memory.written, context.now_seconds
    if written is not None and now_seconds - written.at_seconds < STEP_SECONDS:
        return memory
    if not _is_full(context, standing, proxies):
        return replace(memory, over_since_seconds=None)
    in_flight = context.estimate.running_requests + context.estimate.waiting_requests
    if in_flight > HELD_SHARE * limit * proxies:
        since = memory.over_since_seconds
        since = now_seconds if since is None else since
        over = now_seconds - since >= NOT_HELD_SECONDS
        return replace(memory, over_since_seconds=since, held=False if over else memory.held)
    return replace(memory, over_since_seconds=None, held=True if refusing else memory.held)


def verdict(memory: LimitMemory) -> Reason:
    """What load has shown of the bound."""
    if memory.held is None:
        return Reason.LIMIT_UNVERIFIED
    return Reason.LIMIT_VERIFIED if memory.held else Reason.LIMIT_NOT_HELD


def _detail(context: TickContext, memory: LimitMemory) -> str:
    if memory.held is False:
        return "more is in flight than the bound allows: another route or policy leads past it"
    if memory.held is None and context.observation.gateway is None:
        return "refusals cannot be seen: no gateway is read"
    return ""
