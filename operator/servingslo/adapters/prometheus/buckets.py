"""Build a histogram from the series of an answer, which are in any order."""

import math
from dataclasses import dataclass, field

from servingslo.estimation.sample import HistogramSample

# Quoted characters of a tenant's label, at most.
_SHOWN_CHARACTERS = 40


class Edges:
    """Parses bucket edges once and keeps one tuple for all histograms of the same shape."""

    def __init__(self) -> None:
        self._parsed: dict[str, float] = {}
        self._tuples: dict[tuple[float, ...], tuple[float, ...]] = {}

    def parse(self, text: str) -> float:
        """The edge; NaN if the label is invalid, because a tenant controls it."""
        edge = self._parsed.get(text)
        if edge is None:
            try:
                edge = float(text)
            except ValueError:
                return math.nan
            self._parsed[text] = edge
        return edge

    def shared(self, edges: tuple[float, ...]) -> tuple[float, ...]:
        """The same edges, as one tuple that all histograms share."""
        return self._tuples.setdefault(edges, edges)


@dataclass(slots=True)
class Buckets:
    """A histogram under construction. not_an_edge: a bucket label that is no number."""

    by_edge: list[tuple[float, float]] = field(default_factory=list)
    sum: float | None = None
    count: float | None = None
    not_an_edge: str = ""

    def add(self, text: str, value: float, edges: Edges) -> None:
        """Add a bucket up to an edge."""
        edge = edges.parse(text)
        if math.isnan(edge):
            self.not_an_edge = repr(text[:_SHOWN_CHARACTERS])
        else:
            self.by_edge.append((edge, value))

    def scaled(self, share: float) -> "Buckets":
        """The histogram with every count multiplied by this share."""
        return Buckets(
            by_edge=[(edge, share * value) for edge, value in self.by_edge],
            sum=None if self.sum is None else share * self.sum,
            count=None if self.count is None else share * self.count,
            not_an_edge=self.not_an_edge,
        )

    def sample(self, edges: Edges) -> HistogramSample | None:
        """The histogram, with finite numbers or not; None if buckets or the sum are missing."""
        by_edge = _sum_of_parts(self.by_edge)
        if not by_edge or self.sum is None:
            return None
        return HistogramSample(
            upper_bounds=edges.shared(tuple([edge for edge, _ in by_edge])),
            cumulative_counts=tuple([value for _, value in by_edge]),
            sum=self.sum,
            count=by_edge[-1][1] if self.count is None else self.count,
        )


def _sum_of_parts(by_edge: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Buckets by rising edge; parts (model names) of one engine are added."""
    by_edge.sort()
    edges = {edge for edge, _ in by_edge}
    if len(edges) == len(by_edge):
        return by_edge
    total = dict.fromkeys(sorted(edges), 0.0)
    for edge, value in by_edge:
        total[edge] += value
    return list(total.items())
