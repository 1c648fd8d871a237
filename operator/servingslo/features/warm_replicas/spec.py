"""spec.replicas.warm, also of each pool."""

from typing import Annotated, Any

from pydantic import Field

from servingslo.api.constraints import MAX_REPLICAS, Between, Count, Matching, cel_rule, not_allowed
from servingslo.api.spec_base import OF_REPLICAS, ApiModel, SpecPart
from servingslo.features.warm_replicas.call import TARGETS, WarmTargets

_COST = Matching(r"^[1-9][0-9]?%$", "a share from 1% to 99%", 16)
_LEAST = "at most warm.max"


class WarmReplicas(ApiModel):
    """Replicas that sleep and are back within seconds."""

    min: Annotated[Count, Between(0, MAX_REPLICAS)] = Field(
        0,
        description="Fewest replicas on call beyond those that are needed awake, for surges that "
        "neither forecast nor past knows. Default 0, at most max.",
    )
    max: Annotated[Count, Between(1, MAX_REPLICAS)] = Field(
        description="Most replicas on call, 1 to 10000."
    )
    cost: Annotated[str, _COST] = Field(
        description="What a sleeping replica costs, as a share of the price of one that is awake, "
        "1% to 99%, such as 10%."
    )


def _check(replicas: Any) -> None:
    warm = replicas.warm
    if warm is not None and warm.min > warm.max:
        raise not_allowed(_LEAST, path=("warm",), value=warm.min)


def _targets(stated: WarmReplicas) -> WarmTargets:
    return WarmTargets(
        least=stated.min, most=stated.max, cost_ratio=int(stated.cost.removesuffix("%")) / 100.0
    )


PART = SpecPart(
    key=TARGETS,
    within=OF_REPLICAS,
    field=(
        WarmReplicas | None,
        Field(
            None,
            description="Replicas that sleep while they are not needed. They are part of the "
            "replica count; min and max of replicas bound those that are awake too.",
        ),
    ),
    targets=_targets,
    rules=(
        cel_rule(
            "!has(self.warm) || self.warm.min <= self.warm.max",
            allowed=_LEAST,
            got="%s",
            values=("self.warm.min",),
            field_path=".warm",
        ),
    ),
    check=_check,
)
