"""Set limits of dynamic batches on running servers: first on one pod, then on all.

A server keeps new limits in memory only. A pod that starts or restarts has the limits of its
model's own file. They are set on it again before it counts as capacity. Limits that drift are set
again too.
"""

from collections.abc import Mapping
from dataclasses import replace

from servingslo.policy.context import TickContext
from servingslo.policy.inputs import BatchingMode
from servingslo.policy.knobs.decisions import DYNAMIC_BATCHING, BatcherDecision, BatcherLimits
from servingslo.policy.knobs.dynamic_batches.memory import (
    ASK_AGAIN_SECONDS,
    MOST_ASKED,
    Asked,
    BatcherMemory,
)
from servingslo.policy.knobs.dynamic_batches.search import (
    BatcherSearch,
    judged,
    mean_seconds,
    next_candidate,
)
from servingslo.policy.knobs.dynamic_batches.servers import Owner, PodBatcher, batchers_of
from servingslo.policy.replicas.requirement import Requirement, sizing_case
from servingslo.reasons import Reason

# A change reloads every pod, so a replica must carry at least this much more. Under load, the law
# of batches was off by a fifth at p95 against a real server; the gain must be larger than that.
LEAST_GAIN_RATIO = 1.2
# Answered requests needed to compare a pod with its siblings: their mean is known to a tenth.
COMPARED_REQUESTS = 100
# Share of all pods that reload in one tick when new limits reach them, at least one pod. A load
# keeps requests waiting for two seconds. Like maxUnavailable of a RollingUpdate (Kubernetes'
# default).
RELOADED_AT_ONCE_SHARE = 0.25
# The first pod is worse if its mean latency is this many times that of its siblings, or if its
# share of failed requests is this much higher.
WORSE_RATIO = 1.2
MORE_FAILED_SHARE = 0.01
# For this long, limits that were taken back are not tried again.
REFUSED_SECONDS = 3600.0

_Answer = tuple[BatcherDecision | None, BatcherMemory | None]


def batcher_decision(
    context: TickContext, requirement: Requirement, memory: BatcherMemory | None, *, acting: bool
) -> _Answer:
    """Decide the limits in force, the wanted limits and the pods to set now; return the memory too.

    None if access to the servers is not enabled.
    """
    standing = context.observation.in_force.get(DYNAMIC_BATCHING)
    mode = context.targets.batching.mode
    if standing is None or mode is BatchingMode.OFF:
        return None, None
    memory = memory or BatcherMemory()
    batchers = batchers_of(standing)
    if standing.refused is not None and not batchers:
        problem = standing.refused
        return BatcherDecision(reason=problem.reason, detail=problem.detail), memory
    if not acting or mode is not BatchingMode.AUTO or not context.limits.batching_apply_enabled:
        told, memory = _seek_limits(
            context, requirement, BatcherMemory(search=memory.search), batchers
        )
        return _explain(context, told, acting=acting), memory
    return _act(context, requirement, _recover(memory, batchers), batchers)


def _explain(context: TickContext, told: BatcherDecision, *, acting: bool) -> BatcherDecision:
    """Report NOT_PERMITTED if only the administrator forbids the recommended change."""
    asked = acting and context.targets.batching.mode is BatchingMode.AUTO
    if not asked or told.reason is not Reason.BATCHING_RECOMMENDED:
        return told
    detail = f"{told.detail}; the administrator lets no batch limits be changed"
    return replace(told, reason=Reason.NOT_PERMITTED, detail=detail)


def _act(
    context: TickContext,
    requirement: Requirement,
    memory: BatcherMemory,
    batchers: Mapping[str, PodBatcher],
) -> _Answer:
    left = tuple(sorted(pod for pod, one in batchers.items() if _is_left(memory, one)))
    if left:
        told = replace(_first_answer(memory, batchers), after=None)
        return _order(context, memory, left, told, Reason.BATCHING_ROLLED_BACK, back=True)
    if memory.wanted is None:
        return _start_trial(context, requirement, memory, batchers)
    if memory.first_pod is None:
        return _everywhere(context, requirement, memory, batchers)
    one = batchers.get(memory.first_pod)
    if one is None:
        # The pod is gone or cannot be read, so nothing is known about these limits.
        told = replace(_first_answer(memory, batchers), reason=Reason.BATCHING_CANARY_FAILED)
        return told, _give_up(memory)
    if one.limits != memory.wanted:
        return _set_first_pod(context, memory, batchers, memory.first_pod)
    return _compare_pods(context, replace(memory, asked={}), batchers, memory.first_pod)


def _recover(memory: BatcherMemory, batchers: Mapping[str, PodBatcher]) -> BatcherMemory:
    """Restore the memory after a restart: our limits that most pods have, or one first pod."""
    if memory.wanted is not None:
        return memory
    ours = [
        one.limits
        for one in batchers.values()
        if one.owner is Owner.OURS and one.limits != memory.refused
    ]
    if not ours:
        return memory
    wanted = max(set(ours), key=lambda one: (ours.count(one), one))
    pods = [pod for pod, one in batchers.items() if one.limits == wanted]
    alone = len(pods) == 1 and len(batchers) > 1
    return replace(memory, wanted=wanted, first_pod=pods[0] if alone else None, proven=not alone)


def _is_left(memory: BatcherMemory, one: PodBatcher) -> bool:
    """Whether a pod still has limits that were taken back."""
    return memory.wanted is None and one.owner is Owner.OURS and one.limits == memory.refused


def _start_trial(
    context: TickContext,
    requirement: Requirement,
    memory: BatcherMemory,
    batchers: Mapping[str, PodBatcher],
) -> _Answer:
    """Search for better limits; if they are worth a change, one pod gets them."""
    told, memory = _seek_limits(context, requirement, memory, batchers)
    if told.after is None or told.reason is not Reason.BATCHING_RECOMMENDED:
        return told, memory
    since = memory.changed_seconds
    if (
        since is not None
        and context.now_seconds - since < context.targets.batching.min_interval_seconds
    ):
        return replace(told, reason=Reason.BATCHING_TOO_SOON), memory
    serving = len(context.signals.serving_pods)
    if context.observation.rollout_in_progress or serving != context.current:
        return told, memory
    # Select by name, so that a replay selects the same pod.
    pod = max(batchers)
    began = replace(
        memory,
        wanted=told.after,
        first_pod=pod,
        proven=False,
        before=told.before,
        former=memory.wanted,
        mean_microseconds=_mean(batchers[pod], None),
        seen={},
        asked={},
        changed_seconds=context.now_seconds,
        search=None,
    )
    return _order(context, began, (pod,), told, Reason.BATCHING_CANARY_STARTED)


def _set_first_pod(
    context: TickContext, memory: BatcherMemory, batchers: Mapping[str, PodBatcher], pod: str
) -> _Answer:
    """Set the limits on the first pod; retry a few times if it does not take them."""
    told = _first_answer(memory, batchers)
    if memory.count(pod) < MOST_ASKED:
        return _order(context, memory, (pod,), told, Reason.BATCHING_CANARY_STARTED)
    detail = f"{pod} does not take {memory.wanted}"
    failed = replace(told, reason=Reason.BATCHING_CANARY_FAILED, detail=detail)
    return failed, _refuse(context, memory)


def _compare_pods(
    context: TickContext, memory: BatcherMemory, batchers: Mapping[str, PodBatcher], pod: str
) -> _Answer:
    """Compare the first pod with its siblings; then all pods get its limits, or it loses them."""
    told, wanted = _first_answer(memory, batchers), memory.wanted
    if pod not in memory.seen:
        memory = replace(memory, seen=batchers, seen_seconds=context.now_seconds)
    worse = _worse(context, memory, batchers, pod)
    if worse is None:
        return replace(told, reason=Reason.BATCHING_CANARY_RUNNING), memory
    if worse:
        memory, ours = _refuse(context, memory), memory.former is not None
        back = replace(told, before=wanted, after=memory.wanted, detail=worse)
        return _order(context, memory, (pod,), back, Reason.BATCHING_ROLLED_BACK, back=not ours)
    memory = replace(memory, first_pod=None, seen={})
    missing = tuple(sorted(name for name, other in batchers.items() if other.limits != wanted))
    if not missing:
        return told, replace(memory, proven=True)
    some = _some(context, memory, missing, len(batchers))
    return _order(context, memory, some, told, Reason.BATCHING_CHANGED)


def _everywhere(
    context: TickContext,
    requirement: Requirement,
    memory: BatcherMemory,
    batchers: Mapping[str, PodBatcher],
) -> _Answer:
    """Keep the limits on every pod; if all have them, search for better ones."""
    told = _first_answer(memory, batchers)
    missing = tuple(
        sorted(
            pod
            for pod, one in batchers.items()
            if one.limits != memory.wanted and one.owner is not Owner.ANOTHER
        )
    )
    kept = {pod: one for pod, one in memory.asked.items() if pod in missing}
    memory = replace(memory, asked=kept, proven=memory.proven or not missing)
    if missing:
        # Once all pods have had the limits, a pod without them is new: it is no capacity until they
        # are set.
        some = missing if memory.proven else _some(context, memory, missing, len(batchers))
        return _order(context, memory, some, told, Reason.BATCHING_CHANGED)
    return _start_trial(context, requirement, memory, batchers)


def _seek_limits(
    context: TickContext,
    requirement: Requirement,
    memory: BatcherMemory,
    batchers: Mapping[str, PodBatcher],
) -> tuple[BatcherDecision, BatcherMemory]:
    """Judge one more candidate, then report the better limits found so far."""
    told = _first_answer(memory, batchers)
    sized, prepared = requirement.sized, context.prepared
    if prepared is None or sized is None or not context.trusted or not batchers:
        return replace(told, reason=context.model_reason), memory
    current = _least(batchers)
    search = memory.search
    if search is None or search.current != current or search.law != prepared.law:
        search = _new_search(context, batchers, current)
    if search is None:
        return replace(told, reason=Reason.LIMITS_UNKNOWN, detail="no batch ran yet"), memory
    case = sizing_case(context, prepared)
    candidate = next_candidate(search, case)
    if candidate is not None:
        search = judged(search, candidate, case)
    memory = replace(memory, search=search)
    if next_candidate(search, case) is not None:
        return replace(told, reason=Reason.BATCHING_IN_SYNC), memory
    best = search.best
    if best == current or _refuses(context, memory, best):
        return replace(told, reason=Reason.BATCHING_IN_SYNC), memory
    if search.gain_ratio < LEAST_GAIN_RATIO:
        return replace(told, reason=Reason.BATCHING_GAIN_TOO_SMALL), memory
    rates = (search.rates.get(current, 0.0), search.rates[best])
    detail = f"a replica carries {rates[1]:.3g} requests/s instead of {rates[0]:.3g}"
    return replace(told, reason=Reason.BATCHING_RECOMMENDED, after=best, detail=detail), memory


def _new_search(
    context: TickContext, batchers: Mapping[str, PodBatcher], current: BatcherLimits
) -> BatcherSearch | None:
    """Start a search within the range where the law is known and the tenant's bounds."""
    prepared, targets = context.prepared, context.targets.batching
    ran = [size for one in batchers.values() for size in one.batches]
    if prepared is None or not ran:
        return None
    own = max(one.former_max_batch_size for one in batchers.values())
    allowed = own if targets.max_sequences is None else targets.max_sequences
    return BatcherSearch(
        current=current,
        largest=max(min(allowed, 2 * max(ran)), 1),
        least=targets.min_sequences,
        instances=min(one.instances for one in batchers.values()),
        workload=prepared.workload,
        law=prepared.law,
        at_seconds=context.now_seconds,
    )


def _least(batchers: Mapping[str, PodBatcher]) -> BatcherLimits:
    """The limits that most pods have; on a tie, the smaller ones."""
    limits = [one.limits for one in batchers.values()]
    return min(set(limits), key=lambda one: (-limits.count(one), one))


def _first_answer(memory: BatcherMemory, batchers: Mapping[str, PodBatcher]) -> BatcherDecision:
    return BatcherDecision(
        reason=Reason.BATCHING_IN_SYNC,
        before=_least(batchers) if batchers else None,
        after=memory.wanted,
    )


def _order(
    context: TickContext,
    memory: BatcherMemory,
    pods: tuple[str, ...],
    told: BatcherDecision,
    reason: Reason,
    *,
    back: bool = False,
) -> _Answer:
    """Order the limits for those of these pods that were not asked recently."""
    due = tuple(pod for pod in pods if _due(context, memory, pod))
    asked = {pod: Asked(at_seconds=context.now_seconds, count=memory.count(pod) + 1) for pod in due}
    loaded = context.now_seconds if due else memory.loaded_seconds
    memory = replace(memory, asked={**memory.asked, **asked}, loaded_seconds=loaded)
    return replace(told, reason=reason, pods=due, puts_back=back), memory


def _some(
    context: TickContext, memory: BatcherMemory, pods: tuple[str, ...], fleet: int
) -> tuple[str, ...]:
    """Select the pods that reload in this tick."""
    due = (pod for pod in pods if _due(context, memory, pod))
    return tuple(due)[: max(int(RELOADED_AT_ONCE_SHARE * fleet), 1)]


def _due(context: TickContext, memory: BatcherMemory, pod: str) -> bool:
    last = memory.asked.get(pod)
    return last is None or context.now_seconds - last.at_seconds >= ASK_AGAIN_SECONDS


def _give_up(memory: BatcherMemory) -> BatcherMemory:
    """Return the memory with the limits that all pods were to have before the trial."""
    known = memory.former is not None
    return replace(memory, wanted=memory.former, first_pod=None, proven=known, seen={}, asked={})


def _refuse(context: TickContext, memory: BatcherMemory) -> BatcherMemory:
    """Return the memory after limits were taken back; they may be tried again after an hour."""
    return replace(
        _give_up(memory), refused=memory.wanted, refused_seconds=context.now_seconds, search=None
    )


def _refuses(context: TickContext, memory: BatcherMemory, limits: BatcherLimits) -> bool:
    since = memory.refused_seconds
    recent = since is not None and context.now_seconds - since < REFUSED_SECONDS
    return recent and limits == memory.refused


def _worse(
    context: TickContext, memory: BatcherMemory, batchers: Mapping[str, PodBatcher], pod: str
) -> str | None:
    """Why the first pod is worse than its siblings; '' if it is not, None if not known yet.

    Without siblings, the pod is compared with its own latency before the change. If the fleet is
    scaled, its load changes. So the law also predicts the latency of the former limits under the
    present load, and the larger of both is used.
    """
    one, before = batchers[pod], memory.seen.get(pod)
    failed, requests = _counts(one, before)
    if failed + requests < COMPARED_REQUESTS:
        return None
    others = [(two, memory.seen.get(name)) for name, two in batchers.items() if name != pod]
    counts = [_counts(two, seen) for two, seen in others]
    of_others = sum(lost for lost, _ in counts), sum(done for _, done in counts)
    share, usual = failed / (failed + requests), of_others[0] / max(sum(of_others), 1)
    if share > usual + MORE_FAILED_SHARE:
        return f"{share:.0%} of the requests on {pod} failed"
    mean, usual_mean = _mean(one, before), memory.mean_microseconds
    means = [found for two, seen in others if (found := _mean(two, seen)) is not None]
    if means:
        usual_mean = sum(means) / len(means)
    elif usual_mean is not None:
        usual_mean = max(usual_mean, _now_by_law(context, memory, one, requests))
    if mean is None or usual_mean is None or mean <= WORSE_RATIO * usual_mean:
        return ""
    return f"mean latency on {pod} is {mean / 1e6:.3g} s, {usual_mean / 1e6:.3g} s before or beside"


def _now_by_law(context: TickContext, memory: BatcherMemory, one: PodBatcher, came: int) -> float:
    """Mean latency in microseconds that the former limits would have under the present load.

    came: requests since the change.
    """
    prepared, before = context.prepared, memory.before
    seconds = context.now_seconds - memory.seen_seconds
    if prepared is None or before is None or seconds <= 0.0:
        return 0.0
    return 1e6 * mean_seconds(prepared.law, before, one.instances, came / seconds)


def _counts(now: PodBatcher, before: PodBatcher | None) -> tuple[int, int]:
    """Failed and answered requests since then; a counter that fell was reset."""
    if before is None or now.requests < before.requests or now.failed < before.failed:
        return now.failed, now.requests
    return now.failed - before.failed, now.requests - before.requests


def _mean(now: PodBatcher, before: PodBatcher | None) -> float | None:
    """Mean latency since, in microseconds; None without requests."""
    _, requests = _counts(now, before)
    if not requests:
        return None
    began = before is not None and requests == now.requests - before.requests
    since = before.request_microseconds if before is not None and began else 0
    return max(now.request_microseconds - since, 0) / requests
