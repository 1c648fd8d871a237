"""Budgets are read as soon as the operator runs; the chart gives the right to."""

from dataclasses import dataclass
from functools import partial

from servingslo.cli.running.feature_flags import Serving


@dataclass(frozen=True)
class NoFlags:
    """Nothing is asked."""


class BudgetRun:
    """Shares budgets while this process runs."""

    flags = NoFlags
    gives_counts = False

    def options(self, flags: NoFlags, _shards: int) -> NoFlags:
        """Always."""
        return flags

    async def start(self, _options: NoFlags, serving: Serving) -> None:
        """Watch them, and share them among resources."""
        # The clients take a second to import, which no other command needs.
        from servingslo.features.budgets.sharer import BudgetSharer  # noqa: PLC0415
        from servingslo.features.budgets.store import KubernetesServingBudgets  # noqa: PLC0415

        store = KubernetesServingBudgets(serving.client, namespaces=serving.namespaces)
        serving.stack.push_async_callback(store.stop)
        await store.start()
        serving.sharers.append(partial(BudgetSharer, store=store))


PART = BudgetRun()
