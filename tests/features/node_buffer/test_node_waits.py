"""How long a node takes, from the pods that waited for one; and what is held of what was wanted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.estimation.sample import PodSample
from servingslo.features.node_buffer.insight import PART
from servingslo.features.node_buffer.steps import Wanted, next_buffer
from servingslo.features.node_buffer.waits import (
    LONGEST_WAIT_SECONDS,
    REMEMBERED_WAITS,
    NodeWaits,
    observe,
)

TICK = 15.0


def waiting(name: str, age: float) -> PodSample:
    """A pod for which there is no node."""
    return PodSample(name=name, age_seconds=age, unschedulable_reason="no place")


def placed(name: str, after: float, age: float = 999.0) -> PodSample:
    """A pod that has its node."""
    return PodSample(name=name, age_seconds=age, scheduled_after_seconds=after)


def seen(*ticks: tuple[PodSample, ...], state: NodeWaits | None = None, ahead: bool = False):
    """The waits after these ticks. ahead: nodes were ordered ahead until just before them."""
    state = replace(state or NodeWaits(), ahead_seconds=0.0 if ahead else None)
    for number, pods in enumerate(ticks):
        state = observe(state, pods, (number + 1) * TICK)
    return state


def waited(*seconds: float, ahead: bool = False, state: NodeWaits | None = None) -> NodeWaits:
    """The waits after pods that waited so long each."""
    for number, wait in enumerate(seconds):
        name = f"{number}-{wait}"
        state = seen((waiting(name, 5.0),), (placed(name, wait),), state=state, ahead=ahead)
    return state or NodeWaits()


def test_a_wait_is_from_creation_to_the_node_of_a_pod_that_was_seen_without_one() -> None:
    """A pod that found a place at once says nothing of nodes."""
    assert waited(240.0).lead_seconds == 240.0
    assert seen((placed("a", 1.0),)).lead_seconds is None


def test_the_median_of_the_last_waits_counts() -> None:
    """One odd wait does not."""
    assert waited(240.0, 20.0, 260.0).lead_seconds == 240.0
    assert len(waited(*range(100, 120)).seconds) == REMEMBERED_WAITS


def test_a_pod_that_was_old_when_first_seen_waiting_is_not_counted() -> None:
    """It was held by a gate, or waited before this process began."""
    assert seen((waiting("a", 200.0),), (waiting("a", 215.0),), (placed("a", 240.0),)).seconds == ()


def test_a_shortage_and_a_pod_that_went_are_no_waits() -> None:
    """Neither shows how long a node takes."""
    assert waited(LONGEST_WAIT_SECONDS + 1.0).seconds == ()
    assert seen((waiting("a", 5.0),), ()).waiting == ()


def test_a_rest_of_a_wait_shows_no_shorter_lead() -> None:
    """After the buffer gave way to it, a pod may find a node that is half-way there."""
    assert waited(60.0, ahead=True, state=waited(240.0)).lead_seconds == 240.0
    longer = waited(400.0, 410.0, ahead=True, state=waited(240.0))
    assert longer.seconds == (240.0, 400.0, 410.0)


def test_a_node_that_was_ordered_ahead_long_ago_shortens_no_wait() -> None:
    """It came, or was given up, one lead after its order."""
    state = replace(waited(240.0), ahead_seconds=0.0)
    for pods, now in (((waiting("a", 5.0),), 256.0), ((placed("a", 60.0),), 316.0)):
        state = observe(state, pods, now)
    assert state.seconds == (240.0, 60.0)


def test_waits_survive_a_restart() -> None:
    """What is stored is read back."""
    state = waited(240.0, 250.4)
    assert PART.load(PART.dump(state), 0.0) == NodeWaits(seconds=(240.0, 250.0))


@pytest.mark.parametrize("stored", [None, {}, "240", [True], [-1], [1e9], [240.5], [1] * 9])
def test_a_malformed_store_is_none(stored: object) -> None:
    """A status may have been edited by hand."""
    assert PART.load(stored, 0.0) is None


counts = st.lists(st.integers(0, 30), min_size=1, max_size=60)


@given(counts, st.integers(1, 12))
def test_the_peak_is_the_greatest_of_the_hold(found: list[int], ticks: int) -> None:
    """Whatever came before and after it."""
    wanted = Wanted()
    for tick, count in enumerate(found):
        wanted = wanted.after(count, tick * TICK, ticks * TICK)
        assert wanted.peak == max(found[max(tick - ticks, 0) : tick + 1])


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40),
    st.integers(1, 8),
)
def test_a_buffer_holds_what_is_needed_and_never_grows_without_need(
    story: list[tuple[int, int]], ticks: int
) -> None:
    """At least the need of now; more only if it was there before and was wanted in the hold."""
    wanted, buffer = Wanted(), 0
    for tick, (ahead, ordered) in enumerate(story):
        wanted = wanted.after(ahead, tick * TICK, ticks * TICK)
        needed, before = max(ahead - ordered, 0), buffer
        buffer = next_buffer(before, needed, wanted.peak, ordered)
        assert buffer >= needed
        assert buffer <= max(before, needed)
        assert buffer + ordered <= max(wanted.peak, ordered)


def test_a_noise_of_one_is_one_write_in_each_hold() -> None:
    """Not one in each tick."""
    wanted, buffer, writes = Wanted(), 0, 0
    for tick in range(200):
        wanted = wanted.after(9 + tick % 2, tick * TICK, 16 * TICK)
        after = next_buffer(buffer, 1 + tick % 2, wanted.peak, 8)
        writes, buffer = writes + (after != buffer), after
    assert writes <= 2
