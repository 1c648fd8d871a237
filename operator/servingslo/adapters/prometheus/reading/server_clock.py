"""The lead of Prometheus's clock over this process's clock, bounded by all readings.

An answer to `time()` was evaluated between the request and the answer. The intersection of these
intervals over all readings is known to milliseconds. So a delayed answer neither looks fresh nor
moves the time of a scrape. A reading outside of the intersection is an old answer or comes from
another server. Its ages are unknown, and it is refused.

When a clock is set, older samples keep timestamps of the former setting. Their ages are then wrong
by the size of the step. Only later samples are trusted.
"""

import math
from collections.abc import Mapping
from statistics import median

from servingslo.errors import ImplausibleMetricsError

# The largest drift between two synchronized clocks. Source: RFC 5905, 500 ppm.
DRIFT_RATIO = 5e-4
# A smaller clock step is accepted at once: it cannot confuse a scrape with the next one.
SMALL_STEP_SECONDS = 0.5
# Our clock is slewed by 2 % of the elapsed time at most, so by less between two readings.
OWN_STEP_SECONDS = 10.0
# A store may round the requested time to its own unit.
LONGEST_OFF_SECONDS = 1.0
# A reading shows by chance, in one of four, that a second server answers: five minutes of ticks.
HELD_READINGS = 20
# After this many refused readings in a row that agree with each other, the clock itself was set.
AGREEING_READINGS = 3


class ServerClock:
    """Bounds of server seconds minus monotonic seconds; for one thread at a time.

    sure_after_seconds: samples with this server timestamp or an earlier one may be from before the
    clock was set; minus infinity if it never was. times_set: how often its clock or ours was set.
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
        """Upper bound of server seconds minus monotonic seconds, so ages are never too young.

        asked_seconds, answered_seconds: on the monotonic clock, around the request for
        server_seconds.
        Raises: ImplausibleMetricsError if this reading contradicts earlier ones.
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
        """Detect a step of our own wall clock, from its seconds and the monotonic ones."""
        ahead, before = wall_seconds - monotonic_seconds, self._own
        self._own = ahead
        if before is not None and abs(ahead - before) > OWN_STEP_SECONDS:
            self.times_set += 1

    def _agrees(self, new: "_Bounds", known: "_Bounds") -> bool:
        """Whether enough refused readings in a row agree on one clock."""
        same = self._refused is not None and new.off(self._refused) == 0.0
        if not same:
            self._before_seconds = known.high + new.at_seconds
        self._refused_count = self._refused_count + 1 if same else 1
        self._refused = new
        return self._refused_count >= AGREEING_READINGS


class AnswerTimes:
    """Detects an answer that was evaluated at another time than requested.

    A cache or a proxy may return an answer of some seconds ago. Its samples would look newer than
    they are, and the next scrape's counts would seem to come from a very short time. A store whose
    time always differs, for example because it rounds, is accepted.
    """

    def __init__(self) -> None:
        self._usual_seconds: float | None = None
        self._odd_count = 0

    def check(self, asked_seconds: float, told_seconds: float) -> None:
        """Raises: ImplausibleMetricsError for a time with an unusual deviation."""
        off = told_seconds - asked_seconds
        usual = off if self._usual_seconds is None else self._usual_seconds
        if abs(off - usual) > LONGEST_OFF_SECONDS:
            self._odd_count += 1
            if self._odd_count < AGREEING_READINGS:
                where = f"{abs(off - usual):.1f} s {'after' if off > usual else 'before'}"
                detail = f"an answer is of {where} the moment that was asked for: an old one"
                raise ImplausibleMetricsError(detail)
        self._usual_seconds, self._odd_count = off, 0


class OneServer:
    """Detects that two servers answer in turn, each with the samples of its own scrapes.

    Counters of one would then get the ages of the other. Two answers of one moment tell: the newest
    sample of one server never gets older. Of a few engines it may, in a store that is written to
    meanwhile.
    """

    def __init__(self) -> None:
        self._signs = 0
        self._held_for = 0

    def check(self, newer_seconds: Mapping[str, float]) -> None:
        """Raises: ImplausibleMetricsError from the second sign until none has come for long.

        newer_seconds: by pod, how much newer its newest sample is in the later answer.
        """
        self._held_for = max(self._held_for - 1, 0)
        self._signs *= self._held_for > 0
        older = -median(newer_seconds.values()) if newer_seconds else 0.0
        if older > SMALL_STEP_SECONDS:
            self._signs, self._held_for = self._signs + 1, HELD_READINGS
        if self._signs > 1:
            raise ImplausibleMetricsError(
                "samples are older in the later of two answers of one moment: two servers of "
                "Prometheus answer in turn; ask one, or a layer that joins them, such as Thanos"
            )


class _Bounds:
    """Bounds of the clocks' difference, from one reading or all so far."""

    def __init__(self, low: float, high: float, at_seconds: float) -> None:
        self.low, self.high, self.at_seconds = low, high, at_seconds

    def widened(self, until_seconds: float) -> "_Bounds":
        drift = DRIFT_RATIO * max(until_seconds - self.at_seconds, 0.0)
        return _Bounds(self.low - drift, self.high + drift, until_seconds)

    def off(self, before: "_Bounds") -> float:
        """Distance above (positive) or below the earlier bounds; 0 if they overlap."""
        known = before.widened(self.at_seconds)
        return min(self.high - known.low, 0.0) or max(self.low - known.high, 0.0)

    def within(self, before: "_Bounds") -> "_Bounds":
        known = before.widened(self.at_seconds)
        return _Bounds(max(self.low, known.low), min(self.high, known.high), self.at_seconds)
