"""Inputs of a rule besides its observations: bounds, objectives, and the engine's card."""

from collections.abc import Mapping
from dataclasses import dataclass

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw

Parameters = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Bounds on replicas, thresholds of the objectives in seconds, and a profile of the engine.

    percentile: at which the thresholds hold. law, limits: the exact values, for rules that profile
    engines in advance. engine: the kind's name, for rules that know some cards.
    cold_start_seconds: mean. Rules that learn everything ignore them.
    """

    minimum: int = 1
    maximum: int
    ttft_seconds: float
    tpot_seconds: float
    percentile: float = 99.0
    law: ServiceLaw
    limits: EngineLimits
    cold_start_seconds: float
    engine: str = ""

    def clamped(self, replicas: int) -> int:
        """A count within the bounds."""
        return max(self.minimum, min(replicas, self.maximum))


def merged(defaults: Parameters, chosen: Parameters) -> dict[str, float]:
    """Defaults with some of them chosen. Raises: InvalidInputError for a name without default."""
    for name in chosen:
        if name not in defaults:
            raise InvalidInputError("parameter", name, ", ".join(defaults) or "none")
    return {**defaults, **chosen}
