"""The share of the requests that goes to a fallback: what is asked for, in force and decided."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from servingslo.plugins import Key
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.reasons import Reason

# Name of the knob and of its actuator.
ROUTE_WEIGHTS = "route-weights"
# Values in force in addition to the fallback's place: its share of the weights in thousandths.
# FORMER is there only if the weights are the operator's.
SHARE, FORMER = "share", "former"
THOUSANDTHS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationTargets:
    """Where requests go that no further replica can be had for.

    route: an HTTPRoute of the namespace. fallback: a Service among its backends. max_share_ratio:
    the most of the requests that go there.
    """

    route: str
    fallback: str
    max_share_ratio: float


TARGETS: Key[DegradationTargets] = Key("degradation", DegradationTargets)


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationDecision(KnobDecision):
    """The share of the requests that goes to a fallback.

    reason: NOT_DEGRADED, DEGRADED, MAX_SHARE_REACHED, FALLBACK_FULL, FALLBACK_UNSEEN, or why no
    weight is written. before, after: shares in force and to set, 0 to 1; equal if it stays. cause:
    why no further replica can be had; None if one can, or none is needed. change_reason: why it
    changes, None if it does not. puts_back: the owner's weights are restored exactly.
    takes_more: more can go there than is known to be taken. unread: the share in force is not
    known.
    """

    route: str
    fallback: str
    max_share_ratio: float
    before: float = 0.0
    after: float = 0.0
    cause: Reason | None = None
    change_reason: Reason | None = None
    puts_back: bool = False
    takes_more: bool = False
    unread: bool = False

    @property
    def spares_refusals(self) -> bool:
        """Whether the fallback can take more requests."""
        return self.takes_more

    def hold(self) -> "DegradationDecision":
        """Keep the weights in force."""
        return replace(self, after=self.before, change_reason=None, puts_back=False)


def degradation_of(knobs: Mapping[str, object]) -> DegradationDecision | None:
    """What is decided of the share, from the decisions of all knobs; None if none is asked for."""
    found = knobs.get(ROUTE_WEIGHTS)
    return found if isinstance(found, DegradationDecision) else None
