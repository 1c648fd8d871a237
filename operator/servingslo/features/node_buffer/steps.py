"""From what is needed ahead to the replicas of a buffer: up at once, down after a node lead.

What was wanted within the last node lead is still on its way: less would order nodes off that pods
are about to need. Pods that were ordered meanwhile stand on those nodes, so the buffer gives way to
them at once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Counts that were wanted ahead, with their times: each greater than all later ones."""

    counts: tuple[tuple[float, int], ...] = ()

    @property
    def peak(self) -> int:
        """The greatest; 0 if none is known."""
        return self.counts[0][1] if self.counts else 0

    def after(self, count: int | None, now_seconds: float, hold_seconds: float) -> "Wanted":
        """With the count of this tick, and without those that are older than the hold."""
        first = now_seconds - hold_seconds
        kept = (one for one in self.counts if one[0] >= first and one[1] > (count or 0))
        return Wanted(counts=(*kept, *([] if count is None else [(now_seconds, count)])))


def next_buffer(before: int, needed: int, peak: int, ordered: int) -> int:
    """The replicas of the next moment, before any bound.

    before: those in force. needed: of now. peak: the count that was wanted ahead within the hold.
    ordered: the count of pods, whose nodes are there or ordered.
    """
    return max(needed, min(before, peak - ordered))
