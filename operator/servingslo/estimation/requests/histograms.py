"""Cumulative histograms: observations of a window, their quantiles, their distribution."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

from servingslo.estimation.requests.edges import Pair, divided, on_common_edges
from servingslo.estimation.sample import HistogramSample
from servingslo.models.numerics import ROUNDING
from servingslo.models.workload import LengthDistribution
from servingslo.records import record

# Assumed width of the open last bucket, relative to its lower edge, if nothing else is known.
OPEN_BUCKET_FACTOR = 2.0
# Points closer than this are one point: rounding must not reorder them.
SAME_LENGTH_RATIO = 1e-6
# Mean token counts outside of this are no measurement.
SHORTEST_MEAN, LONGEST_MEAN = 1e-3, 1e9
# Points that represent one bucket: the mid-quantiles of five equal parts.
POINTS_OF_BUCKET = (0.1, 0.3, 0.5, 0.7, 0.9)


@record(frozen=True, slots=True, kw_only=True)
class HistogramDelta:
    """Observations of one window, pooled over engines with the same bucket edges.

    upper_bounds: finite edges in increasing order; the open bucket lies above the last.
    counts: observations in each bucket, one more than there are edges. sum: of the values.
    """

    upper_bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """Observations in all buckets."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean of the observed values, None without observations."""
        count = self.count
        return self.sum / count if count > 0 else None

    def bucket_of(self, percentile: float) -> tuple[float, float, float] | None:
        """Return the bucket of this percentile and the position in it: (lower, upper, share).

        No more than these edges is known of it: it is above the lower one, and at most the upper
        one. A decision rests on the edge that is sure, never on the position. The open bucket's
        upper edge is infinite. None without observations.
        """
        count = self.count
        if count <= 0:
            return None
        target = count * percentile / 100.0
        seen = lower = 0.0
        edges = (*self.upper_bounds, float("inf"))
        for upper, inside in zip(edges, self.counts, strict=True):
            if inside > 0 and seen + inside >= target:
                return lower, upper, min(max((target - seen) / inside, 0.0), 1.0)
            seen += inside
            lower = upper
        return (edges[-2] if len(edges) > 1 else 0.0), float("inf"), 1.0

    def quantile(self, percentile: float) -> float | None:
        """Return a quantile by linear interpolation inside its bucket; None without observations.

        For people alone: see `least_quantile`. percentile: in percent, 0 to 100. In the open bucket
        the answer is its lower edge, a lower bound, as in PromQL's histogram_quantile.
        """
        found = self.bucket_of(percentile)
        if found is None:
            return None
        lower, upper, share = found
        return lower if upper == float("inf") else lower + (upper - lower) * share

    def least_quantile(self, percentile: float) -> float | None:
        """Return the edge that a quantile is surely above; None without observations."""
        found = self.bucket_of(percentile)
        return None if found is None else found[0]

    def share_within(self, threshold: float) -> tuple[float, float] | None:
        """Return the share at or below the threshold, as an interval (low, high).

        Exact (low = high) if the threshold is a bucket edge. If it lies between two edges, the
        bucket's observations may lie on either side. None without observations.
        """
        count = self.count
        if count <= 0:
            return None
        below = bisect_right(self.upper_bounds, threshold)
        low = high = sum(self.counts[:below])
        if (self.upper_bounds[below - 1] if below else 0.0) < threshold:
            high += self.counts[below]
        return min(low / count, 1.0), min(high / count, 1.0)

    def reduced_by(self, seconds: float) -> "HistogramDelta":
        """Return the observations with every value less by this, and none below zero."""
        first = bisect_right(self.upper_bounds, seconds)
        return HistogramDelta(
            upper_bounds=tuple(edge - seconds for edge in self.upper_bounds[first:]),
            counts=(sum(self.counts[: first + 1]), *self.counts[first + 1 :]),
            sum=max(self.sum - seconds * self.count, 0.0),
        )


def of_quantiles(quantiles: Mapping[float, float], count: float, total: float) -> HistogramDelta:
    """Return a histogram in which these quantiles are exact; the open bucket lies above the last.

    quantiles: values by share, which do not fall as the share rises. Each lies alone in a bucket
    without a width. count, total: of the observations.
    """
    edges: dict[float, float] = {}
    for share, value in sorted(quantiles.items()):
        edges.setdefault(math.nextafter(value, 0.0), max(share - ROUNDING, 0.0))
        edges[value] = min(share + ROUNDING, 1.0)
    shares = (0.0, *edges.values(), 1.0)
    return HistogramDelta(
        upper_bounds=tuple(edges),
        counts=tuple(count * (high - low) for low, high in pairwise(shares)),
        sum=total,
    )


def pooled_delta(
    pairs: Sequence[tuple[HistogramSample | None, HistogramSample]],
) -> HistogramDelta | None:
    """Return the observations between the samples of each pair, summed; a first None is zero.

    Edges of all pairs are used. A pair whose observations lie across an edge of another pair is
    left out (a rollout may change them); the first pair decides. None if no pair has buckets.
    """
    used: list[Pair] = []
    for before, after in pairs:
        old = before if before is not None and after.count >= before.count else None
        if after.upper_bounds and (old is None or old.upper_bounds):
            used.append((old, after))
    if used and not _have_edges(used, used[0][1].upper_bounds):
        used = on_common_edges(used)
    if not used:
        return None
    bounds = used[0][1].upper_bounds
    added, taken, total = [], [], 0.0
    for old, after in used:
        added.append(after)
        total += after.sum
        if old is not None:
            taken.append(old)
            total -= old.sum
    cumulative = _summed(added)
    if taken:
        cumulative = [a - b for a, b in zip(cumulative, _summed(taken), strict=True)]
    finite = bounds[:-1] if bounds[-1] == math.inf else bounds
    # The total count includes the open bucket even if the sample has no infinite edge.
    edges = [*cumulative[: len(finite)], cumulative[-1]]
    counts = [edges[0], *[b - a for a, b in pairwise(edges)]]
    return HistogramDelta(
        upper_bounds=finite, counts=tuple([max(c, 0.0) for c in counts]), sum=max(total, 0.0)
    )


def _have_edges(pairs: Sequence[Pair], edges: tuple[float, ...]) -> bool:
    """Return whether all samples have these edges."""
    return all(
        one is None or one.upper_bounds is edges or one.upper_bounds == edges
        for pair in pairs
        for one in pair
    )


def _summed(samples: Sequence[HistogramSample]) -> list[float]:
    """Return cumulative counts of samples with the same edges, and the total count as the last."""
    if len(samples) == 1:
        return [*samples[0].cumulative_counts, samples[0].count]
    columns = zip(*[sample.cumulative_counts for sample in samples], strict=True)
    return [*map(sum, columns), sum([sample.count for sample in samples])]


def merge(
    deltas: Sequence[HistogramDelta], weights: Sequence[float] | None = None
) -> HistogramDelta | None:
    """Return the weighted sum of windows; without those that the edges of the last ones divide."""
    if not deltas:
        return None
    bounds = deltas[-1].upper_bounds
    each = [1.0] * len(deltas) if weights is None else weights
    if all(delta.upper_bounds == bounds for delta in deltas):
        pairs = list(zip(deltas, each, strict=True))
    else:
        pairs = _divided_alike(deltas, each)
        bounds = pairs[-1][0].upper_bounds
    if weights is None and len(pairs) == 1:
        return pairs[0][0]
    columns = zip(*([c * w for c in delta.counts] for delta, w in pairs), strict=True)
    return HistogramDelta(
        upper_bounds=bounds,
        counts=tuple(map(sum, columns)),
        sum=sum(d.sum * w for d, w in pairs),
    )


def _divided_alike(
    deltas: Sequence[HistogramDelta], weights: Sequence[float]
) -> list[tuple[HistogramDelta, float]]:
    """Return windows with their weights on the edges of all that have no divided observations."""
    held = deltas[-1]
    kept = []
    for delta, weight in zip(reversed(deltas), reversed(weights), strict=True):
        edges = tuple(sorted({*held.upper_bounds, *delta.upper_bounds}))
        known = divided(held.upper_bounds, held.counts, edges)
        more = divided(delta.upper_bounds, delta.counts, edges)
        if known is None or more is None:
            continue
        counts = tuple(map(max, known, more))
        held = HistogramDelta(upper_bounds=edges, counts=counts, sum=0.0)
        kept.append((delta, weight))
    placed = (
        (divided(delta.upper_bounds, delta.counts, held.upper_bounds), delta.sum, weight)
        for delta, weight in reversed(kept)
    )
    return [
        (HistogramDelta(upper_bounds=held.upper_bounds, counts=counts, sum=total), weight)
        for counts, total, weight in placed
        if counts is not None
    ]


def length_distribution(delta: HistogramDelta) -> LengthDistribution | None:
    """Return token counts as a discrete distribution with the histogram's own mean, sum / count.

    Inside a bucket the density is linear between its edges. At an edge it is the harmonic mean of
    the two buckets that meet there: next to an empty bucket it falls to zero, so that a tail that
    ends early in a wide bucket is not spread over all of it. Five points represent each bucket.
    They are moved within their buckets, all by the same share of the way to one edge, until the
    mean is exact. The open bucket ends at twice its lower edge, or further out if the mean requires
    it. None without observations, or if sum and counts cannot be of token counts.
    """
    mean = delta.mean
    if mean is None or not SHORTEST_MEAN <= mean <= LONGEST_MEAN:
        return None
    buckets = _buckets(delta, mean)
    densities = [weight / (upper - lower) for lower, upper, weight in buckets]
    edges = [densities[0], *(_harmonic(a, b) for a, b in pairwise(densities)), 0.0]
    points = [
        (lower, upper, lower + (upper - lower) * place, weight / len(POINTS_OF_BUCKET))
        for (lower, upper, weight), (low, high) in zip(buckets, pairwise(edges), strict=True)
        if weight > 0
        for place in _places(low, high)
    ]
    short = mean - sum([point * weight for _, _, point, weight in points])
    rooms = [
        (upper - point if short > 0 else point - lower, point, weight)
        for lower, upper, point, weight in points
    ]
    room = sum([room * weight for room, _, weight in rooms])
    share = min(max(short / room, -0.99), 0.99) if room > 0 else 0.0
    moved = sorted([(point + share * room, weight) for room, point, weight in rooms])
    tokens: list[float] = []
    weights: list[float] = []
    for token, weight in moved:
        if tokens and token - tokens[-1] <= SAME_LENGTH_RATIO * token:
            weights[-1] += weight
        else:
            tokens.append(token)
            weights.append(weight)
    total = sum(weights)
    found = sum([t * w for t, w in zip(tokens, weights, strict=True)]) / total
    factor = mean / found if found > 0 else 1.0
    return LengthDistribution(
        tokens=tuple([token * factor for token in tokens]),
        weights=tuple([weight / total for weight in weights]),
    )


def _harmonic(one: float, other: float) -> float:
    return 2.0 * one * other / (one + other) if one > 0 and other > 0 else 0.0


def _places(low: float, high: float) -> list[float]:
    """Return the positions of a linear density's mid-quantiles in the unit interval."""
    if abs(high - low) <= ROUNDING * (low + high) or low + high <= 0:
        return list(POINTS_OF_BUCKET)
    square = high * high - low * low
    return [(math.sqrt(low * low + square * u) - low) / (high - low) for u in POINTS_OF_BUCKET]


def _buckets(delta: HistogramDelta, mean: float) -> list[tuple[float, float, float]]:
    """Return (lower, upper, probability) of every bucket up to the last that holds something."""
    count = delta.count
    lowers = (0.0, *delta.upper_bounds)
    finite = [
        (lower, upper, inside / count)
        for lower, upper, inside in zip(lowers, delta.upper_bounds, delta.counts, strict=False)
        if upper > lower
    ]
    beyond = delta.counts[-1] / count
    if beyond <= 0:
        while finite and finite[-1][2] <= 0:
            finite.pop()
        return finite
    edge = lowers[-1]
    middle = sum(weight * (lower + upper) / 2 for lower, upper, weight in finite)
    # Mean of the open bucket that gives the known mean if the other buckets are half-full.
    held = (mean - middle) / beyond
    upper = max(edge * OPEN_BUCKET_FACTOR, 2.0 * held - edge, edge + 1.0)
    return [*finite, (edge, upper, beyond)]
