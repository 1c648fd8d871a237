"""What a resource states of its routes: classes of requests, and the fallback of one."""

from dataclasses import dataclass

from servingslo.models.fleet.latency import Objective

# A sanity bound: every class is a route with counters and a policy of its own.
MOST_CLASSES = 8
# Names of knobs and of their actuators: bounds of classes, and weights of a route.
LANES = "lanes"
ROUTE_WEIGHTS = "route-weights"
# Values in force: the fallback's share of the weights in thousandths; numbers of its rule and of
# its backend in the route. FORMER is there only if the weights are the operator's.
SHARE, RULE, BACKEND, FORMER = "share", "rule", "backend", "former"
THOUSANDTHS = 1000


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
class DegradationTargets:
    """Where requests go that no further replica can be had for.

    route: an HTTPRoute of the namespace. fallback: a Service among its backends. max_share_ratio:
    the most of the requests that go there. counts_as_ratio: how much of a request within its
    objectives one is that the fallback answered, for the promise.
    """

    route: str
    fallback: str
    max_share_ratio: float
    counts_as_ratio: float = 0.5
