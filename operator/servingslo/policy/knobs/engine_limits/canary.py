"""Try new batch limits in one pod before all pods get them: the canary on the cluster, and its end.

A change of the pod template makes the first pod: which pods have it shows in their command lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from servingslo.estimation.requests.histograms import pooled_delta
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.engine.capacity import mu_effective_per_second
from servingslo.models.engine.service_time import request_demand
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import LIMIT_FIELDS, BatchingRollout, InForce
from servingslo.policy.knobs.decisions import BATCH_LIMITS, BatchingDecision, CanaryAct
from servingslo.policy.knobs.engine_limits.memory import BatchChange, BatchingMemory, BatchLimits
from servingslo.policy.knobs.engine_limits.outcome import Tuned, batching_decision, change_step
from servingslo.policy.knobs.protocol import Turn
from servingslo.policy.knobs.trial import comparison, stages
from servingslo.policy.knobs.trial.comparison import Sample
from servingslo.policy.replicas.context import TickContext
from servingslo.reasons import Reason

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
_TO_PUT_BACK = "no pod template may be changed any more; one pod's limits on trial are put back"
_ACTS = {
    stages.Stage.FIRST_POD: None,
    stages.Stage.EVERYWHERE: CanaryAct.COMPLETE,
    stages.Stage.BACK: CanaryAct.TAKE_BACK,
}


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


def standing_limits(context: TickContext) -> InForce | None:
    """The values that the actuator of batch limits found, in addition to the pods'."""
    return context.observation.in_force.get(BATCH_LIMITS)


def no_canary(context: TickContext) -> str | None:
    """Why one pod cannot go first, if it should; None if it can."""
    standing = standing_limits(context)
    if standing is None or standing.refused is None:
        return None
    asked = context.targets.batching.rollout is BatchingRollout.CANARY
    return standing.refused.detail if asked else None


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


def standing_refusal(standing: InForce | None) -> stages.Refusal | None:
    """Limits that were taken back, if no input that matters has changed since."""
    limits = None if standing is None else _limits(standing.values, REFUSED)
    return None if limits is None else stages.Refusal(setting=limits)


def stuck_pods(standing: InForce | None) -> int:
    """Pods with such limits that are not ready, and that their controller cannot replace."""
    return 0 if standing is None else standing.values.get(STUCK) or 0


def watch(turn: Turn, memory: BatchingMemory) -> Tuned | None:
    """What to do about a canary in progress, or about its remains; None without either."""
    standing = standing_limits(turn.context)
    canary = standing_canary(standing)
    if canary is not None:
        return _watch_canary(turn, memory, canary)
    return _free_pods(turn, memory) if stuck_pods(standing) else None


def _watch_canary(turn: Turn, memory: BatchingMemory, canary: Canary) -> Tuned:
    """The canary in progress, and what to do about it now."""
    context, change = turn.context, memory.verifying
    if change is None or change.after != canary.after:
        # Ordered before a restart of the operator.
        change = BatchChange(
            at_seconds=canary.since_seconds,
            before=canary.before,
            after=canary.after,
            flags_added=canary.flags_added,
        )
        memory = replace(memory, verifying=change)
    memory, act, reason, detail = _next_act(context, memory, canary)
    if not context.limits.pod_templates_patched:
        act, reason, detail = None, Reason.NOT_PERMITTED, _TO_PUT_BACK
    act = act if turn.acting else None
    back = act is CanaryAct.TAKE_BACK
    now, wanted = (canary.after, canary.before) if back else (canary.before, canary.after)
    decision = replace(
        batching_decision(context, now, wanted, reason, apply=act is not None),
        canary=act,
        detail=detail,
        flags_removed=canary.flags_added if back else (),
        queue=canary.queue[::-1] if back else canary.queue,
    )
    if act is None:
        return Tuned(decision, memory)
    ended = _end_canary(context, memory, change, act)
    steps = () if act is CanaryAct.HOLD else (change_step(change, decision.reason, decision),)
    return Tuned(decision, ended, steps)


def _next_act(
    context: TickContext, memory: BatchingMemory, canary: Canary
) -> tuple[BatchingMemory, CanaryAct | None, Reason, str]:
    """The memory, the act (None while the canary is watched), why, and that for people."""
    if canary.edited:
        detail = "somebody changed the pod template or its rollout meanwhile"
        gone = replace(memory, canary=None)
        return gone, CanaryAct.LEAVE, Reason.BATCHING_LEFT_TO_USER, detail
    if canary.new_pods and not canary.held:
        return memory, CanaryAct.HOLD, Reason.BATCHING_CANARY_HELD, ""
    began = memory.canary
    if began is not None and began.since_seconds != canary.since_seconds:
        began = None
    verdict = stages.judge_first_pod(
        _first_pod(context, canary, began), began, context.targets.objectives, context.now_seconds
    )
    memory = replace(memory, canary=verdict.began)
    return memory, _ACTS[verdict.stage], verdict.reason, verdict.detail


def _free_pods(turn: Turn, memory: BatchingMemory) -> Tuned:
    """Evict pods whose limits were taken back and that never become ready.

    A StatefulSet that starts its pods in order waits for them for ever, even if its template has
    changed since (kubernetes#67250).
    """
    apply = turn.acting and turn.context.limits.pod_templates_patched
    decision = BatchingDecision(
        reason=Reason.BATCHING_CANARY_FAILED,
        apply=apply,
        canary=CanaryAct.FREE if apply else None,
        container=turn.context.targets.batching.container,
        detail="the StatefulSet waits for pods whose limits were taken back",
    )
    return Tuned(decision, memory)


def _end_canary(
    context: TickContext, memory: BatchingMemory, change: BatchChange, act: CanaryAct
) -> BatchingMemory:
    """The memory once the canary's act is written; unchanged if the write is refused."""
    before = replace(memory, before_write=None)
    if act is CanaryAct.HOLD:
        return replace(before, before_write=before)
    now = context.now_seconds
    memory = replace(before, last_change_seconds=now, before_write=before)
    if act is CanaryAct.COMPLETE:
        return replace(memory, verifying=replace(change, at_seconds=now))
    refusal = stages.refuse(change.after, now)
    return replace(memory, verifying=None, written=None, refusal=refusal)


def _first_pod(
    context: TickContext, canary: Canary, began: stages.Began[EngineSample] | None
) -> stages.FirstPod[EngineSample]:
    """The pods of the new template and those of the former one, and how they compare."""
    new, old = _split(context, canary)
    ready = [[pod for pod in group if pod.ready] for group in (new, old)]
    ours, theirs = (_measure(context, began, pods) for pods in ready)
    return stages.FirstPod(
        since_seconds=canary.since_seconds,
        start_seconds=_start_within(context),
        failed=_start_failure(context, canary, new),
        serves=bool(ready[0]),
        settled=bool(ready[0]) and all(_settled(pod) for pod in ready[0]),
        comparable=bool(old),
        readable=context.signals.no_metrics is None,
        counters={key: engine for group in ready for pod in group for key, engine in _engines(pod)},
        new=ours,
        old=theirs,
        expected=_expected_ratio(context, canary, ours, theirs),
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
    tokens = deltas.get(LatencyMetric.TPOT)
    return Sample(
        deltas=deltas,
        mean_seconds=None if tokens is None else tokens.mean,
        engines=len(pairs),
        seconds=context.now_seconds - began.began_seconds,
    )


def _expected_ratio(context: TickContext, canary: Canary, new: Sample, old: Sample) -> float | None:
    """The ratio of the mean times per token from the law; None if either is not known.

    The limits were found with that law, so if it is wrong, the expected savings are wrong too.
    """
    seconds = [
        _law_token_seconds(context, limits, sample)
        for limits, sample in ((canary.after, new), (canary.before, old))
    ]
    return seconds[0] / seconds[1] if seconds[0] and seconds[1] else None


def _law_token_seconds(context: TickContext, limits: BatchLimits, sample: Sample) -> float | None:
    """Mean time per token from the law, with as many running sequences as the group had.

    The group's request rate is not used: near saturation batches differ by chance, and so does the
    time. Source: Little's law for the sequences; (T_fixed + n·t_req)/O, see
    `mu_effective_per_second`.
    """
    if context.prepared is None or not sample.mean_seconds or sample.seconds <= 0:
        return None
    workload, output = context.prepared.workload, context.prepared.workload.output.mean_tokens
    tokens_per_second = sample.requests_per_engine * output / sample.seconds
    running = min(tokens_per_second * sample.mean_seconds, limits.max_num_seqs)
    demand = request_demand(workload, context.prepared.law, running, limits.max_num_batched_tokens)
    return running / (mu_effective_per_second(demand, running) * output)


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
    stated = (engine.max_num_seqs, engine.max_num_batched_tokens)
    return BatchLimits(*(now or old for now, old in zip(stated, canary.before, strict=True)))


def _engines(pod: PodSample) -> list[tuple[str, EngineSample]]:
    return [(f"{pod.name}/{engine.engine}", engine) for engine in pod.engines]


def _settled(pod: PodSample) -> bool:
    return bool(pod.engines) and (pod.ready_for_seconds or 0.0) >= stages.WARM_UP_SECONDS


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


def _limits(values: Mapping[str, int | None], prefix: str) -> BatchLimits | None:
    sequences, budget = (values.get(f"{prefix}{name}") for name in LIMIT_FIELDS)
    if not sequences or not budget:
        return None
    return BatchLimits(sequences, budget)
