"""The numbers of each resource's last decision as metrics, made when they are scraped.

A tick keeps the decision and nothing else; a gauge object for each number took longer than that.
"""

from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.registry import Collector

from servingslo.adapters.gauges import DESIRED, GAUGES, NOT_READY, metric_samples
from servingslo.policy.pools.decision import FleetDecision

RESOURCE_LABELS = ("namespace", "name")
# Of a resource with several pools; a single target has no such label.
_POOL_LABEL = "pool"
(_WHY_LABEL,) = next(family.labels for family in GAUGES if family.name == NOT_READY)

# Namespace and name.
Resource = tuple[str, str]
# A decision; or why a resource without one is not ready, None if there is no problem.
_Last = FleetDecision | str | None


class DecidedMetrics(Collector):
    """The metric families of decisions; none on a standby. Collected in any thread.

    recent: whether the replica count of a resource may still be acted on; outdated ones are left
    out.
    """

    def __init__(self, leads: Callable[[], bool], recent: Callable[[Resource], bool]) -> None:
        self._leads = leads
        self._recent = recent
        self._last: dict[Resource, _Last] = {}

    def show(self, resource: Resource, last: _Last) -> None:
        """Show the numbers of a decision, or only why there is none."""
        self._last[resource] = last

    def decided(self, resource: Resource) -> FleetDecision | None:
        """The decision that is shown; None without one."""
        last = self._last.get(resource)
        return last if isinstance(last, FleetDecision) else None

    def forget(self, resource: Resource) -> None:
        """Show nothing of a resource."""
        self._last.pop(resource, None)

    def collect(self) -> Iterable[Metric]:
        """Every family, with the samples of all resources."""
        if not self._leads():
            return
        families = {one.name: Metric(one.name, one.help, "gauge") for one in GAUGES}
        # A copy in one step: the loop goes on while a page is made.
        for resource, last in self._last.copy().items():
            whose = dict(zip(RESOURCE_LABELS, resource, strict=True))
            if isinstance(last, str):
                families[NOT_READY].add_sample(NOT_READY, {**whose, _WHY_LABEL: last}, 1.0)
            if not isinstance(last, FleetDecision):
                continue
            recent = self._recent(resource)
            for pool, decision in last.pools.items():
                whole = {**whose, _POOL_LABEL: pool} if pool else whose
                # Prometheus refuses a page that says the same twice.
                once = {(one.name, *one.labels.values()): one for one in metric_samples(decision)}
                for name, labels, value in once.values():
                    if recent or name != DESIRED:
                        families[name].add_sample(name, {**whole, **labels}, value)
        yield from families.values()
