"""How a gateway's count of requests was used."""

from dataclasses import dataclass

from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayUse:
    """How the gateway's count was used at this tick; rates per second, None if unknown.

    reason: GATEWAY_COUNTS, GATEWAY_REFUSALS_ADDED, or why the engines' own count is used.
    """

    reason: Reason
    gateway_per_second: float | None = None
    engines_per_second: float | None = None
    refused_per_second: float = 0.0
