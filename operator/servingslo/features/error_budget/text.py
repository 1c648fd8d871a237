"""What is left of a class's error budget, for a person on call."""

from collections.abc import Iterator

from servingslo.explain.features import Reports, Text
from servingslo.explain.format import percent
from servingslo.features.error_budget.report import LEFT


class BudgetText(Text):
    """The budgets of classes; that of the whole is in the status."""

    def of_class(self, reports: Reports) -> Iterator[str]:
        """What is left of it."""
        if (left := LEFT.of(reports)) is not None:
            yield f"error budget {percent(left)} left"


PART = BudgetText()
