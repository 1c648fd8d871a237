"""Arrivals of a workload: rate, variability, and the lengths of prompts and outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import le, mul

import numpy as np

from servingslo.errors import InvalidInputError

# Weights of a histogram are written with six digits or more.
_WEIGHT_SUM_TOLERANCE = 1e-6


class _Moments:
    """Slots for computed moments; they are no fields, so they are never stored."""

    __slots__ = ("_mean", "_second", "_third")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution(_Moments):
    """A discrete distribution of token counts.

    tokens: increasing support points (for a histogram: representative points of its buckets).
    weights: probabilities of the same length as tokens; they sum to 1.
    Raises: InvalidInputError when the lengths differ, a point is negative or out of order, or the
    weights do not sum to 1.
    """

    tokens: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.weights):
            allowed = f"as many weights as tokens ({len(self.tokens)}), at least one"
            raise InvalidInputError("weights", len(self.weights), allowed)
        if self.tokens[0] < 0 or any(map(le, self.tokens[1:], self.tokens)):
            raise InvalidInputError("tokens", self.tokens, "increasing, 0 or more")
        if min(self.weights) < 0 or abs(sum(self.weights) - 1.0) > _WEIGHT_SUM_TOLERANCE:
            raise InvalidInputError("weights", sum(self.weights), "0 or more, summing to 1")

    @classmethod
    def from_samples(cls, samples: Sequence[float]) -> "LengthDistribution":
        """Return the empirical distribution of observed lengths, in tokens."""
        points, counts = np.unique(np.asarray(samples, dtype=float), return_counts=True)
        return cls(tokens=tuple(points.tolist()), weights=tuple((counts / counts.sum()).tolist()))

    @classmethod
    def constant(cls, tokens: float) -> "LengthDistribution":
        """Return a distribution in which every request has this length, in tokens."""
        return cls(tokens=(float(tokens),), weights=(1.0,))

    @property
    def mean_tokens(self) -> float:
        """Mean length in tokens."""
        return self._moment("_mean", 1)

    @property
    def second_moment_tokens2(self) -> float:
        """Second moment E[X²], in tokens squared."""
        return self._moment("_second", 2)

    @property
    def third_moment_tokens3(self) -> float:
        """Third moment E[X³], in tokens cubed."""
        return self._moment("_third", 3)

    def _moment(self, slot: str, power: int) -> float:
        """Return E[X^power], computed once."""
        try:
            return float(getattr(self, slot))
        except AttributeError:
            terms: Sequence[float] = self.weights
            for _ in range(power):
                terms = list(map(mul, self.tokens, terms))
            moment = sum(terms)
            # The value depends only on the fields, so the distribution stays unchanged.
            object.__setattr__(self, slot, moment)
            return moment

    def compact(self, point_count: int, *, keep_short: bool = False) -> "LengthDistribution":
        """Return at most this many points with the same mean, for fast quadrature.

        keep_short: also resolve short lengths, for values that fall with the length.

        Neighbours are merged into their conditional mean. Cuts are equal steps of the average of
        two measures, probability and share of the second moment (three with the share of the mean
        of 1/length), so that the heavy tail, which makes the percentiles, keeps as many points as
        the body. The second moment shrinks by the variance inside the merged groups (below 1 % with
        16 points on conversation lengths).
        """
        if len(self.tokens) <= point_count:
            return self
        tokens = np.array(self.tokens)
        weights = np.array(self.weights)
        moment = weights * tokens**2
        measure = 0.5 * weights.cumsum() + 0.5 * moment.cumsum() / moment.sum()
        if keep_short:
            inverse = weights / np.maximum(tokens, 1.0)
            measure = (2.0 * measure + inverse.cumsum() / inverse.sum()) / 3.0
        steps = measure.copy()
        steps[1:] -= measure[:-1]
        middle = measure - 0.5 * steps
        group = np.minimum((middle * point_count).astype(int), point_count - 1)
        mass = np.bincount(group, weights, point_count)
        total = np.bincount(group, weights * tokens, point_count)
        kept = mass > 0
        total, mass = total[kept], mass[kept]
        return LengthDistribution(
            tokens=tuple((total / mass).tolist()), weights=tuple((mass / mass.sum()).tolist())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Demand on a fleet.

    arrival_rate_per_second: of the whole fleet. cached_ratio: share of prompt tokens that the
    prefix cache serves (they skip prefill but are attended and held). arrival_dispersion: index of
    dispersion of arrival counts at the time scale of a residence, 1 for Poisson.
    arrival_correlation_seconds: memory of the rate if arrivals are burstier than that, half the
    length of a burst; None if unknown, see `bursts`.
    context_tokens_per_sequence: tokens held by a running sequence, E[O·(P + O/2)]/E[O]; None if it
    must be approximated from the marginals (products of means). uncached: prompt tokens that must
    be prefilled, if they are not the same share of every prompt; cached_ratio is then unused.
    """

    arrival_rate_per_second: float
    prompt: LengthDistribution
    output: LengthDistribution
    cached_ratio: float = 0.0
    arrival_dispersion: float = 1.0
    arrival_correlation_seconds: float | None = None
    context_tokens_per_sequence: float | None = None
    uncached: LengthDistribution | None = None

    @property
    def prefilled(self) -> tuple[LengthDistribution, float]:
        """Lengths of prompts, and the share of each that the prefix cache serves."""
        if self.uncached is not None:
            return self.uncached, 0.0
        return self.prompt, self.cached_ratio

    def at_rate(self, arrival_rate_per_second: float) -> "Workload":
        """Return the same requests at another fleet arrival rate, per second."""
        return replace(self, arrival_rate_per_second=arrival_rate_per_second)

    @property
    def held_tokens_per_sequence(self) -> float:
        """Tokens of context that a running sequence holds, averaged over time.

        The measured value if there is one. From marginals: E[P] + E[O²]/(2·E[O]), exact when prompt
        and output lengths are independent; 8 % high on conversation traces, where long prompts get
        short answers.
        """
        if self.context_tokens_per_sequence is not None:
            return self.context_tokens_per_sequence
        output_mean = self.output.mean_tokens
        half_output = self.output.second_moment_tokens2 / (2.0 * output_mean) if output_mean else 0
        return self.prompt.mean_tokens + half_output
