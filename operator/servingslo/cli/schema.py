"""`servingslo schema`: JSON schemas of what is exchanged in files, from the dataclasses in use."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Observation


class Document(StrEnum):
    """What has a published schema."""

    OBSERVATION = "observation"
    DECISION = "decision"


_TYPES: dict[Document, Any] = {
    Document.OBSERVATION: Observation,
    Document.DECISION: Decision,
}


def schema(
    document: Annotated[Document, typer.Argument(help="What to describe.")],
) -> None:
    """Print the JSON schema of an observation or a decision.

    Example: servingslo schema observation > observation.schema.json
    """
    typer.echo(json.dumps(TypeAdapter(_TYPES[document]).json_schema(), indent=2))
