"""How fast replicas may change: names and meaning of HorizontalPodAutoscaler v2."""

from typing import Annotated, Any

from pydantic import Field

from servingslo.api.constraints import Between, Count
from servingslo.api.spec_base import ApiModel
from servingslo.policy.hpa_behavior import (
    DEFAULT_DOWN_WINDOW_SECONDS,
    YOUNG_DOWN_WINDOW_SECONDS,
    PolicyType,
    SelectPolicy,
)

MAX_POLICIES = 10
MAX_POLICY_VALUE = 10_000
# Source: Kubernetes pkg/apis/autoscaling/validation, MaxStabilizationWindowSeconds and
# MaxPeriodSeconds.
MAX_WINDOW_SECONDS = 3600
MAX_PERIOD_SECONDS = 1800


class ScalingPolicy(ApiModel):
    """One rate policy, as in HorizontalPodAutoscaler v2."""

    type: PolicyType = Field(description="What value counts: Pods, or Percent of the replicas.")
    value: Annotated[Count, Between(1, MAX_POLICY_VALUE)] = Field(
        description="The largest change within one period, 1 to 10000."
    )
    period_seconds: Annotated[Count, Between(1, MAX_PERIOD_SECONDS)] = Field(
        description="Length of the period in seconds, 1 to 1800."
    )


_POLICIES: Any = Field(
    (),
    max_length=MAX_POLICIES,
    description="Rate policies, at most 10. None by default: the rate is not limited.",
)
_SELECT_POLICY: Any = Field(
    SelectPolicy.MAX,
    description="Which of several policies holds: Max (widest change, default), Min "
    "(narrowest) or Disabled (no change in this direction).",
)


class ScaleUpRules(ApiModel):
    """Rules for adding replicas."""

    stabilization_window_seconds: Annotated[Count, Between(0, MAX_WINDOW_SECONDS)] = Field(
        0,
        description="Seconds, 0 to 3600, over which the lowest recommendation counts. Default 0: "
        "scale up at once.",
    )
    policies: tuple[ScalingPolicy, ...] = _POLICIES
    select_policy: SelectPolicy = _SELECT_POLICY


class ScaleDownRules(ApiModel):
    """Rules for removing replicas."""

    stabilization_window_seconds: Annotated[Count, Between(0, MAX_WINDOW_SECONDS)] | None = Field(
        None,
        description="Seconds, 0 to 3600, over which the highest recommendation counts. Default "
        f"{DEFAULT_DOWN_WINDOW_SECONDS}, and {YOUNG_DOWN_WINDOW_SECONDS} until latencies were "
        "observed for five minutes; every step down must also be safe over one cold start.",
    )
    policies: tuple[ScalingPolicy, ...] = _POLICIES
    select_policy: SelectPolicy = _SELECT_POLICY


class BehaviorRules(ApiModel):
    """How fast replicas may change, as in HorizontalPodAutoscaler v2."""

    scale_up: ScaleUpRules = Field(ScaleUpRules(), description="Rules for adding replicas.")
    scale_down: ScaleDownRules = Field(ScaleDownRules(), description="Rules for removing replicas.")
