"""Transform traces: a window, faster, longer, another rate, several combined.

Every transformation returns a new trace; randomness comes only from the generator that is passed.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.traces.trace import IntArray, Trace, chosen_requests, in_order

COPY_SHIFT_SECONDS = 20.0
"""Overlaid copies of a trace are shifted by up to this, so that no request arrives together with
its own copy."""


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
    kept = chosen_requests(trace, np.flatnonzero(inside))
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
    return in_order(
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
    """The trace repeated until this duration is filled."""
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
    """The trace at `factor` times its rate: overlaid copies, the last one thinned.

    Each request of each further copy is shifted by a random time within ±shift_seconds, wrapping at
    the ends of the trace. So the shape of demand is kept and no two requests arrive together.
    """
    _positive("scale", factor)
    whole = int(factor)
    copies = []
    for copy in range(whole + 1):
        share = 1.0 if copy < whole else factor - whole
        kept = chosen_requests(trace, np.flatnonzero(rng.random(len(trace)) < share))
        if copy > 0:
            moved = kept.arrival_seconds + rng.uniform(-shift_seconds, shift_seconds, len(kept))
            arrivals = np.mod(moved, trace.duration_seconds)
            kept = in_order(replace(kept, arrival_seconds=arrivals))
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
