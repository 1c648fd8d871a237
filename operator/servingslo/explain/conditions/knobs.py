"""The conditions of batch limits and of the bound on admission."""

from servingslo.explain.conditions.cause import dependent_verdict
from servingslo.explain.conditions.condition import ConditionStatus, Verdict
from servingslo.explain.format import count, joined
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.decisions import WrittenBound
from servingslo.reasons import Reason

_IN_SYNC = frozenset({Reason.BATCHING_IN_SYNC, Reason.BATCHING_GAIN_TOO_SMALL})
# A person has to act: a requested setting is impossible, or was undone.
_OUT_OF_SYNC = frozenset(
    {
        Reason.BATCHING_CANARY_FAILED,
        Reason.BATCHING_CANARY_NOT_COMPARED,
        Reason.BATCHING_CANARY_NOT_POSSIBLE,
        Reason.BATCHING_REVERTED,
        Reason.WRITE_CONFLICT,
        Reason.WRITE_FAILED,
        Reason.NOT_PERMITTED,
        Reason.KIND_NOT_SUPPORTED,
        Reason.ARGUMENTS_NOT_UNDERSTOOD,
        Reason.CONTAINER_NOT_FOUND,
    }
)
# Other limits are recommended or being applied: neither in sync nor wrong.
_UNDER_WAY = frozenset(
    {
        Reason.BATCHING_RECOMMENDED,
        Reason.BATCHING_CHANGED,
        Reason.BATCHING_ROLLED_BACK,
        Reason.BATCHING_CANARY_STARTED,
        Reason.BATCHING_CANARY_HELD,
        Reason.BATCHING_CANARY_RUNNING,
        Reason.BATCHING_LEFT_TO_USER,
        Reason.BATCHING_TOO_SOON,
        Reason.PENDING_PODS,
        Reason.STABILIZED,
        Reason.LAW_FROM_SPEC,
        Reason.LAW_ASSUMED,
        Reason.ROLLOUT_IN_PROGRESS,
        Reason.RECOMMEND_ONLY,
        Reason.KILL_SWITCH,
        Reason.PAUSED,
    }
)
_BOUND = {
    Reason.LIMIT_VERIFIED: (
        ConditionStatus.TRUE,
        "the bound is written and was enforced under load",
    ),
    Reason.LIMIT_UNVERIFIED: (
        ConditionStatus.UNKNOWN,
        "the bound is written; load has not reached it yet",
    ),
    Reason.LIMIT_NOT_HELD: (ConditionStatus.FALSE, "the bound is written but not enforced"),
    Reason.LIMIT_OPENED: (
        ConditionStatus.UNKNOWN,
        "the capacity of a replica is unknown; the former value is restored",
    ),
}


def differs(verdict: Verdict) -> bool:
    """Whether a batching verdict recommends other limits than those in force."""
    return verdict.reason in _OUT_OF_SYNC | _UNDER_WAY


def batching_verdict(decision: Decision) -> Verdict | None:
    """Whether the engines run with the batch limits that are recommended; None where it is off.

    Unknown while others are recommended or on their way; False where somebody has to act. What a
    server answered is a cause of its own.
    """
    batching = decision.batching
    if batching.reason is Reason.BATCHING_OFF:
        return None
    dependent = dependent_verdict(decision)
    if batching.reason in _IN_SYNC:
        status = ConditionStatus.TRUE
    elif batching.reason in _OUT_OF_SYNC:
        status = ConditionStatus.FALSE
    elif dependent is not None and batching.reason not in _UNDER_WAY and not batching.detail:
        return dependent
    else:
        status = ConditionStatus.UNKNOWN
    changes = (f"{limit} {count(now)} → {wanted}" for limit, now, wanted in batching.changes)
    message = "; ".join(changes) or "no other limits are recommended"
    return Verdict(status, batching.reason, joined((message, batching.detail), ": "))


def admission_verdict(decision: Decision) -> Verdict | None:
    """Whether status.admission has a bound and a gateway enforces it; None if this is off."""
    if (bound := decision.bound) is not None:
        return _bound_verdict(bound)
    reason = decision.admission.reason
    if reason is Reason.ADMISSION_OFF:
        return None
    if reason is Reason.ADMISSION_UNKNOWN or decision.admission.queue_limit is None:
        unknown = Verdict(ConditionStatus.UNKNOWN, reason, "no bound can be computed")
        return dependent_verdict(decision) or unknown
    message = "a bound is recommended in status.admission; the operator enforces none"
    return Verdict(ConditionStatus.TRUE, reason, message)


def _bound_verdict(bound: WrittenBound) -> Verdict:
    """Whether a gateway's bound is written, and whether load has shown that it holds.

    The bound itself changes often, so it is only in status.admission.
    """
    status, told = _BOUND.get(bound.reason, (ConditionStatus.FALSE, bound.otherwise))
    return Verdict(status, bound.reason, joined((bound.where, told, bound.detail), ": "))
