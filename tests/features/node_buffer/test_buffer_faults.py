"""Storms over a buffer, and that what must hold of it is noticed broken."""

import pytest
from tests.chaos.shared import OFF
from tests.features.node_buffer.buffer_story import MOST, Buffer, BufferStory, lived


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.acceptance) for n in range(1, 17))]
)
def test_a_storm_leads_to_no_forbidden_write_and_ends_as_the_owner_had_it(seed: int) -> None:
    """Sixty faults, and an end by the resource or the administrator."""
    _, _, broken = lived(seed)
    assert not broken, f"python -m tests.features.node_buffer.buffer_story {seed}:{seed + 1}"


def buffer_of(replicas: int) -> Buffer:
    """A buffer with these replicas."""
    found: Buffer = BufferStory(0, 0).objects
    found.objects.items[next(iter(found.objects.items))]["spec"]["replicas"] = replicas
    return found


def test_a_buffer_outside_of_its_bounds_is_noticed() -> None:
    """Whoever wrote it."""
    for replicas, broken in ((MOST, True), (2, False)):
        found = buffer_of(replicas)
        found.check(0.0)
        assert bool(found.broken) is broken
    assert buffer_of(2).left()


def test_a_switch_that_is_off_when_the_operator_starts_again_leaves_nothing() -> None:
    """In mid-change: just before it, the operator's value may stand."""
    story = BufferStory(1, 0)
    story.farewell = OFF
    story.run()
    assert not story.broken
