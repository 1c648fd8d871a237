"""What the planner remembers of one workload from tick to tick."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.estimator import EstimatorState
from servingslo.policy import hpa_behavior
from servingslo.policy.hpa_behavior import Behavior, BehaviorState
from servingslo.policy.inputs import Actuation, Observation
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.promise import PromiseState
from servingslo.policy.replicas.reserve_state import ReserveState
from servingslo.policy.replicas.reverts import Reverts, count_revert, expire_reverts, is_prompt
from servingslo.policy.replicas.saturation import Shortage
from servingslo.policy.replicas.sizing import Sized

# How long a read of the target may lag behind a write that is only inferred from observations:
# several ticks and one watch gap. A caller that knows of the write reads the target again after it.
READ_BACK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWrite:
    """A replica count ordered by a decision, until it is read back or given up.

    written: the write is known to have succeeded and its scale event is recorded.
    """

    before: int
    after: int
    at_seconds: float
    written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """How many replicas serve, and since when they do without a comparison with the model."""

    serving: int
    since_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerState:
    """Memory of one workload; the default is a workload never seen before.

    started_seconds: when this memory began or was restored. fresh_seconds: when metrics were last
    good. watched_since_seconds: since when no gap between them was longer than the fallback waits.
    quiet_since_seconds: since when engines and gateway have had no requests, None if they have some
    or were not observed. promise: the quantile that is planned for, and the attained share.
    reserve: the rule that the past asks for. shortage: what replicas serve less than the law says.
    features: what each
    feature remembers, by its name. seen_desired: the replica count last read from the target.
    scaled: the last written change, until another client sets a count. reverts: the client that
    puts counts back. knobs: what each knob remembers, by its name. sized: case and load of the last
    sizing, for reports; None without a model.
    """

    estimator: EstimatorState = field(default_factory=EstimatorState)
    behavior: BehaviorState = field(default_factory=BehaviorState)
    started_seconds: float | None = None
    first_fresh_seconds: float | None = None
    fresh_seconds: float | None = None
    watched_since_seconds: float | None = None
    seen_desired: int | None = None
    pending_write: PendingWrite | None = None
    scaled: PendingWrite | None = None
    reverts: Reverts | None = None
    idle_since_seconds: float | None = None
    quiet_since_seconds: float | None = None
    fleet: Steadiness | None = None
    prepared: PreparedModel | None = None
    promise: PromiseState = field(default_factory=PromiseState)
    reserve: ReserveState = field(default_factory=ReserveState)
    shortage: Shortage = field(default_factory=Shortage)
    features: Mapping[str, object] = field(default_factory=dict)
    knobs: Mapping[str, object] = field(default_factory=dict)
    sized: Sized | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandEdit:
    """A change of the replica count by another client."""

    before: int
    after: int


def record_scale(
    state: PlannerState,
    *,
    before: int,
    after: int,
    now_seconds: float,
    behavior: Behavior | None = None,
) -> PlannerState:
    """The memory after `after` replicas were written in place of `before`.

    Calling it is optional: the next plan infers the same from the count that it reads back, so a
    replay of observations alone carries the same memory as the live loop. behavior: the rules in
    force; needed only to drop outdated events early.
    """
    remembered = hpa_behavior.record_scale(
        state.behavior,
        behavior=behavior or Behavior(),
        previous=before,
        new=after,
        now_seconds=now_seconds,
    )
    order = PendingWrite(before=before, after=after, at_seconds=now_seconds, written=True)
    return replace(
        state, behavior=remembered, seen_desired=after, pending_write=order, scaled=order
    )


def record_write_failed(state: PlannerState) -> PlannerState:
    """The memory after the write of an order was refused: the order is void."""
    return replace(state, pending_write=None)


def observe_count(
    state: PlannerState,
    observation: Observation,
    *,
    behavior: Behavior,
    now_seconds: float,
    actuation: Actuation = Actuation.SCALE,
    tick_seconds: float = 15.0,
) -> tuple[PlannerState, HandEdit | None]:
    """The memory after reading the target's count, and the hand edit found by it, if any.

    An order that is read back was written. If a count is neither the former one nor the ordered
    one, another client set it. It becomes the new current count and the only recommendation that
    stabilization remembers, so it stays for a full window before a scale-down. If other clients
    carry the count out, their changes count in the rate policies like the operator's. tick_seconds:
    time between ticks.
    """
    if state.started_seconds is None:
        state = replace(state, started_seconds=now_seconds)
    desired = observation.desired_replicas
    if desired is None:
        return state, None
    state, ours = _reconciled_write(state, desired, behavior, now_seconds)
    before = state.seen_desired
    if desired == before:
        return _with_standing(state, now_seconds), None
    state = replace(state, seen_desired=desired)
    if ours:
        return state, None
    if before is None and state.behavior.recommendations:
        return state, None
    met = hpa_behavior.initial_state(replicas=desired, now_seconds=now_seconds)
    remembered = replace(state.behavior, recommendations=met.recommendations)
    if actuation is not Actuation.SCALE and before is not None:
        remembered = hpa_behavior.record_scale(
            state.behavior, behavior=behavior, previous=before, new=desired, now_seconds=now_seconds
        )
    edit = None if before is None else HandEdit(before=before, after=desired)
    reverts = state.reverts
    if state.scaled is not None:
        reverts = count_revert(
            reverts,
            replicas=desired,
            by=observation.replicas_set_by,
            now_seconds=now_seconds,
            prompt=is_prompt(state.scaled.at_seconds, now_seconds, tick_seconds),
        )
    return replace(state, behavior=remembered, scaled=None, reverts=reverts), edit


def _with_standing(state: PlannerState, now_seconds: float) -> PlannerState:
    """The memory while the count stays: reverts are forgotten once our write has stayed."""
    if state.scaled is None or state.reverts is None:
        return state
    since = state.scaled.at_seconds
    left = expire_reverts(state.reverts, since_seconds=since, now_seconds=now_seconds)
    return replace(state, reverts=left)


def _reconciled_write(
    state: PlannerState, desired: int, behavior: Behavior, now_seconds: float
) -> tuple[PlannerState, bool]:
    """The memory after comparing the open order with the count read; does the order explain it?"""
    order = state.pending_write
    if order is None:
        return state, False
    if desired == order.after:
        if not order.written:
            state = record_scale(
                state,
                before=order.before,
                after=order.after,
                now_seconds=order.at_seconds,
                behavior=behavior,
            )
        return replace(state, pending_write=None), True
    # It is not known yet whether the order was written; until then the former count is no hand
    # edit.
    waits = not order.written and 0 <= now_seconds - order.at_seconds < READ_BACK_SECONDS
    if desired == order.before and waits:
        return state, True
    return replace(state, pending_write=None), False
