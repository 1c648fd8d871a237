"""A ServingBudget: one number of GPUs for several ServingSLOs; cluster-scoped."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from servingslo.api.constraints import RULES, Between, Count, cel_rule, keyed_by, not_allowed
from servingslo.api.crd import KindPart
from servingslo.api.patterns import LABEL_KEY, LABEL_VALUE
from servingslo.api.spec_base import ApiModel, with_rules
from servingslo.api.status_base import StatusModel
from servingslo.api.v1alpha1.pools import MAX_FLEET_GPUS
from servingslo.api.v1alpha1.status import (
    MAX_CONDITIONS,
    MAX_MESSAGE_LENGTH,
    Condition,
)

KIND, PLURAL = "ServingBudget", "servingbudgets"
# Rows of a status, those that are short first: an object may have 1.5 MiB.
MAX_CLAIMANTS = 100
MAX_SELECTOR_ITEMS = 32

_IS_KEY = f"k.matches(r'{LABEL_KEY.pattern}')"
_VALUES = "In and NotIn with values, Exists and DoesNotExist without"


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class LabelRequirement(ApiModel):
    """One requirement on a label."""

    model_config = with_rules(
        cel_rule(
            "(self.operator in ['In', 'NotIn']) == (self.values.size() > 0)",
            allowed=_VALUES,
            got="%s with %s",
            values=("self.operator", "self.values"),
        )
    )

    key: Annotated[str, LABEL_KEY] = Field(description="The label.")
    operator: SelectorOperator = Field(description="In, NotIn, Exists or DoesNotExist.")
    values: tuple[Annotated[str, LABEL_VALUE], ...] = Field(
        (), max_length=MAX_SELECTOR_ITEMS, description="For In and NotIn, up to 32."
    )

    @model_validator(mode="after")
    def _values_belong(self) -> Self:
        compares = self.operator in {SelectorOperator.IN, SelectorOperator.NOT_IN}
        if compares != bool(self.values):
            raise not_allowed(_VALUES, path=("values",), value=list(self.values))
        return self


class LabelSelector(ApiModel):
    """Which labels an object must have, as elsewhere in Kubernetes; empty selects every object."""

    match_labels: dict[Annotated[str, LABEL_KEY], Annotated[str, LABEL_VALUE]] = Field(
        {},
        max_length=MAX_SELECTOR_ITEMS,
        description="Labels with exactly these values, up to 32.",
        json_schema_extra={
            RULES: [
                cel_rule(
                    f"self.all(k, {_IS_KEY})",
                    allowed=LABEL_KEY.words,
                    got="%s",
                    values=(f"self.filter(k, !{_IS_KEY})[0]",),
                )
            ]
        },
    )
    match_expressions: tuple[LabelRequirement, ...] = Field(
        (), max_length=MAX_SELECTOR_ITEMS, description="Requirements that all hold, up to 32."
    )


class ServingBudgetSpec(ApiModel):
    """A number of GPUs, and the ServingSLOs that share it."""

    gpus: Annotated[Count, Between(0, MAX_FLEET_GPUS)] = Field(
        description="GPUs of all selected ServingSLOs together, 0 to 100000."
    )
    namespace_selector: LabelSelector | None = Field(
        None, description="Namespaces of the ServingSLOs, by labels; all by default."
    )
    selector: LabelSelector | None = Field(
        None, description="The ServingSLOs in them, by their own labels; all by default."
    )


class ClaimantStatus(StatusModel):
    """What one ServingSLO has of the budget."""

    namespace: str = Field(description="Namespace of the ServingSLO.")
    name: str = Field(description="Name of the ServingSLO.")
    priority: int = Field(description="Its priority, bounded by the administrator.")
    granted: int = Field(description="GPUs that it may order.")
    wanted: int = Field(description="GPUs that its plan wants.")
    short: int = Field(description="GPUs that are wanted and not granted.")
    lost_per_second: float | None = Field(
        None, description="Requests per second that those would keep within their objectives."
    )
    reason: str | None = Field(
        None,
        max_length=MAX_MESSAGE_LENGTH,
        description="Who has the GPUs that it lacks; or why the GPUs of a replica are unknown.",
    )


class ServingBudgetStatus(StatusModel):
    """Who has which GPUs, and who lacks some."""

    observed_generation: int | None = Field(
        None, description="Generation of the spec that this status describes."
    )
    granted: int | None = Field(None, description="GPUs that all of them may order.")
    wanted: int | None = Field(None, description="GPUs that all plans want.")
    short: int | None = Field(None, description="GPUs that are wanted and not granted.")
    claimants: tuple[ClaimantStatus, ...] = Field(
        (),
        max_length=MAX_CLAIMANTS,
        description="Each ServingSLO, those that lack most first, up to 100.",
    )
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=MAX_CONDITIONS,
        description="Ready (the spec is valid), Sufficient (all that is wanted is granted) and, of "
        "an invalid spec, Stalled.",
        json_schema_extra=keyed_by("type"),
    )


PART = KindPart(
    kind=KIND,
    plural=PLURAL,
    short="sbudget",
    description="ServingBudget shares one number of GPUs among ServingSLOs, by minimum, priority "
    "and the requests that a GPU keeps within their objectives.",
    spec=ServingBudgetSpec,
    status=ServingBudgetStatus,
    columns=(
        ("GPUs", "integer", ".spec.gpus", "GPUs of the budget."),
        ("Granted", "integer", ".status.granted", "GPUs that may be ordered."),
        ("Wanted", "integer", ".status.wanted", "GPUs that all plans want."),
        ("Short", "integer", ".status.short", "GPUs that are wanted and not granted."),
        (
            "Sufficient",
            "string",
            '.status.conditions[?(@.type=="Sufficient")].status',
            "All that is wanted is granted.",
        ),
        ("Age", "date", ".metadata.creationTimestamp", "Age of the resource."),
    ),
)
