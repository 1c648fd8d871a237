"""Dispersion of arrivals over a cold start: bursts show, chance and a moving level do not."""

import numpy as np
import pytest

from servingslo.estimation.lead_counts import LEAST_TERMS, LeadCounts, observe

SCRAPE_SECONDS = 15.0
COLD_START_SECONDS = 120.0
HOURS = 6
SECONDS = np.arange(HOURS * 3600.0)


def _after(rates: np.ndarray, seed: int = 1) -> LeadCounts:
    """After Poisson arrivals at these rates, one for each second."""
    means = rates.reshape(-1, round(SCRAPE_SECONDS)).sum(axis=1)
    state = LeadCounts()
    for count in np.random.default_rng(seed).poisson(means):
        state = observe(state, count / SCRAPE_SECONDS, SCRAPE_SECONDS, COLD_START_SECONDS)
    return state


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param(np.full_like(SECONDS, 20.0), id="poisson"),
        pytest.param(20.0 + 160.0 * SECONDS / SECONDS[-1], id="ramp"),
        pytest.param(np.where(SECONDS[-1] / 2 > SECONDS, 30.0, 75.0), id="step"),
    ],
)
def test_chance_ramps_and_single_steps_are_no_bursts(rates: np.ndarray) -> None:
    """Close to one, within the error of some sixty terms."""
    found = [_after(rates, seed).dispersion for seed in range(4)]
    assert None not in found
    assert np.mean(np.array(found, dtype=float)) == pytest.approx(1.0, abs=0.3)


def test_bursts_of_a_minute_show_in_full() -> None:
    """At twice the rate, every six: counts of two minutes swing by many requests."""
    rng = np.random.default_rng(3)
    rates, at, high = np.empty_like(SECONDS), 0, False
    while at < len(rates):
        length = int(rng.exponential(60.0 if high else 300.0)) + 1
        rates[at : at + length] = 40.0 if high else 20.0
        at, high = at + length, not high
    found = _after(rates).dispersion
    assert found is not None
    assert found > 20.0


def test_nothing_is_said_before_enough_cold_starts_have_passed() -> None:
    """A few terms are chance."""
    each = round(COLD_START_SECONDS / SCRAPE_SECONDS)
    known = []
    state = LeadCounts()
    for _ in range(30 * each):
        state = observe(state, 20.0, SCRAPE_SECONDS, COLD_START_SECONDS)
        known.append(state.dispersion)
    assert set(known[: round(LEAST_TERMS) * each]) == {None}
    assert known[-1] == pytest.approx(0.0)


def test_a_gap_ends_the_blocks() -> None:
    """What was not counted for minutes is no block, and is not compared with those before."""
    state = LeadCounts()
    for _ in range(24):
        state = observe(state, 20.0, SCRAPE_SECONDS, COLD_START_SECONDS)
    assert state.terms == 1.0
    state = observe(state, 2.0, 280.0, COLD_START_SECONDS)
    assert (state.terms, state.last, state.current.seconds) == (1.0, (), 0.0)
