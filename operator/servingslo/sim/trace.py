"""Traces: when requests arrive and how long they are; read, transformed, or generated.

Every transformation returns a new trace; randomness comes only from the generator that is passed.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.models.service_time import FloatArray

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PLAIN_COLUMNS = ("arrival_seconds", "prompt_tokens", "output_tokens")
COPY_SHIFT_SECONDS = 20.0
"""Copies of a trace that are laid over each other are shifted by up to this, so that no request
arrives together with its own copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival.

    arrival_seconds: increasing, from the start of the trace. duration_seconds: its length, at
    least the last arrival. class_names: of each request, None where the trace has no classes.
    """

    arrival_seconds: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    duration_seconds: float
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.arrival_seconds)

    @property
    def arrival_rate_per_second(self) -> float:
        """Mean over the whole trace."""
        return len(self) / self.duration_seconds


def _trace(
    arrivals: FloatArray,
    prompts: IntArray,
    outputs: IntArray,
    duration: float,
    classes: tuple[str, ...] | None = None,
) -> Trace:
    order = np.argsort(arrivals, kind="stable")
    return Trace(
        arrival_seconds=arrivals[order],
        prompt_tokens=prompts[order],
        output_tokens=outputs[order],
        duration_seconds=duration,
        class_names=None if classes is None else tuple(classes[i] for i in order),
    )


def read_trace(path: Path) -> Trace:
    """The trace in a CSV file: the public Azure form or the plain one, told by the header.

    Raises: InvalidInputError naming file, line, column, value and what is allowed.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = _columns(path, reader.fieldnames)
            has_class = "class" in (reader.fieldnames or ())
            rows = list(_rows(path, reader, columns))
            if not rows:
                raise InvalidInputError(str(path), "no requests", "at least one request")
            arrivals = np.array([row[0] for row in rows])
    except OSError as error:
        raise InvalidInputError(
            "trace", str(path), f"a readable file ({error.strerror})"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError("trace", str(path), "a CSV file in UTF-8") from error
    arrivals -= arrivals.min() if columns is AZURE_COLUMNS else 0.0
    return _trace(
        arrivals,
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.int64),
        float(arrivals.max()) or 1.0,
        tuple(row[3] for row in rows) if has_class else None,
    )


def _columns(path: Path, header: object) -> tuple[str, str, str]:
    names = set(header) if isinstance(header, list) else set()
    for columns in (AZURE_COLUMNS, PLAIN_COLUMNS):
        if names.issuperset(columns):
            return columns
    allowed = f"{','.join(AZURE_COLUMNS)} or {','.join(PLAIN_COLUMNS)}[,class]"
    raise InvalidInputError(f"{path}: header", ",".join(sorted(names)), allowed)


def _rows(
    path: Path, reader: "csv.DictReader[str]", columns: tuple[str, str, str]
) -> Iterator[tuple[float, int, int, str]]:
    time, prompt, output = columns
    for row in reader:
        where = f"{path}:{reader.line_num}"
        yield (
            _arrival(f"{where}: {time}", row[time], azure=columns is AZURE_COLUMNS),
            _tokens(f"{where}: {prompt}", row[prompt]),
            _tokens(f"{where}: {output}", row[output]),
            row.get("class") or "",
        )


def _arrival(field: str, text: str | None, *, azure: bool) -> float:
    try:
        if azure:
            # Seven fractional digits in the published files; Python reads six.
            utc = (text or "").split("+")[0].removesuffix("Z")
            whole, _, fraction = utc.partition(".")
            moment = datetime.fromisoformat(whole)
            seconds = (moment - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001 - naive on purpose
            return seconds + float(f"0.{fraction or 0}")
        seconds = float(text or "")
    except ValueError as error:
        raise InvalidInputError(field, text, "a time") from error
    if not 0 <= seconds < float("inf"):
        raise InvalidInputError(field, text, "seconds ≥ 0")
    return seconds


def _tokens(field: str, text: str | None) -> int:
    try:
        tokens = int(text or "")
    except ValueError as error:
        raise InvalidInputError(field, text, "a whole number of tokens ≥ 0") from error
    if tokens < 0:
        raise InvalidInputError(field, text, "a whole number of tokens ≥ 0")
    # The published trace has requests without an answer; an engine emits one token at least.
    return max(tokens, 1)


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace in the plain form."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        classes = trace.class_names
        writer.writerow([*PLAIN_COLUMNS, *(["class"] if classes else [])])
        for i in range(len(trace)):
            row = [
                f"{trace.arrival_seconds[i]:.3f}", trace.prompt_tokens[i], trace.output_tokens[i],
            ]  # fmt: skip
            writer.writerow([*row, *([classes[i]] if classes else [])])


def _positive(field: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise InvalidInputError(field, value, "numbers > 0")
    return value


def sped_up(trace: Trace, factor: float) -> Trace:
    """The trace played `factor` times as fast: more requests a second, the same requests."""
    _positive("speed", factor)
    return Trace(
        arrival_seconds=trace.arrival_seconds / factor,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        duration_seconds=trace.duration_seconds / factor,
        class_names=trace.class_names,
    )


def window(trace: Trace, start_seconds: float, end_seconds: float) -> Trace:
    """The requests that arrive from start to before end, counted from start."""
    inside = (trace.arrival_seconds >= start_seconds) & (trace.arrival_seconds < end_seconds)
    return _picked(
        trace, inside, trace.arrival_seconds[inside] - start_seconds, end_seconds - start_seconds
    )


def _picked(
    trace: Trace, chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], arrivals: FloatArray,
    duration: float,
) -> Trace:  # fmt: skip
    classes = trace.class_names
    return _trace(
        arrivals,
        trace.prompt_tokens[chosen],
        trace.output_tokens[chosen],
        duration,
        None if classes is None else tuple(classes[i] for i in np.flatnonzero(chosen)),
    )


def superposed(*traces: Trace) -> Trace:
    """All requests of all traces on one clock, as long as the longest."""
    classes = None
    if any(trace.class_names for trace in traces):
        classes = tuple(
            name for trace in traces for name in (trace.class_names or ("",) * len(trace))
        )
    return _trace(
        np.concatenate([trace.arrival_seconds for trace in traces]),
        np.concatenate([trace.prompt_tokens for trace in traces]),
        np.concatenate([trace.output_tokens for trace in traces]),
        max(trace.duration_seconds for trace in traces),
        classes,
    )


def repeated(trace: Trace, duration_seconds: float) -> Trace:
    """The trace again and again until this much time is filled."""
    rounds = int(np.ceil(_positive("duration", duration_seconds) / trace.duration_seconds))
    copies = [
        Trace(
            arrival_seconds=trace.arrival_seconds + i * trace.duration_seconds,
            prompt_tokens=trace.prompt_tokens,
            output_tokens=trace.output_tokens,
            duration_seconds=(i + 1) * trace.duration_seconds,
            class_names=trace.class_names,
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
        keep = rng.random(len(trace)) < share
        arrivals = trace.arrival_seconds[keep]
        if copy > 0:
            moved = arrivals + rng.uniform(-shift_seconds, shift_seconds, len(arrivals))
            arrivals = np.mod(moved, trace.duration_seconds)
        copies.append(_picked(trace, keep, arrivals, trace.duration_seconds))
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
    moved = Trace(
        arrival_seconds=extra.arrival_seconds + start_seconds
        + rng.uniform(0.0, 1e-3, len(extra)),
        prompt_tokens=extra.prompt_tokens,
        output_tokens=extra.output_tokens,
        duration_seconds=trace.duration_seconds,
        class_names=extra.class_names,
    )  # fmt: skip
    return superposed(trace, moved)
