"""How many requests find no slot for their adapter: worked numbers and a simulation of its own."""

import math

import numpy as np
import pytest

from servingslo.models.engine.adapter_slots import least_engines, waiting_ratio


def test_two_adapters_of_one_slot_are_a_worked_number() -> None:
    """Each is there with p = 1 − e^−1: a request waits if its own is not and the other is."""
    held = 1.0 - math.exp(-1.0)
    assert waiting_ratio([2.0, 2.0], 1, 2) == pytest.approx((1.0 - held) * held)


@pytest.mark.parametrize(
    ("requests", "slots", "engines"),
    [([3.0] * 6, 2, 4), ([8.0, 4.0, 2.0, 1.0, 0.5, 0.5], 3, 5), ([0.4] * 40, 4, 3)],
)
def test_the_share_is_that_of_simulated_engines(
    requests: list[float], slots: int, engines: int
) -> None:
    """Numbers in flight drawn for one engine, and arrivals in proportion to the loads."""
    rng = np.random.default_rng(3)
    loads = np.array(requests)
    held = rng.poisson(loads / engines, size=(200_000, len(loads))) > 0
    arriving = rng.choice(len(loads), size=len(held), p=loads / loads.sum())
    own = held[np.arange(len(held)), arriving]
    others = held.sum(axis=1) - own
    simulated = float((~own & (others >= slots)).mean())
    assert waiting_ratio(requests, slots, engines) == pytest.approx(simulated, abs=0.004)


def test_as_many_slots_as_adapters_never_wait() -> None:
    """Whatever the load."""
    assert waiting_ratio([100.0] * 4, 4, 1) == 0.0
    assert least_engines([100.0] * 4, 4, 0.01, 8) == 1


def test_the_least_number_of_engines_is_the_least() -> None:
    """One fewer has too many that wait; beyond the most there is none."""
    requests = [2.0] * 8
    found = least_engines(requests, 2, 0.05, 100)
    assert found is not None
    assert waiting_ratio(requests, 2, found) <= 0.05 < waiting_ratio(requests, 2, found - 1)
    assert least_engines(requests, 2, 0.05, found - 1) is None
