"""Condition Stalled: what only a person mends, so that who waits for Ready fails at once.

Source: sigs.k8s.io/cli-utils, pkg/kstatus/status, checkGenericProperties and checkReadyCondition:
Stalled=True is Failed, Ready=False alone is InProgress, so there is no condition Reconciling.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeGuard

from servingslo.explain.conditions.condition import (
    Condition,
    ConditionStatus,
    ConditionType,
    Verdict,
)
from servingslo.reasons import Reason

ONLY_A_PERSON_MENDS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.TARGET_NOT_FOUND,
        Reason.TARGET_NOT_SCALABLE,
        Reason.PERMISSION_DENIED,
        Reason.NOT_PERMITTED,
        Reason.SCALER_CONFLICT,
        Reason.TARGET_CONFLICT,
    }
)
# A target may be applied after its resource, and the one that had it be pruned after: longer than
# one pass of a chart or an Application, shorter than the five minutes that `helm --wait` and Flux
# wait by default.
GRACE_SECONDS = 120.0
_MAY_PASS = frozenset({Reason.TARGET_NOT_FOUND, Reason.TARGET_CONFLICT})

# Batch limits are not in sync only while others are found better.
_STEADY = (
    ConditionType.READY,
    ConditionType.ADMISSION_BOUND,
    ConditionType.FALLBACK_USABLE,
    ConditionType.NODE_BUFFER_USABLE,
)


def stalled_verdict(
    told: Mapping[ConditionType, Verdict],
    before: Condition | None,
    *,
    generation: int,
    now_seconds: float,
    acts: bool,
) -> Verdict | None:
    """Why a steady condition is False, if only a person mends that; False while it may yet pass.

    before: this condition until now; a target that lacks and one that is taken share one grace.
    acts: the resource is to set the count; advice is in no conflict with another scaler.
    """
    found = next(filter(_needs_a_person, (told.get(type_) for type_ in _STEADY)), None)
    if found is None or (found.reason is Reason.SCALER_CONFLICT and not acts):
        return None
    if found.reason in _MAY_PASS:
        begun = before if before is not None and before.reason is found.reason else None
        if begun is None or begun.observed_generation != generation:
            return found
        waited_seconds = now_seconds - begun.last_transition_seconds
        if begun.status is ConditionStatus.FALSE and waited_seconds < GRACE_SECONDS:
            return found
    return replace(found, status=ConditionStatus.TRUE)


def _needs_a_person(verdict: Verdict | None) -> TypeGuard[Verdict]:
    return (
        verdict is not None
        and verdict.status is ConditionStatus.FALSE
        and verdict.reason in ONLY_A_PERSON_MENDS
    )
