"""`behavior` against the HorizontalPodAutoscaler controller, and what its memory promises."""

import json
from pathlib import Path
from typing import Any

import pytest

from servingslo.policy.hpa_behavior import (
    Behavior,
    BehaviorOutcome,
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

TIMELINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "hpa_v2_behavior_timelines.jsonl")
    .read_text()
    .splitlines()
]


def rules(fields: dict[str, Any]) -> ScalingRules:
    """The rules of one direction of a recorded behavior."""
    return ScalingRules(
        stabilization_window_seconds=fields["stabilizationWindowSeconds"],
        select_policy=SelectPolicy(fields["selectPolicy"]),
        policies=tuple(
            ScalingPolicy(
                type=PolicyType(policy["type"]),
                value=policy["value"],
                period_seconds=policy["periodSeconds"],
            )
            for policy in fields["policies"]
        ),
    )


def behavior_of(timeline: dict[str, Any]) -> Behavior:
    """The recorded behavior of a timeline."""
    fields = timeline["behavior"]
    return Behavior(scale_up=rules(fields["scaleUp"]), scale_down=rules(fields["scaleDown"]))


def replay(timeline: dict[str, Any]) -> list[tuple[BehaviorOutcome, BehaviorState]]:
    """The outcome and the memory at every step, scaling to our own answers."""
    behavior = behavior_of(timeline)
    current = timeline["initial"]
    state = initial_state(replicas=current, now_seconds=0.0)
    now_seconds, steps = 0.0, []
    for step in timeline["steps"]:
        now_seconds += step["advanceSeconds"]
        outcome, state = normalize(
            state,
            behavior=behavior,
            current=current,
            desired=step["desired"],
            min_replicas=timeline["min"],
            max_replicas=timeline["max"],
            now_seconds=now_seconds,
        )
        state = record_scale(
            state,
            behavior=behavior,
            previous=current,
            new=outcome.replicas,
            now_seconds=now_seconds,
        )
        current = outcome.replicas
        steps.append((outcome, state))
    return steps


def test_the_recorded_timelines_are_whole() -> None:
    """All 300 timelines of 14 steps are replayed, none is lost on the way."""
    assert len(TIMELINES) == 300
    assert {len(timeline["steps"]) for timeline in TIMELINES} == {14}


@pytest.mark.parametrize(
    "timeline", [pytest.param(line, id=f"line-{n}") for n, line in enumerate(TIMELINES, 1)]
)
def test_every_step_gives_the_answer_of_the_controller(timeline: dict[str, Any]) -> None:
    """Each step of each timeline has the replica count that the real controller decided."""
    steps = replay(timeline)
    assert [outcome.replicas for outcome, _ in steps] == [
        step["result"] for step in timeline["steps"]
    ]


@pytest.mark.parametrize(
    "timeline", [pytest.param(line, id=f"line-{n}") for n, line in enumerate(TIMELINES, 1)]
)
def test_a_reason_is_named_exactly_when_the_wish_is_not_granted(timeline: dict[str, Any]) -> None:
    """The outcome names a limit on every step that differs from the wish, and on no other."""
    for (outcome, _), step in zip(replay(timeline), timeline["steps"], strict=True):
        assert (outcome.limited_by is None) == (outcome.replicas == step["desired"])


def test_all_limits_occur_in_the_timelines() -> None:
    """The recorded timelines reach each of the five limits and the unlimited case."""
    assert {outcome.limited_by for timeline in TIMELINES for outcome, _ in replay(timeline)} == {
        None,
        Reason.STABILIZED,
        Reason.SCALE_UP_POLICY,
        Reason.SCALE_DOWN_POLICY,
        Reason.MIN_REPLICAS_REACHED,
        Reason.MAX_REPLICAS_REACHED,
    }
