"""The schedules of several pools: each bounds its own, and all windows are reported together."""

from collections.abc import Mapping

from servingslo.features.schedule.report import REPORT, ScheduleReport
from servingslo.policy.pools.insights import FleetInsight, FleetTick


class FleetSchedule(FleetInsight):
    """The windows of all pools."""

    def whole(
        self, tick: FleetTick, _memories: Mapping[str, object]
    ) -> tuple[ScheduleReport | None, None]:
        """Their windows and the soonest next one; bounds and contradictions are of each pool."""
        found = [REPORT.of(one.features) for one in tick.decisions.values()]
        each = [one for one in found if one is not None]
        if not each:
            return None, None
        later = [one.next for one in each if one.next is not None]
        return ScheduleReport(
            windows=tuple(window for one in each for window in one.windows),
            next=min(later, key=lambda one: one.begins_seconds, default=None),
            cut_minimum=max(
                (one.cut_minimum for one in each if one.cut_minimum is not None), default=None
            ),
        ), None


PART = FleetSchedule(REPORT)
