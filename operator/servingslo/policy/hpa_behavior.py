"""How fast replicas may change: `behavior`, with the semantics of the HorizontalPodAutoscaler.

Two memories decide: the recommendations of the last window (stabilization) and the scale events
of the last period (rate policies). Both come in and go out as `BehaviorState`.

Source: Kubernetes v1.36 pkg/controller/podautoscaler/horizontal.go,
normalizeDesiredReplicasWithBehaviors, stabilizeRecommendationWithBehaviors,
convertDesiredReplicasWithBehaviorRate, storeScaleEvent.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.reasons import Reason

PERCENT = 100.0
# Every step down must also hold for a high quantile of demand over one cold start. So the 300 s of
# the HorizontalPodAutoscaler would only cost GPU-hours. Three scrapes bridge dips that end before a
# released replica would be back. See docs/lab/findings.md.
DEFAULT_DOWN_WINDOW_SECONDS = 45
# While neither the law nor the changes of demand are known, the window is that of the
# HorizontalPodAutoscaler. Source: kube-controller-manager,
# --horizontal-pod-autoscaler-downscale-stabilization.
YOUNG_DOWN_WINDOW_SECONDS = 300


class PolicyType(StrEnum):
    """What the value of a rate policy counts."""

    PODS = "Pods"
    PERCENT = "Percent"


class SelectPolicy(StrEnum):
    """Which of several rate policies applies: the widest change, the narrowest, or no change."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """At most `value` pods, or percent of the replicas at its start, in any `period_seconds`."""

    type: PolicyType
    value: int
    period_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """Rules of one direction. Without any policy the rate is not limited.

    young_window_seconds: the least window of a young workload; 0 if the tenant states a window.
    """

    stabilization_window_seconds: int = 0
    young_window_seconds: int = 0
    policies: tuple[ScalingPolicy, ...] = ()
    select_policy: SelectPolicy = SelectPolicy.MAX

    @property
    def longest_period_seconds(self) -> int:
        """The longest period of any policy, seconds; 0 without policies."""
        return max((policy.period_seconds for policy in self.policies), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """Rules of both directions; by default no rate policies, and 45 s before a step down."""

    scale_up: ScalingRules = ScalingRules()
    scale_down: ScalingRules = ScalingRules(
        stabilization_window_seconds=DEFAULT_DOWN_WINDOW_SECONDS,
        young_window_seconds=YOUNG_DOWN_WINDOW_SECONDS,
    )

    def of_young(self) -> "Behavior":
        """The rules of a young workload."""
        down = self.scale_down
        window = max(down.stabilization_window_seconds, down.young_window_seconds)
        return replace(self, scale_down=replace(down, stabilization_window_seconds=window))


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaviorState:
    """Memory of one workload: (time in seconds, replicas) of each entry, plain data to be stored.

    Bounded: recommendations hold at most one window and only those that can still decide; events
    grow only while none is outdated, so at most one for each tick of the longest period.
    """

    recommendations: tuple[tuple[float, int], ...] = ()
    scale_up_events: tuple[tuple[float, int], ...] = ()
    scale_down_events: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaviorOutcome:
    """The count that may be ordered, the count after stabilization alone, and what limited it.

    limited_by: STABILIZED, SCALE_UP_POLICY, SCALE_DOWN_POLICY, MIN_REPLICAS_REACHED or
    MAX_REPLICAS_REACHED, the last stage that changed the count; None if it is the desired one.
    """

    replicas: int
    stabilized: int
    limited_by: Reason | None


def initial_state(*, replicas: int, now_seconds: float) -> BehaviorState:
    """Memory of a new workload: its present count is its one recommendation."""
    return BehaviorState(recommendations=((now_seconds, replicas),))


def normalize(  # noqa: PLR0913 - the arguments of the controller's own function
    state: BehaviorState,
    *,
    behavior: Behavior,
    current: int,
    desired: int,
    min_replicas: int,
    max_replicas: int,
    now_seconds: float,
) -> tuple[BehaviorOutcome, BehaviorState]:
    """The replica count that `behavior` allows now, and the memory with this recommendation in it.

    The scale itself is not recorded: call `record_scale` once it has been written.
    A current count outside [min_replicas, max_replicas] is brought inside at once, past all rates.
    """
    state = _of_the_past(state, now_seconds)
    stabilized = _stabilize(state, behavior, current, desired, now_seconds)
    rated, rate_limit = _limit_rate(state, behavior, current, stabilized, now_seconds)
    replicas = max(min_replicas, min(rated, max_replicas))
    limited_by: Reason | None = None
    if replicas == desired:
        limited_by = None
    elif replicas != rated:
        limited_by = (
            Reason.MAX_REPLICAS_REACHED if replicas < rated else Reason.MIN_REPLICAS_REACHED
        )
    elif rated != stabilized:
        limited_by = rate_limit
    else:
        limited_by = Reason.STABILIZED
    outcome = BehaviorOutcome(replicas=replicas, stabilized=stabilized, limited_by=limited_by)
    recommendations = _remember(state.recommendations, behavior, desired, now_seconds)
    return outcome, replace(state, recommendations=recommendations)


def record_scale(
    state: BehaviorState, *, behavior: Behavior, previous: int, new: int, now_seconds: float
) -> BehaviorState:
    """The memory after a scale from `previous` to `new` was written; the same if both agree."""
    if new > previous:
        events = _add_event(state.scale_up_events, behavior.scale_up, (now_seconds, new - previous))
        return replace(state, scale_up_events=events)
    if new < previous:
        events = _add_event(
            state.scale_down_events, behavior.scale_down, (now_seconds, previous - new)
        )
        return replace(state, scale_down_events=events)
    return state


def _of_the_past(state: BehaviorState, now_seconds: float) -> BehaviorState:
    """The memory after a clock was set back: entries in the future count as of now.

    If unchanged, an entry would stay young for as long as the clock was set back. If dropped, a
    window would be cut short.
    """

    def past(entries: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
        return tuple((min(at, now_seconds), value) for at, value in entries)

    return BehaviorState(
        recommendations=past(state.recommendations),
        scale_up_events=past(state.scale_up_events),
        scale_down_events=past(state.scale_down_events),
    )


def _stabilize(
    state: BehaviorState, behavior: Behavior, current: int, desired: int, now_seconds: float
) -> int:
    """Current, moved only as far as every recommendation in the direction's window agrees."""
    up_window = behavior.scale_up.stabilization_window_seconds
    down_window = behavior.scale_down.stabilization_window_seconds
    recent_up = _younger(state.recommendations, up_window, now_seconds)
    recent_down = _younger(state.recommendations, down_window, now_seconds)
    lowest = min((desired, *recent_up))
    highest = max((desired, *recent_down))
    return min(max(current, lowest), highest)


def _limit_rate(
    state: BehaviorState, behavior: Behavior, current: int, wanted: int, now_seconds: float
) -> tuple[int, Reason | None]:
    """The count within the rate policies of its direction, and the name of that limit."""
    if wanted == current:
        return wanted, None
    up = wanted > current
    rules = behavior.scale_up if up else behavior.scale_down
    limit = _furthest(state, rules, current, now_seconds, up=up)
    if limit is not None:
        wanted = min(wanted, max(limit, current)) if up else max(wanted, min(limit, current))
    return wanted, Reason.SCALE_UP_POLICY if up else Reason.SCALE_DOWN_POLICY


def _furthest(
    state: BehaviorState, rules: ScalingRules, current: int, now_seconds: float, *, up: bool
) -> int | None:
    """The furthest count that the policies allow; None without a limit.

    Each policy counts from the replicas at the start of its period: the events since are undone.
    Percent rounds up on the way up, or 1 could never grow, and towards zero on the way down.
    """
    if rules.select_policy is SelectPolicy.DISABLED:
        return current
    sign, proposals = 1 if up else -1, []
    for policy in rules.policies:
        start = (
            current
            - sum(_younger(state.scale_up_events, policy.period_seconds, now_seconds))
            + sum(_younger(state.scale_down_events, policy.period_seconds, now_seconds))
        )
        if policy.type is PolicyType.PODS:
            proposals.append(start + sign * policy.value)
        else:
            share = start * (1 + sign * policy.value / PERCENT)
            proposals.append(math.ceil(share) if up else int(share))
    # The widest change is the largest count on the way up, and the least on the way down.
    select = max if up == (rules.select_policy is SelectPolicy.MAX) else min
    return select(proposals) if proposals else None


def _younger(
    entries: Iterable[tuple[float, int]], age_seconds: float, now_seconds: float
) -> tuple[int, ...]:
    """Values younger than the age; an entry aged exactly that much no longer counts."""
    return tuple(value for at, value in entries if now_seconds - at < age_seconds)


def _remember(
    recommendations: tuple[tuple[float, int], ...],
    behavior: Behavior,
    desired: int,
    now_seconds: float,
) -> tuple[tuple[float, int], ...]:
    """The recommendations that can still decide, newest last.

    An older one that is neither below nor above all newer ones can never again be the least or the
    greatest of a window. It is dropped, and the results are those of the full memory.
    """
    window = max(
        behavior.scale_up.stabilization_window_seconds,
        behavior.scale_down.stabilization_window_seconds,
    )
    kept = [(now_seconds, desired)] if window > 0 else []
    lowest = highest = desired
    for at, value in reversed(recommendations):
        if now_seconds - at >= window:
            continue
        if not kept or value < lowest or value > highest:
            kept.append((at, value))
        lowest, highest = min(lowest, value), max(highest, value)
    return tuple(reversed(kept))


def _add_event(
    events: tuple[tuple[float, int], ...], rules: ScalingRules, event: tuple[float, int]
) -> tuple[tuple[float, int], ...]:
    """The events with a new one in the place of the last outdated one, else at the end.

    Only one outdated event is replaced at a time, and the periods of the other direction keep none
    alive, exactly as in the controller. Both matter if the two directions use different periods.
    """
    now_seconds = event[0]
    outdated = [
        index
        for index, (at, _) in enumerate(events)
        if now_seconds - at >= rules.longest_period_seconds
    ]
    if not outdated:
        return (*events, event)
    return (*events[: outdated[-1]], event, *events[outdated[-1] + 1 :])
