"""Check whether a gateway counts all requests that the engines receive.

The windows of both sides are not in step. One side is scraped more often, and the first window of a
new pod includes requests that the gateway passed on earlier. So requests are added up on both
sides, and compared once both have reported. Without traffic nothing is forgotten: a client that
bypasses the gateway would bypass it again, and its first request would not be counted. First
windows do not begin together: requests in the engines' first window may have passed the gateway
before the gateway's first window began.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from servingslo.copying import replace
from servingslo.estimation.windows.plausible import can_have_passed

# A gateway that counts less than this share of the engines' requests does not see all traffic.
# Judgement; measured by false alarms of a real gateway whose scrapes are out of step.
UNDERCOUNT_RATIO = 0.9
# Windows of gateway and engines are not in step. A single window in which the gateway counts too
# little is used as proof only if it is also this many deviations below the engines' count.
UNDERCOUNT_DEVIATIONS = 3.0
MEMORY_COMPARISONS = 20.0
PRIOR_COMPARISONS = 5.0


class Told(NamedTuple):
    """Requests of windows that ended together, and the seconds of the longest window."""

    requests: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Requests passed on by the gateway and counted by the engines, and the number of comparisons.

    doubted_requests: counted by engines in a first window that is longer than the gateway has been
    known. gateway_open, engines_open: counted since the last comparison; None without a window yet.
    gateway_seconds: for how long the gateway has been known.
    """

    gateway_requests: float = 0.0
    engines_requests: float = 0.0
    doubted_requests: float = 0.0
    comparisons: float = 0.0
    gateway_open: float | None = None
    engines_open: float | None = None
    gateway_seconds: float = 0.0

    def add_windows(self, gateway: Told | None, engines: Told | None) -> "Comparison":
        """Add the windows that ended now; None if none ended."""
        told = replace(
            self,
            gateway_open=_add(self.gateway_open, gateway),
            engines_open=_add(self.engines_open, engines),
            gateway_seconds=self.gateway_seconds + (gateway.seconds if gateway else 0.0),
        )
        passed_on, received = told.gateway_open, told.engines_open
        if passed_on is None or received is None:
            return told
        closed = replace(told, gateway_open=None, engines_open=None)
        if not can_have_passed(passed_on, received, 1.0):
            return closed
        memory = 1.0 - 1.0 / MEMORY_COMPARISONS
        kept = memory if passed_on or received else 1.0
        was_known = engines is not None and engines.seconds < self.gateway_seconds
        doubted = 0.0 if self.comparisons or was_known else received
        return replace(
            closed,
            gateway_requests=self.gateway_requests * kept + passed_on,
            engines_requests=self.engines_requests * kept + received,
            doubted_requests=self.doubted_requests * kept + doubted,
            comparisons=self.comparisons * memory + 1.0,
        )

    @property
    def undercounts(self) -> bool:
        """Whether the gateway has counted too few requests over several comparisons."""
        known = self.comparisons >= PRIOR_COMPARISONS
        most = self.gateway_requests + self.doubted_requests
        return known and most < UNDERCOUNT_RATIO * self.engines_requests


NOT_COMPARED = Comparison()


def far_below(
    passed_on_per_second: float,
    engines_per_second: float,
    seconds: float,
    dispersion: float,
    error_ratio: float,
) -> bool:
    """Return whether the gateway's window is further below the engines' than chance explains.

    seconds: of the gateway's window. error_ratio: of the engines' count.
    """
    if seconds <= 0:
        return False
    own = engines_per_second
    # In the worst case two windows out of step share no request: both counts have their own noise.
    noise = math.sqrt(2.0 * dispersion * own / seconds) + error_ratio * own
    return passed_on_per_second < UNDERCOUNT_RATIO * own - UNDERCOUNT_DEVIATIONS * noise


def _add(requests: float | None, told: Told | None) -> float | None:
    return requests if told is None else (requests or 0.0) + told.requests
