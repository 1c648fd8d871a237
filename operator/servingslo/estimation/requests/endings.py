"""Requests without a whole answer: who counts them, the gateway or the engines."""

from collections.abc import Sequence

from servingslo.estimation.gateway.classes import Sheddable
from servingslo.estimation.gateway.counts import GatewayFlow, total
from servingslo.estimation.windows.endings import Endings


def endings_of(
    engines: Sequence[Endings],
    gateway: GatewayFlow | None,
    refused_behind_per_second: float,
    shed: Sheddable | None = None,
) -> Endings:
    """Return failed and aborted requests per second, from the gateway if it counts them.

    The gateway sees the answers that clients get, after its own retries. A request that an engine
    or a fallback refused ended there as 5xx, and is among the refusals already.
    engines: rates of each engine. refused_behind_per_second: by engines and a fallback. shed: the
    classes that order no replicas, whose requests are left out. Engines know no classes: what they
    count is divided as all requests are.
    """
    ordering = 1.0 if shed is None else max(1.0 - shed.offered_ratio, 0.0)
    if gateway is None or gateway.failed_per_second is None:
        failed, aborted = total(e.failed for e in engines), total(e.aborted for e in engines)
        return Endings(
            None if failed is None else ordering * failed,
            None if aborted is None else ordering * aborted,
        )
    of_others = Endings() if shed is None else shed.endings
    failed = gateway.failed_per_second - (of_others.failed or 0.0)
    aborted = gateway.aborted_per_second
    return Endings(
        max(failed - ordering * refused_behind_per_second, 0.0),
        None if aborted is None else max(aborted - (of_others.aborted or 0.0), 0.0),
    )
