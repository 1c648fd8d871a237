"""The share of answered requests at each tick, if an objective of it is stated."""

from collections.abc import Mapping

from servingslo.estimation.stored_fields import number_of
from servingslo.features.availability.answers import (
    MEMORY,
    NOTHING_COUNTED,
    REPORT,
    TARGET,
    AvailabilityReport,
    AvailabilityState,
    availability_report,
    count_answers,
)
from servingslo.plugins import Key
from servingslo.policy.insights import PlainInsight
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.promise import period_seconds


class AvailabilityInsight(PlainInsight):
    """Answered requests."""

    key: Key[AvailabilityReport] = REPORT

    def learn(self, context: TickContext, memories: Mapping[str, object]) -> AvailabilityState:
        """The requests and answers of the period."""
        memory, ledger = MEMORY.of(memories) or NOTHING_COUNTED, context.estimate.ledger
        blind = ledger is None or context.signals.no_metrics is not None
        if ledger is None or blind or TARGET.of(context.targets.features) is None:
            return memory
        return count_answers(
            memory,
            ledger,
            period_seconds=period_seconds(context.targets),
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
            MEMORY.of(memories) or NOTHING_COUNTED,
            context.estimate.ledger,
            target_ratio=asked.target_ratio,
            period_seconds=period_seconds(context.targets),
        )

    def dump(self, memory: object) -> dict[str, float] | None:
        """The requests counted."""
        if not isinstance(memory, AvailabilityState) or memory.requests <= 0.0:
            return None
        return {
            "requests": round(memory.requests, 1),
            "unanswered": round(memory.unanswered, 2),
            "seconds": round(memory.seconds),
        }

    def load(self, stored: object, _now_seconds: float) -> AvailabilityState | None:
        """The stored requests."""
        if not isinstance(stored, Mapping):
            return None
        numbers = [number_of(stored.get(name)) for name in ("requests", "unanswered", "seconds")]
        if any(number is None or number < 0.0 for number in numbers):
            return None
        requests, unanswered, seconds = (number or 0.0 for number in numbers)
        return AvailabilityState(
            requests=requests, unanswered=min(unanswered, requests), seconds=seconds
        )


PART = AvailabilityInsight()
