"""The bounds of a schedule at each tick. They were in force before: here they are reported."""

from servingslo.features.schedule.bounds import SCHEDULE
from servingslo.features.schedule.report import REPORT, ScheduleReport, schedule_report
from servingslo.policy.insights import Insight
from servingslo.policy.replicas.bounds_in_force import Moment
from servingslo.policy.replicas.context import TickContext


class ScheduleInsight(Insight):
    """The windows in force and the next one."""

    key = REPORT

    def look(self, context: TickContext) -> ScheduleReport | None:
        """The report; None without a schedule."""
        schedule = SCHEDULE.of(context.targets.features)
        if schedule is None:
            return None
        moment = Moment(now_seconds=context.now_seconds, lead_seconds=context.lead_seconds)
        pool = context.observation.pool
        return schedule_report(schedule, context.targets.replicas, moment, pool)


PART = ScheduleInsight()
