"""Searches along a rate: few evaluations, and the answer does not depend on where they begin."""

import math

import pytest

from servingslo.policy.searching import Crossing, greatest_holding

LAST = 1024


class Law:
    """An excess that rises as the power of a part, 0 at the root; counts what it is asked."""

    def __init__(self, root, power=0.3, jump_at=None):
        self.root, self.power, self.jump_at = root, power, jump_at
        self.asked = []

    def excess(self, part):
        """The logarithm of a percentile over its limit."""
        self.asked.append(part)
        jumped = self.jump_at is not None and part > self.jump_at
        return self.power * math.log(part / self.root) + (3.0 if jumped else 0.0)


@pytest.mark.parametrize("root", [7.4, 300.2, 700.9, 1000.1, 1023.5])
@pytest.mark.parametrize("power", [0.2, 1.0, 30.0])
@pytest.mark.parametrize(
    "hint",
    [None, Crossing(1, None), Crossing(650, 0.3), Crossing(1023, 5.0), Crossing(5000, 0.01)],
)
def test_a_crossing_is_found_from_any_hint(root, power, hint):
    """The greatest part that holds, whatever the hint says of where and how steep it is."""
    law = Law(root, power)
    found = greatest_holding(law.excess, LAST, hint)
    assert found.part == math.floor(root)
    assert found.steepness == pytest.approx(power, rel=0.6 if root < 10 else 0.3)
    assert len(law.asked) == len(set(law.asked))


def test_a_good_hint_costs_two_evaluations():
    """The hint, and where its line crosses."""
    law = Law(700.9)
    found = greatest_holding(law.excess, LAST, Crossing(650, 0.29))
    assert found.part == 700
    assert len(law.asked) == 2


def test_where_the_last_part_holds_it_is_asked_first():
    """Most workloads are bound by utilization; then there is no steepness to remember."""
    law = Law(2000.0)
    assert greatest_holding(law.excess, LAST, Crossing(800, None)) == Crossing(LAST, None)
    assert law.asked == [LAST]


def test_where_nothing_holds_the_answer_is_zero():
    """An objective that a single request at a time fails."""
    assert greatest_holding(Law(0.5).excess, LAST, None) == Crossing(0, None)


@pytest.mark.parametrize("at", [100, 700, 1000])
def test_a_jump_is_met_to_a_hundredth_of_the_range(at):
    """Between two parts close by a line is drawn even where the law jumps: never above it."""
    found = greatest_holding(Law(2000.0, jump_at=at).excess, LAST, Crossing(600, 0.3))
    assert at - 8 <= found.part <= at


@pytest.mark.parametrize("hint", [None, Crossing(600, 0.3), Crossing(900, 2.0)])
@pytest.mark.parametrize("knee", [550, 700, 800, 900])
def test_a_part_that_the_line_is_not_drawn_through_does_not_end_the_search(knee, hint):
    """A law that is flat up to a knee and steep behind it: what is found is where it crosses."""

    def excess(part):
        return 0.05 * math.log(part / LAST) - 0.02 + 30.0 * max(part / knee - 1.0, 0.0) ** 1.5

    found = greatest_holding(excess, LAST, hint).part
    assert excess(found) <= 0.0 < excess(found + 2)


def test_an_excess_that_hardly_rises_leads_to_the_end():
    """Where the line crosses zero beyond all numbers, the last part is looked at."""
    asked = []

    def excess(part):
        asked.append(part)
        return -1.0

    assert greatest_holding(excess, LAST, Crossing(400, 1e-309)) == Crossing(LAST, None)
    assert len(asked) <= 3
