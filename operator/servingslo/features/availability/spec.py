"""spec.availability."""

from typing import Annotated

from pydantic import Field

from servingslo.api.patterns import SHARE, ratio_of_share
from servingslo.api.spec_base import ApiModel, SpecPart
from servingslo.features.availability.answers import TARGET, AvailabilityTargets


class Availability(ApiModel):
    """An objective of the share of requests that get a whole answer."""

    target: Annotated[str, SHARE] = Field(
        description="Share of requests that must get a whole answer, 50% to 99.999%, such as "
        "99.9%. Refused, failed (5xx, timeouts) and aborted requests do not.",
    )


PART = SpecPart(
    key=TARGET,
    field=(
        Availability | None,
        Field(
            None,
            description="Objective of the share of answered requests: reported and alerted on, "
            "never sized by.",
        ),
    ),
    targets=lambda stated: AvailabilityTargets(target_ratio=ratio_of_share(stated.target)),
    of_route=True,
)
