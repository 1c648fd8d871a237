"""Expand the words of a shell command: variables, defaults, splitting into fields.

A part that is unknown before the script runs becomes a hole: its source between two NUL characters,
which no word of a Kubernetes object can contain. File name patterns are not expanded.
Source: POSIX.1-2017, Shell Command Language, 2.5 and 2.6.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.runtimes.shell.lexer import Part, Token

HOLE = "\0"
_HOLES = re.compile(f"{HOLE}([^{HOLE}]*){HOLE}")
_FIELD_BLANKS = re.compile(r"[ \t\n]+")
# Between two fields; no word has it, as it is no hole.
_BREAK = HOLE
# What `eval` gives unchanged.
_PLAIN = re.compile(r"[\w ./:,=@%+-]*")
# Limit for command and args, and for values of variables in them; real ones are shorter.
LONGEST_LINE_CHARACTERS = 32_768
# Values of a variable, and combinations of values in a command; KServe's presets have 2 and 8.
_MOST_VALUES = 32
# Characters that all words of a script may have; with 8 combinations, KServe's have 20,000.
_MOST_CHARACTERS = 8 * LONGEST_LINE_CHARACTERS
# A word of one character takes as long as one of so many.
_LEAST_CHARACTERS = 16
# The positional parameters, as one variable; and all variables.
POSITIONAL, ANY = "@", "*"

# The words of a variable: one, none if it is not set, any number of `@`. None: not known.
Value = tuple[str, ...] | None
Values = frozenset[Value]
UNKNOWN: Values = frozenset({None})


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
    """Variables of a container. known: with their values. unset: those that it does not set.

    closed: its image sets none that a script of it could use.
    """

    known: Mapping[str, str] = field(default_factory=dict)
    unset: frozenset[str] = frozenset()
    closed: bool = False


NO_VARIABLES = Environment()


def hole(source: str) -> str:
    """A hole in a word, for an unknown part."""
    return f"{HOLE}{source.replace(HOLE, '')}{HOLE}"


def has_hole(text: str) -> bool:
    """Whether a part of a word is unknown."""
    return HOLE in text


def holes(text: str) -> list[str]:
    """The sources of the unknown parts of a word."""
    return _HOLES.findall(text)


@dataclass(slots=True)
class Scope:
    """The values that variables may have at a place of a script, and words with these.

    values: as set by the script; others are those of the environment. unknown: variables whose
    value is not followed. evaluated: `eval` reads the values as a script. left: characters that may
    still be expanded.
    """

    environment: Environment
    values: dict[str, Values]
    unknown: set[str]
    evaluated: bool = False
    left: int = _MOST_CHARACTERS

    def lines(self, words: Sequence[Token]) -> Iterator[tuple[Word, ...]]:
        """The words of a command, for each combination of the values of its variables.

        Raises: ArgumentsNotUnderstoodError if they get too long.
        """
        for chosen in self._chosen([part for word in words for part in word.parts]):
            yield tuple(one for word in words for one in self._fields(word, chosen))

    def assign(self, token: Token, *, sure: bool) -> None:
        """Set a variable by `NAME=…`, which runs for sure or not. Raises: as lines."""
        name = token.text.partition("=")[0]
        parts = [replace(part, quoted=True) for part in token.parts]
        found = [list(self._pieces(parts, chosen)) for chosen in self._chosen(parts)]
        texts = ("".join(" " if one == _BREAK else one for one in pieces) for pieces in found)
        values: Values = frozenset((text.partition("=")[2],) for text in texts)
        values = values if sure else values | self._of(name)
        self.values[name] = values if len(values) <= _MOST_VALUES else UNKNOWN

    def _of(self, name: str) -> Values:
        """The values that a variable may have."""
        if not self.unknown.isdisjoint({name, ANY}):
            return UNKNOWN
        found = self.values.get(name, UNKNOWN)
        if name not in self.values and name in self.environment.known:
            found = frozenset({(self.environment.known[name],)})
        elif name not in self.values and name in self.environment.unset:
            found = frozenset({()})
        if not self.evaluated:
            return found
        return frozenset(v if all(map(_PLAIN.fullmatch, v or ())) else None for v in found)

    def _chosen(self, parts: Iterable[Part]) -> list[Mapping[str, Value]]:
        """Each combination of the values of the variables in these parts."""
        values = {name: self._of(name) for name in sorted(set(_variables(parts)))}
        if prod(map(len, values.values())) > _MOST_VALUES:
            values = {name: one if len(one) == 1 else UNKNOWN for name, one in values.items()}
        ordered = [sorted(one, key=lambda v: (v is None, v or ())) for one in values.values()]
        return [dict(zip(values, one, strict=True)) for one in product(*ordered)]

    def _fields(self, token: Token, chosen: Mapping[str, Value]) -> Iterator[Word]:
        """The words that one word of a script becomes: none, one or several."""
        current: str | None = None
        for piece in [*self._pieces(token.parts, chosen), _BREAK]:
            if piece != _BREAK:
                current = (current or "") + piece
            elif current is not None:
                yield Word(text=current, source=token.text)
                current = None

    def _pieces(self, parts: Sequence[Part], chosen: Mapping[str, Value]) -> Iterator[str]:
        """Texts to join, with _BREAK between two fields."""
        for part in parts:
            if part.opaque:
                found: Iterable[str] = [hole(part.text)]
            elif part.name:
                found = self._parameter(part, chosen)
            else:
                found = [part.text] if part.quoted else _split(part.text)
            for piece in found:
                self.left -= max(len(piece), _LEAST_CHARACTERS)
                if self.left < 0:
                    raise ArgumentsNotUnderstoodError("its words get too long")
                yield piece

    def _parameter(self, part: Part, chosen: Mapping[str, Value]) -> Iterator[str]:
        """The expansion of a parameter with its operator."""
        name, operator, value = part.name, part.operator, chosen[_variable(part)]
        if value is not None and name not in {"@", "*"}:
            at = int(name) - 1 if name.isdecimal() else 0
            value = value[at : at + 1] if at >= 0 else None
        text = " ".join(value or ())
        present = bool(text) if operator.startswith(":") else bool(value)
        # If nothing in the pod sets it, the image may.
        unsure = not (value or self.environment.closed or _variable(part) in self.values)
        if value is None or (operator and has_hole(text) and not _HOLES.sub("", text)):
            yield hole(part.text)
        elif not present and operator.endswith("-"):
            yield from self._pieces(part.word, chosen)
        elif operator.endswith("+") and not unsure:
            yield from self._pieces(part.word if present else (), chosen)
        elif not present and (operator or unsure) and name not in {"@", "*"}:
            yield hole(part.text)
        elif part.quoted and name != "@":
            yield text
        else:
            for number, element in enumerate(value):
                yield from [_BREAK] * bool(number)
                yield from [element] if part.quoted else _split(element)


def _split(text: str) -> Iterator[str]:
    """A text with _BREAK for each run of blanks outside of holes."""
    for index, piece in enumerate(_HOLES.split(text)):
        if index % 2:
            yield hole(piece)
            continue
        for number, one in enumerate(_FIELD_BLANKS.split(piece)):
            yield from [_BREAK] * bool(number)
            yield from [one] * bool(one)


def _variables(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if part.name:
            yield _variable(part)
            yield from _variables(part.word)


def _variable(part: Part) -> str:
    """The variable of an expansion; positional parameters are one."""
    return POSITIONAL if part.name == "*" or part.name.isdecimal() else part.name
