"""Whether requests in flight grow by more than chance, and to what.

Latencies are observed when requests end. After traffic begins or jumps, those that have ended met a
lighter load than those that run now, so that the objectives look kept. Until as many end as arrive,
the number in flight shows the load that is coming.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.estimation.windows.counters import Window

# Standard deviations that a change exceeds in one window in a thousand.
SURE_DEVIATIONS = 3.0
# A window shows that more come, but hardly how many: at most twice those in flight.
LARGEST_GROWTH_RATIO = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightGrowth:
    """Requests in all engines at both ends of their last windows, and those that ended inside."""

    before: float
    after: float
    ended: float

    @property
    def arrived(self) -> float:
        """Requests that arrived."""
        return self.after - self.before + self.ended

    @property
    def sure(self) -> bool:
        """Whether the number grew by more than the chance of arrivals and ends explains."""
        chance = math.sqrt(max(self.arrived + self.ended, 0.0))
        return self.after - self.before > SURE_DEVIATIONS * chance

    @property
    def ratio(self) -> float:
        """How many times as many will be in flight, at least, once as many end as arrive.

        By Little's law their number is arrivals times the time of a request, which is the time that
        all of them spent in the window over the number that ended. At most LARGEST_GROWTH_RATIO.
        """
        if not self.sure:
            return 1.0
        mean = 0.5 * (self.before + self.after)
        settled = mean * self.arrived / max(self.ended, 1.0)
        return min(max(settled / self.after, 1.0), LARGEST_GROWTH_RATIO)


def growth_of(windows: Sequence[Window], *, engines: int) -> InFlightGrowth | None:
    """Return the growth over these windows; None unless they are of all engines and count ends."""
    if len(windows) < max(engines, 1):
        return None
    before = after = ended = 0.0
    for window in windows:
        if window.finished is None or window.running_after is None or window.restarted:
            return None
        before += (window.running_before or 0.0) + (window.waiting_before or 0.0)
        after += window.running_after + (window.waiting_after or 0.0)
        ended += window.finished
    return InFlightGrowth(before=before, after=after, ended=ended)
