"""Histograms with different bucket edges on the edges of all, if no count has to be divided.

Native histograms show only buckets with observations, so an edge appears with its first one. An
edge inside of an empty bucket divides nothing: what is known there is exact.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

from servingslo.copying import replace
from servingslo.estimation.sample import HistogramSample

# The samples of one engine; the first may be None.
Pair = tuple[HistogramSample | None, HistogramSample]


def on_common_edges(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with the edges of all; without those whose observations other edges divide.

    The first pair that can be compared decides. pairs: with at least one edge each.
    """
    held: HistogramSample | None = None
    kept = []
    for pair in pairs:
        together = _added([one for one in (held, *pair) if one is not None])
        if together is not None:
            held = together
            kept.append(pair)
    if held is None:
        return []
    edges = held.upper_bounds
    placed = ([one and _placed(one, edges) for one in pair] for pair in kept)
    return [(old, new) for old, new in placed if new is not None]


def divided(
    upper_bounds: tuple[float, ...], counts: tuple[float, ...], edges: Sequence[float]
) -> tuple[float, ...] | None:
    """The counts between more edges; None if a bucket with observations is divided.

    counts: one more than there are edges; the open bucket lies above the last. edges: all finite
    ones, the present ones among them.
    """
    found = []
    place = 0
    for edge in edges:
        if place < len(upper_bounds) and upper_bounds[place] == edge:
            found.append(counts[place])
            place += 1
        elif counts[place] > 0.0:
            return None
        else:
            found.append(0.0)
    return (*found, counts[place])


def _added(samples: Sequence[HistogramSample]) -> HistogramSample | None:
    edges = tuple(sorted({edge for one in samples for edge in one.upper_bounds}))
    placed = [one for one in (_placed(sample, edges) for sample in samples) if one is not None]
    if len(placed) < len(samples):
        return None
    columns = zip(*[one.cumulative_counts for one in placed], strict=True)
    return HistogramSample(
        upper_bounds=edges,
        cumulative_counts=tuple(map(sum, columns)),
        sum=sum(one.sum for one in placed),
        count=sum(one.count for one in placed),
    )


def _placed(sample: HistogramSample, edges: tuple[float, ...]) -> HistogramSample | None:
    """The histogram with these edges, its own among them; None if one divides observations."""
    bounds, counts = sample.upper_bounds, sample.cumulative_counts
    found = []
    for edge in edges:
        place = bisect_left(bounds, edge)
        upper = counts[place] if place < len(bounds) else sample.count
        is_own = edge == math.inf or (place < len(bounds) and bounds[place] == edge)
        if not is_own and upper != (counts[place - 1] if place else 0.0):
            return None
        found.append(upper)
    return replace(sample, upper_bounds=edges, cumulative_counts=tuple(found))
