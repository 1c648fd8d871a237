"""JSON values of a status, which may have been edited: each is what it should be, or None."""

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

# Source: Kubernetes, object names: a DNS subdomain of at most 253 characters (RFC 1123).
LONGEST_NAME = 253


def rounded(values: Sequence[float], digits: int) -> list[float]:
    """The values with so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in values]


def numbers_of(stored: object, count: int | None) -> tuple[float, ...] | None:
    """Finite numbers, so many of them unless count is None."""
    values = items_of(stored)
    if (count is not None and len(values) != count) or not all(map(is_number, values)):
        return None
    return tuple(float(v) for v in values)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number; a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def is_count(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number, 0 or more, that a float holds exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def items_of(value: object) -> list[Any]:
    """The items of a list; none of anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def text_of(value: object) -> str | None:
    """A string, as long as the longest name; None for anything else."""
    return value[:LONGEST_NAME] if isinstance(value, str) else None
