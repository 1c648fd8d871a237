"""The conditions of a ServingSLO, each derived from the decision alone."""

from collections.abc import Iterator, Mapping, Sequence

from servingslo.explain import features
from servingslo.explain.conditions.cause import (
    NOT_READY_REASONS,
    blindness,
    failing_pods,
    target_unusable,
    workload_fails,
)
from servingslo.explain.conditions.condition import (
    Condition,
    ConditionStatus,
    ConditionType,
    Verdict,
)
from servingslo.explain.conditions.knobs import (
    admission_verdict,
    batching_verdict,
)
from servingslo.explain.conditions.metrics import (
    blind_message,
    metrics_fresh_verdict,
    model_trusted_verdict,
)
from servingslo.explain.conditions.objectives import slo_met_verdict
from servingslo.explain.conditions.stalled import stalled_verdict
from servingslo.explain.format import count, counted, joined
from servingslo.explain.limit_sentences import LIMIT_SENTENCES
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import HandOver
from servingslo.policy.replicas.proposal import DEMAND_STAGE, STEP_DOWN_STAGE
from servingslo.reasons import Reason
from servingslo.units import format_duration

# Stages whose steps name pods that start or are in doubt, the client that reverts the count, or who
# has the GPUs.
_DETAILED = frozenset(
    {"pending", "queue", STEP_DOWN_STAGE, "reverts", "budget", "pools", "nodes", DEMAND_STAGE}
)
_NOT_READ = "parts of the engine's start command were not read"
_STATE_LIMITS = "spec.engine.maxSequences and spec.engine.maxBatchedTokens state the limits"


def conditions(
    decision: Decision,
    previous: Sequence[Condition] = (),
    *,
    generation: int,
    now_seconds: float,
) -> tuple[Condition, ...]:
    """All conditions after a decision, in a fixed order.

    previous: those in status now; a condition keeps its transition time while its status stays.
    """
    return stamped_conditions(
        verdicts(decision), previous, generation=generation, now_seconds=now_seconds
    )


def stamped_conditions(
    told: Mapping[ConditionType, Verdict],
    previous: Sequence[Condition],
    *,
    generation: int,
    now_seconds: float,
    acts: bool = True,
) -> tuple[Condition, ...]:
    """Conditions from verdicts, and Stalled; each keeps its transition time with its status.

    acts: the resource is to set the count.
    """
    before = {condition.type: condition for condition in previous}
    stalled = stalled_verdict(
        told,
        before.get(ConditionType.STALLED),
        generation=generation,
        now_seconds=now_seconds,
        acts=acts,
    )
    every = dict(told) if stalled is None else {**told, ConditionType.STALLED: stalled}
    since = {
        type_: one.last_transition_seconds
        for type_, one in before.items()
        if type_ in every and one.status is every[type_].status
    }
    return tuple(
        Condition(
            type=type_,
            status=verdict.status,
            reason=verdict.reason,
            message=verdict.message,
            observed_generation=generation,
            last_transition_seconds=since.get(type_, now_seconds),
        )
        for type_, verdict in every.items()
    )


def not_ready(
    reason: Reason,
    message: str,
    previous: Sequence[Condition] = (),
    *,
    generation: int,
    now_seconds: float,
) -> tuple[Condition, ...]:
    """Conditions of a resource without a decision: Ready is False, Stalled follows, others stay."""
    told = {ConditionType.READY: Verdict(ConditionStatus.FALSE, reason, message)}
    new = stamped_conditions(told, previous, generation=generation, now_seconds=now_seconds)
    kept = {one.type: one for one in previous}
    kept.pop(ConditionType.STALLED, None)
    kept |= {one.type: one for one in new}
    return tuple(kept[type_] for type_ in ConditionType if type_ in kept)


def verdicts(decision: Decision) -> dict[ConditionType, Verdict]:
    """The verdict of each condition on a decision, without conditions that are not requested."""
    every = {
        ConditionType.READY: ready_verdict(decision),
        ConditionType.METRICS_FRESH: metrics_fresh_verdict(decision),
        ConditionType.MODEL_TRUSTED: model_trusted_verdict(decision),
        ConditionType.SLO_MET: slo_met_verdict(decision),
        ConditionType.SCALING_LIMITED: _scaling_limited(decision),
        ConditionType.BATCHING_IN_SYNC: batching_verdict(decision),
        ConditionType.ADMISSION_BOUND: admission_verdict(decision),
        **features.verdicts(decision.knobs),
    }
    return {type_: verdict for type_, verdict in every.items() if verdict is not None}


def ready_verdict(decision: Decision) -> Verdict:
    """Whether a decision about the resource is possible and its pods serve, and if not, why."""
    for reason in (decision.reason, decision.limited_by):
        if reason in NOT_READY_REASONS and reason is not None:
            message = decision.detail or "the operator may not change the target"
            return Verdict(ConditionStatus.FALSE, reason, message)
    if failure := workload_fails(decision):
        return Verdict(ConditionStatus.FALSE, Reason.PODS_FAILING, failure)
    named = tuple(_named_pods(decision))
    pods = decision.replicas
    if pods.ready and pods.excluded == pods.ready and not pods.partly_asleep:
        return Verdict(ConditionStatus.FALSE, Reason.ENGINES_ASLEEP, "; ".join(named))
    blind = blindness(decision)
    if blind is not None:
        message = "; ".join((blind_message(blind), *named))
        return Verdict(ConditionStatus.FALSE, blind.reason, message)
    unread = decision.limits.unread
    parts = (
        "the target is observed and its replica count is decided",
        *named,
        _zero_message(decision),
        _handed_over_message(decision.handed_over),
        f"{_NOT_READ}: {unread}; {_STATE_LIMITS}" if unread else "",
    )
    return Verdict(ConditionStatus.TRUE, Reason.READY, joined(parts, "; "))


def _named_pods(decision: Decision) -> Iterator[str]:
    """The pods that fail, are left out or in doubt, each kind in one phrase."""
    if pods := failing_pods(decision):
        yield f"failing: {pods}"
    if pods := unreliable_pods(decision):
        what = "no whole replica" if decision.replicas.partly_asleep else "no capacity"
        yield f"{what}: {pods}"
    elif pods := suspect_pods(decision):
        yield f"in doubt: {pods}"


def _zero_message(decision: Decision) -> str:
    """Whether the target is at zero, and how long the first request waits; '' if it is not.

    Two digits, because a condition is written whenever it changes.
    """
    for step in (step for step in decision.steps if step.stage == "zero"):
        if step.reason is Reason.NO_WAKE_UP_SIGNAL:
            return f"it is not scaled to zero: {step.inputs['detail']}"
        seconds = step.inputs.get("first_request_seconds")
        if isinstance(seconds, float) and decision.replicas_after == 0:
            waits = format_duration(float(f"{seconds:.2g}"))
            return f"asleep: the first request waits {waits}"
    return ""


def _handed_over_message(given: HandOver | None) -> str:
    """The client that carries the count out; '' if the operator does."""
    if given is None:
        return ""
    if given.reason is Reason.REPORTED_ONLY:
        return f"actuation is None: the replica count is only reported ({given.detail})"
    by = given.actuation.value
    if given.reason is not Reason.HANDED_OVER:
        return f"actuation is {by}, and no autoscaler gets the replica count: {given.detail}"
    return f"another autoscaler sets the replica count (actuation {by}): {given.detail}"


def _scaling_limited(decision: Decision) -> Verdict | None:
    """What keeps the planner from the count that it wants; None if nothing does.

    None for a target that cannot be used: Ready reports it.
    """
    reason = decision.limited_by
    if reason is None or target_unusable(decision) is not None:
        return None
    wanted, set_to = decision.recommended_replicas, decision.replicas_after
    message = f"{_replicas(wanted)} wanted, {count(set_to)} set"
    if wanted is None or wanted == set_to:
        message = f"held at {_replicas(set_to)}"
    given = decision.handed_over
    carried = given.detail if given is not None and given.reason is reason else ""
    detail = limit_detail(decision) or decision.detail or carried
    blind = blindness(decision)
    if blind is not None and blind.reason is reason:
        detail = ""  # Ready has it
    parts = (message, LIMIT_SENTENCES.get(reason, ""), detail)
    return Verdict(ConditionStatus.TRUE, reason, joined(parts, ": "))


def _replicas(number: int | None) -> str:
    return "unknown replicas" if number is None else counted(number, "replica")


def limit_detail(decision: Decision) -> str:
    """Details of pods that do not start or are in doubt, or of reverts; '' for other limits."""
    found = (
        step.inputs.get("detail")
        for step in decision.steps
        if step.stage in _DETAILED and step.reason is decision.limited_by
    )
    return str(next(filter(None, found), ""))


def unreliable_pods(decision: Decision) -> str:
    """The ready pods that are no capacity, by name and with the reason; '' without any."""
    return _unreliable(decision, "excluded_pods")


def suspect_pods(decision: Decision) -> str:
    """Pods that seem to be no capacity but are too many to be left out; '' without any."""
    return _unreliable(decision, "suspect_pods")


def _unreliable(decision: Decision, counted: str) -> str:
    steps = (step for step in decision.steps if step.reason is Reason.UNRELIABLE_PODS)
    return next((str(step.inputs["detail"]) for step in steps if counted in step.inputs), "")
