"""Traces as people have them: slices, epochs, blanks, quotes and byte order marks.

1. A trace that begins late is counted from its first arrival, whatever its zero is.
2. How a cell or a header is spelt changes nothing.
3. What is no seconds is refused with the unit that it looks like.
4. A trace that was read right before is read as it was, and one that is written is read back.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.traces.trace import PLAIN_COLUMNS, Trace, read_trace
from servingslo_lab.sim.traces.trace_files import write_trace

_GAPS = st.lists(st.integers(0, 60), min_size=1, max_size=30)
_BLANKS = st.sampled_from(["", " ", "  ", "\t"])
_EPOCHS = st.one_of(st.integers(61, 10**8), st.integers(10**9, 4 * 10**9))


def _read(text: str, encoding: str = "utf-8") -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_bytes(text.encode(encoding))
        return read_trace(path)


def _plain(times: list[float], form: str = "{:.3f}") -> str:
    rows = [f"{form.format(time)},300,100" for time in times]
    return "\n".join([",".join(PLAIN_COLUMNS), *rows]) + "\n"


@given(gaps=_GAPS, zero=_EPOCHS)
def test_a_slice_is_counted_from_its_first_arrival(gaps, zero) -> None:
    """1: seconds of a day, of a longer trace, or since the epoch."""
    since = np.cumsum([0, *gaps]).astype(float)
    trace = _read(_plain([zero + time for time in since]))
    assert trace.arrival_seconds.tolist() == pytest.approx(since.tolist())
    assert trace.duration_seconds == pytest.approx(float(since[-1]) or 1.0)
    assert trace.offset_seconds == zero
    assert trace.start_seconds == (zero if zero >= 10**9 else None)


@given(
    gaps=_GAPS,
    blanks=st.tuples(_BLANKS, _BLANKS),
    quoted=st.booleans(),
    mark=st.booleans(),
    ends=st.sampled_from(["\n", "\r\n"]),
    shuffled=st.randoms(use_true_random=False),
)
def test_spelling_of_cells_and_headers_changes_nothing(
    gaps, blanks, quoted, mark, ends, shuffled
) -> None:
    """2: blanks around commas, quotes, a mark before the first byte, and the order of lines."""
    since = np.cumsum([0, *gaps]).tolist()
    before, after = blanks
    rows = [[f"{time}", "300", "100"] for time in since]
    shuffled.shuffle(rows)
    cells = [[f'"{cell}"' if quoted else cell for cell in row] for row in [[*PLAIN_COLUMNS], *rows]]
    lines = [f"{before if not quoted else ''},{after.replace(chr(9), ' ')}".join(r) for r in cells]
    trace = _read(ends.join(lines) + ends, "utf-8-sig" if mark else "utf-8")
    assert trace.arrival_seconds.tolist() == [float(time) for time in since]
    assert trace.prompt_tokens.tolist() == [300] * len(since)


@given(
    gaps=_GAPS,
    unit=st.sampled_from([("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)]),
    zero=st.integers(10**9, 4 * 10**9),
)
def test_smaller_units_since_the_epoch_are_refused_by_name(gaps, unit, zero) -> None:
    """3: a thousand times the duration would be a fleet that stands idle for years."""
    name, factor = unit
    times = [factor * (zero + time) for time in np.cumsum([0, *gaps])]
    with pytest.raises(InvalidInputError, match=f"seconds; these look like {name}"):
        _read(_plain(times, "{:.0f}"))


@given(first=st.floats(0.0, 60.0), gaps=_GAPS)
def test_a_first_gap_like_any_other_stays(first, gaps) -> None:
    """4: the first request of most traces does not come at their very first moment."""
    times = (round(first, 3) + np.cumsum([0, *gaps])).tolist()
    trace = _read(_plain(times))
    assert trace.arrival_seconds.tolist() == pytest.approx(times)
    assert (trace.offset_seconds, trace.start_seconds) == (0.0, None)


@given(first=st.floats(0.0, 1e6), gaps=_GAPS)
def test_a_trace_that_is_written_is_read_back(first, gaps) -> None:
    """4: also one that begins with a long silence, which is known of one that was rebuilt."""
    arrivals = round(first, 3) + np.cumsum([0, *gaps]).astype(float)
    count = len(arrivals)
    trace = Trace(
        arrival_seconds=arrivals,
        prompt_tokens=np.full(count, 300),
        output_tokens=np.full(count, 100),
        duration_seconds=float(arrivals[-1]) or 1.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(trace, path)
        again = read_trace(path)
    assert again.arrival_seconds.tolist() == pytest.approx(arrivals.tolist(), abs=1e-3)
    assert again.duration_seconds == pytest.approx(trace.duration_seconds, abs=1e-3)
