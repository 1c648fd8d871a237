"""A clock that goes back, by a second or by hours, pins nothing and cuts no window short."""

import pytest

from servingslo.policy.behavior import Behavior, BehaviorState, ScalingRules, normalize
from servingslo.reasons import Reason

WINDOW_SECONDS = 45
BEHAVIOR = Behavior(scale_down=ScalingRules(stabilization_window_seconds=WINDOW_SECONDS))


def _count(state: BehaviorState, now_seconds: float) -> tuple[int, Reason | None, BehaviorState]:
    outcome, state = normalize(
        state,
        behavior=BEHAVIOR,
        current=6,
        desired=2,
        min_replicas=1,
        max_replicas=9,
        now_seconds=now_seconds,
    )
    return outcome.replicas, outcome.limited_by, state


@pytest.mark.parametrize("back_seconds", [1.0, 120.0, 86_400.0])
def test_a_recommendation_of_the_future_stands_for_one_window(back_seconds: float) -> None:
    """From the jump on it counts as of now: a window later the count falls."""
    state = BehaviorState(recommendations=((100_000.0, 6),))
    now = 100_000.0 - back_seconds
    replicas, limited_by, state = _count(state, now)
    assert (replicas, limited_by) == (6, Reason.STABILIZED)
    replicas, _, state = _count(state, now + WINDOW_SECONDS - 1)
    assert replicas == 6
    replicas, _, _ = _count(state, now + WINDOW_SECONDS)
    assert replicas == 2
