"""The decision on a fleet: one for each pool, and what holds for the whole."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ObjectiveReport
from servingslo.policy.pools.inputs import Role
from servingslo.reasons import Action, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """GPUs of all pools: those ordered now, those wanted, and the bound (None is unbounded)."""

    before: int
    after: int
    wanted: int
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathUse:
    """How prefill and decode were joined.

    through_ratio: share of requests that pass the prefill pool. transfer_seconds: mean time of a
    transfer of the KV cache; transfer_source: 'measured', 'stated' or 'assumed'. limits_seconds:
    by pool and then by 'metric:percentile', the part of each threshold that the pool may use.
    """

    through_ratio: float
    transfer_seconds: float
    transfer_source: str
    limits_seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDecision:
    """What one tick decided for all pools of a resource, of a single target for one without a name.

    pools: by name, in the order in which their counts are to be written: a donor of GPUs before the
    receiver, a role that binds first. action and reason: of the pool that changes most replicas,
    else of the pool whose constraint binds. binding_pool: the pool that the reason is about. gpus:
    of several pools, as all that follows. objectives: of prefill and decode, the objectives of the
    whole path as observed; else each pool reports its own. features: what each feature reports over
    all pools. detail: for people.
    """

    time_seconds: float
    namespace: str
    name: str
    pools: Mapping[str, Decision]
    roles: Mapping[str, Role]
    action: Action
    reason: Reason
    binding_pool: str
    gpus: GpuUse | None = None
    path: PathUse | None = None
    objectives: tuple[ObjectiveReport, ...] = ()
    features: Mapping[str, object] = field(default_factory=dict)
    detail: str = ""

    @classmethod
    def of(cls, decision: Decision) -> "FleetDecision":
        """The decision on a single target."""
        return cls(
            time_seconds=decision.time_seconds,
            namespace=decision.namespace,
            name=decision.name,
            pools={decision.pool: decision},
            roles={decision.pool: Role.COMBINED},
            action=decision.action,
            reason=decision.reason,
            binding_pool=decision.pool,
            detail=decision.detail,
        )

    @property
    def only(self) -> Decision | None:
        """The decision on a single target; None of several pools."""
        return next(iter(self.pools.values())) if len(self.pools) == 1 else None

    @property
    def replicas_after(self) -> int | None:
        """The sum of the counts decided; None if one is unknown."""
        return _sum(one.replicas_after for one in self.pools.values())

    @property
    def replicas_before(self) -> int | None:
        """The sum of the counts before; None if one is unknown."""
        return _sum(one.replicas_before for one in self.pools.values())

    def with_pool(self, name: str, decision: Decision) -> "FleetDecision":
        """The same decision with another one for this pool."""
        return replace(self, pools={**self.pools, name: decision})


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(filter(None, known))
