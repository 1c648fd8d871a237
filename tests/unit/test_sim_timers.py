"""The heap of timers: the next one is always first, whatever was set and removed before."""

from typing import NamedTuple

import numpy as np
import pytest

from servingslo_lab.sim.replicas.layout import NONE
from servingslo_lab.sim.replicas.timers import TIMERS, remove_timer, set_timer


class Table(NamedTuple):
    """The columns of timers alone."""

    wake: list[float]
    place: list[int]
    heap: list[int]
    ints: list[int]


def empty(count: int) -> Table:
    """Requests without timers."""
    return Table([0.0] * count, [NONE] * count, [NONE] * count, [0])


@pytest.mark.parametrize("seed", range(5))
def test_the_next_timer_is_first(seed):
    """Beside a list that is sorted anew each time; equal times go by number."""
    rng = np.random.default_rng(seed)
    table, expected = empty(40), {}
    for _ in range(400):
        r = int(rng.integers(40))
        if r in expected:
            remove_timer(table, r)
            del expected[r]
        else:
            expected[r] = float(rng.integers(10))
            set_timer(table, r, expected[r])
        assert table.ints[TIMERS] == len(expected)
        if expected:
            assert table.heap[0] == min(expected, key=lambda r: (expected[r], r))
    assert all((table.place[r] == NONE) == (r not in expected) for r in range(40))
    assert all(table.heap[table.place[r]] == r for r in expected)
