"""The parts of the time of a request at each tick, and their memory while objectives are met."""

from collections.abc import Iterator, Mapping

from servingslo.features.latency_budget.growth import (
    NO_MEMORY,
    NOT_MENDED_BY_REPLICAS,
    LatencyMemory,
    are_met,
    remember,
    seen_by_engines,
    with_growth,
)
from servingslo.features.latency_budget.parts import latency_report
from servingslo.features.latency_budget.report import LATENCY, LatencyReport
from servingslo.plugins import Key
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.insights import Insight
from servingslo.policy.replicas.context import TickContext
from servingslo.reasons import Reason

MEMORY: Key[LatencyMemory] = Key(LATENCY.name, LatencyMemory)


class LatencyInsight(Insight):
    """Where the time of a request goes."""

    key = LATENCY

    def look(self, context: TickContext) -> LatencyReport | None:
        """The parts; None if none was observed."""
        alone = not context.observation.pool
        return latency_report(context.estimate, context.targets.objectives, alone=alone)

    def learn(self, context: TickContext, memories: Mapping[str, object]) -> LatencyMemory:
        """The parts while the objectives are met."""
        memory, report = MEMORY.of(memories) or NO_MEMORY, _seen(context)
        if report is None:
            return memory
        before = memory.met_at_seconds
        judged = seen_by_engines(context.estimate, context.targets.objectives)
        return remember(
            memory,
            report,
            met=are_met(judged, report),
            elapsed_seconds=0.0 if before is None else context.now_seconds - before,
            now_seconds=context.now_seconds,
        )

    def report(self, context: TickContext, memories: Mapping[str, object]) -> LatencyReport | None:
        """The parts, and which grew."""
        report = _seen(context)
        return report and with_growth(report, MEMORY.of(memories) or NO_MEMORY)

    def steps(self, context: TickContext) -> Iterator[DecisionStep]:
        """The part that grew since the objectives were met, if no replica mends it.

        before, after: its mean, seconds. None while the objectives are met, or if another part
        grew most.
        """
        report = LATENCY.of(context.features)
        if report is None:
            return
        report = with_growth(report, MEMORY.of(context.state.features) or NO_MEMORY)
        grown = None if report.grew is None else report.of(report.grew)
        if grown is None or grown.part not in NOT_MENDED_BY_REPLICAS:
            return
        now, more = grown.mean_seconds or 0.0, grown.grown_seconds or 0.0
        yield DecisionStep(
            stage="latency",
            knob=grown.part.value,
            before=now - more,
            after=now,
            reason=Reason.MORE_REPLICAS_DO_NOT_HELP,
            inputs={"grown_seconds": more},
        )


def _seen(context: TickContext) -> LatencyReport | None:
    """The parts at this tick; None if they are not of now."""
    return LATENCY.of(context.features) if context.signals.no_metrics is None else None


PART = LatencyInsight()
