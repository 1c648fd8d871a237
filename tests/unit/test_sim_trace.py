"""Traces: two forms of the file, and transformations that keep what they should."""

from pathlib import Path

import numpy as np
import pytest

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.traces.trace import read_trace
from servingslo_lab.sim.traces.trace_files import write_trace
from servingslo_lab.sim.traces.transforms import (
    scaled,
)

AZURE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
PLAIN = "arrival_seconds,prompt_tokens,output_tokens\n"


def test_the_carried_trace_is_the_published_one():
    """Counts and means that its authors' description gives."""
    trace = read_trace(AZURE)

    assert len(trace) == 19366
    assert trace.prompt_tokens.mean() == pytest.approx(1155, rel=0.01)
    assert trace.output_tokens.mean() == pytest.approx(211, rel=0.01)
    assert np.all(np.diff(trace.arrival_seconds) >= 0)


def test_published_form_is_read_as_seconds_since_the_first_request(tmp_path):
    """Timestamps with seven fractional digits, as in the Azure files."""
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2024-05-12 00:00:00.0074590,10,0\n"
    )
    trace = read_trace(path)

    assert trace.arrival_seconds[:2] == pytest.approx([0.0, 4.314579])
    assert trace.prompt_tokens.tolist() == [374, 396, 10]
    assert trace.output_tokens.tolist() == [44, 109, 1]


def test_a_zone_in_a_time_stamp_counts(tmp_path):
    """Stamps of one moment in several zones."""
    path = tmp_path / "zones.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16T18:17:03Z,1,1\n2023-11-16 20:17:03.5+02:00,1,1\n"
        "2023-11-16T13:17:04-0500,1,1\n2023-11-16 18:17:04.5+00:00,1,1\n"
    )
    assert read_trace(path).arrival_seconds.tolist() == [0.0, 0.5, 1.0, 1.5]


def test_plain_form_with_classes_is_kept_by_write_and_read(tmp_path):
    """A trace survives a round trip, its classes too."""
    path = tmp_path / "plain.csv"
    path.write_text(
        "arrival_seconds,prompt_tokens,output_tokens,class\n2.5,10,20,batch\n1,30,40,chat\n"
    )
    trace = read_trace(path)
    write_trace(trace, path)
    again = read_trace(path)

    assert trace.class_names == again.class_names == ("chat", "batch")
    assert again.arrival_seconds.tolist() == [1.0, 2.5]
    assert again.prompt_tokens.tolist() == [30, 10]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("a,b\n1,2\n", "header", id="header"),
        pytest.param("", "header", id="empty"),
        pytest.param(
            "arrival_seconds,prompt_tokens,output_tokens\n", "requests is missing", id="no-rows"
        ),
        pytest.param(
            "arrival_seconds,prompt_tokens,output_tokens\n1,x,3\n", ":2: prompt_tokens", id="word"
        ),
        pytest.param(
            "arrival_seconds,prompt_tokens,output_tokens\n-1,2,3\n", ":2: arrival", id="negative"
        ),
        pytest.param(
            "arrival_seconds,prompt_tokens,output_tokens\nnan,2,3\n", ":2: arrival", id="nan"
        ),
        pytest.param(
            "arrival_seconds,prompt_tokens,output_tokens\n1,2\n", ":2: output_tokens", id="short"
        ),
        pytest.param(
            "TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,2,3\n", ":2: TIMESTAMP", id="time"
        ),
        pytest.param(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1e300,2,3\n",
            ":2: TIMESTAMP",
            id="fraction",
        ),
        pytest.param(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:17:03+02:00,2,3\n2023-11-16 18:17:04,2,3\n",
            ":3: TIMESTAMP: '2023-11-16 18:17:04' is not allowed; allowed: a time zone in every",
            id="zone-at-some",
        ),
        pytest.param(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:17:03,2,3\n2023-11-16 18:17:04Z,2,3\n",
            ":3: TIMESTAMP",
            id="zone-later",
        ),
        pytest.param(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03+99:99,2,3\n",
            ":2: TIMESTAMP",
            id="offset",
        ),
        pytest.param(f"{PLAIN}0,{'9' * 30},3\n", ":2: prompt_tokens.*at most", id="many-digits"),
        pytest.param(f"{PLAIN}{'7' * 200_000}\n", ":2: .*CSV", id="endless-field"),
        pytest.param(f"{PLAIN}0,1,2\n0,5,1,2\n", ":3: '4 values'.*3, as", id="decimal-comma"),
        pytest.param(
            "arrival_seconds,prompt_tokens,output_tokens,output_tokens\n0,1,2,3\n",
            "header: 'output_tokens'.*once",
            id="column-twice",
        ),
        pytest.param("0,100,10\n", "header: '0,100,10'", id="no-header"),
    ],
)
def test_bad_file_is_refused_with_line_column_and_value(tmp_path, text, named):
    """The message leads to the cell."""
    path = tmp_path / "bad.csv"
    path.write_text(text)

    with pytest.raises(InvalidInputError, match=named):
        read_trace(path)


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5, 7.0])
def test_scale_multiplies_the_rate_and_keeps_duration_and_lengths(factor):
    """Copies and thinning: the rate follows the factor, the length distribution stays."""
    trace = read_trace(AZURE)
    more = scaled(trace, factor, np.random.default_rng(3))

    assert more.arrival_rate_per_second == pytest.approx(
        factor * trace.arrival_rate_per_second, rel=0.02
    )
    assert more.duration_seconds == trace.duration_seconds
    assert more.prompt_tokens.mean() == pytest.approx(trace.prompt_tokens.mean(), rel=0.05)
    assert np.all(np.diff(more.arrival_seconds) >= 0)
