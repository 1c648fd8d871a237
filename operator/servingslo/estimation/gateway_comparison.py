"""Whether a gateway counts all that engines get, by the requests that each has counted.

Windows of the two are not in step: one is scraped more often, and a pod that was woken tells only
in its first window of what the gateway passed on before. So requests are added up on both sides,
and compared once both have told. While nothing comes nothing is forgotten: who came past the
gateway would come past it again, and no first request of his would be counted.
"""

from dataclasses import dataclass, replace

from servingslo.estimation.plausible import can_have_passed

# A gateway that counts less than this share of what the engines got is not all there is.
UNDERCOUNT_RATIO = 0.9
MEMORY_COMPARISONS = 20.0
PRIOR_COMPARISONS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Requests that the gateway passed on and that engines counted, and how often compared.

    gateway_open, engines_open: counted since both were compared last; None for no window yet.
    """

    gateway_requests: float = 0.0
    engines_requests: float = 0.0
    comparisons: float = 0.0
    gateway_open: float | None = None
    engines_open: float | None = None

    def counted(self, gateway: float | None, engines: float | None) -> "Comparison":
        """With the requests of windows that ended now; None where none did."""
        gateway, engines = _added(self.gateway_open, gateway), _added(self.engines_open, engines)
        if gateway is None or engines is None:
            return replace(self, gateway_open=gateway, engines_open=engines)
        closed = replace(self, gateway_open=None, engines_open=None)
        if not can_have_passed(gateway, engines, 1.0):
            return closed
        memory = 1.0 - 1.0 / MEMORY_COMPARISONS
        kept = memory if gateway or engines else 1.0
        return replace(
            closed,
            gateway_requests=self.gateway_requests * kept + gateway,
            engines_requests=self.engines_requests * kept + engines,
            comparisons=self.comparisons * memory + 1.0,
        )

    @property
    def undercounts(self) -> bool:
        """Whether the gateway has lastingly counted less."""
        known = self.comparisons >= PRIOR_COMPARISONS
        return known and self.gateway_requests < UNDERCOUNT_RATIO * self.engines_requests


NOT_COMPARED = Comparison()


def _added(requests: float | None, more: float | None) -> float | None:
    return more if requests is None else requests + (more or 0.0)
