"""Degradation as it is asked for, and the names of the values that a route has in force."""

from dataclasses import dataclass

# Name of the knob and of its actuator.
ROUTE_WEIGHTS = "route-weights"
# Values in force: the fallback's share of the weights in thousandths; numbers of its rule and of
# its backend in the route. FORMER is there only if the weights are the operator's.
SHARE, RULE, BACKEND, FORMER = "share", "rule", "backend", "former"
THOUSANDTHS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationTargets:
    """Where requests go that no further replica can be had for.

    route: an HTTPRoute of the namespace. fallback: a Service among its backends. max_share_ratio:
    the most of the requests that go there. counts_as_ratio: how much of a request within its
    objectives one is that the fallback answered, for the error budget.
    """

    route: str
    fallback: str
    max_share_ratio: float
    counts_as_ratio: float = 0.5
