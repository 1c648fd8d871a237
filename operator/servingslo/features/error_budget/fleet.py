"""Of several pools, the budget of the whole resource, with whose pool it was read."""

from collections.abc import Mapping

from servingslo.features.error_budget.report import REPORT, BudgetReport
from servingslo.plugins import Key
from servingslo.policy.pools.insights import FleetInsight, FleetTick


class FleetBudget(FleetInsight):
    """The budget of the whole resource."""

    key: Key[BudgetReport] = REPORT

    def whole(
        self, tick: FleetTick, _memories: Mapping[str, object]
    ) -> tuple[BudgetReport | None, None]:
        """As of the pool that has it."""
        found = (REPORT.of(one.context.features) for one in tick.seen.values())
        return next((one for one in found if one is not None), None), None


PART = FleetBudget()
