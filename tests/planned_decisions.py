"""Reads what `servingslo plan -o json` prints."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from servingslo.policy.decision import Decision
from servingslo.policy.insights import INSIGHT
from servingslo.policy.knobs.catalogue import KEYS


def decisions_of(out: str) -> list[Decision]:
    """One decision a line."""
    return [decision_of_json(json.loads(line)) for line in out.splitlines()]


def decision_of_json(document: Mapping[str, Any]) -> Decision:
    """The part of each knob and feature is of a type of its own."""
    knobs = {
        name: TypeAdapter(KEYS[name].kind).validate_python(one)
        for name, one in document["knobs"].items()
    }
    keys = {one.key.name: one.key for one in INSIGHT.parts()}
    features = {
        name: TypeAdapter(keys[name].kind).validate_python(one)
        for name, one in document["features"].items()
    }
    return TypeAdapter(Decision).validate_python({**document, "knobs": knobs, "features": features})
