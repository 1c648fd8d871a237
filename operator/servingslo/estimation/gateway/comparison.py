"""Whether a gateway counts all that engines get, by the requests that each has counted.

Windows of the two are not in step: one is scraped more often, and a pod that was woken tells only
in its first window of what the gateway passed on before. So requests are added up on both sides,
and compared once both have told. While nothing comes nothing is forgotten: who came past the
gateway would come past it again, and no first request of his would be counted. First windows do
not begin together: what engines count in theirs may have passed the gateway before its own began.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from servingslo.estimation.windows.plausible import can_have_passed

# A gateway that counts less than this share of what the engines got is not all there is.
UNDERCOUNT_RATIO = 0.9
MEMORY_COMPARISONS = 20.0
PRIOR_COMPARISONS = 5.0


class Told(NamedTuple):
    """Requests of windows that ended together, and the seconds of the longest."""

    requests: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Requests that the gateway passed on and that engines counted, and how often compared.

    doubted_requests: that engines counted in a first window longer than the gateway is known for.
    gateway_open, engines_open: counted since both were compared last; None for no window yet.
    gateway_seconds: for how long it is known.
    """

    gateway_requests: float = 0.0
    engines_requests: float = 0.0
    doubted_requests: float = 0.0
    comparisons: float = 0.0
    gateway_open: float | None = None
    engines_open: float | None = None
    gateway_seconds: float = 0.0

    def counted(self, gateway: Told | None, engines: Told | None) -> "Comparison":
        """With the windows that ended now; None where none did."""
        told = replace(
            self,
            gateway_open=_added(self.gateway_open, gateway),
            engines_open=_added(self.engines_open, engines),
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
        """Whether the gateway has lastingly counted less."""
        known = self.comparisons >= PRIOR_COMPARISONS
        most = self.gateway_requests + self.doubted_requests
        return known and most < UNDERCOUNT_RATIO * self.engines_requests


NOT_COMPARED = Comparison()


def _added(requests: float | None, told: Told | None) -> float | None:
    return requests if told is None else (requests or 0.0) + told.requests
