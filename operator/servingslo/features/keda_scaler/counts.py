"""The count for a ScaledObject, from its own namespace and target, never from its request."""

from collections.abc import Callable
from dataclasses import dataclass

from servingslo.adapters.kubernetes.pods.records import ScalerRecord, group_of
from servingslo.controller.registry import Registry
from servingslo.errors import MetricsUnavailableError, NotFoundError
from servingslo.policy.inputs import Actuation


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledObjectCounts:
    """Counts for ScaledObjects whose target a ServingSLO of their namespace leaves to KEDA.

    scaled_object: of that namespace and name, as known from the cluster. handed_over: the count
    that a resource's last decision hands over, by namespace, name and pool; None while nothing is
    known.
    """

    scaled_object: Callable[[str, str], ScalerRecord | None]
    registry: Registry
    handed_over: Callable[[str, str, str], int | None]

    def count(self, namespace: str, name: str) -> int:
        """The count for a ScaledObject.

        Raises: NotFoundError if it is not known, or if no ServingSLO leaves its target to KEDA;
        MetricsUnavailableError while there is no count.
        """
        scaled_object = self.scaled_object(namespace, name)
        if scaled_object is None:
            raise NotFoundError(f"no ScaledObject {namespace}/{name} is known")
        target = f"{scaled_object.target_kind}/{scaled_object.target_name}"
        giving = self._giving_to(scaled_object)
        if not giving:
            raise NotFoundError(f"no ServingSLO in {namespace} has actuation Keda for {target}")
        # Of several with one target, only the oldest hands over a count.
        counts = (self.handed_over(namespace, slo, pool) for slo, pool in giving)
        count = next((count for count in counts if count is not None), None)
        if count is None:
            told = ", ".join(slo for slo, _ in giving)
            raise MetricsUnavailableError(f"ServingSLO {told} in {namespace} gives no count now")
        return count

    def _giving_to(self, scaled_object: ScalerRecord) -> list[tuple[str, str]]:
        """The ServingSLOs that leave the count of this target to KEDA, with the pool it is in."""
        wanted = (scaled_object.group, scaled_object.target_kind, scaled_object.target_name)
        found: list[tuple[str, str]] = []
        for (namespace, name), resource in self.registry.resources.items():
            if namespace != scaled_object.namespace:
                continue
            for pool, targets in resource.pools.items():
                target = self.registry.stands_for(namespace, targets.target)
                if targets.actuation is Actuation.KEDA:
                    key = (group_of(target.api_version), target.kind, target.name)
                    found += [(name, pool)] if key == wanted else []
        return found
