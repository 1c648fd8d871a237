"""spec.degradation."""

from typing import Annotated, Any

from pydantic import Field

from servingslo.api.constraints import Between, Number, cel_rule, not_allowed
from servingslo.api.patterns import DNS_LABEL, DNS_NAME
from servingslo.api.spec_base import ApiModel, SpecPart
from servingslo.features.degradation.share import TARGETS, DegradationTargets
from servingslo.policy.routes import Elsewhere

_NO_POOLS = "none with pools"
_OWN_ROUTE = "the route that the gateway counts: gateway.name, by default the name of the target"


class Degradation(ApiModel):
    """Where requests go that no further replica can be had for."""

    route: Annotated[str, DNS_NAME] = Field(
        description="Name of the HTTPRoute in front of the workload, in this namespace. It must "
        'carry the label servingslo.dev/managed: "true" and have one rule with backends, each of '
        "them with a filter, so that the gateway counts it apart."
    )
    fallback: Annotated[str, DNS_LABEL] = Field(
        description="Name of a Service among the backends of that rule, with weight 0: a smaller "
        "model, a shorter context, another region."
    )
    max_share: Annotated[Number, Between(0.001, 1)] = Field(
        0.5, description="Most of the requests that go there, 0.001 to 1, default 0.5."
    )
    degraded_counts_as: Annotated[Number, Between(0, 1)] = Field(
        0.5,
        description="How much of a request within the objectives one is that the fallback "
        "answered, for the promised share: 0 (as a refusal) to 1, default 0.5.",
    )


def _targets(stated: Degradation) -> DegradationTargets:
    return DegradationTargets(
        route=stated.route, fallback=stated.fallback, max_share_ratio=float(stated.max_share)
    )


def _elsewhere(stated: Degradation, _spec: Any) -> dict[str, Any]:
    counts_as = float(stated.degraded_counts_as)
    return {"elsewhere": Elsewhere(service=stated.fallback, counts_as_ratio=counts_as)}


def _check(spec: Any) -> None:
    """Refuse one beside pools or for another route than the target's own."""
    stated, field = spec.degradation, TARGETS.name
    if stated is None:
        return
    if spec.pools is not None:
        raise not_allowed(_NO_POOLS, path=(field,), value=stated.route)
    target = None if spec.target_ref is None else spec.target_ref.name
    if target is not None and stated.route != (spec.gateway.name or target):
        raise not_allowed(_OWN_ROUTE, path=(field, "route"), value=stated.route)


PART = SpecPart(
    key=TARGETS,
    field=(
        Degradation | None,
        Field(
            None,
            description="A fallback for requests that no further replica can be had for; none by "
            "default, and none with pools.",
        ),
    ),
    targets=_targets,
    states=_elsewhere,
    rules=(
        cel_rule(
            "!has(self.degradation) || !has(self.pools)",
            allowed=_NO_POOLS,
            got="%s",
            values=("self.degradation.route",),
            field_path=".degradation",
        ),
        cel_rule(
            "!has(self.degradation) || !has(self.targetRef)"
            " || self.degradation.route == (has(self.gateway.name) ? self.gateway.name"
            " : self.targetRef.name)",
            allowed=_OWN_ROUTE,
            got="%s",
            values=("self.degradation.route",),
            field_path=".degradation.route",
        ),
    ),
    check=_check,
    one_route=True,
)
