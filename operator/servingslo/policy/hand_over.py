"""Whether the count is carried out by others, and what they are given."""

from servingslo.policy.decision import HandOver
from servingslo.policy.inputs import Actuation, Observation, Targets
from servingslo.reasons import Reason

_NOBODY = "no HorizontalPodAutoscaler or ScaledObject is on it"


def hand_over(
    targets: Targets, observation: Observation, wanted: int | None, *, known: bool
) -> HandOver | None:
    """Who is given the count, and which; None where the operator sets it.

    wanted: None where the target's count is unknown. known: it rests on metrics that are fresh.
    Without them nothing is given: whoever scales then does what it was told for that case.
    """
    if targets.actuation is Actuation.SCALE:
        return None
    scalers = [p.detail for p in observation.problems if p.reason is Reason.SCALER_CONFLICT]
    if targets.actuation is Actuation.NONE:
        reason, replicas = Reason.TOLD_ONLY, None
    else:
        reason = Reason.HANDED_OVER if scalers else Reason.NOBODY_SCALES
        replicas = wanted if known else None
    detail = "; ".join(scalers) or _NOBODY
    return HandOver(actuation=targets.actuation, reason=reason, replicas=replicas, detail=detail)
