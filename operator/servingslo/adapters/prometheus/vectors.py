"""An instant answer of Prometheus by groups of series, read without an object for each sample.

A histogram of an engine is twenty series whose labels differ in `le` alone, and every metric of an
engine has the same labels but for its name. So labels are parsed once for all of them. What is not
written as Prometheus writes it is read as any JSON.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, overload

from servingslo.parsing import parsed_json

NAME_LABEL = "__name__"
EDGE_LABEL = "le"
_BEGIN = '{"metric":{'
_VALUE = '},"value":['
_NAME = '"__name__":"'
_EDGE = '"le":"'
_END = '"]}'
_NEXT = '"]},'
_UP_TO_VALUE_END = -len(_NEXT)
# A quote inside of a string is escaped, so what is looked for never begins in one.
_ESCAPE = "\\"

# Of buckets that follow each other: the text up to the edge, the text from there to the value, the
# place of the edge, how far behind its end the value is, and the values so far.
_Run = tuple[str, str, int, int, dict[str, float]]
_NO_RUN: _Run = ("no series begins so", "", 0, 0, {})


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Labels of series, without name and edge. Equal ones of one reading are one object."""

    by_name: Mapping[str, str]


@dataclass(slots=True)
class Known:
    """The labels that were parsed in this reading."""

    by_text: dict[object, Labels] = field(default_factory=dict)

    def labels(self, text: str) -> Labels:
        """The labels in a part of a JSON object."""
        labels = self.by_text.get(text)
        if labels is None:
            labels = self.by_text[text] = Labels(parsed_json(f"{{{text.removesuffix(',')}}}"))
        return labels


class Group(NamedTuple):
    """Series that differ in their bucket's edge alone. values: by edge; '' without that label."""

    name: str
    labels: Labels
    values: dict[str, float]


class Vector(Sequence[Mapping[str, Any]]):
    """The series of an instant answer; each is an object only when it is looked at."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [_series(part) for part in self._parts[place]]
        return _series(self._parts[place])

    def groups(self, known: Known) -> Iterator[Group]:
        """Its series by name and labels; one that is repeated counts once.

        The buckets of a histogram mostly follow each other. Then each is compared with the one
        before it, up to its edge and from there to its value.
        """
        found: dict[tuple[str, str], Group] = {}
        escaped = []
        before, after, edge_at, value_at, values = _NO_RUN
        for part in self._parts:
            if part.startswith(before):
                end = part.index('"', edge_at)
                if part.startswith(after, end):
                    edge = part[edge_at:end]
                    if edge not in values:
                        values[edge] = float(part[end + value_at : _UP_TO_VALUE_END])
                    continue
            text, _, rest = part.partition(_VALUE)
            if _ESCAPE in text:
                escaped.append(_series(part))
                continue
            value = float(rest[rest.index('"') + 1 : _UP_TO_VALUE_END])
            name, labels, edge = "", text, ""
            if text.startswith(_NAME):
                end = text.index('"', len(_NAME))
                name, labels = text[len(_NAME) : end], text[end + 2 :]
            place = labels.find(_EDGE)
            if place >= 0:
                end = labels.index('"', place + len(_EDGE))
                edge, labels = labels[place + len(_EDGE) : end], labels[:place] + labels[end + 2 :]
            group = found.get((name, labels))
            if group is None:
                found[name, labels] = group = Group(name, known.labels(labels), {})
            group.values.setdefault(edge, value)
            if place >= 0:
                before, after, edge_at, value_at, values = _run(part, group.values)
        yield from found.values()
        yield from groups_of(escaped, known)


def _run(part: str, values: dict[str, float]) -> _Run:
    """What the next bucket of the same histogram begins with."""
    edge_at = part.index(_EDGE) + len(_EDGE)
    end = part.index('"', edge_at)
    value_at = part.index('"', part.index(_VALUE) + len(_VALUE)) + 1
    return part[:edge_at], part[end:value_at], edge_at, value_at - end, values


def vector_document(body: bytes) -> Mapping[str, Any] | None:
    """An answer with a Vector for its series; None if it is not as Prometheus writes vectors."""
    try:
        text = body.decode()
        head, *parts = text.split(_BEGIN)
        as_written = text.count(_NEXT + _BEGIN) == len(parts) - 1
        if not parts or not as_written or text.count(_VALUE) != len(parts):
            return None
        last, end, tail = parts[-1].partition(_END)
        parts[-1] = f"{last}{end},"
        document = parsed_json(head + tail)
        if document["data"] != {"resultType": "vector", "result": []}:
            return None
        document["data"]["result"] = Vector(parts)
    except (ValueError, TypeError, KeyError):
        return None
    return cast("Mapping[str, Any]", document)


def groups_of(series: Iterable[Mapping[str, Any]], known: Known) -> Iterator[Group]:
    """The series of an answer by groups. Raises: KeyError, TypeError, ValueError if malformed."""
    if isinstance(series, Vector):
        yield from series.groups(known)
        return
    found: dict[tuple[str, Labels], dict[str, float]] = {}
    for one in series:
        named = dict(one["metric"])
        name, edge = named.pop(NAME_LABEL, ""), named.pop(EDGE_LABEL, "")
        labels = known.by_text.setdefault(tuple(named.items()), Labels(named))
        values = found.setdefault((name, labels), {})
        values.setdefault(edge, float(one["value"][1]))
    for (name, labels), values in found.items():
        yield Group(name, labels, values)


def _series(part: str) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", parsed_json(f"{_BEGIN}{part.removesuffix(',')}"))
