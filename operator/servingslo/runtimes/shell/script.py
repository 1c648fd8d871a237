"""Find the commands that a shell script runs, with expanded words; nothing is executed.

No condition is evaluated: every branch may be taken, and after it a variable has the values of all
branches. A command is given once for each combination of its values, so that a limit counts as read
only if all of them agree. At its start, a loop has the values that it assigns as well.
Source: POSIX.1-2017, Shell Command Language, 2.9, and bash's `[[`, `function` and `+=`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.runtimes.shell.lexer import CLOSING, DEEPEST, OPENING, RESERVED, Token, tokens
from servingslo.runtimes.shell.words import (
    NO_STARTERS,
    POSITIONAL,
    UNKNOWN,
    Expander,
    Scope,
    Values,
    Word,
    as_script,
    has_hole,
    merged,
)

# A script starts one engine, rarely two.
MOST_COMMANDS = 256
# Walks until loops add no values.
_MOST_PASSES = 5
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_ELEMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[[^\]]*\]\+?=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SEPARATORS = frozenset({";", "&", "\n"})
_JOINING = frozenset({"&&", "||", "|", "|&"})
_BRANCH_ENDS = frozenset({";;", ";&", ";;&"})
_DECLARING = frozenset({"export", "readonly", "local", "declare", "typeset"})
_SUCCEEDING = _DECLARING | {"set", "true", ":"}
# Commands that set the variables they name.
_SETTING = frozenset({"read", "mapfile", "readarray", "getopts"})
# Scripts that set up a shell or a Python environment and set no variables of a container.
_HARMLESS = re.compile(r"(?:.*/)?(?:activate|\.?(?:bashrc|profile)|\.bash_profile|conda\.sh)")
_OPTION_WITH_VALUE = re.compile(r"[-+][a-zA-Z]*[oO]")
_SOURCE = Word(text="source", source="source")
# Stands for all variables, which another script may set.
_ANY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that a script runs. here: its input text; scope: the variables there."""

    words: tuple[Word, ...]
    here: str
    scope: Scope


def commands(script: str, scope: Scope, depth: int = 0) -> tuple[Command, ...]:
    """The commands of a script, in its order.

    Raises: ArgumentsNotUnderstoodError if it cannot be parsed.
    """
    found = tokens(script)
    before: Mapping[str, Values] = {}
    for left in reversed(range(_MOST_PASSES)):
        reader = _Reader(found, scope, depth, before)
        reader.read()
        if reader.assigned == before:
            break
        before = reader.assigned if left > 1 else dict.fromkeys(reader.assigned, UNKNOWN)
    return tuple(reader.found)


@dataclass(slots=True)
class _Frame:
    """A compound command that is open. kind: the word that opens it, 'loop' or 'function'.

    start: the scope before its branches; ends: those after each branch; every: whether one of the
    branches is certainly taken. passed, failed: of the list of && and || that it stands in.
    """

    kind: str
    start: Scope
    passed: list[Scope]
    failed: list[Scope]
    ends: list[Scope] = field(default_factory=list)
    every: bool = False


class _Reader:
    """Walks over the tokens once, and over a function's body at each call.

    before: values that a former walk saw assigned in loops; assigned: those of this one.
    """

    def __init__(
        self, found: tuple[Token, ...], scope: Scope, depth: int, before: Mapping[str, Values]
    ) -> None:
        if depth > DEEPEST:
            raise ArgumentsNotUnderstoodError("scripts are nested too deeply")
        self._tokens, self._depth, self._before = found, depth, before
        self._expander = Expander(scope.budget)
        self._at = 0
        # Where the bodies of functions begin, and the one whose body is next.
        self._functions: dict[str, int] = {}
        self._defined = ""
        self._frames: list[_Frame] = []
        self._words: list[Token] = []
        # Of a list of && and ||: scopes after a command that succeeded before ||, or failed before
        # &&. Whether the last command certainly succeeded; the scope before it.
        self._passed: list[Scope] = []
        self._failed: list[Scope] = []
        self._sure = self._negated = False
        self.scope = self._previous = scope
        self.assigned: dict[str, Values] = {}
        self.found: list[Command] = []

    def read(self) -> None:
        """Read all commands. Raises: ArgumentsNotUnderstoodError."""
        while self._at < len(self._tokens):
            self._step()
        self._end()
        if self._frames:
            raise ArgumentsNotUnderstoodError(f"its {self._frames[-1].kind!r} is not closed")

    def _step(self) -> None:
        """Read one token."""
        self.scope.budget.step()
        token = self._tokens[self._at]
        self._at += 1
        if token.parts or token.elements is not None or token.here is not None:
            if self._words or token.here is not None or not self._keyword(token.text):
                self._words.append(token)
        else:
            self._operator(token.text)

    def _operator(self, text: str) -> None:
        if text == "(":
            if len(self._words) == 1 and self._skip_to(")") == [")"]:
                self._defined, self._words = self._words[0].text, []
            elif self._words:
                raise ArgumentsNotUnderstoodError("'(' stands where no command begins")
            else:
                self._open("(")
            return
        self._end()
        if text in _JOINING:
            self._join(text)
            return
        self.scope = merged(self.scope, *self._passed, *self._failed)
        self._passed, self._failed = [], []
        if text in _SEPARATORS:
            return
        if text in _BRANCH_ENDS:
            self._next_branch("case")
            if text != ";;":
                self.scope = merged(self.scope, self._frames[-1].ends[-1])
            self._pattern()
        else:
            self._close(text)

    def _join(self, text: str) -> None:
        """The scope of the command after && or ||; one after a pipe always runs."""
        failing = [self.scope] * (not self._sure)
        if text == "&&":
            self._failed += failing
            self.scope, self._passed = merged(self.scope, *self._passed), []
            return
        self._passed.append(self.scope)
        if text != "||":
            # Each command of a pipe runs in a shell of its own.
            self.scope = merged(self._previous, self.scope)
        else:
            dead = replace(self.scope, alive=False)
            self.scope, self._failed = merged(dead, *self._failed, *failing), []

    def _keyword(self, text: str) -> bool:
        """Whether it is a reserved word, which is then done."""
        if text in OPENING:
            self._begin(text)
        elif text == "[[":
            self._skip_to("]]")
            self._sure = False
        elif text == "function":
            self._defined = self._here
            self._at += 1
            if self._here == "(":
                self._skip_to(")")
        elif text in {"elif", "else"}:
            self._next_branch("if")
            self._frames[-1].every = text == "else"
        elif text in CLOSING:
            self._close(text)
        elif text == "then" and self._frames:
            self._frames[-1].start = self.scope
        self._negated |= text == "!"
        return text in RESERVED

    @property
    def _here(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _begin(self, word: str) -> None:
        """A compound command; the words of `for` and `case` are skipped."""
        self._open(OPENING[word])
        if word in {"for", "select"}:
            if self._here == "let":
                self._let(list(self._tokens[self._at + 1 : self._at + 2]))
            else:
                self._unknown(self._here)
            self._skip_to("do")
        elif word == "case":
            self._skip_to("in")
            self._pattern()

    def _skip_to(self, end: str) -> list[str]:
        """Skip tokens up to this word, and that; returns their texts."""
        begin = self._at
        while self._here not in {end, ""}:
            self._at += 1
        self._at += 1
        return [one.text for one in self._tokens[begin : self._at]]

    def _pattern(self) -> None:
        """Skip the pattern of a branch of `case`."""
        while self._here == "\n":
            self._at += 1
        if self._here == "esac":
            self.scope = replace(self.scope, alive=False)  # No branch is left.
        else:
            self._frames[-1].every |= "*" in self._skip_to(")")

    def _open(self, kind: str) -> None:
        if len(self._frames) > DEEPEST:
            raise ArgumentsNotUnderstoodError("its commands are nested too deeply")
        kind = "function" if self._defined else kind
        self._frames.append(_Frame(kind, self.scope, self._passed, self._failed))
        self._passed, self._failed = [], []
        if kind == "function":
            self._functions[self._defined], self._defined = self._at - 1, ""
            self.scope = replace(self.scope, alive=False)
        elif kind == "loop":
            self.scope = self.scope.forgotten() if _ANY in self._before else self.scope
            for name, values in self._before.items():
                self.scope = self.scope.having(name, self.scope.of(name) | values)

    def _next_branch(self, kind: str) -> None:
        if not self._frames or self._frames[-1].kind != kind:
            raise ArgumentsNotUnderstoodError(f"a branch stands outside of {kind!r}")
        frame = self._frames[-1]
        frame.ends.append(self.scope)
        self.scope = frame.start

    def _close(self, text: str) -> None:
        frame = self._frames.pop() if self._frames else None
        if frame is None or frame.kind not in {CLOSING[text], "function"}:
            raise ArgumentsNotUnderstoodError(f"{text!r} stands where no command begins")
        self._passed, self._failed, self._sure = frame.passed, frame.failed, False
        self._previous = frame.start
        if frame.kind in {"(", "function"}:
            self.scope = frame.start
            return
        ends = [*frame.ends, self.scope]
        if frame.kind == "loop" or (frame.kind != "{" and not frame.every):
            ends.append(frame.start)
        self.scope = merged(*ends)

    def _end(self) -> None:
        """End a simple command."""
        here = "".join(one.here or "" for one in self._words)
        words = [one for one in self._words if one.here is None]
        self._words, scope = [], self.scope
        negated, self._negated = self._negated, False
        if not words or not scope.alive:
            return
        opaque = any(part.opaque for one in words for part in one.parts)
        self._sure, self._previous = not opaque and not negated, scope
        while words and (set_here := _ASSIGNMENT.match(words[0].text)):
            scope = self._set(set_here[1], self._expander.assigned(words.pop(0), scope))
        if words:
            self._sure &= words[0].text in _SUCCEEDING
            self._run(words, here, scope)
            self.scope = self._expander.defaulted(words, self.scope)
        else:
            self.scope = scope

    def _run(self, words: list[Token], here: str, scope: Scope) -> None:
        """Apply a command's effect on the script, or record it. scope: what it sees itself."""
        name = words[0].text
        effect = self._effects().get(name)
        if name in self._functions:
            self._call(name, words[1:])
        elif effect is not None:
            effect(words[1:])
        elif element := _ELEMENT.match(name):
            self._unknown(element[1])
        elif here or name not in NO_STARTERS:
            for line in dict.fromkeys(self._expander.commands(words, self.scope)):
                self.found.append(Command(words=line, here=here, scope=scope))
            if len(self.found) > MOST_COMMANDS:
                raise ArgumentsNotUnderstoodError(f"it runs more than {MOST_COMMANDS} commands")
        if name in {"exit", "return"} or (name == "exec" and len(words) > 1):
            self.scope = replace(self.scope, alive=False)

    def _effects(self) -> dict[str, Callable[[list[Token]], None]]:
        return {
            **dict.fromkeys(_DECLARING, self._declare),
            **dict.fromkeys(_SETTING, self._assign_unknown),
            "unset": lambda w: self._assign_unknown(
                [] if w and w[0].text == "-f" else w, frozenset({()})
            ),
            "let": self._let,
            "printf": lambda w: self._assign_unknown(w[1:2] if w and w[0].text == "-v" else []),
            **dict.fromkeys((".", "source"), self._source),
            "set": self._set_positional,
            "shift": lambda _: self._unknown(POSITIONAL),
            "eval": self._evaluate,
        }

    def _set(self, name: str, scope: Scope) -> Scope:
        """The scope after an assignment; one in a loop also holds before it."""
        if any(frame.kind == "loop" for frame in self._frames):
            values = scope.of(name) if name != _ANY else UNKNOWN
            self.assigned[name] = self.assigned.get(name, values) | values
        return scope

    def _call(self, name: str, words: list[Token]) -> None:
        """Read a function's body, with the words as its positional parameters."""
        back, positional = self._at, self.scope.of(POSITIONAL)
        depth, self._at = len(self._frames), self._functions[name]
        self._set_words(words)
        self._step()
        while len(self._frames) > depth and self._at < len(self._tokens):
            self._step()
        self._at, self._sure = back, False
        self.scope = replace(self.scope.having(POSITIONAL, positional), alive=True)

    def _unknown(self, *names: str, values: Values = UNKNOWN) -> None:
        for name in names:
            self.scope = self._set(name, self.scope.having(name, values))

    def _assign_unknown(self, words: list[Token], values: Values = UNKNOWN) -> None:
        """The variables with these names become unknown, or one of these values."""
        self._unknown(*(w.text for w in words if _NAME.fullmatch(w.text)), values=values)

    def _let(self, words: list[Token]) -> None:
        """All names in these words become unknown."""
        self._unknown(*(name for word in words for name in _NAME.findall(word.text)))

    def _source(self, words: list[Token]) -> None:
        """Another script may set any variable; scripts that set up a shell or Python set none."""
        if not words or not _HARMLESS.fullmatch(words[0].text):
            for line in self._expander.commands(words, self.scope):
                self.found.append(Command(words=(_SOURCE, *line), here="", scope=self.scope))
            self._forget()

    def _forget(self) -> None:
        self.scope = self._set(_ANY, self.scope.forgotten())

    def _declare(self, words: list[Token]) -> None:
        """`export NAME=…` and the like; words that are filled in may set any variable."""
        for one in words:
            if set_here := _ASSIGNMENT.match(one.text):
                self.scope = self._set(set_here[1], self._expander.assigned(one, self.scope))
                continue
            for word in (
                word for line in self._expander.commands([one], self.scope) for word in line
            ):
                if has_hole(word.text):
                    self._forget()
                elif "=" in word.text:
                    self._let([one])

    def _set_positional(self, words: list[Token]) -> None:
        """`set -e` and similar change nothing here; words after them are positional parameters."""
        rest = list(words)
        while rest and rest[0].text[:1] in {"-", "+"} and rest[0].text != "--":
            rest = rest[2 if _OPTION_WITH_VALUE.fullmatch(rest[0].text) else 1 :]
        if rest:
            self._set_words(rest[rest[0].text == "--" :])

    def _set_words(self, words: list[Token]) -> None:
        lines = self._expander.commands(words, self.scope)
        found = (tuple(word.text for word in line) for line in lines)
        self.scope = self._set(POSITIONAL, self.scope.having(POSITIONAL, found))

    def _evaluate(self, words: list[Token]) -> None:
        """Read words as a separate script in the same scope."""
        ends = []
        for line in self._expander.commands(words, self.scope):
            text = " ".join(word.text for word in line)
            scope = self.scope.forgotten() if has_hole(text) else self.scope
            inner = _Reader(tokens(as_script(text)), scope, self._depth + 1, self._before)
            inner.read()
            self.found += inner.found
            for name in inner.scope.values:
                self._set(name, inner.scope)
            ends.append(inner.scope)
        self.scope = merged(*ends)
