"""Ranges of single fields, defined once for both pydantic and the API server's CEL.

An `Annotated[type, Between(1, 8)]` refuses values in Python, with the allowed range in the message.
It adds the same rule, with the same words, to the generated schema.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, Strict
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from servingslo.errors import InvalidInputError
from servingslo.units import parse_duration_seconds, parse_quantity_bytes

T = TypeVar("T")

RULES = "x-kubernetes-validations"
# CEL's duration() accepts what Go does: no days, and at most 292 years. Three parts of six digits
# of hours fit in 20 characters and stay below that.
DURATION_PATTERN = r"^([0-9]{1,6}([.][0-9]{1,6})?(s|m|h)|[0-9]{1,9}([.][0-9]{1,6})?ms)+$"
DURATION_MAX_LENGTH = 20
QUANTITY_MAX_LENGTH = 32
# A sanity bound, far above any fleet, so that no tenant can make a plan expensive.
MAX_REPLICAS = 10_000
MAX_QUANTITY = "1Pi"  # a sanity bound, far above the memory of any replica

# Like in the API server, numbers are not read from strings or booleans.
Count = Annotated[int, Strict()]
Number = Annotated[float, Strict()]


def keyed_by(*keys: str) -> dict[str, Any]:
    """Schema of a list that several field managers share: these keys identify an item.

    Source: Kubernetes, "Server-Side Apply", merge strategy.
    """
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def not_allowed(
    allowed: str, *, path: tuple[str | int, ...] = (), value: object = None
) -> PydanticCustomError:
    """The error of a value outside its range; path and value if they are not pydantic's own."""
    context: dict[str, Any] = {"allowed": allowed, "path": path}
    if path:
        context["value"] = value
    return PydanticCustomError("not_allowed", "allowed: {allowed}", context)


def cel_rule(
    rule: str,
    *,
    allowed: str,
    got: str,
    values: tuple[str, ...] = (),
    field_path: str | None = None,
    reason: str = "FieldValueInvalid",
) -> dict[str, Any]:
    """One CEL rule of the schema, with its message.

    allowed, got: words of the message, with %s for each of values, which are CEL expressions.
    Formatting has a fixed cost. Joining strings of numbers would exceed the API server's cost
    budget, because it does not know their length.
    """
    extra = {} if field_path is None else {"fieldPath": field_path}
    message = f"'allowed: {allowed}; got {got}'"
    if values:
        message += f".format([{', '.join(values)}])"
    return {"rule": rule, "messageExpression": message, "reason": reason, **extra}


class _Checked(Generic[T]):
    """A range that pydantic checks after the field's own schema."""

    __slots__ = ()

    def check(self, value: T) -> T:
        """The value itself. Raises: PydanticCustomError outside the range."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """The field's own schema, then the range."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))


class _CheckedText(_Checked[str]):
    """A range of a string with a form of its own; another type is refused in the same words."""

    __slots__ = ()

    @property
    def allowed(self) -> str:
        """The range in words."""
        raise NotImplementedError

    def text(self, value: object) -> object:
        """The value itself. Raises: PydanticCustomError for another type, such as a number."""
        if not isinstance(value, str):
            raise not_allowed(self.allowed)
        return value

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """The type, the field's own schema, then the range."""
        schema = super().__get_pydantic_core_schema__(source, handler)
        return core_schema.no_info_before_validator_function(self.text, schema)


@dataclass(frozen=True, slots=True)
class Between(_Checked[float]):
    """A number from low to high, both included; without high there is no upper bound."""

    low: float
    high: float | None = None

    @property
    def allowed(self) -> str:
        """The range in words."""
        low = _plain(self.low)
        return f"{low} or more" if self.high is None else f"from {low} to {_plain(self.high)}"

    def check(self, value: float) -> float:
        """The value itself. Raises: PydanticCustomError outside the range."""
        if value < self.low or (self.high is not None and value > self.high):
            raise not_allowed(self.allowed)
        return value

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """A CEL rule: the schema's minimum and maximum would each show only half of the range."""
        schema = handler(core)
        literal = repr if schema["type"] == "number" else lambda value: str(round(value))
        bounds = [f"self >= {literal(float(self.low))}"]
        if self.high is not None:
            bounds.append(f"self <= {literal(float(self.high))}")
        rule = cel_rule(" && ".join(bounds), allowed=self.allowed, got="%s", values=("self",))
        return {**schema, RULES: [rule]}


def _plain(value: float) -> str:
    """A number as it is written in a manifest: no exponent where it is whole."""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


@dataclass(frozen=True, slots=True)
class DurationBetween(_CheckedText):
    """A duration such as 500ms, 2s, 1m30s or 1h from low to high, or one of the words."""

    low: str
    high: str
    word: str | None = None

    @property
    def allowed(self) -> str:
        """The range in words, with the syntax by example."""
        either = "" if self.word is None else f"{self.word}, or "
        return f"{either}a duration from {self.low} to {self.high} (such as 500ms, 2s, 1m30s, 1h)"

    def check(self, value: str) -> str:
        """The value itself. Raises: PydanticCustomError for bad syntax or outside the range."""
        if value == self.word:
            return value
        if len(value) > DURATION_MAX_LENGTH or not re.fullmatch(DURATION_PATTERN, value):
            raise not_allowed(self.allowed)
        seconds = parse_duration_seconds(value)
        if not parse_duration_seconds(self.low) <= seconds <= parse_duration_seconds(self.high):
            raise not_allowed(self.allowed)
        return value

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """A CEL rule; its own pattern check comes first, so that duration() never fails."""
        within = (
            f"self.matches(r'{DURATION_PATTERN}') && duration(self) >= duration('{self.low}')"
            f" && duration(self) <= duration('{self.high}')"
        )
        rule = within if self.word is None else f"self == '{self.word}' || ({within})"
        return {
            **handler(core),
            "maxLength": DURATION_MAX_LENGTH,
            RULES: [cel_rule(rule, allowed=self.allowed, got="%s", values=("self",))],
        }


@dataclass(frozen=True, slots=True)
class QuantityFrom(_CheckedText):
    """A Kubernetes quantity such as 16Gi or 80G, from low bytes to 1Pi."""

    low: int

    @property
    def allowed(self) -> str:
        """The range in words, with the syntax by example."""
        return f"a quantity from {self.low} to {MAX_QUANTITY} bytes (such as 16Gi, 80G)"

    def check(self, value: str) -> str:
        """The value itself. Raises: PydanticCustomError for bad syntax or outside the range."""
        try:
            size = parse_quantity_bytes(value)
        except InvalidInputError:
            raise not_allowed(self.allowed) from None
        if (
            not self.low <= size <= parse_quantity_bytes(MAX_QUANTITY)
            or len(value) > QUANTITY_MAX_LENGTH
        ):
            raise not_allowed(self.allowed)
        return value

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """A CEL rule that uses the API server's own quantity library."""
        rule = (
            # Kubernetes reads a quantity without any digit, such as 'Gi', as zero.
            "isQuantity(self) && self.matches('^[+-]?[.]?[0-9]')"
            f" && quantity(self).compareTo(quantity('{self.low}')) >= 0"
            f" && quantity(self).compareTo(quantity('{MAX_QUANTITY}')) <= 0"
        )
        return {
            **handler(core),
            "maxLength": QUANTITY_MAX_LENGTH,
            RULES: [cel_rule(rule, allowed=self.allowed, got="%s", values=("self",))],
        }


@dataclass(frozen=True, slots=True)
class Matching(_Checked[str]):
    """A string that fully matches the pattern, 1 to max_length characters; words describe it."""

    pattern: str
    words: str
    max_length: int

    def check(self, value: str) -> str:
        """The value itself. Raises: PydanticCustomError if it does not match."""
        if len(value) > self.max_length or not re.fullmatch(self.pattern, value):
            raise not_allowed(self.words)
        return value

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """A CEL rule: a schema pattern would show a regular expression instead of words."""
        return {
            **handler(core),
            "maxLength": self.max_length,
            RULES: [
                cel_rule(
                    f"self.matches(r'{self.pattern}')",
                    # The message is a format string.
                    allowed=self.words.replace("%", "%%"),
                    got="%s",
                    values=("self",),
                )
            ],
        }
