"""What was reported last of a resource, what a decision would add to it, and what is due."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servingslo.explain.conditions.condition import Condition, ConditionType, Verdict
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.catalogue import KNOBS
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Action, Reason

_LEARNED_SECONDS = 300.0
_PutBack = tuple[object, ...]


@dataclass(slots=True)
class Said:
    """What was said last of one target: its decision, and the one that the log has.

    told: the verdicts on the last. held_by: what holds the count, since held_seconds;
    why_reported: the log has a line about it.
    """

    last: Decision | None = None
    told: Mapping[ConditionType, Verdict] = field(default_factory=dict)
    logged: Decision | None = None
    held_by: Reason | None = None
    held_seconds: float = 0.0
    why_reported: bool = False


@dataclass(slots=True)
class Reported:
    """The last report of one resource.

    said: by pool, of a single target under ''. learned_trusted: how many laws were trusted in the
    stored learnt state. learned_reverts: the reverts, as stored with it.
    """

    conditions: tuple[Condition, ...]
    said: dict[str, Said] = field(default_factory=dict)
    learned_trusted: int = 0
    learned_reverts: tuple[_PutBack, ...] = ()

    @property
    def last(self) -> Decision | None:
        """A last decision of any pool; None if nothing is decided."""
        return next((one.last for one in self.said.values() if one.last is not None), None)


def trusted_laws(fleet: FleetDecision) -> int:
    """How many laws are trusted."""
    return sum(one.model.trusted for one in fleet.pools.values())


def put_back(state: FleetState) -> tuple[_PutBack, ...]:
    """Who puts counts and limits back, of each target."""
    return tuple(map(_put_back, state.pools.values()))


def learned_is_due(
    reported: Reported,
    fleet: FleetDecision,
    state: FleetState,
    now_seconds: float,
    learned_seconds: float | None,
) -> bool:
    """At the first metrics, at a newly trusted law, at orders and reverts, else periodically."""
    now, decisions = put_back(state), fleet.pools.values()
    if now != (reported.learned_reverts or (_put_back(PlannerState()),) * len(now)):
        return True
    if learned_seconds is None:
        return any(one.metrics is Reason.METRICS_FRESH for one in decisions)
    scaled = any(one.action is not Action.HOLD and one.apply_replicas for one in decisions)
    found = trusted_laws(fleet) > reported.learned_trusted
    rested = abs(now_seconds - learned_seconds) >= _LEARNED_SECONDS
    return scaled or found or rested


def _put_back(state: PlannerState) -> _PutBack:
    """Who puts counts and settings back, and which of ours they may put back next."""
    return state.reverts, *(one.put_back(state.knobs.get(one.name)) for one in KNOBS)


def differs_from(logged: Decision | None, decision: Decision) -> bool:
    """Whether a decision differs from the one logged last, and does not only repeat it."""
    if logged is None:
        return True
    names: Sequence[str] = ("action", "replicas_before", "replicas_after", "binding", "reason")
    return any(getattr(logged, name) != getattr(decision, name) for name in names)
