"""The decision in a resource's status, as the dataclass that it was made from."""

import dataclasses
import re
from collections.abc import Mapping
from datetime import datetime
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from servingslo.api.refusals import first_refusal
from servingslo.errors import InvalidInputError
from servingslo.packing import unpacked
from servingslo.policy.decision import Decision
from servingslo.policy.insights import INSIGHT, Insight
from servingslo.policy.knobs.catalogue import KEYS
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.division import DIVIDER, Divider

_CAPITAL = re.compile(r"(?<!^)([A-Z])")


def last_document(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The document of `status.lastDecision`; None where nothing was decided.

    Former versions wrote it as fields; now it is packed.
    Raises: InvalidInputError when it cannot be unpacked.
    """
    record: Mapping[str, Any] | None = status.get("lastDecision")
    # As read from the API server, it is in the status' last field.
    last: Mapping[str, Any] = status.get("workingState") or {}
    packed = (record or {}).get("document") or last.get("decision")
    if not record or not packed:
        return record if record and record.get("action") else None
    try:
        found = unpacked(str(packed))
    except ValueError as error:
        field = "status.lastDecision.document"
        raise InvalidInputError(field, str(error), "what the operator wrote") from error
    if not isinstance(found, dict):
        raise InvalidInputError("status.lastDecision.document", found, "a JSON object")
    return found


def decision_of(document: Mapping[str, Any], namespace: str, name: str) -> Decision:
    """The decision of a document: what was left out there is unknown.

    Raises: InvalidInputError when it is not the document of a decision.
    """
    filled = _filled(Decision, document)
    filled |= {"namespace": namespace, "name": name, "time_seconds": _seconds(document)}
    try:
        filled["knobs"], filled["features"] = _knobs(document), _features(document)
        return TypeAdapter(Decision).validate_python(filled)
    except ValidationError as error:
        raise first_refusal(error, "status.lastDecision") from error


def fleet_of(document: Mapping[str, Any], namespace: str, name: str) -> FleetDecision:
    """The decision of a document, of several pools or of a single target.

    Raises: InvalidInputError when it is not the document of a decision.
    """
    pools = document.get("pools")
    if not isinstance(pools, Mapping):
        return FleetDecision.of(decision_of(document, namespace, name))
    filled = _filled(FleetDecision, {key: document[key] for key in document if key != "pools"})
    filled |= {"namespace": namespace, "name": name, "time_seconds": _seconds(document)}
    filled["pools"] = {pool: decision_of(each, namespace, name) for pool, each in pools.items()}
    filled["roles"] = dict(document.get("roles") or {})
    try:
        filled["features"] = _features(document)
        return TypeAdapter(FleetDecision).validate_python(filled)
    except ValidationError as error:
        raise first_refusal(error, "status.lastDecision") from error


def _knobs(document: Mapping[str, Any]) -> dict[str, KnobDecision]:
    """What the built-in knobs decided; of another one only its own program can read it."""
    given = {_snake(key): value for key, value in document.items()}
    return {
        name: TypeAdapter(key.kind).validate_python(_filled(key.kind, given[key.name]))
        for name, key in KEYS.items()
        if isinstance(given.get(key.name), Mapping)
    }


def _features(document: Mapping[str, Any]) -> dict[str, object]:
    """What each feature reported."""
    given = {_snake(key): value for key, value in document.items()}
    parts: tuple[Insight | Divider, ...] = (*INSIGHT.parts(), *DIVIDER.parts())
    return {
        key.name: TypeAdapter(key.kind).validate_python(_filled(key.kind, given[key.name]))
        for key in (one.key for one in parts)
        if isinstance(given.get(key.name), Mapping)
    }


def _seconds(document: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(document["time"])).timestamp()
    except (KeyError, ValueError) as error:
        value = document.get("time")
        raise InvalidInputError("status.lastDecision.time", value, "a timestamp") from error


def _filled(kind: Any, document: Any) -> dict[str, Any]:
    """Names in snake_case, and None for each field without a default that was left out."""
    given = {_snake(key): value for key, value in dict(document).items()}
    hints = get_type_hints(kind)
    filled: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in given:
            filled[field.name] = _value(hints[field.name], given[field.name])
        elif _is_required(field):
            # Counts and flags of a step are None where the document had nothing for them.
            filled[field.name] = {} if dataclasses.is_dataclass(hints[field.name]) else None
    return filled


def _value(hint: Any, value: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        kinds = [kind for kind in inner if dataclasses.is_dataclass(kind)]
        return _value(kinds[0], value) if kinds and isinstance(value, Mapping) else value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _filled(hint, value)
    if origin is tuple and isinstance(value, list):
        return [_value(inner[0], item) for item in value]
    if isinstance(value, Mapping):
        return {_snake(key): item for key, item in value.items()}
    return value


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _snake(name: str) -> str:
    return _CAPITAL.sub(r"_\1", name).lower()
