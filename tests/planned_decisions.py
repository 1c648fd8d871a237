"""Reads what `servingslo plan -o json` prints."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from servingslo.policy.decision import Decision
from servingslo.policy.knobs.decisions import DECISION_TYPES


def decisions_of(out: str) -> list[Decision]:
    """One decision a line."""
    return [decision_of_json(json.loads(line)) for line in out.splitlines()]


def decision_of_json(document: Mapping[str, Any]) -> Decision:
    """Each knob's part is of a type of its own."""
    knobs = {
        name: TypeAdapter(DECISION_TYPES[name]).validate_python(one)
        for name, one in document["knobs"].items()
    }
    return TypeAdapter(Decision).validate_python({**document, "knobs": knobs})
