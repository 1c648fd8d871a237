"""Latency objectives, of a resource or of one class of its requests."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from servingslo.api.constraints import (
    RULES,
    Between,
    DurationBetween,
    Number,
    cel_rule,
    keyed_by,
    not_allowed,
)
from servingslo.api.spec_base import ApiModel
from servingslo.models.fleet import latency
from servingslo.models.objectives import LatencyMetric
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.units import parse_duration_seconds

MAX_OBJECTIVES = 8
# Metrics that no objective can be about on a runtime, by runtime.
REFUSED = {one.name: [metric for metric, _ in one.refused] for one in CATALOGUE if one.refused}

# The first objective whose metric and percentile stand elsewhere, too.
_REPEATED = (
    "self.filter(a, !self.exists_one(b, a.metric == b.metric && a.percentile == b.percentile))[0]"
)
# Each metric and percentile at most once in a list of objectives: they identify an item.
_ONCE = cel_rule(
    "self.all(a, self.exists_one(b, a.metric == b.metric && a.percentile == b.percentile))",
    allowed="each metric and percentile once",
    got="%s p%s more than once",
    values=(f"{_REPEATED}.metric", f"{_REPEATED}.percentile"),
)
OBJECTIVES_SCHEMA = {RULES: [_ONCE], **keyed_by("metric", "percentile")}


class Objective(ApiModel):
    """One latency objective."""

    metric: LatencyMetric = Field(
        description="What is bounded: ttft (time to first token), tpot (decode time divided by "
        "output tokens - 1), latency (whole request) or queueTime (wait before the first step)."
    )
    percentile: Annotated[Number, Between(50, 99.9)] = Field(
        description="Share of requests in percent that must stay within the threshold, 50 to 99.9."
    )
    threshold: Annotated[str, DurationBetween("1ms", "1h")] = Field(
        description="The bound, a duration from 1ms to 1h such as 500ms or 2s."
    )


def check_objectives(objectives: Sequence[Objective]) -> None:
    """The same rule in Python. Raises: PydanticCustomError."""
    seen = set()
    for objective in objectives:
        key = (objective.metric, objective.percentile)
        if key in seen:
            raise not_allowed(
                "each metric and percentile once",
                path=("objectives",),
                value=f"{objective.metric} p{objective.percentile:g}",
            )
        seen.add(key)


def allowed_metrics(runtime: str) -> str:
    """The metrics that objectives can be about on a runtime, in words."""
    refused = REFUSED.get(runtime, ())
    has = " or ".join(metric.value for metric in LatencyMetric if metric.value not in refused)
    return f"{has} where runtime is {runtime}, which answers a request at once"


def objectives_of(stated: Iterable[Objective]) -> tuple[latency.Objective, ...]:
    """What the planner gets of them."""
    return tuple(
        latency.Objective(
            metric=objective.metric,
            percentile=float(objective.percentile),
            threshold_seconds=parse_duration_seconds(objective.threshold),
        )
        for objective in stated
    )
