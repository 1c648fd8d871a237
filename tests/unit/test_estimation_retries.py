"""First tries out of what is offered: what refusals bring back, assumed and measured."""

import numpy as np
import pytest

from servingslo.estimation.requests.retries import RetryState, first_attempts, retry_error_ratio

WINDOWS = 12


def _storm(
    first: float, capacity: float, again: float, state: RetryState | None = None
) -> tuple[RetryState, list[float], list[float]]:
    """The state, first tries found and offered rates; of each refusal `again` come a window on."""
    state, refused, found, offers = state or RetryState(), 0.0, [], []
    for _ in range(WINDOWS):
        offered = first + again * refused
        refused = max(offered - capacity, 0.0)
        state, attempts = first_attempts(state, offered, refused)
        found.append(attempts)
        offers.append(offered)
    return state, found, offers


def test_without_refusals_all_that_is_offered_are_first_tries() -> None:
    """Nothing is taken off, and nothing is remembered."""
    assert first_attempts(RetryState(), 40.0, 0.0) == (RetryState(), 40.0)


def test_before_it_is_known_a_third_of_the_refusals_is_taken_for_echo() -> None:
    """The first window of refusals holds none; 24 refused at 36/s take 8/s off the next."""
    state, first = first_attempts(RetryState(), 36.0, 24.0)
    assert first == 36.0
    state, first = first_attempts(state, 36.0, 24.0)
    assert first == pytest.approx(28.0)
    assert not state.known


def test_what_may_be_echo_is_an_error_of_the_rate() -> None:
    """8/s of 36/s left out: the root of a third of it, over the 28/s that are planned for."""
    assert retry_error_ratio(36.0, 28.0) == pytest.approx(8.0 / 3.0**0.5 / 28.0)
    assert retry_error_ratio(36.0, 36.0) == 0.0
    assert retry_error_ratio(36.0, 0.0) > 0.0


def test_capacity_that_comes_shows_what_refusals_bring_back() -> None:
    """First tries 18/s on 6/s: offered grows beyond 60/s; 30/s of capacity end it, and it shows."""
    state, found, offers = _storm(18.0, 6.0, 0.9)
    assert offers[-1] > 60.0
    assert found[-1] < offers[-1] - 20.0
    assert not state.known
    state, _, _ = _storm(18.0, 30.0, 0.9, state)
    assert state.known
    assert state.retries_per_refusal == pytest.approx(0.9, abs=0.1)


def test_the_next_storm_is_planned_at_its_first_tries() -> None:
    """What one shortage showed holds for the next."""
    state, _, _ = _storm(18.0, 6.0, 0.9)
    state, _, _ = _storm(18.0, 30.0, 0.9, state)
    _, found, offers = _storm(24.0, 6.0, 0.9, state)
    assert offers[-1] > 80.0
    assert max(found) < 1.25 * 24.0


def test_clients_that_never_come_again_are_found_to_be_demand() -> None:
    """40/s on 10/s, then 30/s of capacity: offered stays, so the next crowd is all demand."""
    state, _, _ = _storm(40.0, 10.0, 0.0)
    state, found, _ = _storm(40.0, 30.0, 0.0, state)
    assert state.known
    assert state.retries_per_refusal == 0.0
    assert found[-1] == 40.0
    _, found, _ = _storm(60.0, 30.0, 0.0, state)
    assert set(found) == {60.0}


def test_demand_that_falls_by_itself_shows_nothing() -> None:
    """No more is admitted than before: whether an echo ended or a crowd left is not told."""
    state, _, _ = _storm(40.0, 10.0, 0.0)
    state, _, _ = _storm(12.0, 10.0, 0.0, state)
    assert not state.known


@pytest.mark.parametrize("fall_windows", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_a_burst_that_falls_while_capacity_comes_is_no_echo(fall_windows: int, seed: int) -> None:
    """45/s before clients that never come again: replicas come, the burst ends, another begins."""
    random = np.random.default_rng(seed)
    fall = np.linspace(45.0, 2.0, fall_windows + 2)[1:-1]
    burst = np.concatenate([np.full(14, 45.0), fall, np.full(20, 2.0)])
    capacity = np.concatenate([np.full(8, 6.0), np.linspace(8.0, 60.0, 9), np.full(20, 60.0)])
    state, second = RetryState(), []
    for again in range(2):
        for rate, carried in zip(burst, capacity, strict=False):
            offered = random.poisson(15.0 * rate) / 15.0
            state, first = first_attempts(state, offered, max(offered - carried, 0.0))
            if again and rate == 45.0:
                second.append(first / offered)
    assert state.known
    assert min(second) > 0.85
