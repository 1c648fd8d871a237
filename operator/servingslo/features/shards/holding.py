"""Which shards a process holds, from what it knows of their Leases.

Processes compete for the Leases. One that has fewer shards than others is in line: it holds one
further Lease, and a process with two shards more gives one back for it. So each of several live
processes comes to hold as many shards as the others, or one more.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

# A process that has as many more shards as this gives one back; with one it would only swap them.
_UNEVEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One shard's Lease. holder: while the Lease is valid; '' for none. shards: stated in it."""

    holder: str = ""
    shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases:
    """All Leases of a release, as one process sees them.

    me: that process. held: by shard. in_line: the holder of the Lease of the next in line; '' for
    none.
    """

    me: str
    held: Mapping[int, Holding]
    in_line: str = ""

    @property
    def _counts(self) -> Counter[str]:
        return Counter(one.holder for one in self.held.values() if one.holder)

    def wants_more(self) -> bool:
        """Whether this process should be in line: it holds none, or far fewer than another."""
        counts = self._counts
        mine = counts[self.me]
        return not mine or max(counts.values()) >= mine + _UNEVEN

    def is_next(self) -> bool:
        """Whether no known process holds fewer shards: then this one takes a free one at once."""
        counts = self._counts
        others = {*counts, self.in_line} - {"", self.me}
        return all(counts[other] >= counts[self.me] for other in others)

    def surplus(self) -> int | None:
        """The shard to give back to the process in line, if any."""
        counts = self._counts
        if self.in_line in {"", self.me} or counts[self.me] < counts[self.in_line] + _UNEVEN:
            return None
        most = max(counts.values())
        first = min(holder for holder, count in counts.items() if count == most)
        mine = [shard for shard, one in self.held.items() if one.holder == self.me]
        return max(mine) if first == self.me else None

    def agreed(self, shards: int) -> bool:
        """Whether every shard is held, by processes that all know of so many shards.

        During a rollout they do not: until it ends, each resource stays where it is.
        """
        every = self.held.values()
        return all(one.holder and one.shards == shards for one in every)
