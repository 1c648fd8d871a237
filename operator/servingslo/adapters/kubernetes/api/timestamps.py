"""Kubernetes timestamps (RFC 3339, UTC) to and from seconds since the epoch."""

from datetime import UTC, datetime
from functools import lru_cache

# More than the conditions of the resources of one operator: they are written anew at every tick.
_REMEMBERED = 16_384


def seconds_from_timestamp(text: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None for None and for an invalid time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


@lru_cache(maxsize=_REMEMBERED)
def timestamp_from_seconds(seconds: float) -> str:
    """RFC 3339 in UTC with whole seconds, like metav1.Time."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
