"""Unit conversion: all factors between units are defined here.

Inside the package all quantities are SI (seconds, bytes, tokens, requests per second). Users' input
and output is converted here.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache

from servingslo.errors import InvalidInputError

MILLISECONDS_PER_SECOND = 1000.0
MICROSECONDS_PER_SECOND = 1_000_000.0
SECONDS_PER_MINUTE = 60.0
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR
TOKENS_PER_MEGATOKEN = 1_000_000.0
BYTES_PER_MEBIBYTE = 1024.0**2
PERCENT_PER_UNIT = 100.0

_SECONDS_OF_UNIT = {
    "ms": 1 / MILLISECONDS_PER_SECOND,
    "s": 1.0,
    "m": SECONDS_PER_MINUTE,
    "h": SECONDS_PER_HOUR,
    "d": SECONDS_PER_DAY,
}
_SECONDS_OF_SHORT_UNIT = {
    "ns": 1e-9,
    "us": 1 / MICROSECONDS_PER_SECOND,
    "µs": 1 / MICROSECONDS_PER_SECOND,
    "ms": 1 / MILLISECONDS_PER_SECOND,
    "s": 1.0,
}
_SHORT_DURATION = re.compile(r"(\d+(?:\.\d+)?(?:[eE]-?\d{1,2})?)(ns|us|µs|ms|s)")
_BYTES_OF_SUFFIX = {
    "": 1.0,
    **{suffix: 1000.0**power for power, suffix in enumerate(("n", "u", "m"), start=-3)},
    **{suffix: 1000.0**power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{
        suffix: 1024.0**power
        for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
}
# Source: apimachinery pkg/api/resource/quantity.go, the serialization format of Quantity.
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+))(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)"
)
_DURATION = re.compile(r"^(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+$")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration_seconds(text: str, field: str = "duration") -> float:
    """Seconds of a duration such as '500ms', '2s', '1m30s', '28d'.

    Raises: InvalidInputError if the text is not a duration.
    """
    if not _DURATION.match(text):
        raise InvalidInputError(field, text, "a duration such as 500ms, 2s, 1m30s, 1h")
    return sum(float(n) * _SECONDS_OF_UNIT[unit] for n, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """Human-readable duration: '0.38s', '2m', '1h30m'; three significant digits below a minute."""
    if seconds < _SECONDS_OF_UNIT["m"]:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    parts = []
    for unit in ("d", "h", "m", "s"):
        size = round(_SECONDS_OF_UNIT[unit])
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_short_duration_seconds(text: str, field: str = "duration") -> float:
    """Seconds of a duration as short as an engine step, such as '6.5ms', '0.05us', '30ns'.

    Raises: InvalidInputError if the text is not one.
    """
    match = _SHORT_DURATION.fullmatch(text)
    if match is None:
        allowed = "a time with its unit: ns, us, ms or s, such as 6.5ms"
        if _SHORT_DURATION.fullmatch(text.removeprefix("-")):
            allowed = "a time of 0 or more"
        raise InvalidInputError(field, text, allowed)
    return float(match[1]) * _SECONDS_OF_SHORT_UNIT[match[2]]


def format_short_duration(seconds: float) -> str:
    """A duration in the form of parse_short_duration_seconds: '6.5ms'; four significant digits."""
    for unit in ("s", "ms", "us"):
        if seconds >= _SECONDS_OF_SHORT_UNIT[unit]:
            return f"{seconds / _SECONDS_OF_SHORT_UNIT[unit]:.4g}{unit}"
    return f"{seconds / _SECONDS_OF_SHORT_UNIT['ns']:.4g}ns"


def parse_quantity_bytes(text: str, field: str = "quantity") -> float:
    """Bytes of a Kubernetes quantity such as '16Gi', '80G', '1.5e9'.

    Raises: InvalidInputError if the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidInputError(field, text, "a Kubernetes quantity such as 16Gi, 80G")
    number, exponent, suffix = match.groups()
    return float(number + (exponent or "")) * _BYTES_OF_SUFFIX[suffix or ""]


def seconds_from_milliseconds(milliseconds: float) -> float:
    """Seconds of a duration in milliseconds."""
    return milliseconds / MILLISECONDS_PER_SECOND


def milliseconds_from_seconds(seconds: float) -> float:
    """Milliseconds, for human-readable output."""
    return seconds * MILLISECONDS_PER_SECOND


def bytes_from_mebibytes(mebibytes: float) -> float:
    """Bytes; DCGM reports framebuffer memory in MiB."""
    return mebibytes * BYTES_PER_MEBIBYTE


def ratio_from_percent(percent: float) -> float:
    """A ratio, 0 to 1; DCGM reports utilization in percent."""
    return percent / PERCENT_PER_UNIT


def seconds_from_timestamp(text: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None for None and for an invalid time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


# More than the conditions of the resources of one operator: they are written anew at every tick.
@lru_cache(maxsize=16_384)
def timestamp_from_seconds(seconds: float) -> str:
    """RFC 3339 in UTC with whole seconds, like metav1.Time."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
