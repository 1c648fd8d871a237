"""How many arrivals a replica of a pool is sent during a step, and when."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.validation.grid import H100, Case, Lengths, compare

from servingslo.models import holes
from servingslo.models.holes import (
    Counts,
    Steps,
    counts_of,
    empty_ratio,
    filling_ratio,
    growing_ratio,
    level_met,
    meeting_in_steps,
)

# Prompts of 2,000 tokens at 13/s on each of eight replicas of a large card, outputs of 30 tokens.
BUSY = Steps(8, 13.0, 0.0088, 0.0406, 0.06, 1.25, 1.875, 0.782)


def empty_by_generator(up: float, down: float, seconds: float, states: int = 900) -> float:
    """Chance that an M/M/1 queue is empty at an exponential time, from its generator."""
    generator = np.diag(np.full(states - 1, down), 1) + np.diag(np.full(states - 1, up), -1)
    generator -= np.diag(generator.sum(axis=1))
    leaving = np.eye(states) / seconds - generator
    return float(np.linalg.solve(leaving.T, np.eye(states)[0])[0] / seconds)


@pytest.mark.parametrize("count", [2, 3, 8, 16])
@pytest.mark.parametrize("seconds", [0.01, 0.08, 0.5])
def test_the_level_of_even_departures_is_an_mm1_queue(count, seconds):
    """By the generator of that queue, from empty, at an exponential time."""
    expected = empty_by_generator(count * 12.0, (count - 1) * 12.0, seconds)
    assert empty_ratio(12.0, seconds, count) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("growing", [0.2, 0.6])
def test_what_comes_later_on_is_what_a_longer_step_has_on_top(count, growing):
    """d(A·P)/dA of a queue with the drift and the variance of the walk, by differences."""
    steps = BUSY._replace(pool_count=count)
    even, seconds = level_met(steps, growing)
    rate, load = steps.rate_per_second, steps.load
    held_up = load**2 * steps.square / (1.0 - load) ** 2
    departures = 1.0 + held_up * seconds / (seconds + steps.mean / (1.0 - load))
    variance = count + (count - 1) * departures
    up = 0.5 * (variance + 1.0) * rate
    step = 1e-3 * seconds
    sent = [
        at * empty_by_generator(up, up - rate, at) * up / (count * rate)
        for at in (seconds - step, seconds + step)
    ]
    assert even == pytest.approx((sent[1] - sent[0]) / (2.0 * step), rel=1e-3)
    assert 1.0 / count < even < 1.0


@pytest.mark.parametrize("even", [0.1, 0.36, 0.8])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
def test_as_many_holes_are_filled_as_are_made(even, load):
    """On average over all steps, whichever follow which."""
    steps = BUSY._replace(load=load, mean=BUSY.bare / (1.0 - load), rate_per_second=load / 0.06)
    counts = Counts(0.3, 0.3, 0.0, 0.0, 0.07)
    for _ in range(60):
        counts = counts_of(steps, even, counts)
    share = counts.long_ratio
    filled = share * counts.long_filled + (1.0 - share) * counts.bare_filled
    made = (1.0 - even) * steps.rate_per_second * steps.mean
    assert filled == pytest.approx(made, rel=1e-6)
    assert counts.long_filled > counts.bare_filled
    length = share * counts.long_seconds + (1.0 - share) * steps.bare
    assert length == pytest.approx(steps.mean, rel=1e-9)


def test_long_steps_have_more_arrivals_than_their_even_share():
    """They are what holes have added up for; simulated are 0.59 for a share of 0.42."""
    met = meeting_in_steps(BUSY)
    assert met.even_ratio + 0.1 < met.growing_ratio < 0.7
    assert met.filling_ratio > 1.0
    assert 0.8 < met.again_ratio < 1.0


def test_where_all_come_evenly_nothing_is_filled():
    """One replica, or hardly any arrivals: no holes, and nothing is divided by them."""
    rare = BUSY._replace(rate_per_second=1e-4, load=6e-6, mean=BUSY.bare)
    met = meeting_in_steps(rare)
    assert met.even_ratio == pytest.approx(1.0, abs=0.02)
    assert filling_ratio(BUSY, 1.0, Counts(0.4, 0.4, 0.0, 0.0, 0.1)) == 1.0
    assert all(math.isfinite(ratio) for ratio in met)


def test_the_regression_is_that_of_two_kinds_of_steps():
    """Bare and long ones that differ in nothing but the holes they fill; drawn at random."""
    rng = np.random.default_rng(2)
    steps, even = BUSY, 0.4
    counts = Counts(0.35, 0.6, 0.6, 0.15, 0.1)
    long = rng.random(400_000) < counts.long_ratio
    length = np.where(long, counts.long_seconds, steps.bare)
    mean = even * steps.rate_per_second * length
    mean += np.where(long, counts.long_filled, counts.bare_filled)
    drawn = np.cov(rng.poisson(mean), length)[0, 1] / length.var() / steps.rate_per_second
    # The law's own variance of steps, at a first ratio that gives the variance drawn.
    lumps = steps.rate_per_second * steps.mean * steps.work**2 * steps.square
    first = math.sqrt(max(1.0 - lumps / length.var(), 0.0)) / steps.load
    scale = (lumps / (1.0 - (first * steps.load) ** 2)) / length.var()
    found = even + (drawn - even) / scale
    assert growing_ratio(steps, even, first, counts) == pytest.approx(found, abs=0.02)


def test_more_rounds_change_little(monkeypatch):
    """The fixed point is found to 2 % of every ratio at ordinary loads."""
    met = meeting_in_steps(BUSY)
    monkeypatch.setattr(holes, "_ITERATIONS", 40)
    assert tuple(meeting_in_steps(BUSY)) == pytest.approx(tuple(met), rel=0.02)


@pytest.mark.parametrize(
    ("count", "rate", "within"), [(8, 12.0, 0.06), (2, 11.0, 0.05), (8, 9.0, 0.08)]
)
def test_first_tokens_of_pools_with_short_outputs(count, rate, within):
    """TTFT p50 and p95 beside the step simulation; with holes as many in each step −16 % on two."""
    case = Case(card=H100, rate_per_second=rate, replica_count=count, lengths=Lengths.SHORT_OUTPUTS)
    found = compare(replace(case, request_count=150_000))
    assert found.ratio("ttft", 50.0) == pytest.approx(1.0, abs=within)
    assert found.ratio("ttft", 95.0) == pytest.approx(1.0, abs=within)
