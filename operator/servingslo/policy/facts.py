"""What knobs saw before anything is estimated: what stands on the cluster of what they set."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.estimate import Estimate
from servingslo.models.engine.service_time import DynamicBatcher
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsChange:
    """Batch limits before and after a change of ours that a rollout carries out.

    Each: sequences at once, and tokens of one step.
    """

    before: tuple[int, int]
    after: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What stands, and what it makes of pods and of the plan.

    batcher: how batches form, as servers report it; None where none does. batches: executions and
    their microseconds by size, by pod. not_capacity: ready pods that are none yet, each with why.
    rollout: a change of ours that is not judged yet. no_step_down: why no replica is released now.
    bound_holds: load has shown that no more is in flight than the bound allows.
    """

    batcher: DynamicBatcher | None = None
    batches: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    not_capacity: tuple[tuple[str, str], ...] = ()
    rollout: LimitsChange | None = None
    no_step_down: Reason | None = None
    bound_holds: bool = False

    def mark_pods(self, estimate: Estimate) -> Estimate:
        """The estimate in which pods that are no capacity yet cannot be relied on."""
        if not self.not_capacity:
            return estimate
        known = {name for name, _ in estimate.unreliable_pods}
        added = tuple(one for one in self.not_capacity if one[0] not in known)
        return replace(estimate, unreliable_pods=(*estimate.unreliable_pods, *added))


NO_FACTS = Facts()


def join_facts(facts: Iterable[Facts | None]) -> Facts:
    """The facts of all knobs; where two speak of one thing the first is believed."""
    joined = NO_FACTS
    for one in facts:
        if one is None:
            continue
        joined = Facts(
            batcher=joined.batcher or one.batcher,
            batches={**one.batches, **joined.batches},
            not_capacity=(*joined.not_capacity, *one.not_capacity),
            rollout=joined.rollout or one.rollout,
            no_step_down=joined.no_step_down or one.no_step_down,
            bound_holds=joined.bound_holds or one.bound_holds,
        )
    return joined
