"""Try new batch limits in one pod before all pods get them: the canary on the cluster, and its end.

A change of the pod template makes the first pod: which pods have it shows in their command lines.
If a GitOps tool's manifest states the container's arguments, it treats each change as drift and
puts it back; limits are then left to it for a day, because each write and revert restarts pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from servingslo.estimation.requests.histograms import pooled_delta
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.features.batch_limits.decision import CanaryAct, TemplateDecision
from servingslo.features.batch_limits.engine_bound import REFUSED
from servingslo.features.batch_limits.memory import (
    BatchChange,
    BatchingMemory,
    BatchSearch,
    LimitsRevert,
)
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.inputs import LIMIT_FIELDS, BatchingMode, InForce
from servingslo.policy.knobs.decisions import RolloutCost
from servingslo.policy.knobs.in_flight.engines import QUEUE, SINCE, standing_limits
from servingslo.policy.knobs.protocol import Turn
from servingslo.policy.knobs.trial import comparison, stages
from servingslo.policy.knobs.trial.comparison import Sample
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.rules.batch_search import BatchLimits
from servingslo.reasons import Reason

# A start is stuck if it takes longer than three usual cold starts and than two minutes.
COLD_STARTS = 3.0
LEAST_START_SECONDS = 120.0
# The third restart of a container already waits 40 s (kubelet's back-off of 10 s, doubled).
MOST_RESTARTS = 3
# Names of the values stored for a canary in progress.
HELD, EDITED, NEW_PODS = "held", "edited", "new_pods"
# Prefixes of the values before and after the canary, and of flags that it added.
BEFORE, AFTER, ADDED = "before_", "after_", "added_"
# Prefix of limits that the pod template's command line sets; None for a limit without a flag.
TEMPLATE = "template_"
_TO_PUT_BACK = "no pod template may be changed any more; one pod's limits on trial are put back"
_ACTS = {
    stages.Stage.FIRST_POD: None,
    stages.Stage.EVERYWHERE: CanaryAct.COMPLETE,
    stages.Stage.BACK: CanaryAct.TAKE_BACK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The canary in progress on the cluster.

    flags_added: limits that had no flag before. held: no step happens by itself. edited: another
    client changed the template, or resumed the rollout. new_pods: of its template, ready or not.
    """

    change: BatchChange
    flags_added: tuple[str, ...] = ()
    held: bool = False
    edited: bool = False
    new_pods: int = 0


class Tuned(NamedTuple):
    """The decision about batch limits, the memory for the next tick, and the steps taken."""

    decision: TemplateDecision
    memory: BatchingMemory
    steps: tuple[DecisionStep, ...] = ()


def no_canary(context: TickContext) -> str | None:
    """Why one pod cannot go first; None if it can."""
    standing = standing_limits(context)
    return None if standing is None or standing.refused is None else standing.refused.detail


def standing_canary(standing: InForce | None) -> Canary | None:
    """The canary in progress, None if there is none."""
    values = {} if standing is None else standing.values
    since, before, after = values.get(SINCE), _limits(values, BEFORE), _limits(values, AFTER)
    if since is None or before is None or after is None:
        return None
    bounds = [values.get(f"{prefix}{QUEUE}") for prefix in (BEFORE, AFTER)]
    queue = tuple(bounds) if f"{AFTER}{QUEUE}" in values else ()
    return Canary(
        change=BatchChange(at_seconds=float(since), before=before, after=after, queue=queue),
        flags_added=tuple(name for name in LIMIT_FIELDS if values.get(f"{ADDED}{name}")),
        held=bool(values.get(HELD)),
        edited=bool(values.get(EDITED)),
        new_pods=values.get(NEW_PODS) or 0,
    )


def is_refused(context: TickContext, current: BatchLimits, best: BatchLimits) -> bool:
    """Whether a limit would move in the direction of a change that was taken back."""
    standing = standing_limits(context)
    limits = None if standing is None else _limits(standing.values, REFUSED)
    refusal = None if limits is None else stages.Refusal(setting=limits)
    return refusal is not None and refusal.forbids(current, best, context.now_seconds)


def note_standing(
    context: TickContext, memory: BatchingMemory, canary: Canary | None
) -> BatchingMemory:
    """The memory after a look at the workload: what is under way, and who reverted our limits."""
    limits, targets = context.limits, context.targets
    asked = limits.pod_templates_patched and targets.batching.mode is BatchingMode.AUTO
    asked = asked and context.acting_limit is None
    if canary is not None:
        change, began = canary.change, memory.began
        if began is not None and began.since_seconds != change.at_seconds:
            began = None
        last = max(change.at_seconds, memory.last_change_seconds or 0.0)
        memory = replace(memory, under_way=change, began=began, last_change_seconds=last)
    elif not context.observation.rollout_in_progress and not context.pods.coming:
        memory = replace(_ended(context, memory), under_way=None, began=None)
    if not asked:
        # What is on trial goes back by the operator itself, which is no other client's revert.
        return replace(memory, written=None)
    written = memory.written if canary is None else canary.change
    return _note_revert(context, replace(memory, written=written))


def _ended(context: TickContext, memory: BatchingMemory) -> BatchingMemory:
    """The memory with the time of the change under way, if its limits are in force."""
    change, limits = memory.under_way, context.estimate.limits
    if change is None or limits is None:
        return memory
    if (limits.max_num_seqs, limits.max_num_batched_tokens) != change.after:
        return memory
    return replace(
        memory, last_change_seconds=max(change.at_seconds, memory.last_change_seconds or 0.0)
    )


def _note_revert(context: TickContext, memory: BatchingMemory) -> BatchingMemory:
    """The memory after a look at the pod template.

    Limits that are neither ours nor the former ones are a decision of another client, and no
    revert.
    """
    written, found = memory.written, standing_limits(context)
    if written is None or found is None:
        return memory
    now = [found.values.get(f"{TEMPLATE}{name}", 0) for name in LIMIT_FIELDS]
    if 0 in now:
        # The template's command line is not understood.
        return memory
    same_queue = not written.queue or found.values.get(QUEUE) == written.queue[1]
    if now == [*written.after] and same_queue:
        return memory
    memory = replace(memory, written=None)
    # A flag that our change added may be gone.
    if any(value not in (former, None) for value, former in zip(now, written.before, strict=True)):
        return memory
    reverted = LimitsRevert(limits=written.before, at_seconds=context.now_seconds, by=found.set_by)
    return replace(memory, reverted=reverted)


def watch(turn: Turn, memory: BatchingMemory, canary: Canary) -> Tuned:
    """The canary in progress, and what to do about it now."""
    context, change = turn.context, canary.change
    memory, act, reason, detail = _next_act(context, memory, canary)
    if not context.limits.pod_templates_patched:
        act, reason, detail = None, Reason.NOT_PERMITTED, _TO_PUT_BACK
    act = act if turn.acting else None
    back = act is CanaryAct.TAKE_BACK
    now, wanted = (change.after, change.before) if back else (change.before, change.after)
    decision = replace(
        batching_decision(context, now, wanted, reason, apply=act is not None),
        canary=act,
        detail=detail,
        flags_removed=canary.flags_added if back else (),
        queue=change.queue[::-1] if back else change.queue,
    )
    if act is None or act is CanaryAct.HOLD:
        return Tuned(decision, memory)
    # If the write is refused, the canary still stands at the next tick, and it is written again.
    written = None if back else memory.written
    memory = replace(memory, last_change_seconds=context.now_seconds, written=written)
    return Tuned(decision, memory, (change_step(change, decision.reason, decision),))


def _next_act(
    context: TickContext, memory: BatchingMemory, canary: Canary
) -> tuple[BatchingMemory, CanaryAct | None, Reason, str]:
    """The memory, the act (None while the canary is watched), why, and that for people."""
    if canary.edited:
        detail = "somebody changed the pod template or its rollout meanwhile"
        return memory, CanaryAct.LEAVE, Reason.BATCHING_LEFT_TO_USER, detail
    if canary.new_pods and not canary.held:
        return memory, CanaryAct.HOLD, Reason.BATCHING_CANARY_HELD, ""
    verdict = stages.judge_first_pod(
        _first_pod(context, canary.change, memory.began),
        memory.began,
        context.targets.objectives,
        context.now_seconds,
    )
    memory = replace(memory, began=verdict.began or memory.began)
    return memory, _ACTS[verdict.stage], verdict.reason, verdict.detail


def _first_pod(
    context: TickContext, change: BatchChange, began: stages.Began[EngineSample] | None
) -> stages.FirstPod[EngineSample]:
    """The pods of the new template and those of the former one, and how they compare."""
    new, old = _split(context, change)
    ready = [[pod for pod in group if pod.ready] for group in (new, old)]
    ours, theirs = (_measure(context, began, pods) for pods in ready)
    return stages.FirstPod(
        since_seconds=change.at_seconds,
        start_seconds=_start_within(context),
        failed=_start_failure(context, change, new),
        serves=bool(ready[0]),
        settled=bool(ready[0]) and all(_settled(pod) for pod in ready[0]),
        comparable=bool(old),
        readable=context.signals.no_metrics is None,
        counters={key: engine for group in ready for pod in group for key, engine in _engines(pod)},
        new=ours,
        old=theirs,
        needed=comparison.requests_needed(
            comparison.share_variance(context.targets.objectives),
            comparison.ERROR_RATIO,
            ours.design_effect,
        ),
    )


def _measure(
    context: TickContext, began: stages.Began[EngineSample] | None, pods: Sequence[PodSample]
) -> Sample:
    """Measurements of these pods since the comparison began, without pods that joined later."""
    if began is None:
        return Sample()
    pairs = [
        (began.counters[key], engine)
        for pod in pods
        for key, engine in _engines(pod)
        if key in began.counters
    ]
    metrics = {LatencyMetric.TPOT, *(objective.metric for objective in context.targets.objectives)}
    deltas = {}
    for metric in metrics:
        read = attrgetter(ROW_OF[metric].histogram)
        delta = pooled_delta([(read(b), read(a)) for b, a in pairs if read(a) is not None])
        if delta is not None:
            deltas[metric] = delta
    return Sample(deltas=deltas, engines=len(pairs))


def _split(context: TickContext, change: BatchChange) -> tuple[list[PodSample], list[PodSample]]:
    """The pods of the new template, and the pods of the former one."""
    pods = [pod for pod in context.observation.pods if not pod.deleting]
    if change.before == change.after:
        # Only the engines' own bound differs: the age of a pod shows whether it is from before.
        age = context.now_seconds - change.at_seconds
        former = {pod.template_hash for pod in pods if (pod.age_seconds or 0.0) > age}
        return (
            [pod for pod in pods if pod.template_hash not in former],
            [pod for pod in pods if pod.template_hash in former],
        )
    new = {pod.template_hash for pod in pods if _in_force(pod, change) == change.after}
    old = {pod.template_hash for pod in pods if _in_force(pod, change) == change.before} - new
    # The template shows the group of a pod that is not read yet.
    ours = [
        pod for pod in pods if pod.template_hash in new or (old and pod.template_hash not in old)
    ]
    return ours, [pod for pod in pods if pod.template_hash in old]


def _in_force(pod: PodSample, change: BatchChange) -> BatchLimits | None:
    """The limits of a pod's command line; a limit without a flag is as before the change."""
    if not pod.engines:
        return None
    engine = pod.engines[0]
    stated = (engine.max_num_seqs, engine.max_num_batched_tokens)
    return BatchLimits(*(now or old for now, old in zip(stated, change.before, strict=True)))


def _engines(pod: PodSample) -> list[tuple[str, EngineSample]]:
    return [(f"{pod.name}/{engine.engine}", engine) for engine in pod.engines]


def _settled(pod: PodSample) -> bool:
    return bool(pod.engines) and (pod.ready_for_seconds or 0.0) >= stages.WARM_UP_SECONDS


def _start_failure(context: TickContext, change: BatchChange, new: Sequence[PodSample]) -> str:
    """Why the new pod does not become ready, in words; '' while it still may."""
    restarts = max((pod.restarts for pod in new), default=0)
    if restarts >= MOST_RESTARTS:
        return f"the new pod restarted {restarts} times"
    waited = context.now_seconds - change.at_seconds
    if waited <= _start_within(context) or any(pod.ready for pod in new):
        return ""
    waits = (pod.unschedulable_reason or pod.queued_reason for pod in new)
    return next(filter(None, waits), None) or f"no new pod became ready within {waited:.0f} s"


def _start_within(context: TickContext) -> float:
    return max(COLD_STARTS * context.cold_start_seconds, LEAST_START_SECONDS)


def _limits(values: Mapping[str, int | None], prefix: str) -> BatchLimits | None:
    sequences, budget = (values.get(f"{prefix}{name}") for name in LIMIT_FIELDS)
    if not sequences or not budget:
        return None
    return BatchLimits(sequences, budget)


def batching_decision(
    context: TickContext,
    current: BatchLimits,
    best: BatchLimits | None,
    reason: Reason,
    *,
    apply: bool = False,
    search: BatchSearch | None = None,
) -> TemplateDecision:
    """The decision. search: the source of its plans, if a search judged the limits."""
    differs = search is not None and best == search.best != current
    return TemplateDecision(
        reason=reason,
        apply=apply,
        container=context.targets.batching.container,
        current_max_num_seqs=current.max_num_seqs,
        recommended_max_num_seqs=None if best is None else best.max_num_seqs,
        current_max_num_batched_tokens=current.max_num_batched_tokens,
        recommended_max_num_batched_tokens=None if best is None else best.max_num_batched_tokens,
        replicas_saved=search.replicas_saved if search is not None and differs else None,
        today=None if search is None else search.today,
        better=search.better if search is not None and differs else None,
        rollout=rollout_cost(context, search) if search is not None and differs else None,
    )


def rollout_cost(context: TickContext, search: BatchSearch) -> RolloutCost:
    """The cost of changing the limits of all pods, each with a surge pod for its cold start."""
    surge = context.current * context.cold_start_seconds
    saved = search.replicas_saved
    return RolloutCost(
        restarted_replicas=context.current,
        surge_replica_seconds=surge,
        payback_seconds=surge / saved if saved > 0 else None,
    )


def change_step(change: BatchChange, reason: Reason, decision: TemplateDecision) -> DecisionStep:
    """The change with its savings and costs, if they are known."""
    rollout = decision.rollout
    return DecisionStep(
        stage="batching",
        knob="max_num_seqs",
        before=change.before.max_num_seqs,
        after=change.after.max_num_seqs,
        reason=reason,
        inputs={
            "max_num_batched_tokens_before": change.before.max_num_batched_tokens,
            "max_num_batched_tokens_after": change.after.max_num_batched_tokens,
            "replicas_saved": decision.replicas_saved,
            "rollout_replica_seconds": None if rollout is None else rollout.surge_replica_seconds,
            "payback_seconds": None if rollout is None else rollout.payback_seconds,
        },
    )
