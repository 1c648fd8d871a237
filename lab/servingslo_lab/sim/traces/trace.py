"""Traces: arrival times and lengths of requests, read from a file."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import FloatArray
from servingslo_lab.sim.traces.cells import (
    MOST_TOKENS,
    arrival_seconds,
    has_zone,
    token_count,
    whole_number,
    zero_seconds,
)

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PLAIN_COLUMNS = ("arrival_seconds", "prompt_tokens", "output_tokens")
_OPTIONAL = {
    "priority": (-(1 << 31), (1 << 31) - 1),
    "session": (-1, 10_000_000),
    "shared_tokens": (0, MOST_TOKENS),
}
"""Further columns, with the minimum and maximum value of each."""
FROM_START_COLUMN = "from_start"
"""A plain trace with this column begins at second 0, however late the first arrival is."""
# Seconds since the epoch from 2001 on show the date of a trace.
EPOCH_SECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival.

    arrival_seconds: increasing, from the start of the trace. duration_seconds: its length, at
    least the last arrival. The others are None if the trace does not have them. class_names: of
    each request. priorities: lower values go first. sessions: numbers from 0; -1 for none.
    shared_tokens: of the prompt, in common with earlier requests of the session. start_seconds: of
    second 0, since the epoch. offset_seconds: the file's time of second 0, if it is not 0.
    """

    arrival_seconds: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    duration_seconds: float
    class_names: tuple[str, ...] | None = None
    priorities: IntArray | None = None
    sessions: IntArray | None = None
    shared_tokens: IntArray | None = None
    start_seconds: float | None = None
    offset_seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.arrival_seconds)

    @property
    def arrival_rate_per_second(self) -> float:
        """Mean rate over the whole trace."""
        return len(self) / self.duration_seconds

    @property
    def session_count(self) -> int:
        """Number of sessions: one more than the largest session number."""
        if self.sessions is None or not len(self):
            return 0
        return int(self.sessions.max()) + 1


def in_order(trace: Trace) -> Trace:
    """The same requests in order of arrival; those that arrive together keep their order."""
    return chosen_requests(trace, np.argsort(trace.arrival_seconds, kind="stable"))


def chosen_requests(trace: Trace, chosen: IntArray) -> Trace:
    """These requests of the trace, in this order.

    chosen: indices of requests; the trace's length and start do not change.
    """
    classes = trace.class_names
    return replace(
        trace,
        arrival_seconds=trace.arrival_seconds[chosen],
        prompt_tokens=trace.prompt_tokens[chosen],
        output_tokens=trace.output_tokens[chosen],
        class_names=None if classes is None else tuple(classes[i] for i in chosen),
        priorities=None if trace.priorities is None else trace.priorities[chosen],
        sessions=None if trace.sessions is None else trace.sessions[chosen],
        shared_tokens=None if trace.shared_tokens is None else trace.shared_tokens[chosen],
    )


def read_trace(path: Path, field: str = "trace") -> Trace:
    """The trace in a CSV file: the public Azure form or the plain one, detected by the header.

    field: the setting that named the file, for the error of an unreadable file.
    Raises: InvalidInputError naming file, line, column, value and the allowed values.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            columns = _columns(path, reader.fieldnames)
            optional = [name for name in _OPTIONAL if name in (reader.fieldnames or ())]
            rows = list(_rows(path, reader, columns, optional))
            if not rows:
                raise InvalidInputError(
                    f"{path}: requests", None, "at least one line below its header"
                )
            arrivals = np.array([row[0] for row in rows])
    except OSError as error:
        raise InvalidInputError(field, str(path), f"a readable file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(field, str(path), "a CSV file in UTF-8") from error
    except csv.Error as error:
        where = f"{path}:{reader.line_num + 1}"
        raise InvalidInputError(where, str(error), "a line of CSV") from error
    stamped = columns is AZURE_COLUMNS
    if stamped:
        start = float(arrivals.min())
    else:
        kept = FROM_START_COLUMN in (reader.fieldnames or ())
        start = zero_seconds(f"{path}: {columns[0]}", arrivals, kept=kept)
    arrivals -= start

    def column(place: int) -> IntArray:
        return np.array([row[1][place] for row in rows], dtype=np.int64)

    found = {name: column(2 + place) for place, name in enumerate(optional)}
    has_class = "class" in (reader.fieldnames or ())
    return in_order(
        Trace(
            arrival_seconds=arrivals,
            prompt_tokens=column(0),
            output_tokens=column(1),
            duration_seconds=float(arrivals.max()) or 1.0,
            class_names=tuple(row[2] for row in rows) if has_class else None,
            priorities=found.get("priority"),
            sessions=found.get("session"),
            shared_tokens=found.get("shared_tokens"),
            start_seconds=start if stamped or start >= EPOCH_SECONDS else None,
            offset_seconds=0.0 if stamped else start,
        )
    )


def _columns(path: Path, header: object) -> tuple[str, str, str]:
    names = header if isinstance(header, list) else []
    for name in (*AZURE_COLUMNS, *PLAIN_COLUMNS, "class", *_OPTIONAL):
        if names.count(name) > 1:
            raise InvalidInputError(f"{path}: header", name, "each column once")
    for columns in (AZURE_COLUMNS, PLAIN_COLUMNS):
        if set(names).issuperset(columns):
            return columns
    optional = "".join(f"[,{name}]" for name in ("class", *_OPTIONAL))
    allowed = f"{','.join(AZURE_COLUMNS)} or {','.join(PLAIN_COLUMNS)}{optional}"
    raise InvalidInputError(f"{path}: header", ",".join(names) or None, allowed)


def _rows(
    path: Path, reader: "csv.DictReader[str]", columns: tuple[str, str, str], optional: list[str]
) -> Iterator[tuple[float, list[int], str]]:
    time, prompt, output = columns
    azure = columns is AZURE_COLUMNS
    zoned: bool | None = None
    for row in reader:
        where = f"{path}:{reader.line_num}"
        if None in row:
            width = len(reader.fieldnames or ())
            found = f"{width + len(row[None])} values"
            raise InvalidInputError(where, found, f"{width}, as the header has")
        cells = {name: None if text is None else text.strip() for name, text in row.items()}
        arrival = arrival_seconds(f"{where}: {time}", cells[time], azure=azure)
        own = azure and has_zone(cells[time] or "")
        if zoned not in {None, own}:
            allowed = "a time zone in every line, or in none: then all are in UTC"
            raise InvalidInputError(f"{where}: {time}", cells[time], allowed)
        zoned = own
        numbers = [token_count(f"{where}: {name}", cells[name]) for name in (prompt, output)]
        numbers += [
            whole_number(f"{where}: {name}", cells[name], *_OPTIONAL[name]) for name in optional
        ]
        yield arrival, numbers, cells.get("class") or ""
