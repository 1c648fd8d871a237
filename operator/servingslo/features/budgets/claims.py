"""What a resource wants of a budget and holds: by its last decision, or by its workload.

What one more GPU is worth is the requests per second that it keeps within their objectives. Of a
resource that is short it is the mean over the GPUs it lacks. Of one that has what it wants, it is
what it would lose with one replica fewer. Both are read from the capacity frontiers; without one it
is the mean over all GPUs that are wanted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from servingslo.controller.grants import gpus_of
from servingslo.controller.registry import Resource
from servingslo.estimation.pods.cold_start import PRIOR_MEAN_SECONDS
from servingslo.explain.events import Event, EventType
from servingslo.explain.format import counted
from servingslo.features.budgets.sharing import Wants
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ConstraintNeed
from servingslo.policy.inputs import Limits, Targets
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.division import carried_rate_per_second as carried_together
from servingslo.policy.pools.guards import fitting
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.ports import WorkloadSource, WorkloadView
from servingslo.policy.replicas.bounds_in_force import with_bounds_in_force
from servingslo.policy.replicas.ownership import NOT_CARRIED_OUT, acting_limit
from servingslo.policy.replicas.proposal import DEMAND_STAGE, STEP_DOWN_STAGE, bounds_of
from servingslo.policy.replicas.sizing import (
    Sized,
    carried_rate_per_second,
    infeasible_objectives,
)
from servingslo.reasons import Constraint, Reason
from servingslo.runtimes.recognition import NOT_RECOGNIZED

# How long a grant stays if no cold start is known.
UNKNOWN_HOLD_SECONDS = PRIOR_MEAN_SECONDS
# Of a step that a budget made: what was wanted is the count before it.
_BOUNDED = frozenset({Reason.BUDGET_REACHED, Reason.BUDGET_MOVED, Reason.GPUS_UNKNOWN})
# Kinds whose replica is one pod.
_ONE_POD_KINDS = frozenset({"Deployment", "StatefulSet"})


def standing(ordered: int, pods: int, gpus_per_replica: int) -> Wants:
    """What a resource holds that was not decided on: it keeps that, and wants no more.

    ordered, pods: replicas ordered, and pods that exist.
    """
    return Wants(
        wanted_gpus=ordered * gpus_per_replica,
        ordered_gpus=ordered * gpus_per_replica,
        held_gpus=max(ordered, pods) * gpus_per_replica,
        gpus_per_replica=gpus_per_replica,
        hold_seconds=UNKNOWN_HOLD_SECONDS,
        acts=False,
    )


def wants_of(
    fleet: FleetDecision,
    targets: FleetTargets,
    limits: Limits,
    pods: Mapping[str, int],
    state: FleetState,
) -> Wants:
    """What the pools of a resource want together. state: after the decision.

    pods: that exist, by pool, ending ones included.
    """
    first = targets.pools[0].targets
    decisions = fleet.pools
    before = {name: one.replicas_before or 0 for name, one in decisions.items()}
    after = {name: max(one.replicas_after or 0, _given(one)) for name, one in decisions.items()}
    ordered = {name: max(before[name], after[name]) for name in decisions}
    each = {pool.name: pool.gpus_per_replica for pool in targets.pools}
    held = sum(max(ordered[name], pods[name]) * each[name] for name in ordered)
    total = sum(ordered[name] * each[name] for name in ordered)
    step = min(each.values())
    seen = all(map(_is_known, decisions.values()))
    if not all(_carried_out(one, first, limits) for one in decisions.values()):
        return replace(standing(total, held, 1), gpus_per_replica=step)
    current = sum(before.values())
    targets = targets.with_targets(
        {
            pool.name: with_bounds_in_force(
                pool.targets, decisions[pool.name].demand.lead_seconds or 0.0, fleet.time_seconds
            )
            for pool in targets.pools
        }
    )
    least = {
        pool.name: bounds_of(pool.targets, limits, current=current).minimum
        for pool in targets.pools
    }
    replicas = {name: wanted_replicas(decision) for name, decision in decisions.items()}
    wanted = sum(replicas[name] * each[name] for name in replicas)
    if fleet.gpus is not None:
        wanted = max(wanted, fleet.gpus.wanted)
    starts = [one.cold_start.seconds for one in decisions.values() if one.cold_start is not None]
    return Wants(
        minimum_gpus=sum(least[name] * each[name] for name in each),
        wanted_gpus=wanted if seen else max(wanted, total),
        ordered_gpus=total,
        held_gpus=held,
        gpus_per_replica=step,
        kept_per_gpu=kept_per_gpu(fleet, targets, state, replicas),
        hold_seconds=max(starts, default=UNKNOWN_HOLD_SECONDS),
        acts=seen,
        after_gpus=sum(after[name] * each[name] for name in each),
        waiting_gpus=sum(
            waiting_replicas(one.needs, replicas[name]) * each[name]
            for name, one in decisions.items()
        ),
    )


def _given(decision: Decision) -> int:
    """The count that is given to another client that scales the target; 0 if none is."""
    given = decision.handed_over
    return 0 if given is None else given.replicas or 0


def wanted_replicas(decision: Decision) -> int:
    """The replica count that would be ordered without a budget.

    After a restart a trusted law knows the need before the workload was watched for long enough to
    step down. Of replicas that are held only for that, one is kept; others may have the rest.
    """
    bounded = [
        step.before
        for step in decision.steps
        if step.reason in _BOUNDED
        if isinstance(step.before, int)
    ]
    wanted = max([decision.recommended_replicas or 0, *bounded])
    held = [step for step in decision.steps if step.stage == STEP_DOWN_STAGE]
    watched_only = [step.reason for step in held] == [Reason.WARMING_UP]
    if decision.model.trusted and watched_only and isinstance(held[0].before, int):
        return min(wanted, held[0].before + 1)
    return wanted


def waiting_replicas(needs: Sequence[ConstraintNeed], wanted: int) -> int:
    """Those of the wanted replicas that only work with a deadline needs: it may wait."""
    due, live = 0, 0
    for one in needs:
        count = one.replicas or one.more_than or 0
        if one.constraint is Constraint.DEADLINE:
            due = max(due, count)
        else:
            live = max(live, count)
    return max(min(due, wanted) - live, 0)


def _is_known(decision: Decision) -> bool:
    """Whether metrics say what it needs: they are fresh, and there is a demand."""
    first_sight = any(
        step.stage == DEMAND_STAGE and step.reason is Reason.WARMING_UP for step in decision.steps
    )
    return decision.metrics is Reason.METRICS_FRESH and not first_sight


def _carried_out(decision: Decision, targets: Targets, limits: Limits) -> bool:
    """Whether anybody carries the count out."""
    if acting_limit(targets, limits) is not None or decision.replicas_before is None:
        return False
    return not {decision.reason, decision.limited_by} & NOT_CARRIED_OUT


def kept_per_gpu(
    fleet: FleetDecision, targets: FleetTargets, state: FleetState, wanted: Mapping[str, int]
) -> float:
    """Requests per second of all pools together. wanted: replicas by pool.

    One replica fewer is the one that several pools would release under a lower bound of GPUs.
    """
    each = {pool.name: pool.gpus_per_replica for pool in targets.pools}
    gpus = _gpus(wanted, each)
    found = {name: one.sized for name, one in state.pools.items() if name in each}
    sized = {name: one for name, one in found.items() if one is not None}
    if len(sized) < len(each) or not gpus:
        rates = [one.demand.forecast_rate_per_second or 0.0 for one in fleet.pools.values()]
        # Combined pools divide the requests; each passes both prefill and decode.
        whole = max(rates) if targets.disaggregated else sum(rates)
        return whole / gpus if gpus else 0.0
    after = {name: fleet.pools[name].replicas_after or 0 for name in each}
    low, high = after, dict(wanted)
    if gpus <= _gpus(after, each):
        most = _gpus(after, each) - min(each.values())
        none = None if targets.only is None else dict.fromkeys(after, 0)
        low, high = fitting(targets.pools, after, most, least=none), after
    apart = _gpus(high, each) - _gpus(low, each)
    if apart <= 0:
        return 0.0
    kept = [_kept(fleet, targets, sized, counts) for counts in (low, high)]
    return max(kept[1] - kept[0], 0.0) / apart


def _kept(
    fleet: FleetDecision,
    targets: FleetTargets,
    sized: Mapping[str, Sized],
    counts: Mapping[str, int],
) -> float:
    """Requests per second of the whole demand that these counts keep."""
    rates = {name: one.load.rate_per_second for name, one in sized.items()}
    if targets.disaggregated:
        # The pool that is full first decides how many of all requests are kept.
        shares = [
            min(_carried(fleet.pools[name], sized[name], counts[name]) / rate, 1.0)
            for name, rate in rates.items()
            if rate > 0.0
        ]
        return max(rates.values()) * min(shares, default=0.0)
    rate_of = {name: partial(_carried, fleet.pools[name], sized[name]) for name in counts}
    return min(sum(rates.values()), carried_together(counts, rate_of))


def _carried(decision: Decision, sized: Sized, count: int) -> float:
    """The greatest rate that so many replicas carry, without objectives that no count meets."""
    if not count:
        return 0.0
    return carried_rate_per_second(sized.case, infeasible_objectives(decision.needs), count)


def _gpus(counts: Mapping[str, int], each: Mapping[str, int]) -> int:
    return sum(each[name] * count for name, count in counts.items())


def pods_of(view: WorkloadView) -> int:
    """Replicas whose pods hold GPUs, ending ones included.

    Of kinds whose replica may be a group of pods, an ending pod counts as a whole replica: too many
    for a moment, never too few.
    """
    if view.target.kind in _ONE_POD_KINDS or view.current_replicas is None:
        return len(view.pods)
    return view.current_replicas + sum(pod.deleting for pod in view.pods)


def is_gone(view: WorkloadView) -> bool:
    """Whether the workload does not exist."""
    return any(problem.reason is Reason.TARGET_NOT_FOUND for problem in view.problems)


def unreadable(view: WorkloadView) -> str:
    """Why a target will never be read, in words; '' if it may be.

    It counts as a workload without a ServingSLO: otherwise one of them would stop all the others. A
    Deployment or StatefulSet that is denied is read again, because an API server that has just
    started knows no roles yet.
    """
    for problem in view.problems:
        denied = problem.reason is Reason.PERMISSION_DENIED
        if problem.reason is Reason.TARGET_NOT_SCALABLE or (
            denied and view.target.kind not in _ONE_POD_KINDS
        ):
            return f"its target is not counted: {problem.reason.value}, {problem.detail}"
    return ""


async def undecided(workloads: WorkloadSource, namespace: str, targets: Targets) -> WorkloadView:
    """A workload that is not decided on: its count, pods and GPUs."""
    return await workloads.read(
        namespace, targets.target, targets.batching.container, lambda _pods: NOT_RECOGNIZED
    )


def left_behind(gone: Resource, targets: Targets, view: WorkloadView, budget: str) -> Event | None:
    """The event that a deleted resource leaves GPUs outside of its budget; None if it does not."""
    replicas = max(view.desired_replicas or 0, pods_of(view))
    if not replicas:
        return None
    gpus = (gpus_of(targets, view.replica_gpus).gpus or 0) * replicas
    held = counted(replicas, "replica") + (f" with {counted(gpus, 'GPU')}" if gpus else "")
    target = f"{targets.target.kind} {targets.target.name}"
    return Event(
        type=EventType.WARNING,
        reason=Reason.OUTSIDE_BUDGET,
        message=f"{target} is outside ServingBudget {budget} since ServingSLO"
        f" {gone.record.ref.name} was deleted: {held} are not counted any more",
        key=f"{Reason.OUTSIDE_BUDGET}/{budget}/{target}",
    )
