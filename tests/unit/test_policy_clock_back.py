"""A clock that goes back, by a second or by hours, pins nothing and cuts no window short."""

from dataclasses import replace

import pytest
from policy_world import TICK_SECONDS, Run, World, run, stepped

from servingslo.adapters.clock import SteadyClock
from servingslo.policy.hpa_behavior import Behavior, BehaviorState, ScalingRules, normalize
from servingslo.policy.planner import plan
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


EPOCH_SECONDS = 1_000_000.0
CALM_PER_SECOND, BUSY_PER_SECOND = 6.0, 24.0
JUMP_SECONDS = 600.0


class _Set(Run):
    """A story whose wall clock is set back at a time, lived by the clock of the operator."""

    back_seconds = 0.0
    clock: SteadyClock | None = None

    def _wall_seconds(self):
        at = self.world.now
        return EPOCH_SECONDS + at - (self.back_seconds if at > JUMP_SECONDS else 0.0)

    def tick(self):
        if self.clock is None:
            self.clock = SteadyClock(self._wall_seconds, monotonic=lambda: self.world.now)
        at = self.world.now + TICK_SECONDS
        self.world.advance(at)
        now = self.clock.now_seconds()
        seen = replace(self.world.observe(at), time_seconds=now)
        decision, self.state = plan(seen, self.targets, self.limits, self.state, now)
        self.decisions.append(replace(decision, time_seconds=at))
        if decision.apply_replicas:
            self.world.scale(decision.replicas_after)
        return decision


@pytest.mark.parametrize(
    "back_seconds",
    [2.0, 86_400.0, *(pytest.param(s, marks=pytest.mark.acceptance) for s in (120.0, 3_600.0))],
)
def test_demand_is_followed_whatever_the_clock_did(back_seconds: float) -> None:
    """A rise four minutes after the jump is seen, with a law, as without one."""
    rise = JUMP_SECONDS + 240.0
    told = _Set(
        World(rate=stepped((0.0, CALM_PER_SECOND), (rise, BUSY_PER_SECOND)), replicas=2),
        run(World(rate=stepped((0.0, 1.0)), replicas=2)).targets,
        run(World(rate=stepped((0.0, 1.0)), replicas=2)).limits,
    )
    told.back_seconds = back_seconds
    told.until(rise)
    calm = told.decisions[-1]
    assert calm.demand.arrival_rate_per_second == pytest.approx(CALM_PER_SECOND, rel=0.25)
    assert calm.model.trusted
    told.until(rise + 180.0)
    busy = told.decisions[-1]
    assert busy.demand.arrival_rate_per_second == pytest.approx(BUSY_PER_SECOND, rel=0.25)
    assert busy.replicas_after > calm.replicas_after
