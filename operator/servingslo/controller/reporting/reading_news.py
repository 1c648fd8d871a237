"""Report that a reading of all metrics failed, or works again: one event for each namespace."""

from dataclasses import dataclass, field

from servingslo.policy.inputs import SignalProblem
from servingslo.reasons import Reason

# Within a few ticks, all resources find that readings work again.
_RECOVERY_SECONDS = 60.0


@dataclass(slots=True)
class ReadingNews:
    """What was reported of the readings. One event for each resource would prolong an outage."""

    _reason: Reason | None = None
    _ended_seconds: float | None = None
    _told: set[str] = field(default_factory=set)

    def take(self, problem: SignalProblem | None, now_seconds: float) -> None:
        """Take a reading, with the problem of the whole reading if any."""
        reason = None if problem is None else problem.reason
        if reason is not self._reason:
            self._ended_seconds = now_seconds if reason is None else None
            self._reason = reason
            self._told.clear()
        ended = self._ended_seconds
        if ended is not None and now_seconds - ended > _RECOVERY_SECONDS:
            self._ended_seconds = None

    def is_news(self, namespace: str, reason: Reason) -> bool:
        """Whether to post an event with this reason in a namespace; it then counts as posted."""
        ended = self._reason is None and self._ended_seconds is not None
        if reason is not (Reason.METRICS_FRESH if ended else self._reason):
            return True
        if namespace in self._told:
            return False
        self._told.add(namespace)
        return True
