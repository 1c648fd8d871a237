"""An insight: what a feature learns and reports, and decides nothing by.

The planner walks the insights of all features and knows none by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from servingslo.plugins import Aspect, Key
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.routes import ClassTargets


class Insight:
    """What one feature learns. What it saw is in `context.features`, under its key's name.

    key: name and type of its report; the name is also that of its memory.
    """

    key: Key[Any]

    def look(self, _context: TickContext) -> object:
        """What it sees at this tick; None if it sees nothing in addition to the estimate."""

    def learn(self, _context: TickContext, _memories: Mapping[str, object]) -> object:
        """Its memory after this tick."""

    def report(self, context: TickContext, _memories: Mapping[str, object]) -> object:
        """What is reported, with this tick in the memories; None if nothing is."""
        return self.key.of(context.features)

    def of_class(self, _context: TickContext, _one: ClassTargets) -> object:
        """What is reported of one class of requests; None if nothing is."""

    def steps(self, _context: TickContext) -> Iterable[DecisionStep]:
        """Facts that are worth a step of the decision, by what was known before this tick."""
        return ()

    def dump(self, _memory: object) -> object:
        """The part of the memory that survives a restart, as JSON values; None if none does."""

    def load(self, _stored: object, _now_seconds: float) -> object:
        """The reverse of `dump`; None for a malformed value."""


INSIGHT: Aspect[Insight] = Aspect("insight")


def looked(context: TickContext) -> TickContext:
    """The tick with what each feature sees at it."""
    return replace(context, features={one.key.name: one.look(context) for one in INSIGHT.parts()})


def learn(context: TickContext, memories: Mapping[str, object]) -> dict[str, object]:
    """The memories of all features after this tick."""
    return {one.key.name: one.learn(context, memories) for one in INSIGHT.parts()}


def reports(context: TickContext, memories: Mapping[str, object]) -> dict[str, object]:
    """What each feature reports, by name; without those that have nothing to report."""
    found = {one.key.name: one.report(context, memories) for one in INSIGHT.parts()}
    return {name: report for name, report in found.items() if report is not None}


def of_class(context: TickContext, one: ClassTargets) -> dict[str, object]:
    """What each feature reports of one class of requests, by name."""
    found = {part.key.name: part.of_class(context, one) for part in INSIGHT.parts()}
    return {name: report for name, report in found.items() if report is not None}


def steps(context: TickContext) -> tuple[DecisionStep, ...]:
    """The steps of all features."""
    return tuple(step for one in INSIGHT.parts() for step in one.steps(context))


def dump(memories: Mapping[str, object]) -> dict[str, object]:
    """The stored state of features, by name."""
    found = {one.key.name: one.dump(memories.get(one.key.name)) for one in INSIGHT.parts()}
    return {name: stored for name, stored in found.items() if stored is not None}


def load(stored: Mapping[str, object], now_seconds: float) -> dict[str, object]:
    """The reverse of `dump`; what is malformed is left out."""
    found = {
        one.key.name: one.load(stored.get(one.key.name), now_seconds) for one in INSIGHT.parts()
    }
    return {name: memory for name, memory in found.items() if memory is not None}
