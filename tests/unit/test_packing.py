"""Packed values of a status: what anybody wrote there is refused, never an accident."""

import base64
import zlib

import pytest

from servingslo.packing import packed, unpacked


def _of(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def test_a_packed_value_comes_back() -> None:
    """With its numbers and names."""
    value = {"law": [0.015, None, True], "nameé": {"count": 3}}
    assert unpacked(packed(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("no base64", id="text"),
        pytest.param(base64.b64encode(b"no zlib").decode(), id="base64"),
        pytest.param(_of("no json"), id="zlib"),
        pytest.param(_of("[" * 60_000), id="nested"),
        pytest.param(_of(" " * 100_000_000), id="bomb"),
        pytest.param(_of('"\\ud83d"'), id="half-a-character"),
        pytest.param(packed({"a": 1})[:-8], id="cut-off"),
    ],
)
def test_what_the_operator_never_wrote_is_refused(text: str) -> None:
    """As a ValueError, which callers take for nothing learnt."""
    with pytest.raises(ValueError, match=r"\w"):
        unpacked(text)
