"""Store state over a restart, with one table of fields for each class.

A status may have been edited by hand or written by another version, and each field that is written
must be read back. So a class has one table; its `Record` both dumps and loads:

    Record(Surge, Numbers(Number("start_seconds", decimals=0), Number("peak_per_second", least=0)))

A `Part` reads fields from one JSON value: `Numbers` a list of numbers, `One` a single field, `Many`
a tuple of records, `Items` a list of parts, `Keys` an object. A field may be dotted: "errors.due".
An unreadable field is None and keeps its default, unless the table needs it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

# Source: Kubernetes, object names: a DNS subdomain of at most 253 characters (RFC 1123).
LONGEST_NAME = 253
# No time, count or latency of ours can be larger; it also keeps infinity out.
LARGEST_NUMBER = 1e15

T = TypeVar("T")
Fields = dict[str, Any]


class Part(Protocol):
    """Some fields of a class as one JSON value."""

    def dump(self, value: Any) -> Any:
        """Return the JSON value of these fields of an object."""

    def read(self, stored: object) -> Fields | None:
        """Return the fields in a JSON value; None if it is malformed."""


class Codec(Protocol):
    """One value as JSON, and back."""

    def dump(self, value: Any) -> Any:
        """Return the JSON value; None for None."""

    def load(self, stored: object) -> Any:
        """Return the value; None if it is malformed."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A plain value: how to round it, and how to load it from JSON."""

    round: Callable[[Any], Any]
    load: Callable[[object], Any]

    def dump(self, value: Any) -> Any:
        """The value, rounded."""
        return None if value is None else self.round(value)


def decimal(digits: int, least: float = -math.inf) -> Scalar:
    """A number with so many decimals, at least `least`."""

    def load(stored: object) -> float | None:
        return float(stored) if is_number(stored) and stored >= least else None

    return Scalar(lambda value: round(value, digits), load)


class Record(Generic[T]):
    """A class and its table of fields."""

    def __init__(
        self,
        make: type[T],
        part: Part,
        *,
        nested: Mapping[str, type] | None = None,
        finish: Callable[[T], T | None] | None = None,
        blank: Callable[[T], bool] | None = None,
    ) -> None:
        """nested: classes of dotted fields, by the name before the dot.

        finish: completes a loaded value, or refuses it with None. blank: values for which nothing
        is stored.
        """
        self._make = make
        self._part = part
        self._nested = nested or {}
        self._finish = finish
        self._blank = blank

    def dump(self, value: T | None) -> Any:
        """Return the fields as a JSON value; None for a blank value."""
        if value is None or (self._blank is not None and self._blank(value)):
            return None
        return self._part.dump(value)

    def load(self, stored: object) -> T | None:
        """Return the stored value; None if a needed field is malformed."""
        fields = self._part.read(stored)
        if fields is None:
            return None
        own = {name: value for name, value in fields.items() if "." not in name}
        for name, inner in self._nested.items():
            mark = f"{name}."
            found = {n.removeprefix(mark): v for n, v in fields.items() if n.startswith(mark)}
            own[name] = inner(**found)
        value = self._make(**own)
        return value if self._finish is None else self._finish(value)


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a list of numbers, or several in a tuple.

    digits: significant ones, None for all. decimals: used in place of digits. count: numbers in a
    tuple. rest: a tuple of all numbers that follow. least, most: values outside are malformed.
    bounds: values outside are clipped. whole: an int. zero_for_none: None is stored as 0.
    """

    field: str
    digits: int | None = None
    decimals: int | None = None
    count: int | None = None
    rest: bool = False
    least: float = -math.inf
    most: float = math.inf
    bounds: tuple[float, float] = (-math.inf, math.inf)
    whole: bool = False
    zero_for_none: bool = False

    def dump(self, value: Any) -> list[float]:
        """Return one number, or those of a tuple."""
        found = attrgetter(self.field)(value)
        many = found if self.count is not None or self.rest else (found,)
        return [self._round(number or 0.0 if self.zero_for_none else number) for number in many]

    def _round(self, number: float) -> float:
        if self.decimals is not None:
            return round(number, self.decimals or None)
        return number if self.digits is None else round_digits((number,), self.digits)[0]

    def load(self, numbers: Sequence[float]) -> Any:
        """Return the value of the field.

        Raises: ValueError if it is out of range.
        """
        low, high = self.bounds
        found = tuple(min(max(number, low), high) for number in numbers)
        out = any(not self.least <= number <= self.most for number in numbers)
        if out or (self.whole and not all(number.is_integer() for number in numbers)):
            raise ValueError(self.field)
        if self.count is not None or self.rest:
            return found
        if self.zero_for_none and not found[0]:
            return None
        return int(found[0]) if self.whole else found[0]


class Numbers:
    """A list of numbers, each a field."""

    def __init__(self, *numbers: Number) -> None:
        self._numbers = numbers

    def dump(self, value: Any) -> list[float]:
        """Return the numbers of all fields in a row."""
        return [number for column in self._numbers for number in column.dump(value)]

    def read(self, stored: object) -> Fields | None:
        """Return the fields; None if a number is missing, surplus or out of range."""
        row = numbers_of(stored) if isinstance(stored, list | tuple) else None
        if row is None:
            return None
        fields: Fields = {}
        at = 0
        for column in self._numbers:
            end = len(row) if column.rest else at + (column.count or 1)
            if end > len(row):
                return None
            try:
                fields[column.field] = column.load(row[at:end])
            except ValueError:
                return None
            at = end
        return fields if at == len(row) else None


class One:
    """A single field."""

    def __init__(self, field: str, codec: Codec) -> None:
        self._field = field
        self._codec = codec

    def dump(self, value: Any) -> Any:
        """The field's JSON value."""
        return self._codec.dump(attrgetter(self._field)(value))

    def read(self, stored: object) -> Fields | None:
        """The field; None if it is malformed."""
        value = self._codec.load(stored)
        return None if value is None else {self._field: value}


class Many:
    """A tuple of records; malformed ones are left out."""

    def __init__(self, field: str, codec: Codec, most: int, *, newest_last: bool = False) -> None:
        """most: store at most so many, the last ones if the newest comes last."""
        self._field = field
        self._codec = codec
        self._kept = slice(-most, None) if newest_last else slice(most)

    def dump(self, value: Any) -> list[Any]:
        """Return the JSON values of the stored records."""
        return [self._codec.dump(one) for one in attrgetter(self._field)(value)[self._kept]]

    def read(self, stored: object) -> Fields:
        """Return the field; empty if nothing of it can be read."""
        found = [self._codec.load(one) for one in items_of(stored)]
        return {self._field: tuple(one for one in found if one is not None)[self._kept]}


class Items:
    """A list of parts in this order."""

    def __init__(self, *parts: Part, needed: bool = False, optional: int = 0) -> None:
        """needed: whether all must be readable. optional: so many at the end may be absent."""
        self._parts = parts
        self._needed = needed
        self._optional = optional

    def dump(self, value: Any) -> list[Any]:
        """Return the parts' values, without optional None values at the end."""
        found = [part.dump(value) for part in self._parts]
        while self._optional and found[-1] is None:
            found.pop()
        return found

    def read(self, stored: object) -> Fields | None:
        """The fields of all parts."""
        items = items_of(stored)
        if not len(self._parts) - self._optional <= len(items) <= len(self._parts):
            return None
        fields: Fields = {}
        for part, item in zip(self._parts, items, strict=False):
            found = part.read(item)
            if found is None and self._needed:
                return None
            fields |= found or {}
        return fields


class Keys:
    """An object with a part for each key."""

    def __init__(
        self, parts: Mapping[str, Part], *, needed: Sequence[str] = (), sparse: Sequence[str] = ()
    ) -> None:
        """needed: keys without which nothing is read. sparse: keys that are left out if null."""
        self._parts = parts
        self._needed = frozenset(needed)
        self._sparse = frozenset(sparse)

    def dump(self, value: Any) -> Fields:
        """The JSON object."""
        found = {key: part.dump(value) for key, part in self._parts.items()}
        return {k: v for k, v in found.items() if v is not None or k not in self._sparse}

    def read(self, stored: object) -> Fields | None:
        """Return the fields of all keys; None if a needed one is malformed."""
        if not isinstance(stored, Mapping):
            return None
        fields: Fields = {}
        for key, part in self._parts.items():
            found = part.read(stored.get(key))
            if found is None and key in self._needed:
                return None
            fields |= found or {}
        return fields


def round_digits(values: Sequence[float], digits: int) -> list[float]:
    """Return the values with so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in values]


def numbers_of(stored: object) -> tuple[float, ...] | None:
    """Return finite numbers; None if there is anything else."""
    values = items_of(stored)
    return tuple(float(v) for v in values) if all(map(is_number, values)) else None


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether it is a finite number; a boolean is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether it is a whole number, 0 or more, that a float holds exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def number_of(value: object) -> float | None:
    """A finite number of 0 or more; None for anything else, booleans included."""
    return float(value) if is_number(value) and 0 <= value < LARGEST_NUMBER else None


def count_of(value: object) -> int | None:
    """A whole number of 0 or more; None for anything else."""
    number = number_of(value)
    return int(number) if number is not None and number == int(number) else None


def items_of(value: object) -> list[Any]:
    """Return the items of a list; none for anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def text_of(value: object) -> str | None:
    """Return a string, at most as long as the longest name; None for anything else."""
    return value[:LONGEST_NAME] if isinstance(value, str) else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= LONGEST_NAME else None


TEXT = Scalar(str, text_of)
NAME = Scalar(str, _name)
COUNT = Scalar(int, lambda stored: stored if is_count(stored) else None)
