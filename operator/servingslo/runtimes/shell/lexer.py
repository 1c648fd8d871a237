"""Split a shell script into tokens, each word with its parts; nothing is expanded here.

Comments and redirections are left out. Substitutions and rare expansions are opaque: their value is
unknown before the script runs. Arrays, functions and here-documents are not read.
Source: POSIX.1-2017, Shell Command Language, 2.2 to 2.6.
"""

import re
from dataclasses import dataclass

from servingslo.errors import ArgumentsNotUnderstoodError

# Nesting levels of ${a:-${b:-…}}; each level is a recursive call.
_DEEPEST = 16
# A pod's script has tens of tokens; each takes microseconds.
_MOST_TOKENS = 4_000
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&|;;|;&|[();|&\n]")
_REDIRECTION = re.compile(r"[0-9]*(<<<|<<|>>|>&|<&|>\||<>|&>>|&>|<|>)(?!\()")
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)*(?:#[^\n]*)?")
_ARITHMETIC = re.compile(r"\(\([^()]*\)\)")
_TEXT = re.compile(r"[^\s;&|<>()'\"\\$`]+")
_QUOTED_TEXT = re.compile(r"[^\"\\$`]+")
# `>(tee log)`, outside of quotes.
_PROCESS = re.compile(r"[<>]\(")
_ENDS_OF_A_WORD = frozenset(" \t\r\n;&|<>()")
_ESCAPED_IN_QUOTES = frozenset('$`"\\\n')
_NAME = r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]"
_PARAMETER = re.compile(rf"\$({_NAME})")
# Group 1: name; 2: operator; 3: its word.
_BRACED = re.compile(rf"\$\{{({_NAME})(?:(:?[-+?])(.*))?\}}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A literal part of a word, or an expansion `${name operator word}`.

    text: the literal text, or the source of the expansion. opaque: an expansion that is not read.
    """

    text: str
    quoted: bool = False
    opaque: bool = False
    name: str = ""
    operator: str = ""
    word: tuple["Part", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A word with parts, or an operator or newline without parts. text: its source."""

    text: str
    parts: tuple[Part, ...] = ()


def tokens(script: str) -> list[Token]:
    """The script's tokens. Raises: ArgumentsNotUnderstoodError if it is not read."""
    found: list[Token] = []
    at = _behind_blanks(script, 0)
    while at < len(script):
        redirected = _REDIRECTION.match(script, at)
        arithmetic = _ARITHMETIC.match(script, at)
        plain = None if redirected else arithmetic or _OPERATOR.match(script, at)
        if plain:
            at = plain.end()
            found.append(Token(text=plain[0], parts=(_text(plain[0]),) if arithmetic else ()))
        else:
            if redirected and redirected[1] == "<<":
                raise ArgumentsNotUnderstoodError("it has a here-document")
            begin = _behind_blanks(script, redirected.end()) if redirected else at
            parts, at = _parts(script, begin, 0, _ENDS_OF_A_WORD)
            if at == begin:
                raise ArgumentsNotUnderstoodError(f"{script[begin : begin + 1]!r} stands alone")
            if not redirected:
                found.append(Token(text=script[begin:at], parts=parts))
        if len(found) > _MOST_TOKENS:
            raise ArgumentsNotUnderstoodError(f"it has more than {_MOST_TOKENS} words")
        at = _behind_blanks(script, at)
    return found


def _behind_blanks(script: str, at: int) -> int:
    """The index after blanks and a comment."""
    blanks = _BLANKS.match(script, at)
    return blanks.end() if blanks else at


def _parts(
    script: str, at: int, depth: int, ends: frozenset[str], *, quoted: bool = False
) -> tuple[tuple[Part, ...], int]:
    """The parts up to one of these characters outside of quotes, or to the end; and its index.

    depth: number of enclosing expansions. quoted: all of it is in double quotes.
    """
    parts: list[Part] = []
    while at < len(script) and ((char := script[at]) not in ends or _PROCESS.match(script, at)):
        begin = at
        if char == "\\":
            at, escaped = at + 2, script[at + 1 : at + 2]
            kept = "\\" * (quoted and escaped not in _ESCAPED_IN_QUOTES) + escaped
            parts += [_text(kept)] * (escaped != "\n")
        elif char == "'" and not quoted:
            at = _behind(script, at, char)
            parts.append(_text(script[begin + 1 : at - 1]))
        elif char == '"':
            inside, at = _parts(script, at + 1, depth, frozenset('"'), quoted=True)
            if at >= len(script):
                raise ArgumentsNotUnderstoodError("a quote is not closed")
            parts += [_text(""), *inside]
            at += 1
        elif char in ends:
            at = _closing(script, at + 1, "(", ")")
            parts.append(Part(text=script[begin:at], opaque=True))
        elif char in "$`":
            part, at = _expansion(script, at, depth, quoted=quoted)
            parts.append(part)
        else:
            plain = (_QUOTED_TEXT if quoted else _TEXT).match(script, at)
            at = at + 1 if plain is None else plain.end()
            parts.append(Part(text=script[begin:at], quoted=quoted))
    return tuple(parts), at


def _expansion(script: str, begin: int, depth: int, *, quoted: bool) -> tuple[Part, int]:
    """The expansion that begins with a dollar or a backquote, and the index after it."""
    following = script[begin + 1 : begin + 2]
    if script[begin] == "`":
        end = _behind(script, begin, "`")
    elif following in {"'", '"'} and not quoted:
        end = _behind(script, begin + 1, following, escapes=True)
    elif following in {"(", "{"}:
        end = _closing(script, begin + 1, following, ")" if following == "(" else "}")
    elif plain := _PARAMETER.match(script, begin):
        return Part(text=plain[0], quoted=quoted, name=plain[1]), plain.end()
    else:
        return _text("$"), begin + 1
    text = script[begin:end]
    found = _BRACED.fullmatch(text)
    if found is None or (found[1] == "#" and found[2]):
        return Part(text=text, quoted=quoted, opaque=True), end
    if depth > _DEEPEST:
        raise ArgumentsNotUnderstoodError("expansions are nested too deeply")
    word, _ = _parts(found[3] or "", 0, depth + 1, frozenset(), quoted=quoted)
    return (
        Part(text=text, quoted=quoted, name=found[1], operator=found[2] or "", word=word),
        end,
    )


def _behind(script: str, at: int, quote: str, *, escapes: bool = False) -> int:
    """The index after a quoted text that begins here. Raises: ArgumentsNotUnderstoodError."""
    at += 1
    while at < len(script) and script[at] != quote:
        at += 2 if script[at] == "\\" and (escapes or quote != "'") else 1
    if at >= len(script):
        raise ArgumentsNotUnderstoodError("a quote is not closed")
    return at + 1


def _closing(script: str, at: int, opening: str, closing: str) -> int:
    """The index after the bracket that closes the one here; quoted brackets do not count."""
    depth = 0
    while at < len(script):
        char = script[at]
        if char in "'\"":
            at = _behind(script, at, char)
            continue
        depth += (char == opening) - (char == closing)
        at += 2 if char == "\\" else 1
        if depth == 0:
            return at
    raise ArgumentsNotUnderstoodError(f"{opening!r} is not closed")


def _text(text: str) -> Part:
    """A quoted text: it makes a word even if it is empty."""
    return Part(text=text, quoted=True)
