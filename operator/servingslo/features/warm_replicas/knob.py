"""Which pods sleep, one step at a time: out of the traffic, then asleep; awake, then in traffic.

A pod that is to sleep gets no requests first, and is put to sleep only when a scrape from after
that shows none running or waiting. One that sleeps and has requests all the same is woken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from servingslo.estimation.pods.health import ASLEEP
from servingslo.estimation.sample import PodSample
from servingslo.estimation.stored_fields import number_of
from servingslo.features.warm_replicas.call import (
    DECISION,
    TARGETS,
    WARM_REPLICAS,
    WarmDecision,
    WarmTargets,
    pods_on_call,
)
from servingslo.features.warm_replicas.mix import (
    LONGEST_WAKE_SECONDS,
    NEWEST_WEIGHT,
    Awake,
    WarmMemory,
    awake_of,
    known,
)
from servingslo.policy.facts import Facts
from servingslo.policy.hpa_behavior import DEFAULT_DOWN_WINDOW_SECONDS
from servingslo.policy.inputs import Actuation, InForce, SignalProblem
from servingslo.policy.knobs.protocol import Look, Outcome, PlainKnob, Turn
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import CONFLICTS, acting_limit
from servingslo.reasons import Reason

# A gateway learns within seconds that a pod has left; a scrape shows what it has afterwards.
# Judgement; measured by requests that reach a pod later, on a real cluster.
DRAIN_SECONDS = 30.0
# Begins with the kernel's word, so that such a pod counts as one that sleeps.
_NO_REQUESTS = f"{ASLEEP}: on call"
_UNTOLD = "no engine tells whether it sleeps"


class WarmKnob(PlainKnob):
    """The pods on call."""

    name, key, stored_as = WARM_REPLICAS, DECISION, "warm"

    def observe(self, look: Look, standing: InForce | None, memory: object) -> Facts | None:
        """Pods that take no requests are no capacity; those that can be woken are on call."""
        if standing is None:
            return None
        out, woken = pods_on_call(standing), known(memory).woken or {}
        failed = {pod for pod, at in woken.items() if look.now_seconds - at >= LONGEST_WAKE_SECONDS}
        return Facts(
            not_capacity=tuple((pod, _NO_REQUESTS) for pod in sorted(out)),
            on_call=frozenset() if standing.refused else (out | woken.keys()) - failed,
        )

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide the pods to take out, to put to sleep and to wake."""
        context = turn.context
        stated = TARGETS.of(context.targets.features)
        standing = context.observation.in_force.get(WARM_REPLICAS)
        if stated is None or standing is None:
            return Outcome(None)
        owned = context.owner is not None and context.owner.reason not in CONFLICTS
        blind = context.signals.no_metrics is not None
        awake = None if owned or blind else awake_of(context)
        tick = _Tick(context=context, out=pods_on_call(standing), awake=awake)
        remembered = _seen(tick, known(memory))
        told = _told(tick, stated, remembered)
        if not turn.acting:
            limit = acting_limit(context.targets, context.limits)
            return Outcome(replace(told, reason=limit or told.reason), remembered)
        if standing.refused is not None:
            return Outcome(*_wake(told, remembered, tick, told.on_call, standing.refused))
        # The pods that Kubernetes removes now may be those that were to stay.
        moves = turn.scaling and context.targets.actuation is Actuation.SCALE
        return Outcome(*_step(tick, told, remembered, replace(stated, most=0) if moves else stated))

    def dump(self, memory: object) -> object:
        """The measured wake time, and when all replicas were last needed."""
        found = known(memory)
        if found == WarmMemory():
            return None
        return {"wake": found.wake_seconds, "needed": found.needed_seconds}

    def load(self, stored: object, now_seconds: float) -> object:
        """The reverse, no time in the future; None for a malformed value."""
        if not isinstance(stored, dict):
            return None
        wake, since = number_of(stored.get("wake")), stored.get("needed")
        needed = None if since is None else number_of(since)
        if wake is None or wake > LONGEST_WAKE_SECONDS or (needed is None) != (since is None):
            return None
        needed = None if needed is None else min(needed, now_seconds)
        return WarmMemory(wake_seconds=wake, needed_seconds=needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tick:
    """One tick, the pods that take no requests, and who must be awake, None if that is unknown."""

    context: TickContext
    out: frozenset[str]
    awake: Awake | None

    @property
    def pods(self) -> Mapping[str, PodSample]:
        """All pods that are not being deleted, by name."""
        return {pod.name: pod for pod in self.context.observation.pods if not pod.deleting}

    def asleep(self, pod: str) -> bool:
        """Whether its engines are seen to sleep."""
        found = self.pods.get(pod)
        return found is not None and any(engine.asleep for engine in found.engines)

    def is_idle(self, pod: str, since_seconds: float) -> bool:
        """Whether a scrape from after that time shows no request there."""
        found, waited = self.pods.get(pod), self.context.now_seconds - since_seconds
        if found is None or not found.engines or waited < DRAIN_SECONDS:
            return False
        return all(
            one.running == 0.0
            and one.waiting == 0.0
            and one.gauges_age_seconds is not None
            and one.gauges_age_seconds < waited
            for one in found.engines
        )

    def has_requests(self, pod: str) -> bool:
        """Whether requests are seen at it."""
        found = self.pods.get(pod)
        engines = () if found is None else found.engines
        return any((one.running or 0.0) + (one.waiting or 0.0) > 0.0 for one in engines)


def _seen(tick: _Tick, memory: WarmMemory) -> WarmMemory:
    """The memory with what this tick shows: pods that are out, and pods that woke."""
    now = tick.context.now_seconds
    out = {pod: (memory.out or {}).get(pod, now) for pod in tick.out & tick.pods.keys()}
    woken = dict[str, float]()
    for pod, at in (memory.woken or {}).items():
        if pod in tick.out or tick.asleep(pod):
            woken[pod] = at
        elif pod in tick.pods and now - at < LONGEST_WAKE_SECONDS:
            mean = memory.wake_seconds
            mean += NEWEST_WEIGHT * (now - at - mean)
            memory = replace(memory, wake_seconds=mean)
    return replace(memory, out=out, woken=woken)


def _told(tick: _Tick, stated: WarmTargets, memory: WarmMemory) -> WarmDecision:
    """What stands, with nothing ordered."""
    context, on_call = tick.context, tuple(sorted(tick.out & tick.pods.keys()))
    asleep = sum(map(tick.asleep, on_call))
    cost = context.targets.cost
    priced = context.current - (1.0 - stated.cost_ratio) * asleep
    return WarmDecision(
        reason=Reason.DEMAND_MET,
        awake=tick.awake.needed if tick.awake else max(context.current - len(on_call), 0),
        on_call=on_call,
        asleep=asleep,
        wake_seconds=memory.wake_seconds,
        cost_per_hour=None if cost is None else priced * cost.replica_hourly,
    )


_Step = tuple[WarmDecision, WarmMemory]


def _step(tick: _Tick, told: WarmDecision, memory: WarmMemory, stated: WarmTargets) -> _Step:
    """What is done at this tick."""
    context, now = tick.context, tick.context.now_seconds
    problem, awake = context.signals.no_metrics, tick.awake
    if problem is not None and not context.briefly_blind:
        return _wake(told, memory, tick, told.on_call, problem)
    disturbed = [pod for pod in told.on_call if tick.asleep(pod) and tick.has_requests(pod)]
    if awake is None:
        return _wake(told, memory, tick, disturbed)
    missing, since = awake.needed - awake.present, memory.fewer_seconds
    if awake.needed >= context.current:
        memory = replace(memory, needed_seconds=now)
    if missing > 0 or disturbed:
        # What was asked and is not back is asked again, but keeps no other one waiting.
        asked = tick.out & (memory.woken or {}).keys() if missing > 0 else frozenset()
        first = sorted(told.on_call, key=lambda pod: (tick.asleep(pod), pod))
        again = [pod for pod in first if pod in asked and pod not in disturbed]
        rest = [pod for pod in first if pod not in asked and pod not in disturbed]
        fresh = [pod for pod in disturbed if pod not in asked]
        more = rest[: max(missing - len(fresh), 0)]
        return _wake(told, memory, tick, [*disturbed, *again, *more])
    _, memory = _wake(told, memory, tick, ())
    since = now if since is None else since
    memory = replace(memory, fewer_seconds=since if missing < 0 else None)
    idle = [
        pod
        for pod in told.on_call
        if not tick.asleep(pod) and tick.is_idle(pod, (memory.out or {}).get(pod, now))
    ]
    settled = now - since >= DEFAULT_DOWN_WINDOW_SECONDS
    room = min(-missing, stated.most - len(told.on_call)) if settled else 0
    names = _least_busy(tick)[: max(room, 0)]
    if room > 0 and not names:
        told = replace(told, reason=Reason.KIND_NOT_SUPPORTED, detail=_UNTOLD)
    if not idle and not names:
        return told, memory
    ordered = replace(told, takes_out=tuple(names), sleeps=tuple(idle))
    return replace(ordered, reason=Reason.ENGINES_PUT_TO_SLEEP), memory


def _least_busy(tick: _Tick) -> list[str]:
    """The pods that serve and tell whether they sleep, in the order in which they are taken out."""
    busy = {
        pod.name: sum((one.running or 0.0) + (one.waiting or 0.0) for one in pod.engines)
        for pod in tick.context.serving
        if pod.engines and all(one.sleep_states for one in pod.engines)
    }
    return sorted(busy, key=lambda pod: (busy[pod], pod))


def _wake(
    told: WarmDecision,
    memory: WarmMemory,
    tick: _Tick,
    pods: Sequence[str],
    problem: SignalProblem | None = None,
) -> _Step:
    """Wake these pods; those that were asked a moment ago and are not back are asked again."""
    now, asked = tick.context.now_seconds, memory.woken or {}
    waiting = {pod: at for pod, at in asked.items() if pod not in tick.out}
    woken = waiting | {pod: asked.get(pod, now) for pod in pods}
    memory = replace(memory, woken=woken, fewer_seconds=None)
    if pods:
        told = replace(told, wakes=tuple(pods), reason=Reason.ENGINES_WOKEN)
    if problem is not None:
        told = replace(told, reason=problem.reason, detail=problem.detail)
    return told, memory


PART = WarmKnob()
