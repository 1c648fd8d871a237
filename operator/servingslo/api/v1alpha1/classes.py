"""Classes of requests on the same replicas: `spec.classes`, and the rules beside the rest.

Each rule exists twice with the same words: in CEL for the API server, and in Python.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from servingslo.api.constraints import Between, Count, Number, cel_rule, not_allowed
from servingslo.api.patterns import DNS_LABEL, DNS_NAME
from servingslo.api.spec_base import ApiModel, with_rules
from servingslo.api.v1alpha1.knobs import Admission
from servingslo.api.v1alpha1.objectives import (
    MAX_OBJECTIVES,
    OBJECTIVES_SCHEMA,
    Objective,
    check_objectives,
)
from servingslo.api.v1alpha1.workload import Gateway
from servingslo.policy.inputs import AdmissionMode

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


_NAMES = "each name once"
_ROUTES = "each route once"
_POLICIES = "each policy once (by default it is named like the route)"
_ORDERS = "one class of priority 0 or more, for which replicas are ordered"
_NO_POOLS = "none with classes yet: one targetRef"
_NO_VIA = "none with classes: each class has a policy"
_NO_NAME = "none with classes: each class has a route"
_NEEDS_VIA = "an object, required when mode is Auto"
_POLICY = "(has({0}.policy) ? {0}.policy : {0}.route)"


def _once(value: str, allowed: str) -> dict[str, Any]:
    same = f"{value.format('a')} == {value.format('b')}"
    repeated = value.format(f"self.filter(a, !self.exists_one(b, {same}))[0]")
    return cel_rule(
        f"self.all(a, self.exists_one(b, {same}))",
        allowed=allowed,
        got="%s more than once",
        values=(repeated,),
    )


CLASSES_RULES = (
    _once("{0}.name", _NAMES),
    _once("{0}.route", _ROUTES),
    _once(_POLICY, _POLICIES),
    cel_rule(
        "self.exists(c, c.priority >= 0)",
        allowed=_ORDERS,
        got="%s",
        values=("self.map(c, c.priority)",),
    ),
)

SPEC_RULES = (
    cel_rule(
        "!has(self.classes) || !has(self.pools)",
        allowed=_NO_POOLS,
        got="a value",
        field_path=".pools",
    ),
    cel_rule(
        "!has(self.classes) || !has(self.admission.via)",
        allowed=_NO_VIA,
        got="a value",
        field_path=".admission.via",
    ),
    cel_rule(
        "!has(self.classes) || !has(self.gateway.name)",
        allowed=_NO_NAME,
        got="%s",
        values=("self.gateway.name",),
        field_path=".gateway.name",
    ),
    cel_rule(
        "self.admission.mode != 'Auto' || has(self.admission.via) || has(self.classes)",
        allowed=_NEEDS_VIA,
        got="nothing",
        field_path=".admission.via",
        reason="FieldValueRequired",
    ),
)


def metrics_rule(runtime: str, refused: Sequence[str], allowed: str) -> dict[str, Any]:
    """CEL: no class has an objective about a metric that the runtime refuses."""
    bad = f"has(c.objectives) && c.objectives.exists(o, o.metric in {list(refused)})"
    return cel_rule(
        f"self.runtime != '{runtime}' || !has(self.classes) || !self.classes.exists(c, {bad})",
        allowed=allowed,
        got="another one in class %s",
        values=(f"self.classes.filter(c, {bad})[0].name",),
        field_path=".classes",
    )


def check_metrics(classes: Sequence[RequestClass], refused: Sequence[str], allowed: str) -> None:
    """The same rule in Python. Raises: PydanticCustomError."""
    for one in classes:
        if any(objective.metric.value in refused for objective in one.objectives or ()):
            value = f"another one in class {one.name}"
            raise not_allowed(allowed, path=("classes",), value=value)


def check_classes(classes: Sequence[RequestClass]) -> None:
    """The rules between classes. Raises: PydanticCustomError for the first that is broken."""
    _differ([one.name for one in classes], _NAMES)
    _differ([one.route for one in classes], _ROUTES)
    _differ([one.policy_name for one in classes], _POLICIES)
    priorities = [one.priority for one in classes]
    if max(priorities) < 0:
        raise not_allowed(_ORDERS, path=("classes",), value=priorities)


def check_beside_classes(
    classes: Sequence[RequestClass] | None,
    pools: Sequence[object] | None,
    admission: Admission,
    gateway: Gateway,
) -> None:
    """What classes state is stated nowhere else. Raises: PydanticCustomError."""
    if classes is None:
        if admission.mode is AdmissionMode.AUTO and admission.via is None:
            raise not_allowed(_NEEDS_VIA, path=("admission", "via"), value=None)
        return
    if pools is not None:
        raise not_allowed(_NO_POOLS, path=("pools",), value="a value")
    if admission.via is not None:
        raise not_allowed(_NO_VIA, path=("admission", "via"), value="a value")
    if gateway.name is not None:
        raise not_allowed(_NO_NAME, path=("gateway", "name"), value=gateway.name)


def _differ(values: Sequence[str], allowed: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise not_allowed(allowed, path=("classes",), value=f"{value} more than once")
