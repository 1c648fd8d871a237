"""The backlog at each tick, and when what waits has arrived."""

from collections.abc import Iterator, Mapping

from servingslo.estimation.stored_fields import number_of
from servingslo.features.backlog.deadlines import (
    MEMORY,
    MOST_COHORTS,
    TARGETS,
    BacklogMemory,
    Cohort,
    remember,
    work_of,
)
from servingslo.features.backlog.report import (
    LATE_LEADS,
    REPORT,
    SILENT,
    BacklogReport,
    backlog_report,
    fresh_reading,
    is_recent,
    units_per_request,
)
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.insights import Insight
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.proposal import Proposal
from servingslo.reasons import Reason


class BacklogInsight(Insight):
    """What waits, what it needs, and what may be sent."""

    key = REPORT

    def look(self, context: TickContext) -> BacklogReport | None:
        """The report; None without a backlog in the spec."""
        stated = TARGETS.of(context.targets.features)
        if stated is None:
            return None
        each = units_per_request(context, stated.unit)
        memory = _memory(context, context.state.features)
        known = memory is not None and each is not None and is_recent(context, memory.at_seconds)
        cohorts = memory.cohorts if memory is not None and known else ()
        soon = LATE_LEADS * context.lead_seconds
        work = work_of(cohorts, stated.deadline, 1.0 / (each or 1.0), context.now_seconds, soon)
        silent = memory is not None and memory.is_silent(each or 1.0)
        return backlog_report(context, stated, work, silent=silent)

    def steps(self, context: TickContext) -> Iterator[DecisionStep]:
        """A dispatcher that is away."""
        report = REPORT.of(context.features)
        if report is not None and report.problem == SILENT:
            now, inputs = context.current, {"left": report.left, "detail": report.problem}
            yield (
                Proposal.of(now).noted("backlog", now, Reason.DISPATCHER_SILENT, **inputs).steps[0]
            )

    def learn(self, context: TickContext, memories: Mapping[str, object]) -> BacklogMemory | None:
        """What waits by the last reading."""
        return _memory(context, memories)

    def dump(self, memory: object) -> dict[str, object] | None:
        """When what waits has arrived."""
        if not isinstance(memory, BacklogMemory) or not memory.cohorts:
            return None
        each = [[round(one.arrived_seconds), one.left] for one in memory.cohorts]
        return {"at": memory.at_seconds, "waiting": each}

    def load(self, stored: object, now_seconds: float) -> BacklogMemory | None:
        """The stored cohorts, none of the future; None for a malformed value."""
        try:
            at, each = number_of(stored["at"]), stored["waiting"]  # type: ignore[index]
            pairs = [(number_of(arrived), number_of(left)) for arrived, left in each]
        except (TypeError, KeyError, ValueError):
            return None
        cohorts = tuple(
            Cohort(arrived_seconds=min(arrived, now_seconds), left=left)
            for arrived, left in pairs
            if arrived is not None and left
        )
        if at is None or not len(cohorts) == len(pairs) <= MOST_COHORTS:
            return None
        return BacklogMemory(at_seconds=min(at, now_seconds), cohorts=cohorts)


def _memory(context: TickContext, memories: Mapping[str, object]) -> BacklogMemory | None:
    """The memory with this tick's reading, if it is a new one."""
    memory, stated = MEMORY.of(memories), TARGETS.of(context.targets.features)
    if stated is None:
        return None
    reading = fresh_reading(context)
    if reading is None or (memory is not None and reading.time_seconds <= memory.at_seconds):
        return memory
    if memory is not None and reading.left is None and is_recent(context, memory.at_seconds):
        # An exporter that starts again does not make old work young.
        return memory
    seconds = 0.0 if memory is None else reading.time_seconds - memory.at_seconds
    each = units_per_request(context, stated.unit) or 0.0
    sent = context.estimate.sheddable_per_second * seconds * each
    report, gateway = REPORT.of(context.features), context.estimate.gateway
    seen = gateway is not None and gateway.gateway_per_second is not None
    offered = report.rate_per_second if report is not None and seen else 0.0
    return remember(memory, reading, sent, stated.deadline.span_seconds, offered)


PART = BacklogInsight()
