"""Find the commands that a shell script runs, with expanded words; nothing is executed.

Flow is not followed: every command may run. A variable has the values that are assigned to it
before, in whatever branch; one that a loop, `read` or another script sets is unknown. A command is
given once for each combination of its values, so that a limit counts as read only if all agree.
Functions, arrays, here-documents and inner shells are not read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.runtimes.shell.lexer import Part, Token, tokens
from servingslo.runtimes.shell.words import (
    ANY,
    POSITIONAL,
    Environment,
    Scope,
    Word,
    has_hole,
)

# A script starts one engine, rarely two.
_MOST_COMMANDS = 256
# Reserved words that open a compound command, with the one that closes it; and others.
_LOOPS = frozenset({"while", "until", "for", "select"})
_CLOSED_BY = {"if": "fi", "case": "esac", "{": "}", "(": ")"} | dict.fromkeys(_LOOPS, "done")
_CLOSING = frozenset(_CLOSED_BY.values())
_RESERVED = frozenset({"elif", "else", "then", "do", "!", "time", "[[", *_CLOSED_BY, *_CLOSING})
_JOINING = frozenset({"&&", "||", "|", "|&"})
_BRANCH_ENDS = frozenset({";;", ";&", ";;&"})
# Group 2: not the variable as a whole.
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+|\[[^\]]*\]\+?)?=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Anywhere in a script: `${NAME:=…}`, and arithmetic, which may assign.
_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):?=")
_ARITHMETIC = re.compile(r"\(\(([^)]*)")
_ASSIGNS = re.compile(r"[^=!<>]=[^=]|\+\+|--")
_DECLARING = frozenset({"export", "readonly", "local", "declare", "typeset"})
# Commands that set the variables they name.
_SETTING = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "let"})
_SET_OPTIONS = re.compile(r"set(?: [-+](?:[a-zA-Z]*[oO] [a-z]+|[a-zA-Z]+))*")
# Scripts that set up a shell or a Python environment and set no variables of a container.
_HARMLESS = re.compile(r"(?:.*/)?(?:activate|\.?(?:bashrc|profile)|\.bash_profile|conda\.sh)")
# Commands that name an engine without starting one.
NO_STARTERS = frozenset({
    "[", "apk", "apt", "apt-get", "break", "cat", "cd", "chmod", "continue", "cp", "curl", "echo",
    "exit", "false", "git", "grep", "hash", "kill", "ln", "ls", "mkdir", "mv", "pgrep",
    "pip", "pip3", "pkill", "printf", "return", "rm", "sed", "shopt", "sleep", "tee", "test",
    "touch", "trap", "true", "type", "ulimit", "umask", "wait", "wget", "which", ":",
})  # fmt: skip
_NOT_GIVEN = NO_STARTERS | _SETTING | _DECLARING | {"set", "shift"}
# Builtins that may set any variable if an expansion names them.
_SETTERS = _SETTING | _DECLARING | {
    "set", "shift", "eval", ".", "source", "printf", "command", "builtin"
}  # fmt: skip
# `declare -n B=A`; `exec {A}>file`.
_REFERENCE = re.compile(r"-[a-zA-Z]*n[a-zA-Z]*")
_DESCRIPTOR = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_END = Token(text="\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """A simple command. settings: its assignments; sure: they hold from here on.

    evaluated: `eval` runs it.
    """

    settings: list[Token]
    words: list[Token]
    sure: bool
    evaluated: bool


def commands(
    script: str, environment: Environment, positional: Sequence[str] = ()
) -> Iterator[tuple[Word, ...]]:
    """The commands of a script, in its order.

    Raises: ArgumentsNotUnderstoodError if it is not read.
    """
    parser = _Parser()
    parser.read(script)
    scope = Scope(environment, {POSITIONAL: frozenset({tuple(positional)})}, parser.unknown)
    given = 0
    for command in parser.found:
        scope.evaluated = command.evaluated
        for line in dict.fromkeys(scope.lines(command.words) if command.words else ()):
            given += 1
            if given > _MOST_COMMANDS:
                raise ArgumentsNotUnderstoodError(f"it runs more than {_MOST_COMMANDS} commands")
            yield line
            name = line[0].text if line else ""
            if has_hole(name) or name in _SETTERS or _hides_name(name):
                scope.unknown.add(ANY)
        for setting in command.settings:
            scope.assign(setting, sure=command.sure)


class _Parser:
    """Walks over the tokens once. found: the commands; unknown: variables that are not followed."""

    def __init__(self) -> None:
        self.found: list[_Command] = []
        self.unknown: set[str] = set()
        self._opened: list[str] = []
        self._words: list[Token] = []
        # Whether the command stands behind && or ||, or in a pipe; whether `eval` runs it.
        self._joined = self._evaluated = False

    def read(self, script: str) -> None:
        """Read all commands. Raises: ArgumentsNotUnderstoodError."""
        around = len(self._opened)
        self.unknown.update(_DEFAULT.findall(script))
        for text in filter(_ASSIGNS.search, _ARITHMETIC.findall(script)):
            self.unknown.update(_NAME.findall(text))
        left = iter([*tokens(script), _END])
        for token in left:
            if not token.parts:
                self._operator(token.text, left)
            elif self._words or not self._keyword(token.text, left):
                self._words.append(token)
        if len(self._opened) != around:
            raise ArgumentsNotUnderstoodError("a command in it is not closed")

    def _operator(self, text: str, left: Iterator[Token]) -> None:
        if text == "(":
            if self._words:
                raise ArgumentsNotUnderstoodError("it has a function or an array")
            self._opened.append(text)
            return
        begun = bool(self._words)
        self._end(sure=not (self._opened or self._joined or text in {"|", "|&", "&"}))
        self._joined = text in _JOINING or (self._joined and not begun and text == "\n")
        if text == ")":
            self._close(text)
        elif text in _BRANCH_ENDS:
            self._pattern(left)

    def _keyword(self, text: str, left: Iterator[Token]) -> bool:
        """Whether it is a reserved word, which is then done."""
        if text == "function":
            raise ArgumentsNotUnderstoodError("it has a function or an array")
        if text == "[[":
            _skip(left, "]]")
        elif text in _CLOSED_BY:
            self._opened.append(text)
            if text in {"for", "select"}:
                self.unknown.add(next(left, _END).text)
                _skip(left, "do")
            elif text == "case":
                _skip(left, "in")
                self._pattern(left)
        elif text in _CLOSING:
            self._close(text)
        return text in _RESERVED or text.startswith("((")

    def _pattern(self, left: Iterator[Token]) -> None:
        """Skip the pattern of a branch of `case`, or its end."""
        if _skip(left, ")", "esac") == "esac":
            self._close("esac")

    def _close(self, text: str) -> None:
        if not self._opened or _CLOSED_BY.get(self._opened.pop()) != text:
            raise ArgumentsNotUnderstoodError(f"{text!r} stands where no command begins")

    def _end(self, *, sure: bool) -> None:
        """End a simple command. sure: it runs once, in its order, and in the script's own shell."""
        words, self._words = self._words, []
        settings: list[Token] = []
        while words and _ASSIGNMENT.match(words[0].text):
            settings.append(words.pop(0))
        while words and _plain(words[0]) in {"builtin", "command"}:
            words.pop(0)
        name = _plain(words[0]) if words else ""
        looped = not _LOOPS.isdisjoint(self._opened)
        if words and (looped if _is_expanded(words[0]) else _hides_name(name)):
            self.unknown.add(ANY)
        # In front of a command they are for it alone, in most shells.
        sure = sure and not (settings and words)
        if self._evaluated and any(map(_is_expanded, [*settings, *words[:1]])):
            raise ArgumentsNotUnderstoodError("what its 'eval' runs is not known")
        if name in {".", "source"}:
            # Another script may set any variable.
            if _HARMLESS.fullmatch("".join(_plain(word) for word in words[1:2])):
                return
            self.unknown.add(ANY)
            words[0] = replace(words[0], text="source", parts=(Part(text="source"),))
        if name in _DECLARING:
            settings += [word for word in words if _ASSIGNMENT.match(word.text)]
            others = [one for one in words if one not in settings]
            if any(
                _is_expanded(one) or "=" in one.text or _REFERENCE.fullmatch(_plain(one))
                for one in others
            ):
                self.unknown.add(ANY)
        self._forget(settings, words)
        if name == "eval":
            self._evaluate(words[1:])
            return
        words = [] if name in _NOT_GIVEN else words
        self.found.append(
            _Command(settings=settings, words=words, sure=sure, evaluated=self._evaluated)
        )

    def _forget(self, settings: Sequence[Token], words: Sequence[Token]) -> None:
        """Note the variables whose value is not followed any more."""
        for found in filter(None, (_ASSIGNMENT.match(one.text) for one in settings)):
            if found[1] == "IFS":
                raise ArgumentsNotUnderstoodError("it sets IFS")
            if found[2] or not _LOOPS.isdisjoint(self._opened):
                self.unknown.add(found[1])
        plain = [_plain(one) for one in words]
        name, line = "".join(plain[:1]), " ".join(plain)
        self.unknown.update(one[1] for one in map(_DESCRIPTOR.fullmatch, plain) if one)
        if name in _SETTING or (name == "printf" and " -v" in line):
            self.unknown.update(_NAME.findall(line.replace(" -v", " ")))
            if name != "let" and any(map(_is_expanded, words[1:3])):
                self.unknown.add(ANY)
        if name == "shift" or (name == "set" and not _SET_OPTIONS.fullmatch(line)):
            self.unknown.add(POSITIONAL)

    def _evaluate(self, words: Sequence[Token]) -> None:
        """Read the words of `eval` as a part of the script."""
        if self._evaluated:
            raise ArgumentsNotUnderstoodError("it has an 'eval' in another one")
        self._evaluated = True
        self._opened.append("eval")
        self.read(" ".join("".join(part.text for part in word.parts) for word in words))
        self._opened.pop()
        self._evaluated = False


def _is_expanded(word: Token) -> bool:
    return any(part.name or part.opaque for part in word.parts)


def _plain(word: Token) -> str:
    """A word without its quotes; its source if it is expanded."""
    return word.text if _is_expanded(word) else "".join(part.text for part in word.parts)


def _hides_name(name: str) -> bool:
    """Whether the command's name stands behind this: an option of `command`, or a redirection."""
    option = name.startswith("-") and name not in {"-v", "-V"}
    return option or _DESCRIPTOR.fullmatch(name) is not None


def _skip(left: Iterator[Token], *ends: str) -> str:
    """Skip tokens up to one of these, and that; returns it, '' if there is none."""
    return next((one.text for one in left if one.text in ends), "")
