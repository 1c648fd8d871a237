"""The error budget at each tick, of the whole resource and of each class of requests."""

from servingslo.features.error_budget.report import (
    READING,
    REPORT,
    BudgetReport,
    budget_left_ratio,
    budget_report,
)
from servingslo.plugins import Key
from servingslo.policy.insights import Insight
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.routes import ClassTargets


class BudgetInsight(Insight):
    """What is left of the budget."""

    key: Key[BudgetReport] = REPORT

    def look(self, context: TickContext) -> BudgetReport | None:
        """The budget by the last reading."""
        return budget_report(context.targets, context.observation)

    def of_class(self, context: TickContext, one: ClassTargets) -> float | None:
        """What is left of the class's own budget, as a ratio; None if none is kept or known."""
        reading = READING.of(context.observation.features)
        if reading is None or REPORT.of(context.features) is None:
            return None
        known, stated = (
            reading.windows[-1].classes.get(one.name),
            context.targets.stated_share_ratio,
        )
        target = one.target_ratio if stated is None else stated
        return None if known is None else budget_left_ratio(known.most, known.requests, target)


PART = BudgetInsight()
