"""Condition Stalled: what only a person mends, so that who waits for Ready fails at once.

Source: sigs.k8s.io/cli-utils, pkg/kstatus/status, checkGenericProperties and checkReadyCondition:
Stalled=True is Failed, Ready=False alone is InProgress, so there is no condition Reconciling.
"""

from collections.abc import Mapping
from dataclasses import replace

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
# A target may be applied after its resource: longer than one pass of a chart or an Application,
# shorter than the five minutes that `helm --wait` and Flux wait by default.
TARGET_GRACE_SECONDS = 120.0


def stalled_verdict(
    told: Mapping[ConditionType, Verdict], before: Condition | None, *, now_seconds: float
) -> Verdict | None:
    """What only a person mends; None if nothing is; False while a lacking target may yet come.

    told: the other verdicts, the most important first. before: this condition until now.
    """
    false = (one for one in told.values() if one.status is ConditionStatus.FALSE)
    found = next((one for one in false if one.reason in ONLY_A_PERSON_MENDS), None)
    if found is None:
        return None
    if found.reason is Reason.TARGET_NOT_FOUND:
        if before is None or before.reason is not found.reason:
            return found
        waited_seconds = now_seconds - before.last_transition_seconds
        if before.status is ConditionStatus.FALSE and waited_seconds < TARGET_GRACE_SECONDS:
            return found
    return replace(found, status=ConditionStatus.TRUE)
