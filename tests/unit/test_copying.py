"""Copies by slots are those of dataclasses, checks included."""

import dataclasses
from dataclasses import dataclass

import pytest

from servingslo.copying import replace
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample

HISTOGRAM = HistogramSample(upper_bounds=(1.0,), cumulative_counts=(2.0,), sum=1.0, count=2.0)


@dataclass(frozen=True)
class _Plain:
    one: int
    other: int = 2


@pytest.mark.parametrize(
    ("sample", "changes"),
    [
        pytest.param(EngineSample(engine="0", running=1.0), {"waiting": 2.0}, id="engine"),
        pytest.param(PodSample(name="a"), {"name": "b", "ready": True}, id="pod"),
        pytest.param(HISTOGRAM, {"sum": 3.0}, id="checked"),
        pytest.param(_Plain(1), {"other": 3}, id="without slots"),
    ],
)
def test_a_copy_is_that_of_dataclasses(sample, changes) -> None:
    """And the first stays as it was."""
    before = dataclasses.replace(sample)
    assert replace(sample, **changes) == dataclasses.replace(sample, **changes)
    assert sample == before


def test_a_copy_is_checked_as_a_new_instance() -> None:
    """Counts without edges are no histogram."""
    with pytest.raises(ValueError, match="as many"):
        replace(HISTOGRAM, upper_bounds=())


def test_a_copy_of_a_frozen_instance_is_frozen() -> None:
    """It is made as one of another class, which is not."""
    copy = replace(EngineSample(engine="0"), running=1.0)
    assert type(copy) is EngineSample
    with pytest.raises(dataclasses.FrozenInstanceError):
        copy.running = 2.0  # type: ignore[misc]


def test_an_unknown_field_is_refused() -> None:
    """As by dataclasses."""
    with pytest.raises(TypeError, match="walking"):
        replace(EngineSample(engine="0"), walking=1.0)  # type: ignore[call-arg]
