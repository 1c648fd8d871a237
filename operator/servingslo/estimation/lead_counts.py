"""How far arrivals swing over one cold start: the index of dispersion of counts of that length.

A Poisson process has one at every scale; bursts of a minute hardly show from scrape to scrape, and
fully in counts of two minutes. Second differences of such counts cancel level and slope, so that a
ramp is no burst; a single step of the level hardly counts. Told, not planned with: what demand does
over a lead time is in the forecast's spread already, which is corrected by realized errors.
Source: D. R. Cox and P. A. W. Lewis, "The statistical analysis of series of events", 1966, ch. 4
(index of dispersion by length of interval); second differences as in the Hadamard variance.
"""

from dataclasses import dataclass, replace

# Two hours at a cold start of two minutes.
MEMORY_BLOCKS = 60.0
# Before so many terms, the index is chance: its error is about the root of 4 over their number.
LEAST_TERMS = 16.0
# A second difference beyond this many variances may be a change of level.
LARGEST_STANDARDIZED_SQUARE = 6.0
# A gap in what was counted ends all blocks.
LONGEST_BLOCK_RATIO = 1.5
SHORTEST_BLOCK_SECONDS = 30.0
LONGEST_BLOCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Requests that arrived in so many seconds."""

    count: float = 0.0
    seconds: float = 0.0

    @property
    def rate_per_second(self) -> float:
        """Of its requests."""
        return self.count / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadCounts:
    """The block under way, the last three that ended, and the sum of terms with its weight."""

    current: Block = Block()
    last: tuple[Block, ...] = ()
    terms_sum: float = 0.0
    terms: float = 0.0

    @property
    def dispersion(self) -> float | None:
        """Index of dispersion of counts over one block; 1 for Poisson. None before enough ended."""
        return self.terms_sum / self.terms if self.terms >= LEAST_TERMS else None


def observe(
    state: LeadCounts, rate_per_second: float, seconds: float, cold_start_seconds: float
) -> LeadCounts:
    """The state with one more window of arrivals; blocks end once they are a cold start long."""
    length = min(max(cold_start_seconds, SHORTEST_BLOCK_SECONDS), LONGEST_BLOCK_SECONDS)
    current = Block(
        count=state.current.count + rate_per_second * seconds,
        seconds=state.current.seconds + seconds,
    )
    if current.seconds < length:
        return replace(state, current=current)
    if current.seconds > LONGEST_BLOCK_RATIO * length:
        return replace(state, current=Block(), last=())
    last = (*state.last, current)[-3:]
    ended = replace(state, current=Block(), last=last)
    term = _term(last)
    if term is None:
        return ended
    memory = 1.0 - 1.0 / MEMORY_BLOCKS
    known = state.terms_sum / state.terms if state.terms else 1.0
    most = LARGEST_STANDARDIZED_SQUARE * max(known, 1.0)
    return replace(
        ended, terms_sum=state.terms_sum * memory + min(term, most), terms=state.terms * memory + 1
    )


def _term(blocks: tuple[Block, ...]) -> float | None:
    """Squared second difference over its variance for Poisson; None before there are three."""
    if len(blocks) < len((1, -2, 1)):
        return None
    first, middle, last = blocks
    mean = sum(b.count for b in blocks) / sum(b.seconds for b in blocks)
    if mean * middle.seconds < 1.0:
        return None
    curvature = first.rate_per_second - 2.0 * middle.rate_per_second + last.rate_per_second
    return curvature**2 / (mean * (1 / first.seconds + 4 / middle.seconds + 1 / last.seconds))
