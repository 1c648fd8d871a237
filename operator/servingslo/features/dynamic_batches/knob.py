"""Limits of dynamic batches as a knob: set on running servers, first on one pod, then on all.

A server keeps new limits in memory only. A pod that starts or restarts has the limits of its
model's own file. They are set on it again before it counts as capacity. Limits that drift are set
again too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from servingslo.features.dynamic_batches import search as searching
from servingslo.features.dynamic_batches.search import (
    ASK_AGAIN_SECONDS,
    MOST_ASKED,
    Asked,
    BatcherMemory,
)
from servingslo.features.dynamic_batches.servers import (
    BATCHER,
    DYNAMIC_BATCHING,
    BatcherDecision,
    BatcherLimits,
    Owner,
    PodBatcher,
    batcher_in_force,
    batchers_of,
    request_sample,
)
from servingslo.policy.facts import Facts
from servingslo.policy.inputs import BatchingMode, InForce, Observation
from servingslo.policy.knobs.protocol import Look, Outcome, PlainKnob, Turn
from servingslo.policy.knobs.trial import comparison, stages
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.proposal import Requirement
from servingslo.policy.rules.requirement import sizing_case
from servingslo.reasons import Reason

# A change reloads every pod, so a replica must carry at least this much more. Under load, the law
# of batches was off by a fifth at p95 against a real server; the gain must be larger than that.
LEAST_GAIN_RATIO = 1.2
# A trial compares one pod with others.
LEAST_PODS = 2
# Share of all pods that reload in one tick when new limits reach them, at least one pod. A load
# keeps requests waiting for two seconds. Like maxUnavailable of a RollingUpdate (Kubernetes'
# default).
RELOADED_AT_ONCE_SHARE = 0.25

LIMITS_NOT_SET = "limits-not-set"

_Answer = tuple[BatcherDecision, BatcherMemory]


class DynamicBatchesKnob(PlainKnob):
    """The largest batch, how long requests wait for one, and how many may wait."""

    name, key = DYNAMIC_BATCHING, BATCHER

    def observe(self, look: Look, standing: InForce | None, memory: object) -> Facts | None:
        """How batches form on the servers, their counters, and pods that lack our limits."""
        known = _known(memory)
        batchers = batchers_of(standing)
        unset = _unset_pods(known, look.observation, batchers) if standing is not None else ()
        counted = {pod: one for pod, one in batchers.items() if pod not in unset}
        loading = known.is_reloading(look.now_seconds)
        return Facts(
            batcher=batcher_in_force(counted or batchers),
            batches={pod: one.batches for pod, one in batchers.items()},
            not_capacity=tuple((pod, LIMITS_NOT_SET) for pod in unset),
            no_step_down=Reason.ROLLOUT_IN_PROGRESS if loading else None,
        )

    def on_trial(self, memory: object) -> bool:
        """Whether one pod has limits that the others are to get if it serves no worse."""
        return _known(memory).first_pod is not None

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide which limits all pods are to have, and on which pods they are set now."""
        return Outcome(*tune_batcher(turn, _known(memory)))


def _known(memory: object) -> BatcherMemory:
    return memory if isinstance(memory, BatcherMemory) else BatcherMemory()


def _unset_pods(
    memory: BatcherMemory, observation: Observation, batchers: Mapping[str, PodBatcher]
) -> tuple[str, ...]:
    """Ready pods that lack the limits that all others have: no capacity until those are set.

    A pod that cannot be read yet gets as much time as a pod that is asked to take them.
    """
    stood = memory.stood
    if stood is None:
        return ()
    ready = [pod for pod in observation.pods if pod.ready and not pod.deleting]
    return tuple(
        pod.name
        for pod in ready
        if pod.name != memory.first_pod
        and (
            (pod.ready_for_seconds or 0.0) < ASK_AGAIN_SECONDS
            if pod.name not in batchers
            else batchers[pod.name].limits != stood and memory.count(pod.name) < MOST_ASKED
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tick:
    """One tick, and the servers by pod."""

    context: TickContext
    requirement: Requirement
    batchers: Mapping[str, PodBatcher]

    def common_limits(self) -> BatcherLimits | None:
        """The limits that most pods have; on a tie, the smaller ones."""
        limits = [one.limits for one in self.batchers.values()]
        return min(set(limits), key=lambda one: (-limits.count(one), one), default=None)

    def is_due(self, memory: BatcherMemory, pod: str) -> bool:
        """Whether a pod was not asked recently."""
        last = memory.asked.get(pod)
        return last is None or self.context.now_seconds - last.at_seconds >= ASK_AGAIN_SECONDS

    def is_refused(self, memory: BatcherMemory, limits: BatcherLimits) -> bool:
        """Whether such limits were taken back recently."""
        refusal, current = memory.refusal, self.common_limits()
        now = self.context.now_seconds
        return refusal is not None and current is not None and refusal.forbids(current, limits, now)

    def answer(
        self, memory: BatcherMemory, reason: Reason = Reason.BATCHING_IN_SYNC, detail: str = ""
    ) -> BatcherDecision:
        """The decision that sets no pod."""
        return BatcherDecision(
            reason=reason, detail=detail, before=self.common_limits(), after=memory.wanted
        )


def tune_batcher(
    turn: Turn, memory: BatcherMemory
) -> tuple[BatcherDecision | None, BatcherMemory | None]:
    """Decide the limits in force, the wanted limits and the pods to set now; return the memory too.

    None if access to the servers is not enabled.
    """
    context = turn.context
    standing = context.observation.in_force.get(DYNAMIC_BATCHING)
    mode = context.targets.batching.mode
    if standing is None or mode is BatchingMode.OFF:
        return None, None
    batchers = batchers_of(standing)
    if standing.refused is not None and not batchers:
        problem = standing.refused
        return BatcherDecision(reason=problem.reason, detail=problem.detail), memory
    tick = _Tick(context=context, requirement=turn.requirement, batchers=batchers)
    asked = turn.acting and mode is BatchingMode.AUTO
    if asked and context.limits.batching_apply_enabled:
        return _act(tick, _recover(memory, batchers, turn.context.now_seconds))
    found, memory = _find_limits(tick, BatcherMemory(search=memory.search, ended=memory.ended))
    if asked and found.reason is Reason.BATCHING_RECOMMENDED:
        detail = f"{found.detail}; the administrator lets no batch limits be changed"
        found = replace(found, reason=Reason.NOT_PERMITTED, detail=detail)
    return found, memory


def _act(tick: _Tick, memory: BatcherMemory) -> _Answer:
    """The next step of a trial, if there is one, or of keeping the limits on every pod."""
    batchers, pod = tick.batchers, memory.first_pod
    left = tuple(
        sorted(
            name
            for name, one in batchers.items()
            if memory.wanted is None and one.owner is Owner.OURS and memory.refuses(one.limits)
        )
    )
    if left:
        back = replace(tick.answer(memory), after=None, puts_back=True)
        return _order(tick, memory, left, back, Reason.BATCHING_ROLLED_BACK)
    if pod is None:
        return _start_trial(tick, memory) if memory.wanted is None else _everywhere(tick, memory)
    if pod not in batchers:
        # The pod is gone or cannot be read, so nothing is known about these limits.
        return tick.answer(memory, Reason.BATCHING_CANARY_FAILED), _give_up(memory)
    if batchers[pod].limits == memory.wanted:
        others = {name: asked for name, asked in memory.asked.items() if name != pod}
        return _compare_pods(tick, replace(memory, asked=others), pod)
    if memory.count(pod) < MOST_ASKED:
        memory = replace(memory, began=None)
        return _order(tick, memory, (pod,), tick.answer(memory), Reason.BATCHING_CANARY_STARTED)
    detail = f"{pod} does not take {memory.wanted}"
    return tick.answer(memory, Reason.BATCHING_CANARY_FAILED, detail), _refuse(tick, memory)


def _recover(
    memory: BatcherMemory, batchers: Mapping[str, PodBatcher], now_seconds: float
) -> BatcherMemory:
    """Restore the memory after a restart: our limits that most pods have, or one first pod.

    When the first pod got them is not known, so its comparison has its whole time from now on.
    """
    ours = [
        one.limits
        for one in batchers.values()
        if one.owner is Owner.OURS and not memory.refuses(one.limits)
    ]
    if memory.wanted is not None or not ours:
        return memory
    wanted = max(set(ours), key=lambda one: (ours.count(one), one))
    pods = [pod for pod, one in batchers.items() if one.limits == wanted]
    alone = len(pods) == 1 and len(batchers) > 1
    if not alone:
        return replace(memory, wanted=wanted, first_pod=None, proven=True)
    changed = now_seconds if memory.changed_seconds is None else memory.changed_seconds
    return replace(memory, wanted=wanted, first_pod=pods[0], proven=False, changed_seconds=changed)


def _start_trial(tick: _Tick, memory: BatcherMemory) -> _Answer:
    """Search for better limits; if they are worth a change, one pod gets them."""
    context = tick.context
    found, memory = _find_limits(tick, memory)
    if found.after is None or found.reason is not Reason.BATCHING_RECOMMENDED:
        return found, memory
    since, least = memory.changed_seconds, context.targets.batching.min_interval_seconds
    recent = since is not None and context.now_seconds - since < least
    if recent or context.facts.trial_elsewhere:
        return replace(found, reason=Reason.BATCHING_TOO_SOON), memory
    serving = len(context.signals.serving_pods)
    if context.observation.rollout_in_progress or serving != context.current:
        return found, memory
    if len(tick.batchers) < LEAST_PODS:
        detail = "one pod has no sibling to compare it with"
        reason = Reason.BATCHING_CANARY_NOT_POSSIBLE
        return replace(found, reason=reason, detail=detail), memory
    # Select by name, so that a replay selects the same pod.
    pod = max(tick.batchers)
    memory = replace(
        memory,
        wanted=found.after,
        first_pod=pod,
        proven=False,
        former=memory.wanted,
        began=None,
        asked={},
        changed_seconds=context.now_seconds,
        search=None,
        ended=None,
    )
    return _order(tick, memory, (pod,), found, Reason.BATCHING_CANARY_STARTED)


def _compare_pods(tick: _Tick, memory: BatcherMemory, pod: str) -> _Answer:
    """Compare the first pod with its siblings; then all pods get its limits, or it loses them."""
    verdict = stages.judge_first_pod(
        _first_pod(tick, memory, pod),
        memory.began,
        tick.context.targets.objectives,
        tick.context.now_seconds,
    )
    memory = replace(memory, began=verdict.began)
    if verdict.stage is stages.Stage.FIRST_POD:
        if behind := _behind(tick, memory, pod):
            answer = replace(tick.answer(memory), after=memory.stood)
            return _order(tick, memory, behind, answer, Reason.BATCHING_CHANGED)
        return tick.answer(memory, verdict.reason, verdict.detail), memory
    if verdict.stage is stages.Stage.EVERYWHERE:
        return _everywhere(tick, replace(memory, first_pod=None))
    back, wanted = _refuse(tick, memory), memory.wanted
    answer = tick.answer(back, detail=f"{pod}: {verdict.detail}")
    answer = replace(answer, before=wanted, puts_back=memory.former is None)
    return _order(tick, back, (pod,), answer, verdict.reason)


def _behind(tick: _Tick, memory: BatcherMemory, first_pod: str) -> list[str]:
    """Siblings of the first pod that began in its trial, and lack the limits from before it."""
    return sorted(
        pod
        for pod, one in tick.batchers.items()
        if memory.stood not in {None, one.limits}
        and pod != first_pod
        and one.owner is not Owner.ANOTHER
        and memory.count(pod) < MOST_ASKED
        and tick.is_due(memory, pod)
    )


def _everywhere(tick: _Tick, memory: BatcherMemory) -> _Answer:
    """Keep the limits on every pod; if all have them, search for better ones."""
    missing = sorted(
        pod
        for pod, one in tick.batchers.items()
        if one.limits != memory.wanted and one.owner is not Owner.ANOTHER
    )
    kept = {pod: one for pod, one in memory.asked.items() if pod in missing}
    memory = replace(memory, asked=kept, proven=memory.proven or not missing)
    if not missing:
        return _start_trial(tick, memory)
    if not memory.proven:
        # Once all pods have had the limits, a pod without them is new: it is no capacity until they
        # are set. Before, only some reload in one tick.
        most = max(int(RELOADED_AT_ONCE_SHARE * len(tick.batchers)), 1)
        missing = [pod for pod in missing if tick.is_due(memory, pod)][:most]
    return _order(tick, memory, missing, tick.answer(memory), Reason.BATCHING_CHANGED)


def _find_limits(tick: _Tick, memory: BatcherMemory) -> _Answer:
    """Judge one more candidate; report the better limits of the last search that ended."""
    context, current = tick.context, tick.common_limits()
    sized, prepared = tick.requirement.sized, context.prepared
    if prepared is None or sized is None or not context.trusted or current is None:
        return tick.answer(memory, context.model_reason), memory
    search, ended = (
        one if one is not None and one.current == current else None
        for one in (memory.search, memory.ended)
    )
    # A search ends under the law that it began with: laws are renewed faster than it ends.
    if search is None and (ended is None or ended.law != prepared.law):
        search = searching.new_search(prepared, context.targets.batching, tick.batchers, current)
        if search is None:
            return tick.answer(memory, Reason.LIMITS_UNKNOWN, "no batch ran yet"), memory
    if search is not None:
        search, is_over = searching.advance(search, sizing_case(context, prepared))
        if is_over:
            search, ended = None, search
    memory = replace(memory, search=search, ended=ended)
    if ended is None or ended.best == current or tick.is_refused(memory, ended.best):
        return tick.answer(memory), memory
    if ended.gain_ratio < LEAST_GAIN_RATIO:
        return tick.answer(memory, Reason.BATCHING_GAIN_TOO_SMALL), memory
    rates = (ended.rates.get(current, 0.0), ended.rates.get(ended.best, 0.0))
    detail = f"a replica carries {rates[1]:.3g} requests/s instead of {rates[0]:.3g}"
    found = tick.answer(memory, Reason.BATCHING_RECOMMENDED, detail)
    return replace(found, after=ended.best), memory


def _order(
    tick: _Tick,
    memory: BatcherMemory,
    pods: Sequence[str],
    answer: BatcherDecision,
    reason: Reason,
) -> _Answer:
    """Order the limits for those of these pods that were not asked recently."""
    now = tick.context.now_seconds
    due = tuple(pod for pod in pods if tick.is_due(memory, pod))
    asked = {pod: Asked(at_seconds=now, count=memory.count(pod) + 1) for pod in due}
    loaded = now if due else memory.loaded_seconds
    memory = replace(memory, asked={**memory.asked, **asked}, loaded_seconds=loaded)
    return replace(answer, reason=reason, pods=due), memory


def _give_up(memory: BatcherMemory) -> BatcherMemory:
    """Return the memory with the limits that all pods were to have before the trial."""
    known = memory.former is not None
    return replace(memory, wanted=memory.former, first_pod=None, proven=known, began=None, asked={})


def _refuse(tick: _Tick, memory: BatcherMemory) -> BatcherMemory:
    """Return the memory after limits were taken back; none like them are tried for a while."""
    wanted, now = memory.wanted, tick.context.now_seconds
    refusal = None if wanted is None else stages.refuse(wanted, now)
    return replace(_give_up(memory), refusal=refusal, search=None, ended=None)


def _first_pod(tick: _Tick, memory: BatcherMemory, pod: str) -> stages.FirstPod[PodBatcher]:
    """The first pod and the pods without its limits, and how they compare."""
    context, batchers, began = tick.context, tick.batchers, memory.began
    others = [name for name, one in batchers.items() if one.limits != memory.wanted]
    counters = {} if began is None else began.counters
    new, old = (
        request_sample((counters[p], batchers[p]) for p in pods if p in counters)
        for pods in ((pod,), others)
    )
    loaded = memory.loaded_seconds
    return stages.FirstPod(
        since_seconds=memory.changed_seconds or 0.0,
        start_seconds=MOST_ASKED * ASK_AGAIN_SECONDS,
        serves=True,
        settled=loaded is None or context.now_seconds - loaded >= stages.WARM_UP_SECONDS,
        comparable=bool(others),
        counters=batchers,
        new=new,
        old=old,
        needed=comparison.requests_needed(
            comparison.MEAN_VARIANCE, comparison.SLOWER_RATIO - 1.0, new.design_effect
        ),
    )


PART = DynamicBatchesKnob()
