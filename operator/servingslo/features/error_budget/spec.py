"""spec.errorBudget."""

from typing import Annotated, Any

from pydantic import Field

from servingslo.api.constraints import Matching
from servingslo.api.patterns import SHARE, ratio_of_share
from servingslo.api.spec_base import ApiModel, SpecPart
from servingslo.features.error_budget.report import WINDOW
from servingslo.units import SECONDS_PER_DAY

_DAYS = Matching(r"^([1-9]|[1-8][0-9]|90)d$", "days from 1d to 90d", 16)


class ErrorBudget(ApiModel):
    """How many requests may miss any objective, over days."""

    target: Annotated[str, SHARE] | None = Field(
        None,
        description="Share of requests that must meet all objectives, 50% to 99.999%, such as "
        "99.5%; by default the smallest percentile of the objectives.",
    )
    window: Annotated[str, _DAYS] = Field(
        "28d",
        description="How far back, 1d to 90d, default 28d. Prometheus must keep metrics so long: "
        "status.errorBudget.covered is the share of it that is known.",
    )


def _seconds(stated: ErrorBudget) -> float:
    return int(stated.window.removesuffix("d")) * SECONDS_PER_DAY


def _promise(stated: ErrorBudget, _spec: object) -> dict[str, Any]:
    """The promised share and its period: those of the budget."""
    return {
        "stated_share_ratio": stated.target and ratio_of_share(stated.target),
        "promise_period_seconds": _seconds(stated),
    }


PART = SpecPart(
    key=WINDOW,
    field=(
        ErrorBudget | None,
        Field(
            None,
            description="Account of the requests that missed any objective, from the counters of "
            "Prometheus; its target is the promised share.",
        ),
    ),
    targets=_seconds,
    states=_promise,
)
