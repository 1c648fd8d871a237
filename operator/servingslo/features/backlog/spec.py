"""spec.backlog."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from servingslo.api.constraints import DurationBetween, Matching, cel_rule, not_allowed
from servingslo.api.patterns import SHARE, TIME_ZONE, ratio_of_share
from servingslo.api.spec_base import ApiModel, SpecPart, with_rules
from servingslo.features.backlog.deadlines import (
    TARGETS,
    BacklogTargets,
    Deadline,
    Preset,
    Unit,
)
from servingslo.units import parse_duration_seconds

QUEUE = Matching(
    r"^[A-Za-z0-9][-A-Za-z0-9_.:/]*$",
    "the name of a queue (letters, digits, -, _, ., : and /)",
    253,
)
_TIME = Matching(r"^([01][0-9]|2[0-3]):[0-5][0-9]$", "a time of day such as 06:30", 8)
_EITHER = "within, at or both"
_NO_POOLS = "none with pools: one targetRef"


class BacklogSource(ApiModel):
    """Where the length of the queue is read, in this namespace."""

    kind: Preset = Field(
        description="rabbitmq (its plugin's metrics of each queue), redis and llm-d-async (the "
        "size of a key, by redis_exporter), or recorded: servingslo:backlog_left of an "
        "administrator's recording rule, with labels namespace and queue."
    )
    queue: Annotated[str, QUEUE] = Field(description="Name of the queue, or of its key in Redis.")


class BacklogDeadline(ApiModel):
    """When work is due: a while after it arrived, at the next such time of day, or the earlier."""

    model_config = with_rules(
        cel_rule("has(self.within) || has(self.at)", allowed=_EITHER, got="neither")
    )

    within: Annotated[str, DurationBetween("1m", "168h")] | None = Field(
        None, description="Time from arrival, 1m to 168h."
    )
    at: Annotated[str, _TIME] | None = Field(None, description="Time of day, such as 06:30.")
    time_zone: TIME_ZONE = Field(
        "UTC", description="Time zone of at, such as Europe/Berlin; UTC by default."
    )

    @model_validator(mode="after")
    def _is_stated(self) -> Self:
        if self.within is None and self.at is None:
            raise not_allowed(_EITHER)
        return self


class Backlog(ApiModel):
    """Work that may wait, sent in a class of requests below priority 0."""

    source: BacklogSource = Field(description="Where its length is read.")
    unit: Unit = Field(
        Unit.REQUESTS, description="What the length counts: requests (default) or tokens."
    )
    deadline: BacklogDeadline = Field(description="When it is due.")
    slo: Annotated[str, SHARE] = Field(
        "99%", description="Share of it that must be done in time, 50% to 99.999%, default 99%."
    )


def _targets(stated: Backlog) -> BacklogTargets:
    due = stated.deadline
    hour, minute = map(int, (due.at or "0:0").split(":"))
    return BacklogTargets(
        preset=stated.source.kind,
        queue=stated.source.queue,
        unit=stated.unit,
        deadline=Deadline(
            within_seconds=0.0 if due.within is None else parse_duration_seconds(due.within),
            hour=hour,
            minute=minute,
            zone=due.time_zone if due.at else "",
        ),
        on_time_ratio=ratio_of_share(stated.slo),
    )


def _check(spec: Any) -> None:
    """Refuse one with pools."""
    if spec.backlog is not None and spec.pools is not None:
        raise not_allowed(_NO_POOLS, path=(TARGETS.name,), value=spec.backlog.source.queue)


PART = SpecPart(
    key=TARGETS,
    field=(
        Backlog | None,
        Field(
            None,
            description="Work with a deadline, done with what live requests leave and with the "
            "least replicas in addition; none by default, and none with pools.",
        ),
    ),
    targets=_targets,
    rules=(
        cel_rule(
            "!has(self.backlog) || !has(self.pools)",
            allowed=_NO_POOLS,
            got="%s",
            values=("self.backlog.source.queue",),
            field_path=".backlog",
        ),
    ),
    check=_check,
)
