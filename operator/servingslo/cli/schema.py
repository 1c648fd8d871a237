"""`servingslo crd` and `schema`: the CustomResourceDefinition, and JSON schemas of files."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from servingslo.api.crd import render_crds
from servingslo.cli import lab
from servingslo.controller.recordings.recording import Header, Outcome
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Observation
from servingslo.policy.pools.decision import FleetDecision


class Document(StrEnum):
    """What has a published schema."""

    OBSERVATION = "observation"
    DECISION = "decision"
    POOLS_DECISION = "pools-decision"
    RECORDING = "recording"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderLine:
    """A line of a recording that says what the decisions after it rest on."""

    header: Header


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeLine:
    """A line of a recording that says what came of an order."""

    outcome: Outcome


_TYPES: dict[Document, Any] = {
    Document.OBSERVATION: Observation,
    Document.DECISION: Decision,
    Document.POOLS_DECISION: FleetDecision,
    Document.RECORDING: HeaderLine | OutcomeLine | Observation,
}
# The last edge of a histogram is infinite, which JSON has no number for.
_EDGE = {"anyOf": [{"type": "number"}, {"const": "Infinity"}]}


def crd() -> None:
    """Print the CustomResourceDefinitions.

    Example: servingslo crd | kubectl apply --server-side -f -
    """
    typer.echo("---\n".join(render_crds()))


def schema(
    document: Annotated[Document, typer.Argument(help="The file format.")],
) -> None:
    """Print the JSON schema of an observation, a decision, a line of a recording, or a fleet.

    decision: a line of `servingslo plan -o json` for one target; pools-decision: for several pools.

    Example: servingslo schema observation > observation.schema.json
    """
    typer.echo(json.dumps(schema_of(document), indent=2))


def schema_of(document: Document) -> dict[str, Any]:
    """The JSON schema of a document, as it stands in files.

    Raises: LabMissingError for a fleet, where servingslo-lab is not installed.
    """
    described = TypeAdapter(_type_of(document)).json_schema()
    kinds = described.get("$defs", {})
    if "HistogramSample" in kinds:
        kinds["HistogramSample"]["properties"]["upper_bounds"]["items"] = _EDGE
    for kind in (described, *kinds.values()):
        if "properties" in kind:
            # As the readers have it: a name that is not known is misspelt.
            kind["additionalProperties"] = False
    return {"$schema": GenerateJsonSchema.schema_dialect, **described}


def _type_of(document: Document) -> Any:
    known = _TYPES.get(document)
    if known is None:
        # Fleets are simulated: the lab reads their files.
        known = lab.loaded(lab.DOCUMENTS, document.value, f"schema {document.value}")
    return known
