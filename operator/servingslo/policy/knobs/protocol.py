"""What is asked of a knob: of whatever the planner decides beside the replica count.

The planner walks a tuple of knobs and knows none by name. Before the estimate each says what stands
on the cluster of what it sets. After the count each decides about its own and hands back what it is
to remember.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from servingslo.policy.context import TickContext
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.facts import Facts
from servingslo.policy.inputs import InForce, Observation
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.policy.replicas.requirement import Requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One tick before anything is estimated."""

    observation: Observation
    now_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One tick after the replica count is decided.

    scaling: the count changes now. acting: decisions are carried out. earlier: what knobs before
    this one decided, by name.
    """

    context: TickContext
    requirement: Requirement
    scaling: bool
    acting: bool
    earlier: Mapping[str, KnobDecision]


class Outcome(NamedTuple):
    """What a knob decides, remembers and did; no decision where it has nothing to say."""

    decision: KnobDecision | None
    memory: object = None
    steps: tuple[DecisionStep, ...] = ()


class Knob(Protocol):
    """One thing that is decided. A memory that is None, or of another type, is an empty one."""

    @property
    def name(self) -> str:
        """Under which its memory and its decision are kept; that of its actuator if it has one."""
        ...

    @property
    def stored_as(self) -> str:
        """The part of what survives a restart that is its own; '' where nothing does."""
        ...

    def observe(self, look: Look, standing: InForce | None, memory: object, /) -> Facts | None:
        """What the estimate and the plan must know. standing: what its actuator found."""
        ...

    def decide(self, turn: Turn, memory: object, /) -> Outcome:
        """What is done about it at this tick."""
        ...

    def reconcile(self, memory: object, written: bool, /) -> object:
        """The memory after its last change was written, or refused."""
        ...

    def dump(self, memory: object, /) -> object:
        """What of the memory survives a restart, as JSON values."""
        ...

    def load(self, stored: object, now_seconds: float, /) -> object:
        """The reverse; None for whatever is malformed."""
        ...


class PlainKnob:
    """A knob of which nothing stands on the cluster and nothing survives a restart."""

    stored_as = ""

    def observe(self, _look: Look, _standing: InForce | None, _memory: object) -> Facts | None:
        """Nothing."""

    def reconcile(self, memory: object, _written: bool) -> object:
        """The memory as it is: what stands is read anew at every tick."""
        return memory

    def dump(self, _memory: object) -> object:
        """Nothing."""

    def load(self, _stored: object, _now_seconds: float) -> object:
        """Nothing."""
