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
# Before the name of a page's label, if the target has a label of that name: a pod's `model`, say.
# Source: Prometheus, docs/configuration, honor_labels.
MOVED = "exported_"
_BEGIN = '{"metric":{'
_VALUE = '},"value":['
_NAME = '"__name__":"'
_EDGE = '"le":"'
_END = '"]}'
_NEXT = '"]},'
_UP_TO_VALUE_END = -len(_NEXT)
# After this many readings, texts that were not met since are dropped: two minutes of ticks of 15 s.
# A pod that is gone costs memory for so long.
_KEPT_READINGS = 8
# A quote inside of a string is escaped, so what is looked for never begins in one.
_ESCAPE = "\\"

# Of buckets that follow each other: the text up to the edge, the text from there to the value, the
# place of the edge, how far behind its end the value is, and the values so far.
_Run = tuple[str, str, int, int, dict[str, float]]
_NO_RUN: _Run = ("no series begins so", "", 0, 0, {})


# A pod, the labels that tell its scrapes apart, and the engine.
Place = tuple[tuple[str, str], tuple[tuple[str, ...], str]]


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Labels of series, without name and edge. Equal ones of one reading are one object.

    text: what they are known by. places: where their series belong, by the label that names the
    engine; kept by the reader.
    """

    text: object
    by_name: Mapping[str, str]
    places: dict[str, Place] = field(default_factory=dict)


# A series without its value: name, edge and the other labels.
_Head = tuple[str, str, Labels]


@dataclass(slots=True)
class Known:
    """The labels that were parsed in the last readings.

    Engines export the same series at every scrape, so nearly all texts are known. heads: of series
    that every reading asks for.
    """

    by_text: dict[object, Labels] = field(default_factory=dict)
    heads: dict[str, _Head] = field(default_factory=dict)
    _readings: int = 0
    _of_pages: frozenset[str] = frozenset()
    _labels_before: dict[object, Labels] = field(default_factory=dict)
    _heads_before: dict[str, _Head] = field(default_factory=dict)

    def begin(self, of_pages: frozenset[str] = frozenset()) -> None:
        """Begin a reading; what was not read for long is dropped.

        of_pages: labels of engines' pages; where Prometheus moved them, they get their names back.
        """
        self._of_pages = of_pages
        self._readings += 1
        if self._readings % _KEPT_READINGS == 0:
            self._labels_before, self.by_text = self.by_text, {}
            self._heads_before, self.heads = self.heads, {}

    def labels(self, text: str) -> Labels:
        """The labels in a part of a JSON object."""
        labels = self.by_text.get(text)
        if labels is None:
            labels = self._labels_before.get(text)
            if labels is None:
                labels = self._named(text, parsed_json(f"{{{text.removesuffix(',')}}}"))
            self.by_text[labels.text] = labels
        return labels

    def of(self, named: Mapping[str, str]) -> Labels:
        """The labels with these names and values."""
        key = tuple(named.items())
        return self.by_text.setdefault(key, self._named(key, named))

    def _named(self, text: object, named: Mapping[str, str]) -> Labels:
        own = {
            name: value
            for moved, value in named.items()
            if (name := moved.removeprefix(MOVED)) != moved and name in self._of_pages
        }
        return Labels(text, {**named, **own} if own else named)

    def head(self, text: str, *, again: bool) -> _Head:
        """The labels of a series, from its text without an escape up to its value.

        again: whether the next readings have it too.
        """
        head = self._heads_before.get(text) or self._parsed(text)
        self.by_text[head[2].text] = head[2]
        if again:
            self.heads[text] = head
        return head

    def _parsed(self, text: str) -> _Head:
        name, labels, edge = "", text, ""
        if text.startswith(_NAME):
            end = text.index('"', len(_NAME))
            name, labels = text[len(_NAME) : end], text[end + 2 :]
        place = labels.find(_EDGE)
        if place >= 0:
            end = labels.index('"', place + len(_EDGE))
            edge, labels = labels[place + len(_EDGE) : end], labels[:place] + labels[end + 2 :]
        return name, edge, self.labels(labels)


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

    def __add__(self, other: "Vector") -> "Vector":
        """The series of both."""
        return Vector([*self._parts, *other._parts])

    def groups(self, known: Known, *, again: bool = False) -> Iterator[Group]:
        """Its series by name and labels; one that is repeated counts once.

        The buckets of a histogram mostly follow each other. Then each is compared with the one
        before it, up to its edge and from there to its value.
        """
        found: dict[tuple[str, Labels], Group] = {}
        escaped = []
        heads = known.heads
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
            head = heads.get(text)
            if head is None:
                if _ESCAPE in text:
                    escaped.append(_series(part))
                    continue
                head = known.head(text, again=again)
            name, edge, labels = head
            value = float(rest[rest.index('"') + 1 : _UP_TO_VALUE_END])
            group = found.get((name, labels))
            if group is None:
                found[name, labels] = group = Group(name, labels, {})
            group.values.setdefault(edge, value)
            if _EDGE in text:
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


def groups_of(
    series: Iterable[Mapping[str, Any]], known: Known, *, again: bool = False
) -> Iterator[Group]:
    """The series of an answer by groups.

    again: whether the next readings have the same series, so that their labels are kept.
    Raises: KeyError, TypeError, ValueError if malformed.
    """
    if isinstance(series, Vector):
        yield from series.groups(known, again=again)
        return
    found: dict[tuple[str, Labels], dict[str, float]] = {}
    for one in series:
        named = dict(one["metric"])
        name, edge = named.pop(NAME_LABEL, ""), named.pop(EDGE_LABEL, "")
        labels = known.of(named)
        values = found.setdefault((name, labels), {})
        values.setdefault(edge, float(one["value"][1]))
    for (name, labels), values in found.items():
        yield Group(name, labels, values)


def _series(part: str) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", parsed_json(f"{_BEGIN}{part.removesuffix(',')}"))
