"""What a resource claims of a budget, from the decision that was just made on it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from servingslo.estimation.pods.cold_start import PRIOR_MEAN_SECONDS
from servingslo.policy.budget.worth import kept_per_gpu
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Targets
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.ownership import NOT_CARRIED_OUT, acting_limit
from servingslo.policy.replicas.proposal import DEMAND_STAGE, STEP_DOWN_STAGE, bounds_of
from servingslo.reasons import Reason

# How long a grant stays if no cold start is known.
UNKNOWN_HOLD_SECONDS = PRIOR_MEAN_SECONDS
# Of a step that a budget made: what was wanted is the count before it.
_BOUNDED = frozenset({Reason.BUDGET_REACHED, Reason.BUDGET_MOVED, Reason.GPUS_UNKNOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What a resource wants and holds, in GPUs; fields as in `sharing.Claim`.

    after_gpus: of the replicas that were just decided.
    """

    minimum_gpus: int
    wanted_gpus: int
    ordered_gpus: int
    held_gpus: int
    gpus_per_replica: int
    kept_per_gpu: float = 0.0
    hold_seconds: float = UNKNOWN_HOLD_SECONDS
    acts: bool = True
    after_gpus: int = 0

    def within(self, most: int | None) -> "Wants":
        """The same, with no more wanted than a further budget leaves for it; None is no budget."""
        if most is None or self.wanted_gpus <= most:
            return self
        return replace(self, wanted_gpus=max(most, self.minimum_gpus))


def standing(ordered: int, pods: int, gpus_per_replica: int) -> Wants:
    """What a resource holds that was not decided on: it keeps that, and wants no more.

    ordered, pods: replicas ordered, and pods that exist.
    """
    return Wants(
        minimum_gpus=0,
        wanted_gpus=ordered * gpus_per_replica,
        ordered_gpus=ordered * gpus_per_replica,
        held_gpus=max(ordered, pods) * gpus_per_replica,
        gpus_per_replica=gpus_per_replica,
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
        return Wants(
            minimum_gpus=0,
            wanted_gpus=total,
            ordered_gpus=total,
            held_gpus=held,
            gpus_per_replica=step,
            acts=False,
        )
    current = sum(before.values())
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
