"""Parse the cells of a trace file, and find the start time of the trace."""

import re
from datetime import datetime, timedelta

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import FloatArray

MOST_TOKENS = 10_000_000
# A first gap up to this length is normal for any trace.
LONGEST_FIRST_GAP_SECONDS = 60.0
# Seconds of the year 5138; a larger number is in smaller units.
_LARGEST_SECONDS = 1e11
_SMALLER_UNITS = (("milliseconds", 1e14), ("microseconds", 1e17), ("nanoseconds", float("inf")))
# A day and a time, its fraction, and the offset of its time zone from UTC if there is one.
_TIME = re.compile(
    r"(?P<whole>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?)(\.(?P<fraction>\d+))?"
    r"(Z|(?P<sign>[+-])(?P<hours>[01]\d|2[0-3]):?(?P<minutes>[0-5]\d))?",
    re.ASCII,
)


def zero_seconds(field: str, arrivals: FloatArray, *, kept: bool) -> float:
    """The file's time that is second 0 of its trace.

    A slice of a longer trace, or a trace in seconds since the epoch, begins at its first arrival,
    like the form with timestamps, because the time before is unknown. But if the time before the
    first arrival is no longer than the gaps inside, it is kept as a gap. kept: the file states its
    own beginning.

    Raises: InvalidInputError if these are no seconds.
    """
    first = float(arrivals.min())
    if first >= _LARGEST_SECONDS:
        unit = next(name for name, most in _SMALLER_UNITS if first < most)
        raise InvalidInputError(field, f"{first:.0f}", f"seconds; these look like {unit}")
    gaps = np.diff(np.sort(arrivals))
    longest = max(float(gaps.max(initial=0.0)), LONGEST_FIRST_GAP_SECONDS)
    return 0.0 if kept or first <= longest else first


def arrival_seconds(field: str, text: str | None, *, azure: bool) -> float:
    """The time of an arrival, in the file's own count. Raises: InvalidInputError."""
    if azure:
        return _moment(field, text)
    try:
        seconds = float(text or "")
    except ValueError as error:
        raise InvalidInputError(field, text, "seconds ≥ 0") from error
    if not 0 <= seconds < float("inf"):
        raise InvalidInputError(field, text, "seconds ≥ 0")
    return seconds


def _moment(field: str, text: str | None) -> float:
    """Seconds since the epoch; a time without a zone is in UTC.

    The published files have seven fractional digits; Python reads six.
    """
    allowed = "a time such as 2023-11-16 18:17:03.9799600"
    found = _TIME.fullmatch(text or "")
    if found is None:
        raise InvalidInputError(field, text, allowed)
    try:
        moment = datetime.fromisoformat(found["whole"])
    except ValueError as error:
        raise InvalidInputError(field, text, allowed) from error
    ahead = timedelta(hours=int(found["hours"] or 0), minutes=int(found["minutes"] or 0))
    if found["sign"] == "-":
        ahead = -ahead
    # Naive on purpose: the offset is subtracted here.
    seconds = (moment - datetime(1970, 1, 1) - ahead).total_seconds()  # noqa: DTZ001
    return seconds + float(f"0.{found['fraction'] or 0}")


def has_zone(moment: str) -> bool:
    """Whether this time, which was read, states its zone: only that follows its day with a sign."""
    return not {"Z", "+", "-"}.isdisjoint(moment[len("2023-11-16") :])


def token_count(field: str, text: str | None) -> int:
    """Tokens of a prompt or an answer. Raises: InvalidInputError."""
    # The published trace has requests without an answer; an engine emits at least one token.
    return max(whole_number(field, text, 0, MOST_TOKENS), 1)


def whole_number(field: str, text: str | None, least: int, most: int) -> int:
    """A whole number within these bounds. Raises: InvalidInputError."""
    allowed = f"a whole number {'of tokens ' if least == 0 else ''}≥ {least}"
    try:
        number = int(text or "")
    except ValueError as error:
        raise InvalidInputError(field, text, allowed) from error
    if number < least:
        raise InvalidInputError(field, text, allowed)
    if number > most:
        raise InvalidInputError(field, text, f"{allowed}, at most {most}")
    return number
