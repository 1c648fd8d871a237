"""Budgets are read as soon as the operator runs; the chart gives the right to."""

from dataclasses import dataclass
from functools import partial

from servingslo.cli.running.feature_flags import Serving
from servingslo.controller.grants import MakeGrants


@dataclass(frozen=True)
class BudgetRun:
    """Shares budgets while this process runs. It is its own flags: there are none."""

    gives_counts = False

    @property
    def flags(self) -> type["BudgetRun"]:
        """None."""
        return BudgetRun

    def options(self, flags: "BudgetRun", _deciders: int) -> "BudgetRun":
        """Always."""
        return flags

    async def start(self, _options: "BudgetRun", serving: Serving) -> MakeGrants:
        """Watch them, and share them among resources."""
        # The clients take a second to import, which no other command needs.
        from servingslo.features.budgets.sharer import BudgetSharer  # noqa: PLC0415
        from servingslo.features.budgets.store import KubernetesServingBudgets  # noqa: PLC0415

        store = KubernetesServingBudgets(serving.client, namespaces=serving.namespaces)
        serving.stack.push_async_callback(store.stop)
        await store.start()
        return partial(BudgetSharer, store=store)


PART = BudgetRun()
