"""Which documents of a manifest are an HPA, a ScaledObject or a PodAutoscaler."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from servingslo.api.refusals import first_refusal
from servingslo.cli.manifest import objects_of
from servingslo.errors import InvalidInputError
from servingslo_lab.cli.autoscalers.hpa import HPA_API_VERSION, HPA_KIND, HorizontalPodAutoscaler
from servingslo_lab.cli.autoscalers.pod_autoscaler import (
    POD_AUTOSCALER_API_VERSION,
    POD_AUTOSCALER_KIND,
    PodAutoscaler,
)
from servingslo_lab.cli.autoscalers.scaled_object import (
    SCALED_OBJECT_API_VERSION,
    SCALED_OBJECT_KIND,
    ScaledObject,
)

Autoscaler = HorizontalPodAutoscaler | ScaledObject | PodAutoscaler

_MODELS: dict[str, type[HorizontalPodAutoscaler] | type[ScaledObject] | type[PodAutoscaler]] = {
    HPA_KIND: HorizontalPodAutoscaler,
    SCALED_OBJECT_KIND: ScaledObject,
    POD_AUTOSCALER_KIND: PodAutoscaler,
}
_ALLOWED = (
    f"{HPA_KIND} of {HPA_API_VERSION}, {SCALED_OBJECT_KIND} of {SCALED_OBJECT_API_VERSION} or "
    f"{POD_AUTOSCALER_KIND} of {POD_AUTOSCALER_API_VERSION}; "
    "of a workload that llm-d's variant autoscaler scales, the one with its annotations"
)
_MOST_KINDS = 10


def autoscalers_of(documents: Iterable[Any]) -> list[Autoscaler]:
    """Each autoscaler, also of a List; other kinds are left out.

    So is the HPA that KEDA makes for a ScaledObject, if that is there too.

    Raises: InvalidInputError for a bad field of one, or if there is none.
    """
    objects = [*objects_of(documents)]
    found = [_parsed(one) for one in objects if one.get("kind") in _MODELS]
    if not found:
        kinds = dict.fromkeys(str(one.get("kind") or "none") for one in objects)
        raise InvalidInputError("kind", ", ".join([*kinds][:_MOST_KINDS]) or None, _ALLOWED)
    made_from = {
        (one.metadata.namespace, one.metadata.name) for one in found if one.kind != HPA_KIND
    }
    return [one for one in found if _owner(one) not in made_from]


def _owner(one: Autoscaler) -> tuple[str | None, str] | None:
    """Namespace and name of the ScaledObject that an HPA is made for."""
    owner = one.metadata.controller
    if one.kind != HPA_KIND or owner is None or owner.kind != SCALED_OBJECT_KIND:
        return None
    return one.metadata.namespace, owner.name


def _parsed(document: dict[str, Any]) -> Autoscaler:
    kind = document["kind"]
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    try:
        return _MODELS[kind].model_validate(document)
    except ValidationError as error:
        raise first_refusal(error, f"{kind} {name}" if name else kind) from error
