"""Trouble with the API server or a reading: told once for all that meet it, and when it ends."""

import logging
from dataclasses import dataclass, field

from servingslo.errors import ClusterError, ClusterUnavailableError
from servingslo.policy.inputs import SignalProblem
from servingslo.reasons import Reason

_LOG = logging.getLogger(__name__)
# Lasting trouble is reported again this often, with the number of requests that met it.
REPEAT_SECONDS = 600.0
_EVERYWHERE = ("", "")

# The purpose of a request, and its resource.
Part = tuple[str, str]


@dataclass(slots=True)
class _Trouble:
    began_seconds: float
    said_seconds: float
    count: int = 0


@dataclass(slots=True)
class Outages:
    """Failing requests. An API server that is away is one trouble for all parts and resources."""

    _known: dict[Part, _Trouble] = field(default_factory=dict)

    def met(self, part: Part, error: ClusterError, now_seconds: float) -> None:
        """A request failed. part: what it was for, and the resource's 'namespace/name'."""
        away = isinstance(error, ClusterUnavailableError)
        key = _EVERYWHERE if away else part
        known = self._known.get(key)
        fresh = known is None
        if known is None:
            known = self._known[key] = _Trouble(now_seconds, now_seconds)
        known.count += 1
        if fresh or now_seconds - known.said_seconds >= REPEAT_SECONDS:
            known.said_seconds = now_seconds
            what = "api server away" if away else f"{part[0]} refused resource={part[1]}"
            _LOG.warning("%s requests=%d detail=%r", what, known.count, str(error))

    def passed(self, part: Part, now_seconds: float) -> None:
        """A request was answered: trouble reported for it is over."""
        for key in (_EVERYWHERE, part):
            known = self._known.pop(key, None)
            if known is not None:
                what = "api server answers" if key is _EVERYWHERE else f"{key[0]} accepted"
                lasted = max(now_seconds - known.began_seconds, 0.0)
                _LOG.info("%s again after=%.0fs failed=%d", what, lasted, known.count)


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
