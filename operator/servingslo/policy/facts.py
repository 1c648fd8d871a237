"""Facts from knobs before the estimate: the cluster's current values of their settings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.sample import GatewaySample
from servingslo.models.engine.service_time import DynamicBatcher
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsChange:
    """Batch limits before and after a change of ours that a rollout carries out.

    Each: running sequences, and tokens of one step.
    """

    before: tuple[int, int]
    after: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightElsewhere:
    """Other pools behind the same route, which one bound in flight holds for.

    limit: requests that they may have in flight, None while one of them is unknown. serving: their
    replicas that serve. requests: in flight there now. route: the gateway's counts of all of them,
    None if the pool has a route of its own.
    """

    limit: int | None = 0
    serving: int = 0
    requests: float = 0.0
    route: GatewaySample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The current values of knobs, and their effect on pods and plan.

    batcher: how batches form, as servers report it; None if none reports it. batches: number of
    executions and their microseconds by size, by pod. not_capacity: ready pods that are not yet
    capacity, each with the reason. rollout: a change of ours that is under way. no_step_down:
    why no replica is released now. on_call: pods that get no requests and serve within seconds once
    they are needed, so that they need no replacement. bound_holds: load has shown that no more
    requests are in flight than the bound allows. elsewhere: in other pools behind the same route.
    trial_elsewhere: a change in another pool is under way.
    """

    batcher: DynamicBatcher | None = None
    batches: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    not_capacity: tuple[tuple[str, str], ...] = ()
    rollout: LimitsChange | None = None
    no_step_down: Reason | None = None
    on_call: frozenset[str] = frozenset()
    bound_holds: bool = False
    elsewhere: InFlightElsewhere = InFlightElsewhere()
    trial_elsewhere: bool = False

    def mark_pods(self, estimate: Estimate) -> Estimate:
        """The estimate with pods marked unreliable that are not yet capacity."""
        if not self.not_capacity:
            return estimate
        # What is known counts before what is suspected: a pod that gets no requests is no doubt.
        known = {name for name, _ in self.not_capacity}
        doubted = tuple(one for one in estimate.unreliable_pods if one[0] not in known)
        return replace(estimate, unreliable_pods=(*doubted, *self.not_capacity))


NO_FACTS = Facts()


def join_facts(facts: Iterable[Facts | None]) -> Facts:
    """The facts of all knobs; if two report the same thing, the first is used."""
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
            on_call=joined.on_call | one.on_call,
            bound_holds=joined.bound_holds or one.bound_holds,
        )
    return joined
