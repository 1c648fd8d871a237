"""Expand the words of a shell command: variables, defaults, arrays, splitting into fields.

A part that is unknown before the script runs becomes a hole: its source between two NUL characters,
which no word of a Kubernetes object can contain. File name patterns are not expanded.
Source: POSIX.1-2017, Shell Command Language, 2.5 and 2.6.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.runtimes.shell.arithmetic import arithmetic
from servingslo.runtimes.shell.lexer import Kind, Part, Token

HOLE = "\0"
_HOLES = re.compile(f"{HOLE}([^{HOLE}]*){HOLE}")
# Sources with the same meaning in a nested script; its positional parameters are different ones.
_SAME_INSIDE = re.compile(r"\$\(|`|\$\{?[A-Za-z_]")
_FIELD_BLANKS = re.compile(r"[ \t\n]+")
# Limit for command and args with the values of the variables in them; real ones are shorter.
LONGEST_LINE_CHARACTERS = 32_768
# What all words of a script may become together: several times as long as the longest script.
MOST_EXPANDED_CHARACTERS = 4 * LONGEST_LINE_CHARACTERS
_ALL = frozenset({"@", "*"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word of a program's command line. source: its text in the pod, for messages."""

    text: str
    source: str

    @property
    def unknown(self) -> str:
        """Its unknown parts, as in the pod; its whole source if there is no hole."""
        return " ".join(holes(self.text)) or self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Variables of a container. known: with their values. unset: those that it does not set."""

    known: Mapping[str, str] = field(default_factory=dict)
    unset: frozenset[str] = frozenset()


NO_VARIABLES = Environment()


@dataclass(slots=True)
class Room:
    """The characters that words may still become, in a script and in all scripts that it runs."""

    left: int = MOST_EXPANDED_CHARACTERS

    def take(self, characters: int) -> None:
        """Take so much of it. Raises: ArgumentsNotUnderstoodError if none is left."""
        self.left -= characters
        if self.left < 0:
            raise ArgumentsNotUnderstoodError("its words get too long")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The known variables at one place of a script.

    variables, arrays: as changed by the script, None if the value is not known. dropped: variables
    that it unset; their value is ''. positional: `$0` and on, None if not known. sourced: it ran
    another script, which may have set any variable. extended: the shell is known to have bash's
    extensions. strict: an unset variable without a default is unknown, because a script that starts
    an engine with it gets it from the image. alive: whether the place is reached. room: of all
    scopes of a command line.
    """

    environment: Environment = NO_VARIABLES
    variables: Mapping[str, str | None] = field(default_factory=dict)
    arrays: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    positional: tuple[str, ...] | None = ()
    sourced: bool = False
    extended: bool = True
    strict: bool = False
    alive: bool = True
    room: Room = field(default_factory=Room, compare=False)

    def with_variable(self, name: str, value: str | None) -> "Scope":
        """The scope after an assignment; None: of an unknown value."""
        if value is not None and len(value) > LONGEST_LINE_CHARACTERS:
            raise ArgumentsNotUnderstoodError("a variable in it gets too long")
        arrays = {key: one for key, one in self.arrays.items() if key != name}
        dropped, variables = self.dropped - {name}, {**self.variables, name: value}
        return replace(self, variables=variables, arrays=arrays, dropped=dropped)

    def with_array(self, name: str, elements: tuple[str, ...] | None) -> "Scope":
        """The scope after an assignment of an array."""
        if sum(map(len, elements or ())) > LONGEST_LINE_CHARACTERS:
            raise ArgumentsNotUnderstoodError("an array in it gets too long")
        return replace(self, arrays={**self.arrays, name: elements})

    def value(self, name: str) -> tuple[bool, str]:
        """Whether a variable's value is known, and the value; '' if it is not set."""
        if name in self.variables:
            own = self.variables[name]
            return own is not None, own or ""
        if self.sourced:
            return False, ""
        known = self.environment.known.get(name)
        return known is not None or name in self.environment.unset, known or ""

    def is_set(self, name: str) -> bool:
        """Whether a variable with a known value is set, even to an empty value."""
        if name in self.variables:
            return name not in self.dropped
        return name in self.environment.known


def merged(one: Scope, other: Scope) -> Scope:
    """The scope after either of two branches; values in which they differ are unknown."""
    if not one.alive or not other.alive:
        return other if not one.alive else one
    names = one.variables.keys() | other.variables.keys()
    one.room.take(len(names))
    variables = {n: one.value(n)[1] if one.value(n) == other.value(n) else None for n in names}
    unknown = {name for name in names if not (one.value(name)[0] and other.value(name)[0])}
    unknown |= one.dropped ^ other.dropped
    arrays = {
        name: one.arrays.get(name) if one.arrays.get(name) == other.arrays.get(name) else None
        for name in one.arrays.keys() | other.arrays.keys()
    }
    return replace(
        one,
        variables=variables | dict.fromkeys(unknown),
        arrays=arrays,
        dropped=one.dropped & other.dropped,
        positional=one.positional if one.positional == other.positional else None,
        sourced=one.sourced or other.sourced,
    )


def hole(source: str) -> str:
    """A hole in a word, for an unknown part."""
    return f"{HOLE}{source.replace(HOLE, '')}{HOLE}"


def has_hole(text: str) -> bool:
    """Whether a part of a word is unknown."""
    return HOLE in text


def holes(text: str) -> list[str]:
    """The sources of the unknown parts of a word."""
    return _HOLES.findall(text)


def as_script(text: str) -> str:
    """A text with holes as a script; parts that are unknown outside stay unknown inside."""

    def source(found: re.Match[str]) -> str:
        return found[1] if _SAME_INSIDE.match(found[1]) else f"$({found[1]})"

    return _HOLES.sub(source, text)


def fields(token: Token, scope: Scope) -> Iterator[Word]:
    """The words that one word of a script becomes: none, one or several."""
    current: str | None = None
    for piece in _pieces(token.parts, scope):
        scope.room.take(1 + len(piece or ""))
        if piece is not None:
            current = (current or "") + piece
        elif current is not None:
            yield Word(text=current, source=token.text)
            current = None
    if current is not None:
        yield Word(text=current, source=token.text)


def unsplit(parts: Sequence[Part], scope: Scope) -> str:
    """The text of an assignment's value: expanded, not split."""
    whole = (replace(part, quoted=True) for part in parts)
    found = []
    for piece in _pieces(tuple(whole), scope):
        scope.room.take(1 + len(piece or ""))
        found.append(" " if piece is None else piece)
    return "".join(found)


def _pieces(parts: Sequence[Part], scope: Scope) -> Iterator[str | None]:
    """Texts to join, with None between two fields."""
    for part in parts:
        if part.kind is Kind.TEXT:
            yield from [part.text] if part.quoted else _split(part.text, scope)
        elif part.kind is Kind.OPAQUE:
            yield hole(part.text)
        elif part.kind is Kind.ARITHMETIC:
            expression = "".join(piece or " " for piece in _pieces(part.word, scope))
            result = arithmetic(expression, lambda name: _text_of(name, scope))
            yield hole(part.text) if result is None else str(result)
        else:
            yield from _parameter(part, scope)


def _text_of(name: str, scope: Scope) -> str | None:
    known, value = scope.value(name)
    return value if known else None


def _split(text: str, scope: Scope) -> Iterator[str | None]:
    """A text with None for each run of blanks outside of holes."""
    if scope.is_set("IFS"):
        yield hole(text) if _FIELD_BLANKS.search(text) else text
        return
    for index, piece in enumerate(_HOLES.split(text)):
        if index % 2:
            yield hole(piece)
            continue
        for number, one in enumerate(_FIELD_BLANKS.split(piece)):
            if number:
                yield None
            if one:
                yield one


def _parameter(part: Part, scope: Scope) -> Iterator[str | None]:
    """The expansion of a parameter with its operator."""
    several = _elements(part, scope)
    if several is not None and not part.operator:
        if part.quoted and "*" in {part.name, part.index}:
            yield " ".join(several)
            return
        for number, element in enumerate(several):
            if number:
                yield None
            yield from [element] if part.quoted else _split(element, scope)
        return
    known, is_set, value = _single(part, scope)
    missing = not is_set and (part.operator[-1:] == "?" or (scope.strict and not part.operator))
    if not known or missing or (part.operator and has_hole(value) and not _HOLES.sub("", value)):
        yield hole(part.text)
        return
    present = bool(value) if part.operator.startswith(":") else is_set
    if part.operator[-1:] == "+":
        yield from _pieces(part.word, scope) if present else ()
    elif part.operator and not present:
        yield from [hole(part.text)] if part.operator[-1] == "?" else _pieces(part.word, scope)
    elif value or part.quoted:
        yield from [value] if part.quoted else _split(value, scope)


def _elements(part: Part, scope: Scope) -> tuple[str, ...] | None:
    """All positional parameters or elements that it expands to; None if not known."""
    if part.name in _ALL:
        return None if scope.positional is None else scope.positional[1:]
    return scope.arrays.get(part.name) if part.index in _ALL else None


def _single(part: Part, scope: Scope) -> tuple[bool, bool, str]:
    """Whether one value is known, whether it is set, and the value."""
    name, positional = part.name, scope.positional
    if part.index or name in scope.arrays:
        elements = scope.arrays.get(name)
        index = int(part.index or 0) if part.index not in _ALL else len(elements or ())
        inside = elements is not None and index < len(elements)
        return inside, inside, elements[index] if elements is not None and inside else ""
    if name.isdecimal():
        at = int(name)
        inside = positional is not None and at < len(positional)
        return positional is not None, inside, positional[at] if positional and inside else ""
    if name == "#":
        return positional is not None, True, str(max(len(positional or ()) - 1, 0))
    if not (name[0].isalpha() or name[0] == "_"):
        return False, False, ""
    known, value = scope.value(name)
    return known, scope.is_set(name), value
