"""How far a slope carries demand: learnt from what came of slopes before.

The models of `rate_filters` damp a slope each in its own fixed time. Workloads differ: a ramp goes
on, and where demand swings around a level a slope foretells its opposite. So the rise that slopes
carry a forecast by is scaled by the regression of realized on carried rises, with a prior at one.
Source: R. J. Hyndman and G. Athanasopoulos, "Forecasting: Principles and Practice", damped trend
methods, where the damping is estimated from the series.
"""

from dataclasses import dataclass

# Windows (20 minutes of 15 s), and the squared rises, in predicted variances, of the prior.
MEMORY_WINDOWS = 80.0
PRIOR_SQUARES = 4.0
# A crowd has a slope of its own: with more of it than this the others say nothing.
CROWD_PROBABILITY = 0.3
# The most that one outcome counts: squared rises, and deviations between outcome and level.
LARGEST_SQUARE = 4.0
LARGEST_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeEvidence:
    """Sums over past forecasts of carried x carried and carried x realized rise, over variance."""

    squares: float = 0.0
    products: float = 0.0

    @property
    def gain(self) -> float:
        """What a carried rise is multiplied with, 0 to 1; 1 without evidence."""
        found = (PRIOR_SQUARES + self.products) / (PRIOR_SQUARES + self.squares)
        return min(max(found, 0.0), 1.0)


NO_EVIDENCE = SlopeEvidence()


def learnt(
    evidence: SlopeEvidence, *, carried: float, realized: float, variance: float
) -> SlopeEvidence:
    """The evidence after an outcome; rises in requests per second, variance that was predicted."""
    weight = 1.0 / variance
    square = carried * carried * weight
    if square > LARGEST_SQUARE:
        weight *= LARGEST_SQUARE / square
    furthest = LARGEST_DEVIATIONS * variance**0.5
    realized = min(max(realized, -furthest), furthest)
    kept = 1.0 - 1.0 / MEMORY_WINDOWS
    return SlopeEvidence(
        squares=kept * evidence.squares + carried * carried * weight,
        products=kept * evidence.products + carried * realized * weight,
    )
