"""Annotations of llm-d's Workload Variant Autoscaler on an HPA or a ScaledObject.

Source: llm-d-workload-variant-autoscaler internal/annotations/annotations.go (v0.9, the last one).
It has neither bounds nor objectives of its own: it exports a count, which the HPA follows.
"""

import math
from dataclasses import dataclass

from servingslo.errors import InvalidInputError
from servingslo_lab.cli.autoscalers.shared import Metadata

DESIRED_METRIC = "wva_desired_replicas"
COUNT = "the count of llm-d's variant autoscaler, which this ServingSLO decides instead"

_MANAGED = "llm-d.ai/managed"
_MODEL_ID = "llm-d.ai/model-id"
_VARIANT_COST = "llm-d.ai/variant-cost"
_MODEL = "nothing is grouped by model; several variants of one model are spec.pools"
_COST = "a relative number without a currency; state the price of a GPU hour as cost.gpuHourly"
_STAYS = "the variant autoscaler keeps exporting a count until the annotation is removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What the annotations say: (annotation, value, why it was not taken over) of each."""

    notes: tuple[tuple[str, str, str], ...]


def read(metadata: Metadata) -> Variant | None:
    """The annotations; None if the object is not managed by it.

    Raises: InvalidInputError for a cost that is no number of 0 or more.
    """
    annotations = metadata.annotated
    if annotations.get(_MANAGED) != "true":
        return None
    notes = [(_MANAGED, "true", _STAYS)]
    if _MODEL_ID in annotations:
        notes.append((_MODEL_ID, annotations[_MODEL_ID], _MODEL))
    if _VARIANT_COST in annotations:
        cost = annotations[_VARIANT_COST]
        if not _is_cost(cost):
            field = f"{metadata.name}: metadata.annotations[{_VARIANT_COST}]"
            raise InvalidInputError(field, cost, "a number, 0 or more")
        notes.append((_VARIANT_COST, cost, _COST))
    return Variant(notes=tuple(notes))


def _is_cost(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False
