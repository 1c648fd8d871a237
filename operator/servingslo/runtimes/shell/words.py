"""Expand the words of a shell command: variables, defaults, arrays, splitting into fields.

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
# Sources with the same meaning in a nested script; its positional parameters are different ones.
_SAME_INSIDE = re.compile(r"\$\(|`|\$\{?[A-Za-z_]")
_FIELD_BLANKS = re.compile(r"[ \t\n]+")
# Limit for command and args, and for values of variables in them; real ones are shorter.
LONGEST_LINE_CHARACTERS = 32_768
# Values of one variable, and combinations of values in one command; KServe's presets have 2 and 8.
MOST_VALUES = 32
_MOST_COMBINATIONS = 128
# Characters that all words of a command line's scripts may have; with 8 combinations, KServe's have
# 20,000.
_MOST_CHARACTERS = 8 * LONGEST_LINE_CHARACTERS
# Tokens that are read of a command line's scripts, again in each loop, call and evaluation.
_MOST_STEPS = 64_000
# A word of one character takes as long as one of so many.
_LEAST_CHARACTERS = 16
# Commands that name an engine without starting one.
NO_STARTERS = frozenset({
    "[", "apk", "apt", "apt-get", "break", "cat", "cd", "chmod", "continue", "cp", "curl", "echo",
    "exit", "false", "git", "grep", "hash", "kill", "ln", "ls", "mkdir", "mv", "pgrep",
    "pip", "pip3", "pkill", "return", "rm", "sed", "shopt", "sleep", "tee", "test",
    "touch", "trap", "true", "type", "ulimit", "umask", "wait", "wget", "which", ":",
})  # fmt: skip
# The positional parameters, as an array.
POSITIONAL = "@"
_SEPARATORS = "IFS"

# The elements of an array; one for a plain variable, none if it is not set. None: not known.
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


@dataclass(slots=True)
class Budget:
    """What is left for the scripts of one command line, and for all scripts that these run."""

    characters: int = _MOST_CHARACTERS
    steps: int = _MOST_STEPS

    def write(self, characters: int) -> None:
        """Expand so many. Raises: ArgumentsNotUnderstoodError if none are left."""
        self.characters -= characters
        if self.characters < 0:
            raise ArgumentsNotUnderstoodError("its words get too long")

    def step(self) -> None:
        """Read one token. Raises: ArgumentsNotUnderstoodError if none is left."""
        self.steps -= 1
        if self.steps < 0:
            raise ArgumentsNotUnderstoodError(f"it takes more than {_MOST_STEPS} steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The values that each variable may have at one place of a script.

    values: as set by the script; others are those of the environment. sourced: it ran another
    script, which may have set any variable. extended: the shell is known to have bash's extensions.
    alive: whether the place is reached. budget: of all scopes of a command line.
    """

    environment: Environment = NO_VARIABLES
    values: Mapping[str, Values] = field(default_factory=dict)
    sourced: bool = False
    extended: bool = True
    alive: bool = True
    budget: Budget = field(default_factory=Budget, compare=False)

    def of(self, name: str) -> Values:
        """The values that a variable may have."""
        if name in self.values:
            return self.values[name]
        if self.sourced:
            return UNKNOWN
        known = self.environment.known.get(name)
        if known is not None:
            return frozenset({(known,)})
        return frozenset({()}) if name in self.environment.unset else UNKNOWN

    def having(self, name: str, values: Iterable[Value]) -> "Scope":
        """The scope after an assignment of one of these values."""
        found = frozenset(values)
        if any(sum(map(len, one or ())) > LONGEST_LINE_CHARACTERS for one in found):
            raise ArgumentsNotUnderstoodError("a variable in it gets too long")
        kept = found if len(found) <= MOST_VALUES else UNKNOWN
        return replace(self, values={**self.values, name: kept})

    def forgotten(self) -> "Scope":
        """The scope after a command that may have set any variable."""
        return replace(self, values=dict.fromkeys(self.values, UNKNOWN), sourced=True)


def merged(*scopes: Scope) -> Scope:
    """The scope after one of these branches: each variable has the values of all of them."""
    living = [one for one in scopes if one.alive]
    if len(living) < 2:
        return living[0] if living else scopes[0]
    first, *others = living
    values = dict(first.values)
    for other in others:
        for name in first.values.keys() | other.values.keys():
            if first.values.get(name) is not other.values.get(name):
                both = values.get(name, first.of(name)) | other.of(name)
                values[name] = both if len(both) <= MOST_VALUES else UNKNOWN
    return replace(first, values=values, sourced=any(one.sourced for one in living))


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


class Expander:
    """Expands the words of scripts, within the budget of their command line."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def commands(self, words: Sequence[Token], scope: Scope) -> list[tuple[Word, ...]]:
        """The words of a command, for each combination of the values of its variables."""
        combinations = _chosen(words, scope)
        strict = frozenset[str]()
        if not scope.environment.closed:
            strict = frozenset(name for name in combinations[0] if scope.of(name) == {()})
        return [
            tuple(one for word in words for one in self._fields(word, chosen, strict))
            for chosen in combinations
        ]

    def assigned(self, token: Token, scope: Scope) -> Scope:
        """The scope after `NAME=…`, `NAME+=…` or an array."""
        target = token.text.partition("=")[0]
        name, adds = target.rstrip("+"), target.endswith("+")
        found: set[Value] = set()
        for chosen in _chosen([token], scope, *[name] * adds):
            before = chosen[name] if adds else ()
            if token.elements is not None:
                words = (self._fields(one, chosen) for one in token.elements)
                value = tuple(word.text for several in words for word in several)
                found.add(None if before is None else (*before, *value))
            elif before is None or len(before) > 1 or (adds and not scope.extended):
                found.add(None)
            else:
                parts = [replace(part, quoted=True) for part in token.parts]
                text = self._joined(parts, chosen)[len(target) + 1 :]
                found.add(("".join(before) + text,))
        return scope.having(name, found)

    def defaulted(self, words: Sequence[Token], scope: Scope) -> Scope:
        """The scope after the expansion of words with `${NAME:=…}`."""
        for part in (part for word in words for part in word.parts):
            if part.operator[-1:] == "=":
                plain = Token(text=part.text, parts=(replace(part, quoted=True),))
                texts = (self._joined(plain.parts, one) for one in _chosen([plain], scope))
                scope = scope.having(part.name, [None if has_hole(t) else (t,) for t in texts])
        return scope

    def _joined(self, parts: Sequence[Part], chosen: Mapping[str, Value]) -> str:
        return "".join(" " if one is None else one for one in self._pieces(parts, chosen))

    def _fields(
        self, token: Token, chosen: Mapping[str, Value], strict: frozenset[str] = frozenset()
    ) -> Iterator[Word]:
        """The words that one word of a script becomes: none, one or several."""
        current: str | None = None
        for piece in self._pieces(token.parts, chosen, strict):
            if piece is not None:
                current = (current or "") + piece
            elif current is not None:
                yield Word(text=current, source=token.text)
                current = None
        if current is not None:
            yield Word(text=current, source=token.text)

    def _pieces(
        self,
        parts: Sequence[Part],
        chosen: Mapping[str, Value],
        strict: frozenset[str] = frozenset(),
    ) -> Iterator[str | None]:
        """Texts to join, with None between two fields.

        strict: variables that nothing sets: unknown, because a script that starts an engine with
        them gets them from the image.
        """
        for part in parts:
            if part.opaque:
                found: Iterable[str | None] = [hole(part.text)]
            elif part.name:
                found = self._parameter(part, chosen, strict)
            else:
                found = [part.text] if part.quoted else _split(part.text, chosen)
            for piece in found:
                self._budget.write(max(len(piece or ""), _LEAST_CHARACTERS))
                yield piece

    def _parameter(
        self, part: Part, chosen: Mapping[str, Value], strict: frozenset[str]
    ) -> Iterator[str | None]:
        """The expansion of a parameter with its operator."""
        name, operator = part.name, part.operator
        every = name in {"@", "*"} or bool(part.index)
        value = chosen[_variable(part)]
        if value is not None and not every:
            at = int(name) - 1 if name.isdecimal() else 0
            value = value[at : at + 1] if at >= 0 else None
        text = " ".join(value or ())
        if value is None or (operator and has_hole(text) and not _HOLES.sub("", text)):
            yield hole(part.text)
            return
        present = bool(text) if operator.startswith(":") else bool(value)
        if operator[-1:] == "+":
            yield from self._pieces(part.word, chosen, strict) if present else ()
        elif not present and operator and operator[-1] != "?":
            yield from self._pieces(part.word, chosen, strict)
        elif not present and (operator or (name in strict and not every)):
            yield hole(part.text)
        elif part.quoted and (not every or "*" in name + part.index):
            yield text
        else:
            for number, element in enumerate(value):
                yield from [None] * bool(number)
                yield from [element] if part.quoted else _split(element, chosen)


def _split(text: str, chosen: Mapping[str, Value]) -> Iterator[str | None]:
    """A text with None for each run of blanks outside of holes."""
    if _SEPARATORS in chosen:
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


def _chosen(words: Sequence[Token], scope: Scope, *names: str) -> list[Mapping[str, Value]]:
    """Each combination of the values of the variables in these words."""
    found = {*names, *({_SEPARATORS} & scope.values.keys())}
    for word in words:
        found.update(_variables(word.parts))
        for element in word.elements or ():
            found.update(_variables(element.parts))
    values = {name: scope.of(name) for name in sorted(found)}
    # Of a variable that is only tested, as in ${X:+--flag}, set or not is all that matters.
    tested = _tested(words).difference(names)
    values |= {name: frozenset({(), ("1",)}) for name in tested if values[name] == UNKNOWN}
    if prod(map(len, values.values())) > _MOST_COMBINATIONS:
        values = {name: one if len(one) == 1 else UNKNOWN for name, one in values.items()}
    ordered = [sorted(one, key=lambda v: (v is None, v or ())) for one in values.values()]
    return [dict(zip(values, one, strict=True)) for one in product(*ordered)]


def _tested(words: Sequence[Token]) -> set[str]:
    """The variables of which these words need no value."""
    lists = [token.parts for word in words for token in (word, *(word.elements or ()))]
    parts = [part for one in lists for part in _parameters(one)]
    valued = {_variable(p) for p in parts if p.operator[-1:] != "+" or p.index}
    return {_variable(p) for p in parts} - valued - {POSITIONAL, "@"}


def _variables(parts: Sequence[Part]) -> Iterator[str]:
    return map(_variable, _parameters(parts))


def _parameters(parts: Sequence[Part]) -> Iterator[Part]:
    for part in parts:
        if part.name and not part.opaque:
            yield part
            yield from _parameters(part.word)


def _variable(part: Part) -> str:
    """The variable of an expansion; positional parameters are one array."""
    return POSITIONAL if part.name == "*" or part.name.isdecimal() else part.name
