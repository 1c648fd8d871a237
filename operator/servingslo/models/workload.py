"""What arrives: rate, variability, and the lengths of prompts and outputs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """A discrete distribution of token counts.

    tokens: increasing support points (for a histogram: representative points of its buckets).
    weights: probabilities of the same length as tokens; they sum to 1.
    """

    tokens: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def mean_tokens(self) -> float:
        """Mean length in tokens."""
        return sum(t * w for t, w in zip(self.tokens, self.weights, strict=True))

    @property
    def second_moment_tokens2(self) -> float:
        """Second moment E[X²], in tokens squared."""
        return sum(t * t * w for t, w in zip(self.tokens, self.weights, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Demand on a fleet.

    arrival_rate_per_second: of the whole fleet. cached_ratio: share of prompt tokens that the
    prefix cache serves (they skip prefill but are attended and held). arrival_dispersion: index of
    dispersion of arrival counts at the time scale of a residence, 1 for Poisson.
    context_tokens_per_sequence: tokens held by a running sequence, E[O·(P + O/2)]/E[O]; None where
    it must be approximated from the marginals (products of means).
    """

    arrival_rate_per_second: float
    prompt: LengthDistribution
    output: LengthDistribution
    cached_ratio: float = 0.0
    arrival_dispersion: float = 1.0
    context_tokens_per_sequence: float | None = None
