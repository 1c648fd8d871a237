"""Native histograms in the form of classic ones: cumulative counts by edge. No I/O.

An answer holds only buckets with observations, each with both of its edges. So the cumulative count
is exact at these edges and at any edge between them; an edge inside of a bucket has none. This
holds for classic histograms that Prometheus converted (NHCB), whose edges are the engine's own, and
for exponential ones. Edges of other engines of the namespace are added, so that all have the same.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.adapters.prometheus.reading.buckets import Buckets
from servingslo.adapters.prometheus.vectors import NAME_LABEL

# Forms of a bucket. Source: Prometheus, docs/querying/api.md, "Native histograms".
_OPEN_LEFT, _CLOSED = 0, 3
# Reported as a bucket's edge: no engine measures less than nothing.
_NEGATIVE = "below zero"
# Edges in each power of two, a factor of 1.19 apart; finer exponential buckets are joined, exactly.
# Source: vLLM, v1/metrics/loggers.py, whose own edges are a factor of 1.25 or more apart.
_EDGES_OF_OCTAVE = 4
# Finer numbers of buckets in each power of two. Source: Prometheus, schemas 3 to 8.
_FINER = frozenset({8, 16, 32, 64, 128, 256})
# Source: Prometheus, model/histogram/generic.go, exponentialBounds of schema 2.
_OF_OCTAVE = (0.5, 0.5946035575013605, 0.7071067811865475, 0.8408964152537144)
# Above the rounding of logarithms of doubles, and below the distance of any two edges.
_ROUNDING = 1e-6
# If a namespace's engines have more edges of one metric, each has only its own.
# Judgement: vLLM's token counts have 20, and four edges in each of 40 powers of two are 160.
_MOST_EDGES = 400
# Edges without an observation in this many readings are dropped: five minutes of ticks of 15 s.
_KEPT_READINGS = 20

# Left edge, right edge and number of observations.
_Bucket = tuple[float, float, float]


@dataclass(slots=True)
class NativeHistogram:
    """A native histogram: buckets by right edge; parts of one engine are added.

    count, sum: of all observations. is_negative: whether it has buckets of negative values.
    """

    buckets: list[_Bucket] = field(default_factory=list)
    count: float = 0.0
    sum: float = 0.0
    is_negative: bool = False

    def add(self, other: "NativeHistogram") -> None:
        """Add another part of the same engine."""
        self.buckets.extend(other.buckets)
        self.count += other.count
        self.sum += other.sum
        self.is_negative = self.is_negative or other.is_negative

    def edges(self) -> set[float]:
        """The finite edges of its buckets."""
        either = {edge for left, right, _ in self.buckets for edge in (left, right)}
        return {edge for edge in either if math.isfinite(edge)}

    def counts(self, edges: Iterable[float] | None = None) -> list[tuple[float, float]]:
        """Pairs of an edge and its cumulative count, at those of these rising edges that have one.

        edges: finite ones, its own among them; None for its own. The last edge is infinite.
        """
        found = []
        below, place = 0.0, 0
        buckets = sorted(self.buckets, key=lambda bucket: bucket[1])
        # The lowest left edge of the buckets from here on.
        lowest = [math.inf] * (len(buckets) + 1)
        for at in range(len(buckets) - 1, -1, -1):
            lowest[at] = min(buckets[at][0], lowest[at + 1])
        for edge in sorted(self.edges()) if edges is None else edges:
            while place < len(buckets) and buckets[place][1] <= edge:
                below += buckets[place][2]
                place += 1
            if lowest[place] >= edge:
                found.append((edge, below))
        return [*found, (math.inf, below + sum(inside for _, _, inside in buckets[place:]))]

    def classic(self, edges: Iterable[float] | None) -> Buckets:
        """The same as a classic histogram, with the counts at these edges."""
        if self.is_negative:
            return Buckets(parts=[{_NEGATIVE: self.count}], sum=self.sum, count=self.count)
        counts = {repr(edge): count for edge, count in self.counts(edges)}
        return Buckets(parts=[counts], sum=self.sum, count=self.count)


def native_histogram(value: Mapping[str, Any]) -> NativeHistogram:
    """The histogram of a sample of an answer.

    Raises: KeyError, TypeError or ValueError if it is malformed.
    """
    found = NativeHistogram(count=float(value["count"]), sum=float(value["sum"]))
    for form, lower, upper, inside in value.get("buckets", ()):
        left, right, observed = float(lower), float(upper), float(inside)
        if form == _CLOSED and math.isfinite(left):
            # Around zero, of an exponential one: below any edge.
            left = right = -math.inf
        elif form not in {_OPEN_LEFT, _CLOSED}:
            found.is_negative = True
        found.buckets.append((*_coarse(left, right), observed))
    return found


class NativeEdges:
    """Edges of each metric in each namespace, over many readings; for one thread.

    A tenant's edges reach only its own namespace.
    """

    def __init__(self) -> None:
        self._readings = 0
        self._used: dict[tuple[str, str], set[float]] = defaultdict(set)
        self._before: dict[tuple[str, str], set[float]] = {}

    def begin(self) -> None:
        """Begin a reading; edges that were not used for long are dropped."""
        self._readings += 1
        if self._readings % _KEPT_READINGS == 0:
            self._before, self._used = dict(self._used), defaultdict(set)

    def add(self, namespace: str, name: str, histogram: NativeHistogram) -> None:
        """Remember the edges of this histogram."""
        self._used[namespace, name] |= histogram.edges()

    def of(self, namespace: str, name: str) -> tuple[float, ...] | None:
        """The rising edges of a metric; None if they are too many."""
        edges = self._used[namespace, name] | self._before.get((namespace, name), set())
        return tuple(sorted(edges)) if len(edges) <= _MOST_EDGES else None


def each_once(
    series: Iterable[Mapping[str, Any]], labels: Sequence[str]
) -> Iterator[tuple[str, dict[str, str], NativeHistogram]]:
    """The name, these labels and the histogram of each series; of those with the same, the largest.

    Raises: KeyError, TypeError or ValueError if an answer is malformed.
    """
    found: dict[tuple[str, ...], NativeHistogram] = {}
    for one in series:
        named = one["metric"]
        key = (named[NAME_LABEL], *(named.get(label, "") for label in labels))
        histogram = native_histogram(one["histogram"][1])
        known = found.get(key)
        if known is None or histogram.count > known.count:
            found[key] = histogram
    for (name, *values), histogram in found.items():
        yield name, {k: v for k, v in zip(labels, values, strict=True) if v}, histogram


def _coarse(left: float, right: float) -> tuple[float, float]:
    """The bucket that holds this one, if it is a finer exponential one."""
    if not 0.0 < left < right < math.inf:
        return left, right
    of_octave = 1.0 / math.log2(right / left)
    place = math.log2(right) * of_octave
    if round(of_octave) not in _FINER or max(_off(of_octave), _off(place)) > _ROUNDING:
        return left, right
    above = math.ceil(math.log2(right) * _EDGES_OF_OCTAVE - _ROUNDING)
    return _exponential(above - 1), _exponential(above)


def _off(value: float) -> float:
    return abs(value - round(value))


def _exponential(place: int) -> float:
    octave, within = divmod(place, _EDGES_OF_OCTAVE)
    return math.ldexp(_OF_OCTAVE[within], octave + 1)
