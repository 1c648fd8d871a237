"""Trouble with the API server: reported once for all requests that meet it, and when it ends."""

import logging
from dataclasses import dataclass, field

from servingslo.errors import ClusterError, ClusterUnavailableError

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
