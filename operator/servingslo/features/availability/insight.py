"""The share of answered requests at each tick, if an objective of it is stated."""

from collections.abc import Mapping

from servingslo.features.availability.answers import (
    MEMORY,
    REPORT,
    TARGET,
    AvailabilityReport,
    availability_report,
    count_answers,
)
from servingslo.policy.insights import Insight
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.promise import (
    PromiseState,
    dump_promise,
    load_promise,
)

# How the misses of this promise are called in stored state.
_UNANSWERED = "unanswered"


class AvailabilityInsight(Insight):
    """Answered requests."""

    key = REPORT

    def learn(self, context: TickContext, memories: Mapping[str, object]) -> PromiseState:
        """The requests and answers of the period."""
        memory, ledger = MEMORY.of(memories) or PromiseState(), context.estimate.ledger
        blind = ledger is None or context.signals.no_metrics is not None
        if ledger is None or blind or TARGET.of(context.targets.features) is None:
            return memory
        return count_answers(
            memory,
            ledger,
            period_seconds=context.targets.promise_period_seconds,
            now_seconds=context.now_seconds,
        )

    def report(
        self, context: TickContext, memories: Mapping[str, object]
    ) -> AvailabilityReport | None:
        """The share of answered requests."""
        asked = TARGET.of(context.targets.features)
        if asked is None:
            return None
        return availability_report(
            MEMORY.of(memories) or PromiseState(),
            context.estimate.ledger,
            target_ratio=asked.target_ratio,
            period_seconds=context.targets.promise_period_seconds,
        )

    def dump(self, memory: object) -> dict[str, float] | None:
        """The requests counted."""
        if not isinstance(memory, PromiseState) or memory.requests <= 0.0:
            return None
        return dump_promise(memory, _UNANSWERED)

    def load(self, stored: object, _now_seconds: float) -> PromiseState | None:
        """The stored requests."""
        return load_promise(stored, _UNANSWERED)


PART = AvailabilityInsight()
