"""Convert pydantic's errors to the wording of all messages of this package."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from servingslo.errors import InvalidInputError

MAX_SHOWN_LENGTH = 200
# Allowed values by pydantic error, in the wording of the API server's messages.
_ALLOWED_BY_ERROR = {
    "missing": "a value; the field is required",
    "extra_forbidden": "no such field in this version",
    "unexpected_keyword_argument": "no such field in this version",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
    "dict_type": "an object",
    "tuple_type": "an array",
    "greater_than_equal": "{ge:.12g} or more",
    "less_than_equal": "{le:.12g} or less",
}
_BOUNDED = frozenset({"greater_than_equal", "less_than_equal"})


def first_refusal(
    error: ValidationError, where: str = "", *, skipped: int = 0
) -> InvalidInputError:
    """The first problem, with its path after `where`.

    skipped: number of leading path parts that are not the user's.
    """
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    inner = context.get("path", ())
    # A refused key is itself the last part of the path.
    location = [part for part in first["loc"][skipped:] if part != "[key]"]
    path = path_of((*location, *inner), "").removeprefix(".")
    field = ": ".join(part for part in (where, path) if part)
    value = shown(context["value"]) if inner else refused_value(first)
    return InvalidInputError(field, value, allowed(first, context))


def refused_value(error: ErrorDetails) -> object:
    """The value, shortened if it is too long for a condition; None if there is none."""
    return None if error["type"] == "missing" else shown(error["input"])


def shown(value: object) -> object:
    """The value, shortened if it is too long for a condition."""
    text = repr(value)
    return value if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."


def path_of(location: Iterable[int | str], root: str) -> str:
    """The path as kubectl writes it: spec.objectives[1].threshold."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return root + "".join(parts)


def allowed(error: ErrorDetails, context: Mapping[str, Any]) -> str:
    """The allowed values, in words."""
    if error["type"] == "not_allowed":
        return str(context["allowed"])
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] in {"enum", "literal_error"}:
        return str(context["expected"])
    if error["type"] == "too_short":
        return f"at least {context['min_length']} items"
    if error["type"] == "too_long":
        return f"at most {context['max_length']} items"
    words = _ALLOWED_BY_ERROR.get(error["type"], error["msg"])
    # The words contain the bound of a number by its name.
    return words.format_map(context) if error["type"] in _BOUNDED else words
