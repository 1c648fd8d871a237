"""Build a histogram from the series of an answer, which are in any order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from servingslo.estimation.sample import HistogramSample

# Quoted characters of a tenant's label, at most.
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class _Shape:
    """Bucket labels of an answer. edges: rising; order: places of their labels, None for as is.

    not_an_edge: a label that is no number, '' for none. repeated: two labels are of one edge.
    """

    edges: tuple[float, ...]
    order: tuple[int, ...] | None
    not_an_edge: str = ""
    repeated: bool = False


class Edges:
    """Parses the bucket labels of all histograms of the same shape once."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._tuples: dict[tuple[float, ...], tuple[float, ...]] = {}

    def shape(self, labels: tuple[str, ...]) -> _Shape:
        """The edges of these labels; a tenant controls them."""
        shape = self._shapes.get(labels)
        if shape is None:
            shape = self._shapes[labels] = self._parsed(labels)
        return shape

    def _parsed(self, labels: tuple[str, ...]) -> _Shape:
        parsed = [_edge(label) for label in labels]
        for label, edge in zip(labels, parsed, strict=True):
            if math.isnan(edge):
                return _Shape((), None, not_an_edge=repr(label[:_SHOWN_CHARACTERS]))
        order = sorted(range(len(parsed)), key=parsed.__getitem__)
        edges = tuple([parsed[place] for place in order])
        return _Shape(
            edges=self.shared(edges),
            order=None if order == list(range(len(parsed))) else tuple(order),
            repeated=len({*edges}) < len(edges),
        )

    def shared(self, edges: tuple[float, ...]) -> tuple[float, ...]:
        """The same edges, as one tuple that all histograms share."""
        return self._tuples.setdefault(edges, edges)


@dataclass(slots=True)
class Buckets:
    """A histogram under construction. parts: counts by bucket label, of each part of the engine."""

    parts: list[Mapping[str, float]] = field(default_factory=list)
    sum: float | None = None
    count: float | None = None

    def not_an_edge(self, edges: Edges) -> str:
        """A bucket label that is no number; '' for none."""
        told = (edges.shape(tuple(part)).not_an_edge for part in self.parts)
        return next(filter(None, told), "")

    def scaled(self, share: float) -> "Buckets":
        """The histogram with every count multiplied by this share."""
        return Buckets(
            parts=[{label: share * v for label, v in part.items()} for part in self.parts],
            sum=None if self.sum is None else share * self.sum,
            count=None if self.count is None else share * self.count,
        )

    def sample(self, edges: Edges) -> HistogramSample | None:
        """The histogram, with finite numbers or not; None if buckets or the sum are missing."""
        if not self.parts or self.sum is None:
            return None
        bounds, counts = self._counts(edges)
        return HistogramSample(
            upper_bounds=bounds,
            cumulative_counts=counts,
            sum=self.sum,
            count=counts[-1] if self.count is None else self.count,
        )

    def _counts(self, edges: Edges) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Edges and counts by rising edge; parts (model names) of one engine are added.

        Prometheus writes an edge of 1 as '1' before version 3 and as '1.0' since. For some minutes
        after the upgrade it answers with both, and only one of them still counts.
        """
        shape = edges.shape(tuple(self.parts[0]))
        if len(self.parts) == 1 and not shape.repeated:
            values = tuple(self.parts[0].values())
            order = shape.order
            return shape.edges, values if order is None else tuple([values[at] for at in order])
        total: dict[float, float] = {}
        for part in self.parts:
            once: dict[float, float] = {}
            for text, value in part.items():
                edge = _edge(text)
                once[edge] = max(value, once.get(edge, value))
            for edge, value in once.items():
                total[edge] = total.get(edge, 0.0) + value
        rising = sorted(total)
        return edges.shared(tuple(rising)), tuple([total[edge] for edge in rising])


def _edge(label: str) -> float:
    """The edge; NaN if the label is no number."""
    try:
        return float(label)
    except ValueError:
        return math.nan
