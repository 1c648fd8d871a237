"""How the kernel finds what features bring, without a name of any of them.

A feature is a folder of `servingslo.features` with a row in its catalogue. A module of it is an
aspect: the kernel declares with `Aspect` which modules it looks for and what is in them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast

from servingslo.features.catalogue import FEATURES

T = TypeVar("T")
_PACKAGE = "servingslo.features"
# The name of the one object that a module of an aspect brings.
_OBJECT = "PART"


@dataclass(frozen=True)
class Aspect(Generic[T]):
    """One kind of thing that a feature may bring, as `PART` of its module of this name."""

    module: str

    def parts(self) -> tuple[T, ...]:
        """What each feature brings, in the order of the catalogue."""
        return cast("tuple[T, ...]", _parts(self.module))


@dataclass(frozen=True)
class Key(Generic[T]):
    """The place of a feature's value in a mapping over features.

    name: in snake_case; in camelCase it is the field's name in status and documents.
    """

    name: str
    kind: type[T]

    def of(self, values: Mapping[str, object]) -> T | None:
        """The value of the feature; None if it has none there."""
        found = values.get(self.name)
        return found if isinstance(found, self.kind) else None


@cache
def _parts(module: str) -> tuple[Any, ...]:
    names = (f"{_PACKAGE}.{feature}.{module}" for feature in FEATURES)
    return tuple(getattr(import_module(name), _OBJECT) for name in names if find_spec(name))
