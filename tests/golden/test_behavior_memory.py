"""What the memory of `behavior` promises: bounded, storable, and the same answers as a full one."""

import dataclasses
import json
import random

import pytest

from servingslo.policy.hpa_behavior import (
    DEFAULT_DOWN_WINDOW_SECONDS,
    Behavior,
    BehaviorState,
    PolicyType,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
    initial_state,
    normalize,
    record_scale,
)
from servingslo.reasons import Reason

TICK_SECONDS = 15.0


def decide(
    state: BehaviorState,
    now_seconds: float,
    *,
    desired: int,
    current: int,
    behavior: Behavior | None = None,
) -> tuple[int, Reason | None, BehaviorState]:
    """The count, its limit and the next memory, between 1 and 100 replicas."""
    outcome, state = normalize(
        state,
        behavior=behavior or Behavior(),
        current=current,
        desired=desired,
        min_replicas=1,
        max_replicas=100,
        now_seconds=now_seconds,
    )
    return outcome.replicas, outcome.limited_by, state


def test_defaults_scale_up_at_once_and_without_a_rate() -> None:
    """Without any `behavior` a surge is ordered in one step."""
    replicas, limit, _ = decide(
        initial_state(replicas=2, now_seconds=0.0), 1.0, desired=90, current=2
    )
    assert (replicas, limit) == (90, None)


@pytest.mark.parametrize(
    ("age_seconds", "expected"),
    [
        pytest.param(DEFAULT_DOWN_WINDOW_SECONDS - 1, (8, Reason.STABILIZED), id="inside"),
        pytest.param(DEFAULT_DOWN_WINDOW_SECONDS, (3, None), id="exactly-aged"),
    ],
)
def test_defaults_step_down_only_after_one_window(
    age_seconds: int, expected: tuple[int, Reason | None]
) -> None:
    """The last higher recommendation holds the count for the window and not a moment longer."""
    _, _, state = decide(initial_state(replicas=8, now_seconds=0.0), 100.0, desired=8, current=8)
    replicas, limit, _ = decide(state, 100.0 + age_seconds, desired=3, current=8)
    assert (replicas, limit) == expected


@pytest.mark.parametrize(
    ("current", "desired", "expected", "limit"),
    [
        pytest.param(12, 12, 8, Reason.MAX_REPLICAS_REACHED, id="above-the-maximum"),
        pytest.param(12, 8, 8, None, id="above-the-maximum-and-wished"),
        pytest.param(1, 1, 2, Reason.MIN_REPLICAS_REACHED, id="below-the-minimum"),
        pytest.param(1, 5, 2, Reason.MIN_REPLICAS_REACHED, id="below-the-minimum-wishing-more"),
    ],
)
def test_a_count_outside_the_bounds_is_brought_inside_past_all_rates(
    current: int, desired: int, expected: int, limit: Reason | None
) -> None:
    """The bounds hold even where both directions are disabled."""
    frozen = ScalingRules(select_policy=SelectPolicy.DISABLED)
    outcome, _ = normalize(
        BehaviorState(),
        behavior=Behavior(scale_up=frozen, scale_down=frozen),
        current=current,
        desired=desired,
        min_replicas=2,
        max_replicas=8,
        now_seconds=0.0,
    )
    assert (outcome.replicas, outcome.limited_by) == (expected, limit)


def random_walk(rng: random.Random, behavior: Behavior, steps: int) -> list[BehaviorState]:
    """Memories along a random load; every answer is checked against one that forgets nothing."""
    current, now_seconds = 5, 0.0
    state = full = initial_state(replicas=current, now_seconds=now_seconds)
    seen = []
    for _ in range(steps):
        now_seconds += rng.choice([1.0, TICK_SECONDS, 60.0])
        desired = rng.randint(1, 40)
        replicas, limit, state = decide(
            state, now_seconds, desired=desired, current=current, behavior=behavior
        )
        assert (replicas, limit) == decide(
            full, now_seconds, desired=desired, current=current, behavior=behavior
        )[:2]
        state = record_scale(
            state, behavior=behavior, previous=current, new=replicas, now_seconds=now_seconds
        )
        full = dataclasses.replace(
            state, recommendations=(*full.recommendations, (now_seconds, desired))
        )
        current = replicas
        seen.append(state)
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_a_trimmed_memory_decides_as_a_full_one_and_stays_small(seed: int) -> None:
    """Dropping recommendations that can no longer decide changes no answer."""
    rng = random.Random(seed)  # noqa: S311 - a test load, not a secret
    window = rng.choice([0, 30, 120, 300])
    rules = ScalingRules(
        stabilization_window_seconds=window,
        policies=(ScalingPolicy(type=PolicyType.PODS, value=3, period_seconds=60),),
    )
    behavior = Behavior(scale_up=ScalingRules(stabilization_window_seconds=60), scale_down=rules)
    for state in random_walk(rng, behavior, 300):
        assert len(state.recommendations) <= 40
        assert len(state.scale_up_events) <= 1
        assert len(state.scale_down_events) <= 60


def test_memory_survives_json() -> None:
    """The memory is plain data: what is stored in status comes back equal."""
    state = initial_state(replicas=4, now_seconds=12.5)
    state = record_scale(state, behavior=Behavior(), previous=4, new=6, now_seconds=20.0)
    state = record_scale(state, behavior=Behavior(), previous=6, new=5, now_seconds=30.0)
    stored = json.loads(json.dumps(dataclasses.asdict(state)))
    restored = BehaviorState(
        **{name: tuple((at, n) for at, n in entries) for name, entries in stored.items()}
    )
    assert restored == state
    assert restored.scale_up_events == ((20.0, 2),)
    assert restored.scale_down_events == ((30.0, 1),)


def test_a_scale_to_the_same_count_leaves_no_event() -> None:
    """Nothing is remembered where nothing changed."""
    state = initial_state(replicas=4, now_seconds=0.0)
    assert record_scale(state, behavior=Behavior(), previous=4, new=4, now_seconds=1.0) == state
