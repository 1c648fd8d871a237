"""Why a target cannot be read, or is not ours to scale, as problems of its view."""

from collections.abc import Collection, Sequence

from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NoScaleSubresourceError,
    NotFoundError,
    PermissionDeniedError,
)
from servingslo.policy.inputs import ScaleTarget, SignalProblem
from servingslo.reasons import Reason

_REASON_OF_ERROR: tuple[tuple[type[ClusterError], Reason], ...] = (
    (NoScaleSubresourceError, Reason.TARGET_NOT_SCALABLE),
    (NotFoundError, Reason.TARGET_NOT_FOUND),
    (PermissionDeniedError, Reason.PERMISSION_DENIED),
    (ClusterUnavailableError, Reason.CLUSTER_UNAVAILABLE),
    (ClusterError, Reason.TARGET_NOT_READABLE),
)


def scaler_problems(
    names: Sequence[str], target: ScaleTarget, unasking: Collection[str] = ()
) -> tuple[SignalProblem, ...]:
    """The other scalers of a target, as problems.

    names: as 'Kind/name'. unasking: of these, those that ask no external scaler.
    """
    return tuple(
        SignalProblem(
            reason=Reason.SCALER_CONFLICT,
            detail=f"{name} scales {target.kind}/{target.name} as well",
            unasking=name in unasking,
        )
        for name in names
    )


def problem_of(error: ClusterError) -> SignalProblem:
    """Why a target or its pods cannot be read."""
    reason = next(reason for kind, reason in _REASON_OF_ERROR if isinstance(error, kind))
    return SignalProblem(reason=reason, detail=str(error))
