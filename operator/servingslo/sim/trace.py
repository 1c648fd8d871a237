"""Traces: when requests arrive and how long they are; read, transformed, or generated.

Every transformation returns a new trace; randomness comes only from the generator that is passed.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import FloatArray
from servingslo.sim.trace_cells import (
    LONGEST_FIRST_GAP_SECONDS,
    MOST_TOKENS,
    arrival_seconds,
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
"""Further columns, and the least and the largest value of each."""
FROM_START_COLUMN = "from_start"
"""A plain trace with this column begins at second 0, however long nothing arrives."""
# Seconds since the epoch of 2001 and later tell the date of a trace.
EPOCH_SECONDS = 1e9
COPY_SHIFT_SECONDS = 20.0
"""Copies of a trace that are laid over each other are shifted by up to this, so that no request
arrives together with its own copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival.

    arrival_seconds: increasing, from the start of the trace. duration_seconds: its length, at
    least the last arrival. The others are None where the trace does not have them. class_names: of
    each request. priorities: lower values go first. sessions: numbers from 0; -1 for none.
    shared_tokens: of the prompt, in common with earlier requests of the session. start_seconds: of
    second 0, since the epoch. offset_seconds: what the file calls second 0, where it does not begin
    there itself.
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
        """Mean over the whole trace."""
        return len(self) / self.duration_seconds

    @property
    def session_count(self) -> int:
        """Numbers of sessions, one more than the largest."""
        if self.sessions is None or not len(self):
            return 0
        return int(self.sessions.max()) + 1


def _sorted(trace: Trace) -> Trace:
    return _picked(trace, np.argsort(trace.arrival_seconds, kind="stable"))


def _picked(trace: Trace, chosen: IntArray) -> Trace:
    """These requests of the trace, in this order."""
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
    """The trace in a CSV file: the public Azure form or the plain one, told by the header.

    field: what named the file, for a file that cannot be read at all.
    Raises: InvalidInputError naming file, line, column, value and what is allowed.
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
    return _sorted(
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
    for row in reader:
        where = f"{path}:{reader.line_num}"
        if None in row:
            width = len(reader.fieldnames or ())
            found = f"{width + len(row[None])} values"
            raise InvalidInputError(where, found, f"{width}, as the header has")
        cells = {name: None if text is None else text.strip() for name, text in row.items()}
        arrival = arrival_seconds(f"{where}: {time}", cells[time], azure=columns is AZURE_COLUMNS)
        numbers = [token_count(f"{where}: {name}", cells[name]) for name in (prompt, output)]
        numbers += [
            whole_number(f"{where}: {name}", cells[name], *_OPTIONAL[name]) for name in optional
        ]
        yield arrival, numbers, cells.get("class") or ""


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace in the plain form."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        extra: dict[str, Sequence[object] | IntArray | None] = {
            "class": trace.class_names,
            "priority": trace.priorities,
            "session": trace.sessions,
            "shared_tokens": trace.shared_tokens,
        }
        known = {name: values for name, values in extra.items() if values is not None}
        if len(trace) and trace.arrival_seconds[0] > LONGEST_FIRST_GAP_SECONDS:
            known[FROM_START_COLUMN] = np.ones(len(trace), dtype=np.int64)
        writer.writerow([*PLAIN_COLUMNS, *known])
        for i in range(len(trace)):
            row = [
                f"{trace.arrival_seconds[i]:.3f}", trace.prompt_tokens[i], trace.output_tokens[i],
            ]  # fmt: skip
            writer.writerow([*row, *(values[i] for values in known.values())])


def _positive(field: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise InvalidInputError(field, value, "numbers > 0")
    return value


def sped_up(trace: Trace, factor: float) -> Trace:
    """The trace played `factor` times as fast: more requests a second, the same requests."""
    _positive("speed", factor)
    return replace(
        trace,
        arrival_seconds=trace.arrival_seconds / factor,
        duration_seconds=trace.duration_seconds / factor,
    )


def window(trace: Trace, start_seconds: float, end_seconds: float) -> Trace:
    """The requests that arrive from start to before end, counted from start."""
    inside = (trace.arrival_seconds >= start_seconds) & (trace.arrival_seconds < end_seconds)
    kept = _picked(trace, np.flatnonzero(inside))
    return replace(
        kept,
        arrival_seconds=kept.arrival_seconds - start_seconds,
        duration_seconds=end_seconds - start_seconds,
        start_seconds=None if kept.start_seconds is None else kept.start_seconds + start_seconds,
    )


def superposed(*traces: Trace) -> Trace:
    """All requests of all traces on one clock, as long as the longest.

    Sessions of different traces are different ones.
    """
    classes = None
    if any(trace.class_names for trace in traces):
        classes = tuple(
            name for trace in traces for name in (trace.class_names or ("",) * len(trace))
        )
    first = np.cumsum([0, *(trace.session_count for trace in traces)])
    sessions = [
        None if trace.sessions is None
        else np.where(trace.sessions >= 0, trace.sessions + first[i], -1)
        for i, trace in enumerate(traces)
    ]  # fmt: skip
    return _sorted(
        Trace(
            arrival_seconds=np.concatenate([trace.arrival_seconds for trace in traces]),
            prompt_tokens=np.concatenate([trace.prompt_tokens for trace in traces]),
            output_tokens=np.concatenate([trace.output_tokens for trace in traces]),
            duration_seconds=max(trace.duration_seconds for trace in traces),
            class_names=classes,
            priorities=_joined(traces, [trace.priorities for trace in traces], 0),
            sessions=_joined(traces, sessions, -1),
            shared_tokens=_joined(traces, [trace.shared_tokens for trace in traces], 0),
            start_seconds=traces[0].start_seconds,
        )
    )


def _joined(
    traces: Sequence[Trace], columns: Sequence[IntArray | None], missing: int
) -> IntArray | None:
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(len(trace), missing) if column is None else column
            for trace, column in zip(traces, columns, strict=True)
        ]
    )


def repeated(trace: Trace, duration_seconds: float) -> Trace:
    """The trace again and again until this much time is filled."""
    rounds = int(np.ceil(_positive("duration", duration_seconds) / trace.duration_seconds))
    copies = [
        replace(
            trace,
            arrival_seconds=trace.arrival_seconds + i * trace.duration_seconds,
            duration_seconds=(i + 1) * trace.duration_seconds,
        )
        for i in range(rounds)
    ]
    return window(superposed(*copies), 0.0, duration_seconds)


def scaled(
    trace: Trace,
    factor: float,
    rng: np.random.Generator,
    *,
    shift_seconds: float = COPY_SHIFT_SECONDS,
) -> Trace:
    """The trace at `factor` times its rate: copies laid over each other, the last one thinned.

    Each request of each further copy is moved by a random time within ±shift_seconds, around the
    ends of the trace; so the shape of demand is kept and no two requests arrive together.
    """
    _positive("scale", factor)
    whole = int(factor)
    copies = []
    for copy in range(whole + 1):
        share = 1.0 if copy < whole else factor - whole
        kept = _picked(trace, np.flatnonzero(rng.random(len(trace)) < share))
        if copy > 0:
            moved = kept.arrival_seconds + rng.uniform(-shift_seconds, shift_seconds, len(kept))
            arrivals = np.mod(moved, trace.duration_seconds)
            kept = _sorted(replace(kept, arrival_seconds=arrivals))
        copies.append(kept)
    return superposed(*copies)


def with_surge(
    trace: Trace,
    factor: float,
    start_seconds: float,
    end_seconds: float,
    rng: np.random.Generator,
) -> Trace:
    """The trace with `factor` times its rate (at least 1) from start to end."""
    if factor < 1:
        raise InvalidInputError("surge", factor, "factors ≥ 1")
    if factor == 1 or end_seconds <= start_seconds:
        return trace
    extra = window(scaled(trace, factor - 1.0, rng), start_seconds, end_seconds)
    moved = replace(
        extra,
        arrival_seconds=extra.arrival_seconds + start_seconds + rng.uniform(0.0, 1e-3, len(extra)),
        duration_seconds=trace.duration_seconds,
    )
    return superposed(trace, moved)
