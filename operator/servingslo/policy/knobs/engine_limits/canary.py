"""Try new batch limits in one pod and compare it with its siblings, before all pods get them.

Pods are compared with each other over the same time, never with an earlier time. A surge, longer
prompts or a slow network reach all of them alike, and say nothing about the limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from servingslo.estimation.requests.histograms import pooled_delta
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.context import TickContext
from servingslo.policy.inputs import LIMIT_FIELDS, InForce
from servingslo.policy.knobs.comparison import (
    LEAST_REQUESTS,
    PodGroup,
    requests_needed,
    worse_in_words,
)
from servingslo.policy.knobs.decisions import CanaryAct
from servingslo.policy.knobs.engine_limits.memory import BatchLimits, CanaryMemory
from servingslo.reasons import Reason

# A pod that has just started has an empty batch and cold caches.
WARM_UP_SECONDS = 60.0
COMPARED_WITHIN_SECONDS = 900.0
# A start is stuck if it takes longer than three usual cold starts and than two minutes.
COLD_STARTS = 3.0
LEAST_START_SECONDS = 120.0
# The third restart of a container already waits 40 s (kubelet's back-off of 10 s, doubled).
MOST_RESTARTS = 3
# Names of the values stored for a canary in progress, and for one that was taken back.
SINCE, HELD, EDITED, NEW_PODS = "since_seconds", "held", "edited", "new_pods"
STUCK = "stuck_pods"
# Name of the engines' own bound, and prefixes of the values before and after the canary.
QUEUE = "max_num_queued_reqs"
BEFORE, AFTER, ADDED, REFUSED = "before_", "after_", "added_", "refused_"
# Prefix of limits that the pod template's command line sets; None for a limit without a flag.
TEMPLATE = "template_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The canary in progress on the cluster.

    since_seconds: when it was ordered. flags_added: limits that had no flag before. held: no step
    happens by itself. edited: another client changed the template, or resumed the rollout.
    new_pods: of its template, ready or not. queue: the engines' own bound, before and after; empty
    if it stays.
    """

    since_seconds: float
    before: BatchLimits
    after: BatchLimits
    flags_added: tuple[str, ...] = ()
    held: bool = False
    edited: bool = False
    new_pods: int = 0
    queue: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryVerdict:
    """What to do about a canary now: act is None while it is watched. detail: for people."""

    act: CanaryAct | None
    reason: Reason
    memory: CanaryMemory | None
    detail: str = ""


def standing_canary(standing: InForce | None) -> Canary | None:
    """The canary in progress, None if there is none."""
    values = {} if standing is None else standing.values
    since, before, after = values.get(SINCE), _limits(values, BEFORE), _limits(values, AFTER)
    if since is None or before is None or after is None:
        return None
    return Canary(
        since_seconds=float(since),
        before=before,
        after=after,
        flags_added=tuple(name for name in LIMIT_FIELDS if values.get(f"{ADDED}{name}")),
        held=bool(values.get(HELD)),
        edited=bool(values.get(EDITED)),
        new_pods=values.get(NEW_PODS) or 0,
        queue=(values.get(f"{BEFORE}{QUEUE}"), values[f"{AFTER}{QUEUE}"])
        if f"{AFTER}{QUEUE}" in values
        else (),
    )


def refused_limits(standing: InForce | None) -> BatchLimits | None:
    """Limits that were taken back, if no input that matters has changed since."""
    return None if standing is None else _limits(standing.values, REFUSED)


def stuck_pods(standing: InForce | None) -> int:
    """Pods with such limits that are not ready, and that their controller cannot replace."""
    return 0 if standing is None else standing.values.get(STUCK) or 0


def judge_canary(
    context: TickContext, canary: Canary, memory: CanaryMemory | None
) -> CanaryVerdict:
    """Decide about the canary at this tick."""
    if memory is not None and memory.since_seconds != canary.since_seconds:
        memory = None
    if canary.edited:
        return CanaryVerdict(
            act=CanaryAct.LEAVE, reason=Reason.BATCHING_LEFT_TO_USER, memory=None,
            detail="somebody changed the pod template or its rollout meanwhile",
        )  # fmt: skip
    if canary.new_pods and not canary.held:
        reason = Reason.BATCHING_CANARY_HELD
        return CanaryVerdict(act=CanaryAct.HOLD, reason=reason, memory=memory)
    new, old = _split(context, canary)
    ready = [pod for pod in new if pod.ready]
    failed = _start_failure(context, canary, new) if not ready or memory is None else ""
    if failed:
        return _back(Reason.BATCHING_CANARY_FAILED, failed)
    if ready and not old:
        # No pod is left to compare with. The metrics from before the change still show the effect,
        # later.
        return _finish("no pod has the limits from before any more")
    return _compare_pods(context, canary, memory, (ready, [pod for pod in old if pod.ready]))


def _compare_pods(
    context: TickContext,
    canary: Canary,
    memory: CanaryMemory | None,
    pods: tuple[Sequence[PodSample], Sequence[PodSample]],
) -> CanaryVerdict:
    """The verdict from the measurements of both groups, as soon as there are enough."""
    now = context.now_seconds
    needed = requests_needed(context.targets.objectives)
    settled = bool(pods[0]) and all(_settled(pod) for pod in pods[0])
    if memory is None and settled and context.signals.no_metrics is None:
        engines = {key: e for group in pods for pod in group for key, e in _engines(pod)}
        memory = CanaryMemory(
            since_seconds=canary.since_seconds, began_seconds=now, engines=engines
        )
    longest = WARM_UP_SECONDS + COMPARED_WITHIN_SECONDS
    late = now - canary.since_seconds > _start_within(context) + longest
    if memory is not None:
        late = late or now - memory.began_seconds >= COMPARED_WITHIN_SECONDS
    new = _measure(context, memory, canary.after, pods[0])
    old = _measure(context, memory, canary.before, pods[1])
    detail = f"{new.requests:.0f} of {needed} requests compared"
    told = context.signals.no_metrics is None and min(new.requests, old.requests) >= LEAST_REQUESTS
    # A pod that is far slower than its siblings would take too long to serve as many requests.
    enough = max(new.requests, old.requests_per_engine) >= needed
    if not late and not (told and enough):
        running = Reason.BATCHING_CANARY_RUNNING
        return CanaryVerdict(act=None, reason=running, memory=memory, detail=detail)
    if not told:
        return _back(Reason.BATCHING_CANARY_NOT_COMPARED, detail)
    worse = worse_in_words(context, new, old)
    if worse:
        return _back(Reason.BATCHING_ROLLED_BACK, worse)
    return _finish(f"{new.requests:.0f} requests, no worse than {old.requests:.0f} elsewhere")


def _measure(
    context: TickContext,
    memory: CanaryMemory | None,
    limits: BatchLimits,
    pods: Sequence[PodSample],
) -> PodGroup:
    """Measurements of these pods since the comparison began, without pods that joined later."""
    if memory is None:
        return PodGroup(limits=limits)
    pairs = [
        (memory.engines[key], engine)
        for pod in pods
        for key, engine in _engines(pod)
        if key in memory.engines
    ]
    metrics = {LatencyMetric.TPOT, *(objective.metric for objective in context.targets.objectives)}
    deltas = {}
    for metric in metrics:
        read = attrgetter(ROW_OF[metric].histogram)
        delta = pooled_delta([(read(b), read(a)) for b, a in pairs if read(a) is not None])
        if delta is not None:
            deltas[metric] = delta
    seconds = context.now_seconds - memory.began_seconds
    return PodGroup(limits=limits, deltas=deltas, engines=len(pairs), seconds=seconds)


def _split(context: TickContext, canary: Canary) -> tuple[list[PodSample], list[PodSample]]:
    """The pods of the new template, and the pods of the former one."""
    pods = [pod for pod in context.observation.pods if not pod.deleting]
    if canary.before == canary.after:
        # Only the engines' own bound differs: the age of a pod shows whether it is from before.
        age = context.now_seconds - canary.since_seconds
        former = {pod.template_hash for pod in pods if (pod.age_seconds or 0.0) > age}
        return (
            [pod for pod in pods if pod.template_hash not in former],
            [pod for pod in pods if pod.template_hash in former],
        )
    new = {pod.template_hash for pod in pods if _in_force(pod, canary) == canary.after}
    old = {pod.template_hash for pod in pods if _in_force(pod, canary) == canary.before} - new
    # The template shows the group of a pod that is not read yet.
    ours = [
        pod for pod in pods if pod.template_hash in new or (old and pod.template_hash not in old)
    ]
    return ours, [pod for pod in pods if pod.template_hash in old]


def _in_force(pod: PodSample, canary: Canary) -> BatchLimits | None:
    """The limits of a pod's command line; a limit without a flag is as before the change."""
    if not pod.engines:
        return None
    engine = pod.engines[0]
    return BatchLimits(
        max_num_seqs=engine.max_num_seqs or canary.before.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens
        or canary.before.max_num_batched_tokens,
    )


def _engines(pod: PodSample) -> list[tuple[str, EngineSample]]:
    return [(f"{pod.name}/{engine.engine}", engine) for engine in pod.engines]


def _settled(pod: PodSample) -> bool:
    return bool(pod.engines) and (pod.ready_for_seconds or 0.0) >= WARM_UP_SECONDS


def _start_failure(context: TickContext, canary: Canary, new: Sequence[PodSample]) -> str:
    """Why the new pod does not become ready, in words; '' while it still may."""
    restarts = max((pod.restarts for pod in new), default=0)
    if restarts >= MOST_RESTARTS:
        return f"the new pod restarted {restarts} times"
    waited = context.now_seconds - canary.since_seconds
    if waited <= _start_within(context) or any(pod.ready for pod in new):
        return ""
    waits = (pod.unschedulable_reason or pod.queued_reason for pod in new)
    return next(filter(None, waits), None) or f"no new pod became ready within {waited:.0f} s"


def _start_within(context: TickContext) -> float:
    return max(COLD_STARTS * context.cold_start_seconds, LEAST_START_SECONDS)


def _back(reason: Reason, detail: str) -> CanaryVerdict:
    return CanaryVerdict(act=CanaryAct.TAKE_BACK, reason=reason, memory=None, detail=detail)


def _finish(detail: str) -> CanaryVerdict:
    reason = Reason.BATCHING_CHANGED
    return CanaryVerdict(act=CanaryAct.COMPLETE, reason=reason, memory=None, detail=detail)


def _limits(values: Mapping[str, int | None], prefix: str) -> BatchLimits | None:
    sequences, budget = (values.get(f"{prefix}{name}") for name in LIMIT_FIELDS)
    if not sequences or not budget:
        return None
    return BatchLimits(max_num_seqs=sequences, max_num_batched_tokens=budget)
