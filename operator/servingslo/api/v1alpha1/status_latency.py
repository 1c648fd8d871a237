"""The parts of the status about where time goes, what is answered, and what the promise costs."""

from pydantic import Field

from servingslo.api.v1alpha1.status_base import StatusModel, Timestamp


class LatencyStatus(StatusModel):
    """Where the time of a request goes."""

    percentile: float = Field(description="The greatest percentile of the objectives, percent.")
    mean_seconds: float | None = Field(None, description="Mean of whole requests, seconds.")
    percentile_seconds: float | None = Field(
        None, description="Whole requests at this percentile, seconds."
    )
    seen_by: str | None = Field(
        None, description="Who measured whole requests: gateway or engines."
    )
    parts: tuple[str, ...] = Field(
        (),
        description="A line for each part, in order: gateway, queue, prefill, transfer, decode, "
        "compute (of servers that answer at once) or other (of the engine's server). Gateway is "
        "its time less the engine's, so with the network behind it. A line has the part's mean, "
        "its own percentile unless it is a difference of two means, what it grew by since the "
        "objectives were last met, and whether it is measured, derived, stated or assumed.",
    )
    grew: str | None = Field(
        None, description="The part that grew most since the objectives were last met."
    )
    more_replicas_help: bool | None = Field(
        None, description="False if that part is outside of the replicas."
    )
    met_until: Timestamp | None = Field(
        None, description="When the objectives were last met, while they are not."
    )


class AvailabilityStatus(StatusModel):
    """The share of answered requests, if spec.availability is set."""

    answered: float | None = Field(
        None,
        description="Share of requests that got a whole answer, over errorBudget.window or a day, "
        "0 to 1.",
    )
    target: float | None = Field(None, description="The objective, 0 to 1.")
    met: bool | None = Field(None, description="Whether the share is at least the objective.")
    uncounted: tuple[str, ...] = Field(
        (), description="Which of refused, failed and aborted requests no one counts."
    )


class ReserveStatus(StatusModel):
    """The replicas that past demand asks for beyond the forecast, and what they are worth."""

    rule: str = Field(
        description="What is ordered for: the greatest rate of a time or the rate at the lead "
        "time, times a margin, and never fewer replicas than a floor."
    )
    mean_replicas: float | None = Field(
        None, description="Mean count of this rule over the last day's demand."
    )
    missed: float | None = Field(
        None, description="Share of that day's requests that it would have missed."
    )
    cheaper_mean_replicas: float | None = Field(
        None, description="Mean count of the next cheaper rule."
    )
    cheaper_missed: float | None = Field(
        None, description="Share that the next cheaper rule would have missed."
    )
