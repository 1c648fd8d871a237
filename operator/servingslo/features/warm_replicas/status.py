"""The part of the status about replicas on call, and its gauges."""

from servingslo.api.status_base import StatusModel, StatusPart, told
from servingslo.features.warm_replicas.call import TARGETS, warm_of


class WarmStatus(StatusModel):
    """The replicas on call, if replicas.warm is set."""

    awake: int | None = told(
        "awake", "Replicas that are needed awake.", gauge="servingslo_warm_awake_replicas"
    )
    on_call: int | None = told(
        lambda one: len(one.on_call),
        "Replicas that take no requests.",
        gauge="servingslo_warm_on_call_replicas",
    )
    asleep: int | None = told(
        "asleep", "Those of them that sleep.", gauge="servingslo_warm_asleep_replicas"
    )
    wake_seconds: float | None = told(
        "wake_seconds",
        "Seconds from the order to wake one until it is observed to serve; measured.",
        gauge="servingslo_warm_wake_seconds",
    )
    cost_per_hour: float | None = told(
        "cost_per_hour",
        "Cost of all replicas for an hour, those that sleep at their share.",
    )


PART = StatusPart(
    key=TARGETS,
    model=WarmStatus,
    description="The replicas on call, if replicas.warm is set.",
    of=lambda decision: warm_of(decision.knobs),
)
