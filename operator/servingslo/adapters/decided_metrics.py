"""The numbers of each resource's last decision as metrics, made when they are scraped.

A tick keeps the decision and nothing else; a gauge object for each number took longer than that.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector

from servingslo.adapters.gauges import DESIRED, GAUGES, NOT_READY, metric_samples
from servingslo.policy.decision import Decision

RESOURCE_LABELS = ("namespace", "name")
# Of a resource with several pools; a single target has no such label.
_POOL_LABEL = "pool"
_LABELS = {family.name: family.labels for family in GAUGES}

# Namespace, name, and the pool.
Resource = tuple[str, str, str]
# A family's name, and values of its own labels.
_Sample = tuple[str, tuple[str, ...]]
# A decision; or why a resource without one is not ready, None if there is no problem.
_Last = Decision | str | None


class DecidedMetrics(Collector):
    """The metric families of decisions; none on a standby. Collected in any thread.

    recent: whether the replica count of a resource may still be acted on; outdated ones are left
    out.
    """

    def __init__(self, leads: Callable[[], bool], recent: Callable[[str, str, str], bool]) -> None:
        self._leads = leads
        self._recent = recent
        self._last: dict[Resource, _Last] = {}

    def show(self, resource: Resource, last: _Last) -> None:
        """Show the numbers of a decision, or only why there is none."""
        self._last[resource] = last

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
            whose = dict(zip((*RESOURCE_LABELS, _POOL_LABEL), resource, strict=True))
            if not whose[_POOL_LABEL]:
                del whose[_POOL_LABEL]
            recent = self._recent(*resource)
            for (name, values), value in dict(_samples(last)).items():
                if recent or name != DESIRED:
                    labels = {**whose, **dict(zip(_LABELS[name], values, strict=True))}
                    families[name].add_sample(name, labels, value)
        yield from families.values()


def _samples(last: _Last) -> Iterator[tuple[_Sample, float]]:
    if isinstance(last, Decision):
        for one in metric_samples(last):
            yield (one.name, tuple([one.labels[label] for label in _LABELS[one.name]])), one.value
    elif last is not None:
        yield (NOT_READY, (last,)), 1.0
