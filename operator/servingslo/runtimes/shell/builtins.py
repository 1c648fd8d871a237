"""Effects of a shell's built-in commands on the variables of its script."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.runtimes.shell.lexer import Token
from servingslo.runtimes.shell.words import Scope, fields, has_hole, unsplit

# Whether a command succeeds; None if not known.
Outcome = bool | None
Builtin = Callable[[Sequence[str], Scope], tuple[Scope, Outcome]]
# Commands whose arguments are assignments; some shells lack the others.
DECLARING_EVERYWHERE = frozenset({"export", "readonly", "local"})
DECLARING = DECLARING_EVERYWHERE | {"declare", "typeset"}
# Scripts that set up a shell or a Python environment and set no variables of a container.
_HARMLESS_SCRIPTS = frozenset(
    {"activate", ".bashrc", "bashrc", ".profile", "profile", ".bash_profile", "conda.sh"}
)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION_WITH_VALUE = re.compile(r"[-+][a-zA-Z]*[oO]")
_NUMBER = re.compile(r"-?\d{1,15}")
_NUMERIC: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_BINARY: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}


def assigned(token: Token, scope: Scope) -> Scope:
    """The scope after an assignment: `NAME=…`, `NAME+=…` or an array."""
    found = _ASSIGNMENT.match(token.text)
    if found is None:
        raise ArgumentsNotUnderstoodError(f"{token.text!r} is no assignment")
    name, adds = found[1], bool(found[2])
    if token.elements is not None:
        elements = [word.text for one in token.elements for word in fields(one, scope)]
        before = scope.arrays.get(name, ()) if adds else ()
        return scope.with_array(name, None if before is None else (*before, *elements))
    value = unsplit(token.parts, scope)[found.end() :]
    if adds and not scope.extended:
        return scope.with_variable(name, None)
    if not adds:
        return scope.with_variable(name, value)
    known, before_value = scope.value(name)
    if name in scope.arrays or not known:
        return scope.with_variable(name, None)
    return scope.with_variable(name, before_value + value)


def defaulted(token: Token, scope: Scope) -> Scope:
    """The scope after the expansion of a word with `${NAME:=…}`."""
    for part in token.parts:
        if part.operator[-1:] == "=" and scope.alive:
            scope = scope.with_variable(part.name, unsplit([part], scope))
    return scope


def tested(words: Sequence[str]) -> Outcome:
    """The outcome of `[ … ]` for these words."""
    if words[:1] == ["!"]:
        inner = tested(words[1:])
        return None if inner is None else not inner
    if any(map(has_hole, words)):
        return None
    if len(words) == 2 and words[0] in {"-n", "-z"}:
        return bool(words[1]) == (words[0] == "-n")
    if len(words) == 3:
        return _compared(words[0], words[1], words[2])
    return bool(words[0]) if len(words) == 1 else None


def _compared(left: str, comparison: str, right: str) -> Outcome:
    if comparison in _BINARY and not set(right) & set("*?["):
        return _BINARY[comparison](left, right)
    if comparison in _NUMERIC and _NUMBER.fullmatch(left) and _NUMBER.fullmatch(right):
        return _NUMERIC[comparison](int(left), int(right))
    return None


def _test(words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    inner = words[1:-1] if words[0] == "[" else words[1:]
    return scope, tested(inner) if scope.extended or "==" not in inner else None


def _succeeds(_words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    return scope, True


def _fails(_words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    return scope, False


def _set(words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    """`set -e` and similar change nothing here; words after them are positional parameters."""
    rest = list(words[1:])
    while rest and rest[0][:1] in {"-", "+"} and rest[0] != "--":
        rest = rest[2 if _OPTION_WITH_VALUE.fullmatch(rest[0]) else 1 :]
    if not rest:
        return scope, True
    own = scope.positional[:1] if scope.positional else ("sh",)
    return replace(scope, positional=(*own, *rest[rest[0] == "--" :])), True


def _shift(words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    count = words[1] if len(words) > 1 else "1"
    if scope.positional is None or not count.isdecimal():
        return replace(scope, positional=None), None
    kept = scope.positional[1 + int(count) :]
    return replace(scope, positional=(*scope.positional[:1], *kept)), True


def _unset(words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    names = [name for name in words[1:] if _NAME.fullmatch(name)]
    for name in names:
        scope = scope.with_variable(name, "")
    return replace(scope, dropped=scope.dropped | frozenset(names)), True


def _read(words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    """The variables become unknown."""
    for name in words[1:]:
        if _NAME.fullmatch(name):
            scope = scope.with_variable(name, None).with_array(name, None)
    return scope, None


def _source(words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    """Another script may set any variable; scripts that set up a shell or Python set none."""
    name = PurePosixPath(words[1]).name if len(words) > 1 else ""
    return (scope, None) if name in _HARMLESS_SCRIPTS else (forgotten(scope), None)


def _printf(words: Sequence[str], scope: Scope) -> tuple[Scope, Outcome]:
    """`printf -v NAME` assigns a value that is not evaluated."""
    if words[1:2] == ["-v"] and len(words) > 2:
        return scope.with_variable(words[2], None), True
    return scope, True


def forgotten(scope: Scope) -> Scope:
    """The scope after a command that may have set any variable."""
    return replace(
        scope,
        variables=dict.fromkeys(scope.variables),
        arrays=dict.fromkeys(scope.arrays),
        sourced=True,
    )


BUILTINS: Mapping[str, Builtin] = {
    "[": _test,
    "test": _test,
    "true": _succeeds,
    ":": _succeeds,
    "umask": _succeeds,
    "trap": _succeeds,
    "false": _fails,
    "set": _set,
    "shift": _shift,
    "unset": _unset,
    "read": _read,
    "mapfile": _read,
    "readarray": _read,
    "getopts": _read,
    "let": _read,
    "printf": _printf,
    ".": _source,
    "source": _source,
}
