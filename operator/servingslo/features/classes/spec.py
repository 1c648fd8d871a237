"""Classes of requests on the same replicas: `spec.classes`, and its rules.

Each rule exists twice with the same words: in CEL for the API server, and in Python.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from servingslo.api.constraints import (
    RULES,
    Between,
    Count,
    Number,
    cel_rule,
    keyed_by,
    not_allowed,
)
from servingslo.api.patterns import DNS_LABEL, DNS_NAME
from servingslo.api.spec_base import ApiModel, SpecPart, with_rules
from servingslo.api.v1alpha1.objectives import (
    MAX_OBJECTIVES,
    OBJECTIVES_SCHEMA,
    REFUSED,
    Objective,
    allowed_metrics,
    check_objectives,
    objectives_of,
)
from servingslo.features.classes.shares import SHARES, ClassShares
from servingslo.models.fleet import latency
from servingslo.policy.routes import MOST_CLASSES, ClassTargets

# One class is no class: everything is then as without.
FEWEST_CLASSES = 2
MOST_CLASS_PRIORITY = 1_000
LEAST_SHARE = 0.01

_SHARE = "none unless priority is below 0: other classes order all replicas that they need"


class RequestClass(ApiModel):
    """Requests of one route, and what may happen to them if not all can be served."""

    model_config = with_rules(
        cel_rule(
            "!has(self.share) || self.priority < 0",
            allowed=_SHARE,
            got="%s",
            values=("self.share",),
            field_path=".share",
        )
    )

    name: Annotated[str, DNS_LABEL] = Field(
        description="Name of the class, a DNS label that no other class has."
    )
    priority: Annotated[Count, Between(-MOST_CLASS_PRIORITY, MOST_CLASS_PRIORITY)] = Field(
        0,
        description="Whose requests are kept if not all can be, -1000 to 1000, default 0. Replicas "
        "are ordered for classes of 0 or more; a class below 0 is sheddable: it fills what is "
        "left.",
    )
    route: Annotated[str, DNS_NAME] = Field(
        description="The HTTPRoute of the class, in the namespace of this resource. Its counters "
        "at Envoy Gateway are those of the class. At an endpoint picker, its InferenceObjective: "
        "the class is the requests of its priority there."
    )
    policy: Annotated[str, DNS_NAME] | None = Field(
        None,
        description="The BackendTrafficPolicy of that route, which holds the bound of the class "
        'if admission.mode is Auto, labelled servingslo.dev/managed: "true"; by default the one '
        "with the name of the route.",
    )
    objectives: tuple[Objective, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_OBJECTIVES,
        description="Objectives of the class instead of those of the resource, 1 to 8. Replicas "
        "keep those of every class of priority 0 or more.",
        json_schema_extra=OBJECTIVES_SCHEMA,
    )
    share: Annotated[Number, Between(LEAST_SHARE, 1)] | None = Field(
        None,
        description="Of a sheddable class: the share of replicas.max up to which it may order "
        "replicas, 0.01 to 1; by default it orders none.",
    )

    @property
    def policy_name(self) -> str:
        """The BackendTrafficPolicy that holds the bound of the class."""
        return self.policy or self.route

    @model_validator(mode="after")
    def _share_of_sheddable(self) -> Self:
        if self.share is not None and self.priority >= 0:
            raise not_allowed(_SHARE, path=("share",), value=f"{self.share:g}")
        return self

    @model_validator(mode="after")
    def _objectives_differ(self) -> Self:
        check_objectives(self.objectives or ())
        return self


# What no two classes have alike: in CEL, as an attribute, and what is allowed.
_ONCE = (
    ("{0}.name", "name", "each name once"),
    ("{0}.route", "route", "each route once"),
    (
        "(has({0}.policy) ? {0}.policy : {0}.route)",
        "policy_name",
        "each policy once (by default it is named like the route)",
    ),
)
_ORDERS = "one class of priority 0 or more, for which replicas are ordered"
# What is not stated with classes: what is allowed instead, and what was got.
_ALONE = {
    "pools": ("none with classes yet: one targetRef", "a value"),
    "admission.via": ("none with classes: each class has a policy", "a value"),
    "gateway.name": ("none with classes: each class has a route", "%s"),
}


def _once(value: str, allowed: str) -> dict[str, Any]:
    same = f"{value.format('a')} == {value.format('b')}"
    repeated = value.format(f"self.filter(a, !self.exists_one(b, {same}))[0]")
    return cel_rule(
        f"self.all(a, self.exists_one(b, {same}))",
        allowed=allowed,
        got="%s more than once",
        values=(repeated,),
    )


_CLASSES_RULES = (
    *(_once(value, allowed) for value, _, allowed in _ONCE),
    cel_rule(
        "self.exists(c, c.priority >= 0)",
        allowed=_ORDERS,
        got="%s",
        values=("self.map(c, c.priority)",),
    ),
)


def _metrics_rule(runtime: str, refused: Sequence[str]) -> dict[str, Any]:
    bad = f"has(c.objectives) && c.objectives.exists(o, o.metric in {list(refused)})"
    return cel_rule(
        f"self.runtime != '{runtime}' || !has(self.classes) || !self.classes.exists(c, {bad})",
        allowed=allowed_metrics(runtime),
        got="another one in class %s",
        values=(f"self.classes.filter(c, {bad})[0].name",),
        field_path=".classes",
    )


_SPEC_RULES = (
    *(_metrics_rule(runtime, refused) for runtime, refused in REFUSED.items()),
    *(
        cel_rule(
            f"!has(self.classes) || !has(self.{field})",
            allowed=allowed,
            got=got,
            values=(f"self.{field}",) if got == "%s" else (),
            field_path=f".{field}",
        )
        for field, (allowed, got) in _ALONE.items()
    ),
)


def _check(spec: Any) -> None:
    """The same rules in Python. Raises: PydanticCustomError for the first that is broken."""
    classes: Sequence[RequestClass] = spec.classes or ()
    if not classes:
        return
    refused = REFUSED.get(spec.runtime, ())
    for one in classes:
        if any(objective.metric.value in refused for objective in one.objectives or ()):
            value = f"another one in class {one.name}"
            raise not_allowed(allowed_metrics(spec.runtime), path=("classes",), value=value)
    for _, name, allowed in _ONCE:
        values = [getattr(one, name) for one in classes]
        for value in values:
            if values.count(value) > 1:
                raise not_allowed(allowed, path=("classes",), value=f"{value} more than once")
    priorities = [one.priority for one in classes]
    if max(priorities) < 0:
        raise not_allowed(_ORDERS, path=("classes",), value=priorities)
    for field, (allowed, got) in _ALONE.items():
        if (value := attrgetter(field)(spec)) is not None:
            raise not_allowed(
                allowed, path=tuple(field.split(".")), value=value if got == "%s" else got
            )


def _shares(classes: Sequence[RequestClass]) -> ClassShares:
    return ClassShares(ratios={one.name: float(one.share) for one in classes if one.share})


def _strictest(stated: Iterable[latency.Objective]) -> tuple[latency.Objective, ...]:
    """Of equal metrics and percentiles the strictest."""
    kept: dict[tuple[str, float], latency.Objective] = {}
    for one in stated:
        known = kept.setdefault((one.metric, one.percentile), one)
        if one.threshold_seconds < known.threshold_seconds:
            kept[one.metric, one.percentile] = one
    return tuple(kept.values())


def _states(classes: Sequence[RequestClass], spec: Any) -> dict[str, Any]:
    """The classes, and what replicas keep: the objectives of every class that orders some."""
    ordering = (one.objectives for one in classes if one.priority >= 0)
    stated = (objectives_of(one or spec.objectives) for one in ordering)
    return {
        "objectives": _strictest(chain.from_iterable(stated)),
        "classes": tuple(
            ClassTargets(
                name=one.name,
                priority=one.priority,
                route=one.route,
                policy=one.policy_name,
                objectives=objectives_of(one.objectives or spec.objectives),
            )
            for one in classes
        ),
    }


PART = SpecPart(
    key=SHARES,
    field=(
        tuple[RequestClass, ...] | None,
        Field(
            None,
            min_length=FEWEST_CLASSES,
            max_length=MOST_CLASSES,
            description="Classes of requests on the same replicas, 2 to 8: what may wait or be "
            "refused first, such as background work next to chat. Excludes pools.",
            json_schema_extra={RULES: list(_CLASSES_RULES), **keyed_by("name")},
        ),
    ),
    targets=_shares,
    states=_states,
    rules=_SPEC_RULES,
    check=_check,
    several_routes=True,
)
