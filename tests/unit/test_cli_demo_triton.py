"""The verdict on limits of Triton servers: it rests on clients' records, and it can fail."""

import dataclasses

import pytest

from servingslo_lab.cli.demo.engines.triton_verdict import (
    Answer,
    Phase,
    TritonFigures,
    missed,
    table,
)

GOOD = TritonFigures(
    percentile=95.0, threshold_seconds=0.7,
    before=Phase(requests=100, within_ratio=0.2, p95_seconds=4.0),
    after=Phase(requests=900, within_ratio=0.99, p95_seconds=0.5),
    surge=Phase(requests=500, within_ratio=0.9, p95_seconds=1.0),
    answers=(Answer(1.0, 0.5, good=True),), failed=0, batches=(2, 2, 8), most_first=1,
    replicas=(1, 2, 1), replicas_of_base=(1,), changes=2,
)  # fmt: skip


def test_what_was_promised_and_kept_is_no_miss() -> None:
    """And is told."""
    assert missed(GOOD) == ()
    assert "2 to 8" in table(GOOD)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"before": GOOD.after}, "held before"),
        ({"before": None}, "held before"),
        ({"after": GOOD.before}, "is missed with the limits"),
        ({"failed": 1}, "1 requests failed"),
        ({"batches": (2, 2)}, "no larger limits"),
        ({"replicas": (1, 1)}, "did not follow"),
    ],
)
def test_what_was_not_kept_is_told(change: dict, words: str) -> None:
    """Each promise can fail by itself."""
    (found,) = missed(dataclasses.replace(GOOD, **change))
    assert words in found
