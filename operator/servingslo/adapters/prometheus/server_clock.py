"""How far Prometheus's clock is ahead of the one of this process, from what readings bounded it to.

An answer to `time()` was evaluated at some moment between the request and the answer. What all
readings leave of that interval is known to milliseconds, so that an answer that was long on its way
neither looks fresh nor moves the moment of a scrape. A reading outside of it is an old answer or
that of another server: what it says of ages is not known, and it is refused.

A clock that was set leaves samples with the time of the clock before: what it says of their ages is
wrong by as much as it was set. Only later ones are sure.
"""

import math

from servingslo.errors import ImplausibleMetricsError

# Two clocks that are kept in time run apart by no more. Source: RFC 5905, 500 ppm.
DRIFT_RATIO = 5e-4
# A clock that is set right by less is believed at once: a scrape is told from the next by as much.
SMALL_STEP_SECONDS = 0.5
# Our own clock nears the wall clock by 2 % of what passes, so by less from one reading to the next.
OWN_STEP_SECONDS = 10.0
# A store may round the time that it is asked for to its own unit.
LONGEST_OFF_SECONDS = 1.0
# So many refused readings in a row that agree with each other: the clock itself was set.
AGREEING_READINGS = 3


class ServerClock:
    """Bounds of the server's seconds less monotonic seconds; for one thread at a time.

    sure_after_seconds: samples that the server stamped no later may be of its clock before it was
    set; minus infinity where it never was. times_set: how often it was, or ours was.
    """

    def __init__(self) -> None:
        self.sure_after_seconds = -math.inf
        self.times_set = 0
        self._own: float | None = None
        self._known: _Bounds | None = None
        self._refused: _Bounds | None = None
        self._refused_count = 0
        self._before_seconds = -math.inf

    def ahead_seconds(
        self, asked_seconds: float, answered_seconds: float, server_seconds: float
    ) -> float:
        """The server's seconds less monotonic seconds, at most: ages come out no younger than true.

        asked_seconds, answered_seconds: on the monotonic clock, around the request for
        server_seconds.
        Raises: ImplausibleMetricsError when readings before leave no room for this one.
        """
        new = _Bounds(
            server_seconds - answered_seconds, server_seconds - asked_seconds, answered_seconds
        )
        if self._known is not None and (off := new.off(self._known)) != 0.0:
            if abs(off) > SMALL_STEP_SECONDS:
                if not self._agrees(new, self._known):
                    where = f"{abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} where it was"
                    detail = "an old answer, or that of another server"
                    raise ImplausibleMetricsError(f"the clock of Prometheus is {where}: {detail}")
                self.sure_after_seconds = max(self.sure_after_seconds, self._before_seconds)
                self.times_set += 1
            self._known = None
        self._known = new if self._known is None else new.within(self._known)
        self._refused, self._refused_count = None, 0
        return self._known.high

    def compare_own(self, wall_seconds: float, monotonic_seconds: float) -> None:
        """Notice where our own wall clock was set: its seconds, and monotonic ones at that time."""
        ahead, before = wall_seconds - monotonic_seconds, self._own
        self._own = ahead
        if before is not None and abs(ahead - before) > OWN_STEP_SECONDS:
            self.times_set += 1

    def _agrees(self, new: "_Bounds", known: "_Bounds") -> bool:
        """Whether this is the last of several refused readings that tell of one clock."""
        same = self._refused is not None and new.off(self._refused) == 0.0
        if not same:
            self._before_seconds = known.high + new.at_seconds
        self._refused_count = self._refused_count + 1 if same else 1
        self._refused = new
        return self._refused_count >= AGREEING_READINGS


class AnswerTimes:
    """Notices an answer that was evaluated at another time than it was asked for.

    A cache or a proxy may hand out the answer of some seconds ago: its samples would be taken for
    later ones, and the next scrape's counts for those of a moment. A store that always tells
    another time, such as one that rounds it, is taken as it is.
    """

    def __init__(self) -> None:
        self._usual_seconds: float | None = None
        self._odd_count = 0

    def check(self, asked_seconds: float, told_seconds: float) -> None:
        """Raises: ImplausibleMetricsError for a time that is off by other than usual."""
        off = told_seconds - asked_seconds
        usual = off if self._usual_seconds is None else self._usual_seconds
        if abs(off - usual) > LONGEST_OFF_SECONDS:
            self._odd_count += 1
            if self._odd_count < AGREEING_READINGS:
                where = f"{abs(off - usual):.1f} s {'after' if off > usual else 'before'}"
                detail = f"an answer is of {where} the moment that was asked for: an old one"
                raise ImplausibleMetricsError(detail)
        self._usual_seconds, self._odd_count = off, 0


class _Bounds:
    """What one reading, or all so far, bound the difference of the clocks to."""

    def __init__(self, low: float, high: float, at_seconds: float) -> None:
        self.low, self.high, self.at_seconds = low, high, at_seconds

    def widened(self, until_seconds: float) -> "_Bounds":
        drift = DRIFT_RATIO * max(until_seconds - self.at_seconds, 0.0)
        return _Bounds(self.low - drift, self.high + drift, until_seconds)

    def off(self, before: "_Bounds") -> float:
        """How far this is above (positive) or below what was known before; 0 where both hold."""
        known = before.widened(self.at_seconds)
        return min(self.high - known.low, 0.0) or max(self.low - known.high, 0.0)

    def within(self, before: "_Bounds") -> "_Bounds":
        known = before.widened(self.at_seconds)
        return _Bounds(max(self.low, known.low), min(self.high, known.high), self.at_seconds)
