"""Decisions of knobs as data, for the decision, its document and its reports."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

from servingslo.plugins import Key
from servingslo.policy.rules.batch_search import LimitsPlan
from servingslo.reasons import Reason

# Names of the built-in knobs. A knob that changes the cluster has the name of its actuator.
BATCH_LIMITS = "batch-limits"
ADMISSION = "admission"
GATEWAY_LIMITS = "gateway-limits"

Decided = TypeVar("Decided", bound="KnobDecision")


class WrittenBound(NamedTuple):
    """Bounds in flight that are written: in which objects, why, and what is said if none is."""

    where: str
    reason: Reason
    otherwise: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobDecision:
    """What was decided about one knob, and why. detail: for people."""

    reason: Reason
    detail: str = ""

    @property
    def saving(self) -> int | None:
        """Replicas that the recommendation saves; None if nothing is recommended."""
        return None

    @property
    def spares_refusals(self) -> bool:
        """Whether more requests can be served than ready replicas take, so that none need wait."""
        return False

    @property
    def bound(self) -> WrittenBound | None:
        """The bound in flight that it writes; None if it writes none."""
        return None

    @property
    def bounds(self) -> Mapping[str, int | None]:
        """The new bounds of classes of requests, by class."""
        return {}

    def hold(self) -> Self:
        """The decision if nothing may be written at this tick."""
        return self

    def amended(self, other: Decided) -> Decided:
        """Another knob's decision as it is reported beside this one."""
        return other


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCost:
    """The cost of a change of batch limits: each pod runs next to its replacement during the start.

    surge_replica_seconds: a cold start for each of the restarted replicas. payback_seconds: time
    after which the saved replicas have paid for it; None if none are saved.
    """

    restarted_replicas: int
    surge_replica_seconds: float
    payback_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingDecision(KnobDecision):
    """Batch limits in force and recommended; apply says whether they are changed now.

    today: the plan with the limits in force. better: the cheapest plan, for comparison; None if the
    limits in force are as good. rollout: the price of that change. detail: for people.
    """

    apply: bool = False
    container: str | None = None
    current_max_num_seqs: int | None = None
    recommended_max_num_seqs: int | None = None
    current_max_num_batched_tokens: int | None = None
    recommended_max_num_batched_tokens: int | None = None
    replicas_saved: int | None = None
    today: LimitsPlan | None = None
    better: LimitsPlan | None = None
    rollout: RolloutCost | None = None

    @property
    def limits(self) -> tuple[tuple[str, int | None, int | None], ...]:
        """Of each limit its name, the value in force, and the recommended one."""
        tokens = (self.current_max_num_batched_tokens, self.recommended_max_num_batched_tokens)
        return (
            ("max_num_seqs", self.current_max_num_seqs, self.recommended_max_num_seqs),
            ("max_num_batched_tokens", *tokens),
        )

    @property
    def changes(self) -> tuple[tuple[str, int | None, int], ...]:
        """The limits for which another value is recommended than that in force."""
        every = ((name, now, wanted) for name, now, wanted in self.limits if wanted is not None)
        return tuple(one for one in every if one[1] != one[2])

    @property
    def saving(self) -> int | None:
        """Replicas that the better plan saves."""
        return self.replicas_saved

    def hold(self) -> Self:
        """Keep the limits in force."""
        return replace(self, apply=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision(KnobDecision):
    """Admission bounds from ready replicas.

    queue_limit: requests that may wait at one replica.
    in_flight_limit: requests that may run or wait there.
    """

    admitted_rate_per_second: float | None = None
    queue_limit: int | None = None
    in_flight_limit: int | None = None
    shed_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitDecision(KnobDecision):
    """The bound on requests in flight at each proxy of a gateway.

    reason: LIMIT_VERIFIED, LIMIT_UNVERIFIED, LIMIT_NOT_HELD, LIMIT_OPENED, or why none is written.
    before: in force now, None if the object states none. after: the one to set; equal if it stays.
    change_reason: why it changes, None if it does not. puts_back: the value from before the
    operator's is restored exactly.
    """

    kind: str
    object_name: str
    proxies: int = 1
    before: int | None = None
    after: int | None = None
    change_reason: Reason | None = None
    puts_back: bool | None = None

    @property
    def bound(self) -> WrittenBound:
        """The bound of the object."""
        where = f"{self.kind}/{self.object_name}"
        return WrittenBound(where, self.reason, "no bound is written", self.detail)


# Where the decision of a built-in knob stands in documents: its name there, and its type.
BUILT_IN: Mapping[str, Key[KnobDecision]] = {
    BATCH_LIMITS: Key("batching", BatchingDecision),
    ADMISSION: Key("admission", AdmissionDecision),
    GATEWAY_LIMITS: Key("gateway_limit", LimitDecision),
}
