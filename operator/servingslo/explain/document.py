"""A decision as a JSON document for status.lastDecision, and as one line for the history."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from servingslo.explain.format import joined, replica_change, rounded
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.catalogue import KEYS
from servingslo.policy.knobs.decisions import BUILT_IN
from servingslo.policy.knobs.protocol import KNOB
from servingslo.units import timestamp_from_seconds

MAX_DOCUMENT_BYTES = 8 * 1024
MAX_SUMMARY_LENGTH = 256

JSONValue = float | int | str | bool | list["JSONValue"] | dict[str, "JSONValue"] | None

# The status already holds the name of its own resource.
_LEFT_OUT = frozenset({"namespace", "name", "time_seconds"})
# Parts to drop, in this order, if a document is too long; the head always stays.
_FEATURES = "features"
_DROPPED_FIRST = ("predictedCounts", _FEATURES, "steps", "needs", "objectives", "demand")
# Longest input value or detail, in characters.
_TEXT_LENGTH = 512


def as_dict(decision: Decision, most_bytes: int = MAX_DOCUMENT_BYTES) -> dict[str, JSONValue]:
    """The decision with camelCase names and rounded numbers, at most this long as JSON.

    Unknown values are left out. If it would be longer, first the inputs of steps are dropped, then
    whole lists; `truncated` then reports it.
    """
    document: dict[str, JSONValue] = {"time": timestamp_from_seconds(decision.time_seconds)}
    for name, member in _members(decision):
        value = plain(member)
        if value is not None and value not in ([], {}, ""):
            document[camel(name)] = value
    return _bounded(document, most_bytes, tuple(map(camel, decision.features)))


def _members(decision: Decision) -> Iterator[tuple[str, object]]:
    """The fields by name, with each built-in knob and feature under a name of its own."""
    for field in fields(decision):
        if field.name == "knobs":
            yield from ((key.name, getattr(decision, key.name)) for key in BUILT_IN.values())
            parts = (one for one in KNOB.parts() if one.name not in BUILT_IN)
            yield from ((one.key.name, decision.knobs.get(one.name)) for one in parts)
            others = decision.knobs.keys() - KEYS.keys()
            yield field.name, {name: decision.knobs[name] for name in sorted(others)}
        elif field.name == _FEATURES:
            yield from decision.features.items()
        elif field.name not in _LEFT_OUT:
            yield field.name, getattr(decision, field.name)


def summary_line(decision: Decision) -> str:
    """One line for status.decisions: '2026-11-21T12:00:00Z scale-up 3->5 kv-cache KVCacheBound'."""
    at = timestamp_from_seconds(decision.time_seconds)
    words = (at, decision.action, replica_change(decision), decision.binding, decision.reason)
    return joined(words, " ")[:MAX_SUMMARY_LENGTH]


def plain(value: object) -> JSONValue:
    """The value in JSON's types, with camelCase names and rounded numbers."""
    if isinstance(value, Enum):
        return str(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        members = {camel: _field(name, getattr(value, name)) for name, camel in _names(type(value))}
        return {name: plain for name, plain in members.items() if plain not in (None, {}, [], "")}
    if isinstance(value, Mapping):
        return {camel(str(name)): plain(member) for name, member in value.items()}
    if isinstance(value, tuple | list):
        return [plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no infinity; an infinite number is an unknown one
    if value is None or isinstance(value, bool | int | float | str):
        return value[:_TEXT_LENGTH] if isinstance(value, str) else rounded(value)
    raise TypeError(f"a decision cannot hold a {type(value).__name__}")


def _field(name: str, value: object) -> JSONValue:
    """A field in JSON's types: a time to the second, which four digits would move by weeks."""
    if name.endswith("_at_seconds") and isinstance(value, float) and math.isfinite(value):
        return round(value)
    return plain(value)


@cache
def _names(kind: Any) -> tuple[tuple[str, str], ...]:
    """The fields of a dataclass, and their names in camelCase."""
    return tuple((field.name, camel(field.name)) for field in fields(kind))


def camel(name: str) -> str:
    """A name in camelCase."""
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest)


def _bounded(
    document: dict[str, JSONValue], most_bytes: int, features: tuple[str, ...]
) -> dict[str, JSONValue]:
    if _length(document) <= most_bytes:
        return document
    document = {**document, "truncated": True}
    steps = document.get("steps")
    if isinstance(steps, list):
        kept = (step for step in steps if isinstance(step, dict))
        document["steps"] = [{n: one for n, one in step.items() if n != "inputs"} for step in kept]
    for name in _DROPPED_FIRST:
        if _length(document) <= most_bytes:
            break
        for one in features if name == _FEATURES else (name,):
            document.pop(one, None)
    return document


def _length(document: dict[str, JSONValue]) -> int:
    return len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
