"""New batch limits in one pod, beside its siblings: whether all pods get them, or none.

Pods are compared with each other over the same time, never with the time before: a surge, longer
prompts or a slow network reach all of them alike, and say nothing of the limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from servingslo.estimation.histograms import HistogramDelta, pooled_delta
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.latency import LatencyMetric, Objective, Routing, latency_model
from servingslo.models.objective_metrics import ROW_OF
from servingslo.policy.batching_decision import CanaryAct
from servingslo.policy.context import TickContext
from servingslo.policy.inputs import InForce
from servingslo.policy.state import LIMIT_FIELDS, BatchLimits, CanaryMemory
from servingslo.reasons import Reason

# Of the shares of requests beyond a threshold: half of the least that p95 objectives tell apart.
ERROR_RATIO = 0.05
# One-sided 95 %.
CONFIDENCE_DEVIATIONS = 1.645
# Requests of one batch are slow together: a share varies as that of half as many would.
DESIGN_EFFECT = 2.0
# A share below this is not told apart with fewer requests than this one is.
LEAST_RATIO = 0.05
# Fewer tell nothing: of 30 requests without a miss up to 10 % may be missed (rule of three).
LEAST_REQUESTS = 30
# A pod that has just started has an empty batch and cold caches.
WARM_UP_SECONDS = 60.0
COMPARED_WITHIN_SECONDS = 900.0
# A start that takes three times as long as usual, or two minutes where that is short, hangs.
COLD_STARTS = 3.0
LEAST_START_SECONDS = 120.0
# The third restart of a container waits for 40 s already (kubelet's back-off of 10 s, doubled).
MOST_RESTARTS = 3
# Steps this much longer than the law says, against the siblings': real engines are predicted
# within 19 % at the 95th percentile (docs/designs/0006-real-engine.md).
MODEL_ERROR_RATIO = 1.25
# Balancing by chance gives a pod this many fewer at times.
LEAST_FEWER_RATIO = 0.2
# What is written down of a canary that stands, and of one that was taken back.
SINCE, HELD, EDITED, NEW_PODS = "since_seconds", "held", "edited", "new_pods"
STUCK = "stuck_pods"
# The bound of the engines' own in the template, and what a canary has it be.
QUEUE = "max_num_queued_reqs"
BEFORE, AFTER, ADDED, REFUSED = "before_", "after_", "added_", "refused_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The canary that stands on the cluster.

    since_seconds: when it was ordered. flags_added: limits that had no flag before. held: nothing
    goes on by itself. edited: somebody else changed the template, or let the rollout go on.
    new_pods: of its template, ready or not. queue: the engines' own bound, before and after; empty
    where it stays.
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
    """What is done about a canary now: act is None while it is watched. detail: for people."""

    act: CanaryAct | None
    reason: Reason
    memory: CanaryMemory | None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """What the pods of one template measured over the comparison, by metric."""

    deltas: Mapping[LatencyMetric, HistogramDelta] = field(default_factory=dict)
    engines: int = 0

    @property
    def requests(self) -> float:
        """Of the metric that counts most of them: one has no time per token with a single one."""
        return max((delta.count for delta in self.deltas.values()), default=0.0)

    @property
    def token_seconds(self) -> float | None:
        """Mean time per output token."""
        delta = self.deltas.get(LatencyMetric.TPOT)
        return None if delta is None else delta.mean


def standing_canary(standing: InForce | None) -> Canary | None:
    """The canary that stands, None where there is none."""
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
    """Limits that were taken back, and nothing that matters has changed since."""
    return None if standing is None else _limits(standing.values, REFUSED)


def stuck_pods(standing: InForce | None) -> int:
    """Pods with such limits that are not ready, and that their controller cannot replace."""
    return 0 if standing is None else standing.values.get(STUCK) or 0


def requests_needed(objectives: Sequence[Objective]) -> int:
    """Requests of the canary, or of a sibling on average, after which it is judged.

    Such that a share which is allowed to miss its threshold is known to ERROR_RATIO, one-sided.
    Source: sample size of a binomial share, z²·p(1-p)/e², twice it for two shares.
    """
    shares = [max(1.0 - one.percentile / 100.0, LEAST_RATIO) for one in objectives]
    share = max(shares, default=LEAST_RATIO)
    deviations = CONFIDENCE_DEVIATIONS / ERROR_RATIO
    return math.ceil(DESIGN_EFFECT * 2.0 * deviations**2 * share * (1.0 - share))


def judge_canary(
    context: TickContext, canary: Canary, memory: CanaryMemory | None
) -> CanaryVerdict:
    """What becomes of the canary at this tick."""
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
    failed = _failed(context, canary, new) if not ready or memory is None else ""
    if failed:
        return _back(Reason.BATCHING_CANARY_FAILED, failed)
    if ready and not old:
        # Nothing is left to compare with; what was measured before tells all the same, later.
        return _finished("no pod has the limits from before any more")
    return _compared(context, canary, memory, (ready, [pod for pod in old if pod.ready]))


def _compared(
    context: TickContext,
    canary: Canary,
    memory: CanaryMemory | None,
    pods: tuple[Sequence[PodSample], Sequence[PodSample]],
) -> CanaryVerdict:
    """The verdict by what both groups measured, as soon as that is enough."""
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
    new, old = (_measured(context, memory, group) for group in pods)
    detail = f"{new.requests:.0f} of {needed} requests compared"
    told = context.signals.no_metrics is None and min(new.requests, old.requests) >= LEAST_REQUESTS
    # A pod that is far slower than its siblings would take for ever to serve as many.
    enough = max(new.requests, old.requests / max(old.engines, 1)) >= needed
    if not late and not (told and enough):
        running = Reason.BATCHING_CANARY_RUNNING
        return CanaryVerdict(act=None, reason=running, memory=memory, detail=detail)
    if not told:
        return _back(Reason.BATCHING_CANARY_NOT_COMPARED, detail)
    worse = _worse(context, new, old) or _refuted(context, canary, memory, (new, old))
    if worse:
        return _back(Reason.BATCHING_ROLLED_BACK, worse)
    return _finished(f"{new.requests:.0f} requests, no worse than {old.requests:.0f} elsewhere")


def _worse(context: TickContext, new: _Group, old: _Group) -> str:
    """Where the new limits cost an objective more than they give any other, in words.

    A pod that serves fewer requests than its siblings gives that many fewer. Where it misses an
    objective itself it is worse by that alone: requests that clients give up are in no histogram.
    """
    served = min(new.requests * old.engines / (old.requests * max(new.engines, 1)), 1.0)
    harm, gained, told, misses = 0.0, 0.0, "", ""
    for objective in context.targets.objectives:
        ours, theirs = (_missed(objective, group) for group in (new, old))
        if ours is None or theirs is None:
            continue
        allowed = 1.0 - objective.percentile / 100.0
        more = max(ours[0], allowed) - max(theirs[0], allowed)
        gained = max(gained, -more * served)
        alone = CONFIDENCE_DEVIATIONS * math.sqrt(DESIGN_EFFECT * _variance(*ours))
        misses = objective.key if ours[0] > allowed + max(ERROR_RATIO, alone) else misses
        spread = math.sqrt(DESIGN_EFFECT * (_variance(*ours) + _variance(*theirs)))
        if more > max(harm, ERROR_RATIO, CONFIDENCE_DEVIATIONS * spread):
            harm = more
            told = (
                f"{objective.key} missed by {ours[0]:.1%} of {ours[1]:.0f} requests, "
                f"elsewhere by {theirs[0]:.1%} of {theirs[1]:.0f}"
            )
    if harm > gained:
        return told
    spread = CONFIDENCE_DEVIATIONS * math.sqrt(DESIGN_EFFECT / new.requests)
    if misses and served < 1.0 - max(LEAST_FEWER_RATIO, spread):
        theirs_mean = old.requests / old.engines
        return (
            f"{misses} missed, and {new.requests:.0f} requests served, elsewhere {theirs_mean:.0f}"
        )
    return ""


def _refuted(
    context: TickContext, canary: Canary, memory: CanaryMemory | None, groups: tuple[_Group, _Group]
) -> str:
    """Where tokens take longer than with the siblings, and the law does not say so; in words.

    The limits were found with that law: what they were to save is not there either.
    """
    if memory is None:
        return ""
    seconds = context.now_seconds - memory.began_seconds
    measured = _ratio(*(group.token_seconds for group in groups))
    expected = _ratio(
        _predicted_token_seconds(context, canary.after, groups[0], seconds),
        _predicted_token_seconds(context, canary.before, groups[1], seconds),
    )
    if measured is None or expected is None or measured <= MODEL_ERROR_RATIO * max(expected, 1.0):
        return ""
    return f"a token takes {measured:.2f} times as long as elsewhere; the model says {expected:.2f}"


def _ratio(one: float | None, other: float | None) -> float | None:
    """None where either is not known, or infinite: beyond saturation no law predicts."""
    if not one or not other or math.isinf(one) or math.isinf(other):
        return None
    return one / other


def _predicted_token_seconds(
    context: TickContext, limits: BatchLimits, group: _Group, seconds: float
) -> float | None:
    """Mean gap between tokens under the load that the group had; None where no law is known."""
    prepared = context.prepared
    if prepared is None or seconds <= 0 or not group.engines:
        return None
    in_force = replace(
        prepared.limits,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )
    rate = group.requests / seconds / group.engines
    model = latency_model(prepared.workload, prepared.law, in_force)
    return model.predict(rate, 1, Routing.POOLED).itl_mean_seconds


def _missed(objective: Objective, group: _Group) -> tuple[float, float] | None:
    """Share of requests beyond the threshold, and of how many; None where too few tell."""
    delta = group.deltas.get(objective.metric)
    within = None if delta is None else delta.share_within(objective.threshold_seconds)
    if delta is None or within is None or delta.count < LEAST_REQUESTS:
        return None
    # The bucket that holds the threshold is counted by half, with both groups.
    return 1.0 - (within[0] + within[1]) / 2.0, delta.count


def _variance(share: float, requests: float) -> float:
    return share * (1.0 - share) / requests


def _measured(
    context: TickContext, memory: CanaryMemory | None, pods: Sequence[PodSample]
) -> _Group:
    """What these pods measured since the comparison began; those that came later are left out."""
    if memory is None:
        return _Group()
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
    return _Group(deltas=deltas, engines=len(pairs))


def _split(context: TickContext, canary: Canary) -> tuple[list[PodSample], list[PodSample]]:
    """The pods of the new template, and those of the one before."""
    pods = [pod for pod in context.observation.pods if not pod.deleting]
    if canary.before == canary.after:
        # Only the engines' own bound differs: pods from before it are told by their age.
        age = context.now_seconds - canary.since_seconds
        former = {pod.template_hash for pod in pods if (pod.age_seconds or 0.0) > age}
        return (
            [pod for pod in pods if pod.template_hash not in former],
            [pod for pod in pods if pod.template_hash in former],
        )
    new = {pod.template_hash for pod in pods if _in_force(pod, canary) == canary.after}
    old = {pod.template_hash for pod in pods if _in_force(pod, canary) == canary.before} - new
    # A pod that is not read yet is told by its template.
    ours = [
        pod for pod in pods if pod.template_hash in new or (old and pod.template_hash not in old)
    ]
    return ours, [pod for pod in pods if pod.template_hash in old]


def _in_force(pod: PodSample, canary: Canary) -> BatchLimits | None:
    """The limits of a pod's command line; what that does not give is as before the change."""
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


def _failed(context: TickContext, canary: Canary, new: Sequence[PodSample]) -> str:
    """Why the new pod does not come, in words; '' while it may."""
    restarts = max((pod.restarts for pod in new), default=0)
    if restarts >= MOST_RESTARTS:
        return f"the new pod restarted {restarts} times"
    waited = context.now_seconds - canary.since_seconds
    if waited <= _start_within(context) or any(pod.ready for pod in new):
        return ""
    unplaced = next((pod.unschedulable_reason for pod in new if pod.unschedulable_reason), None)
    return unplaced or f"no new pod became ready within {waited:.0f} s"


def _start_within(context: TickContext) -> float:
    return max(COLD_STARTS * context.cold_start_seconds, LEAST_START_SECONDS)


def _back(reason: Reason, detail: str) -> CanaryVerdict:
    return CanaryVerdict(act=CanaryAct.TAKE_BACK, reason=reason, memory=None, detail=detail)


def _finished(detail: str) -> CanaryVerdict:
    reason = Reason.BATCHING_CHANGED
    return CanaryVerdict(act=CanaryAct.COMPLETE, reason=reason, memory=None, detail=detail)


def _limits(values: Mapping[str, int | None], prefix: str) -> BatchLimits | None:
    sequences, budget = (values.get(f"{prefix}{name}") for name in LIMIT_FIELDS)
    if not sequences or not budget:
        return None
    return BatchLimits(max_num_seqs=sequences, max_num_batched_tokens=budget)
