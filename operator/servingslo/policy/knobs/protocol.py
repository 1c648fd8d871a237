"""Protocol of a knob: anything that the planner decides in addition to the replica count.

The planner walks a tuple of knobs and knows none by name. Before the estimate, each knob reports
facts from the current cluster values of its own setting. After the count, each decides about its
setting and returns its memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from servingslo.plugins import Aspect, Key
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.facts import Facts
from servingslo.policy.inputs import InForce, Observation
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.proposal import Requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One tick before the estimate."""

    observation: Observation
    now_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One tick after the replica count is decided.

    scaling: the count changes now. acting: decisions are carried out. earlier: decisions of the
    knobs before this one, by name.
    """

    context: TickContext
    requirement: Requirement
    scaling: bool
    acting: bool
    earlier: Mapping[str, KnobDecision]


class Outcome(NamedTuple):
    """A knob's decision, memory and steps; no decision if it has nothing to report."""

    decision: KnobDecision | None
    memory: object = None
    steps: tuple[DecisionStep, ...] = ()


class Knob(Protocol):
    """One thing that is decided. A memory that is None, or of another type, is an empty one."""

    @property
    def name(self) -> str:
        """The name of its memory and its decision; that of its actuator if it has one."""
        ...

    @property
    def stored_as(self) -> str:
        """The name of its part of the stored state; '' if it stores nothing."""
        ...

    def observe(self, look: Look, standing: InForce | None, memory: object, /) -> Facts | None:
        """Facts for the estimate and the plan. standing: the values that its actuator found."""
        ...

    def decide(self, turn: Turn, memory: object, /) -> Outcome:
        """Decide about the setting at this tick."""
        ...

    def on_trial(self, memory: object, /) -> bool:
        """Whether a change of it is under way."""
        ...

    def changed_seconds(self, memory: object, /) -> float | None:
        """When batch limits were last changed by it; None if never, or by another one."""
        ...

    def put_back(self, memory: object, /) -> object:
        """Who puts it back, and what of ours may be put back next: new ones are stored at once."""
        ...

    def dump(self, memory: object, /) -> object:
        """The part of the memory that survives a restart, as JSON values."""
        ...

    def load(self, stored: object, now_seconds: float, /) -> object:
        """The reverse of `dump`; None for a malformed value."""
        ...


class FeatureKnob(Knob, Protocol):
    """The knob of a feature. key: name of its decision in documents, and its type."""

    @property
    def key(self) -> Key[KnobDecision]:
        """Of `Decision.knobs` it is found by the knob's name."""
        ...


class PlainKnob:
    """A knob without values on the cluster and without stored state."""

    stored_as = ""

    def observe(self, _look: Look, _standing: InForce | None, _memory: object) -> Facts | None:
        """No facts."""

    def on_trial(self, _memory: object) -> bool:
        """Nothing is tried."""
        return False

    def changed_seconds(self, _memory: object) -> float | None:
        """It changes no batch limits."""

    def put_back(self, _memory: object) -> object:
        """No one puts anything back."""

    def dump(self, _memory: object) -> object:
        """Store nothing."""

    def load(self, _stored: object, _now_seconds: float) -> object:
        """Restore nothing."""


KNOB: Aspect[FeatureKnob] = Aspect("knob")
