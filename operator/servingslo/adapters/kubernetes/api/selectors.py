"""Label selectors, in the string form of /scale and in the form of a workload's spec.

Source: k8s.io/apimachinery pkg/labels/selector.go (grammar of the string form) and
meta/v1 LabelSelector.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servingslo.errors import InvalidObjectError

_SET_BASED = re.compile(r"^(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^!=\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>\S*)$")
_KEY = re.compile(r"^(?P<negation>!?)\s*(?P<key>[^!=\s(),]+)$")
# A requirement up to the next comma outside of brackets.
_PART = re.compile(r"(?:[^,(]|\([^)]*\)?)+")
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement on a label: operator is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy it; NotIn is true if the label is absent, as upstream."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        return (value is not None) == (self.operator == "Exists")


Selector = tuple[Requirement, ...]


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether the labels satisfy every requirement; an empty selector matches nothing here.

    Upstream, an empty selector matches every pod; for a workload that is always a mistake.
    """
    return bool(selector) and all(requirement.matches(labels) for requirement in selector)


def parse_selector(text: str) -> Selector:
    """The selector of a string such as 'app=chat,tier in (a,b),!canary'.

    Raises: InvalidObjectError if it is invalid.
    """
    parts = (part.strip() for part in _PART.findall(text))
    return tuple(_parse_requirement(part) for part in parts if part)


def selector_from_spec(spec: Mapping[str, Any] | None) -> Selector:
    """The selector of a LabelSelector object (matchLabels, matchExpressions)."""
    spec = spec or {}
    labels: Mapping[str, str] = spec.get("matchLabels") or {}
    expressions: Sequence[Mapping[str, Any]] = spec.get("matchExpressions") or ()
    return (
        *(Requirement(key=key, operator="In", values=(value,)) for key, value in labels.items()),
        *(
            Requirement(
                key=expression["key"],
                operator=expression["operator"],
                values=tuple(expression.get("values") or ()),
            )
            for expression in expressions
        ),
    )


def _parse_requirement(text: str) -> Requirement:
    if found := _SET_BASED.match(text):
        values = tuple(value.strip() for value in found["values"].split(","))
        operator = "In" if found["operator"] == "in" else "NotIn"
        return Requirement(key=found["key"], operator=operator, values=values)
    if found := _EQUALITY.match(text):
        operator = "NotIn" if found["operator"] == "!=" else "In"
        return Requirement(key=found["key"], operator=operator, values=(found["value"],))
    if found := _KEY.match(text):
        operator = "DoesNotExist" if found["negation"] else "Exists"
        return Requirement(key=found["key"], operator=operator)
    shown = text[:_SHOWN_CHARACTERS]
    raise InvalidObjectError(f"selector: {shown!r} is not a label requirement")
