"""What a resource states of its routes: classes of requests, and the fallback of one."""

from dataclasses import dataclass

from servingslo.models.fleet.latency import Objective

# A sanity bound: every class is a route with counters and a policy of its own.
MOST_CLASSES = 8
# Name of the knob of bounds of classes, and of its actuator.
LANES = "lanes"
# Values in force of an actuator that names a backend of the route where other pods serve: numbers
# of its rule and of itself.
RULE, BACKEND = "rule", "backend"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTargets:
    """Requests of one route on the resource's replicas.

    priority: of 0 or more orders replicas; below 0 is sheddable. route, policy: the HTTPRoute and
    the BackendTrafficPolicy that holds its bound, in the resource's namespace. objectives: of the
    class, its own or the resource's.
    """

    name: str
    priority: int = 0
    route: str
    policy: str
    objectives: tuple[Objective, ...] = ()

    @property
    def target_ratio(self) -> float:
        """Share of its requests that must meet every objective, unless one is stated."""
        return min(objective.percentile for objective in self.objectives) / 100.0

    @property
    def orders(self) -> bool:
        """Whether replicas are ordered for all of its requests."""
        return self.priority >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A backend of the workload's route where other pods serve, counted apart by the gateway.

    service: its name. counts_as_ratio: how much of a request within its objectives one is that was
    answered there, for the promise.
    """

    service: str
    counts_as_ratio: float = 0.5
