"""The page of the gateway in front of simulated engines: Envoy's own statistics of clusters.

Names, types and labels equal those of a real capture; a test compares them. Only statistics of
requests are included.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteReading:
    """Envoy's counts for one HTTPRoute with one rule.

    offered: arrivals. unrouted: requests without an engine. overflowed: requests beyond the bound
    on requests in flight. waiting: requests at the gateway now.
    """

    namespace: str
    route: str
    offered: int = 0
    unrouted: int = 0
    overflowed: int = 0
    waiting: int = 0


_STATISTICS: tuple[tuple[str, str, Callable[[RouteReading], int]], ...] = (
    ("upstream_cx_none_healthy", "counter", lambda route: route.unrouted),
    ("upstream_rq_active_overflow", "counter", lambda route: route.overflowed),
    ("upstream_rq_pending_overflow", "counter", lambda _: 0),
    ("upstream_rq_retry", "counter", lambda _: 0),
    (
        "upstream_rq_total",
        "counter",
        lambda route: route.offered - route.unrouted - route.overflowed - route.waiting,
    ),
    ("upstream_rq_pending_active", "gauge", lambda route: route.waiting),
)


def envoy_page(routes: Iterable[RouteReading]) -> str:
    """The statistics of one Envoy; each route is a cluster as Envoy Gateway names it."""
    clusters = [(f"httproute/{one.namespace}/{one.route}/rule/0", one) for one in routes]
    lines = []
    for name, kind, value in _STATISTICS:
        lines.append(f"# TYPE envoy_cluster_{name} {kind}")
        lines += [
            f'envoy_cluster_{name}{{envoy_cluster_name="{cluster}"}} {value(route)}'
            for cluster, route in clusters
        ]
    return "\n".join(lines) + "\n"
