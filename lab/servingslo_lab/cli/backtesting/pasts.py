"""The past of a trace in a file: rates of five minutes each, up to the begin of the trace."""

import csv
import math
from itertools import pairwise
from pathlib import Path

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.past import BIN_SECONDS, Past

COLUMNS = ["start_seconds", "requests_per_second"]
"""Seconds after the begin of the trace, so below 0; nothing for a rate that is not known."""


def write_past(past: Past, path: Path) -> None:
    """Write a past so that `read_past` finds the same. Raises: InvalidInputError for none."""
    if not past.rates_per_second:
        raise InvalidInputError("--save-history", str(path), "with a past; none is known")
    end = -math.fmod(past.begin_seconds, BIN_SECONDS)
    count = len(past.rates_per_second)
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for place, rate in enumerate(past.rates_per_second):
                start = end - (count - place) * BIN_SECONDS
                writer.writerow([f"{start:.3f}", "" if rate is None else rate])
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise InvalidInputError("--save-history", str(path), allowed) from error


def read_past(path: Path) -> Past | None:
    """The past in a file; None where it is not one of rates.

    The clock is one on which bins begin at multiples of their width.
    Raises: InvalidInputError naming file, line, column, value and what is allowed.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            if next(reader, None) != COLUMNS:
                return None
            rows = [_row(f"{path}:{reader.line_num}", row) for row in reader]
    except (OSError, UnicodeDecodeError):
        return None  # as a file of requests it is refused
    for place, ((start, _), (then, _)) in enumerate(pairwise(rows), start=3):
        if abs(then - start - BIN_SECONDS) > 1e-3:
            allowed = f"{start + BIN_SECONDS:g}, {BIN_SECONDS:g} after the one before"
            raise InvalidInputError(f"{path}:{place}: {COLUMNS[0]}", then, allowed)
    end = rows[-1][0] + BIN_SECONDS if rows else math.nan
    if not -BIN_SECONDS < end <= 0:
        allowed = f"rates up to the begin of the trace: above {-2 * BIN_SECONDS:g} to -300"
        value = rows[-1][0] if rows else None
        raise InvalidInputError(f"{path}: last {COLUMNS[0]}", value, allowed)
    return Past(begin_seconds=-end, rates_per_second=tuple(rate for _, rate in rows))


def _row(where: str, row: list[str]) -> tuple[float, float | None]:
    if len(row) != len(COLUMNS):
        raise InvalidInputError(where, ",".join(row), ",".join(COLUMNS))
    start = _number(f"{where}: {COLUMNS[0]}", row[0], -math.inf)
    return start, _number(f"{where}: {COLUMNS[1]}", row[1], 0.0) if row[1] else None


def _number(field: str, text: str, least: float) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise InvalidInputError(field, text, "a number") from error
    if not least <= number < math.inf:
        raise InvalidInputError(field, text, f"numbers ≥ {least:g}")
    return number
