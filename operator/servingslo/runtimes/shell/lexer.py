"""Split a shell script into tokens, each word with its parts; nothing is expanded here.

Comments and redirections are left out, here-documents are tokens. Arithmetic, substitutions and
rare expansions are opaque: their value is unknown before the script runs.
Source: POSIX.1-2017, Shell Command Language, 2.2 to 2.6, and bash's arrays.
"""

import re
from dataclasses import dataclass

from servingslo.errors import ArgumentsNotUnderstoodError

# Nesting levels of ${a:-${b:-…}}; each level is a recursive call.
DEEPEST = 16
# A pod's script has tens of tokens; each takes microseconds.
MOST_TOKENS = 4_000
# Reserved words where a command begins; those that open and close a compound command, by its kind.
OPENING = {"if": "if", "case": "case", "{": "{"} | dict.fromkeys(
    ("while", "until", "for", "select"), "loop"
)
CLOSING = {"fi": "if", "esac": "case", "done": "loop", "}": "{", ")": "("}
RESERVED = {*OPENING, *CLOSING, "[[", "function", "elif", "else", "then", "do", "!", "time"}
_OPERATORS = re.compile(r"&>>|&>|&&|\|\||\|&|;;&|;;|;&|<<<|<<-|<<|>>|>&|<&|>\||<>|[();|&<>\n]")
_REDIRECTIONS = frozenset({"<<<", ">>", ">&", "<&", ">|", "<>", "<", ">", "&>", "&>>", "<<", "<<-"})
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)*(?:#[^\n]*)?")
_PLAIN = re.compile(r"[^\s;&|<>()'\"\\$`]+")
_PLAIN_QUOTED = re.compile(r"[^\"\\$`]+")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\Z")
_LET = re.compile(r"\(\(.*?\)\)", re.DOTALL)
_NAME = r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]"
_PARAMETER = re.compile(rf"\$({_NAME})")
# Group 1: name; 2: index of all elements; 3: operator; 4: its word.
_BRACED = re.compile(rf"\$\{{({_NAME})(\[[@*]\])?(?:(:?[-=+?])(.*))?\}}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A literal part of a word, or an expansion `${name[index]operator word}`.

    text: the literal text, or the source of the expansion. opaque: an expansion that is not read.
    """

    text: str
    quoted: bool = False
    opaque: bool = False
    name: str = ""
    index: str = ""
    operator: str = ""
    word: tuple["Part", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A word with parts, an operator or newline without parts, or an array's words after `name=`.

    text: its source. here: the text of a here-document, None for any other token.
    """

    text: str
    parts: tuple[Part, ...] = ()
    elements: tuple["Token", ...] | None = None
    here: str | None = None


def tokens(script: str) -> tuple[Token, ...]:
    """The script's tokens. Raises: ArgumentsNotUnderstoodError if it cannot be parsed."""
    return _Lexer(script, 0).all_tokens()


class _Lexer:
    """Walks over a script once. depth: number of enclosing expansions."""

    def __init__(self, script: str, depth: int) -> None:
        if depth > DEEPEST:
            raise ArgumentsNotUnderstoodError("expansions are nested too deeply")
        self._script, self._depth, self._at = script, depth, 0
        self._tokens: list[Token] = []
        # Here-documents whose text follows: index, delimiter, whether tabs are stripped.
        self._awaited: list[tuple[int, str, bool]] = []

    def all_tokens(self) -> tuple[Token, ...]:
        while self._more():
            if not self._operator():
                self._tokens.append(self._word_or_array())
            if len(self._tokens) > MOST_TOKENS:
                raise ArgumentsNotUnderstoodError(f"it has more than {MOST_TOKENS} words")
        self._here_documents()
        return tuple(self._tokens)

    def _more(self) -> bool:
        """Skip blanks and a comment; returns whether anything is left."""
        blanks = _BLANKS.match(self._script, self._at)
        self._at = blanks.end() if blanks else self._at
        return self._at < len(self._script)

    def _operator(self) -> bool:
        """Read an operator, or a redirection with its target; returns whether there was one."""
        if let := _LET.match(self._script, self._at):
            self._at = let.end()
            self._tokens += [Token(text=text, parts=(_text(text),)) for text in ("let", let[0])]
            return True
        found = _OPERATORS.match(self._script, self._at)
        if found is None or self._script.startswith(("<(", ">("), self._at):
            return False
        name, self._at = found[0], found.end()
        if name not in _REDIRECTIONS:
            self._tokens.append(Token(text=name))
            if name == "\n":
                self._here_documents()
            return True
        before = self._tokens[-1].text if self._tokens else ""
        if before.isdecimal() and self._script.endswith(before, 0, found.start()):
            self._tokens.pop()  # It is the number of a redirected stream.
        if not self._more() or self._script[self._at] == "\n":
            raise ArgumentsNotUnderstoodError(f"{name} has no target")
        target = self._word()
        if name in {"<<", "<<-"}:
            delimiter = "".join(part.text for part in target.parts)
            self._awaited.append((len(self._tokens), delimiter, name == "<<-"))
            self._tokens.append(Token(text=name, here=""))
        return True

    def _here_documents(self) -> None:
        """Read the texts of the here-documents that the last line started."""
        for place, delimiter, strips in self._awaited:
            lines = self._script[self._at :].split("\n")
            plain = [line.lstrip("\t") if strips else line for line in lines]
            end = plain.index(delimiter) if delimiter in plain else len(plain)
            self._at += sum(len(line) + 1 for line in lines[: end + 1])
            self._tokens[place] = Token(text="<<", here="\n".join(plain[:end]))
        self._awaited = []

    def _word_or_array(self) -> Token:
        word = self._word()
        if not (_ARRAY.match(word.text) and self._script.startswith("(", self._at)):
            return word
        self._at += 1
        found: list[Token] = []
        while self._more():
            if self._script[self._at] == ")":
                self._at += 1
                return Token(text=word.text, elements=tuple(found))
            if self._script[self._at] == "\n":
                self._at += 1
            else:
                found.append(self._word())
        raise ArgumentsNotUnderstoodError("an array is not closed")

    def _word(self) -> Token:
        begin = self._at
        parts: list[Part] = []
        while self._at < len(self._script):
            if (part := self._part()) is None:
                break
            parts += part
        if not parts:
            raise ArgumentsNotUnderstoodError(f"{self._script[begin : begin + 1]!r} stands alone")
        return Token(text=self._script[begin : self._at], parts=tuple(parts))

    def _part(self) -> list[Part] | None:
        """The next parts of an unquoted word, None at its end."""
        script, begin = self._script, self._at
        char = script[begin]
        found: list[Part] | None = None
        if char == "'":
            self._at = _behind(script, begin, "'")
            found = [_text(script[begin + 1 : self._at - 1])]
        elif char == '"':
            found = self._double_quoted()
        elif char == "\\":
            self._at += 2
            escaped = script[begin + 1 : self._at]
            found = [] if escaped == "\n" else [_text(escaped or char)]
        elif char in "$`":
            found = [self._expansion(quoted=False)]
        elif plain := _PLAIN.match(script, begin):
            self._at = plain.end()
            found = [Part(text=plain[0])]
        elif script.startswith(("<(", ">("), begin):
            self._at = _closing(script, begin + 1, "(", ")")
            found = [Part(text=script[begin : self._at], quoted=True, opaque=True)]
        return found

    def _double_quoted(self) -> list[Part]:
        """The parts up to the closing quote."""
        parts = [_text("")]
        self._at += 1
        while self._at < len(self._script):
            if self._script[self._at] == '"':
                self._at += 1
                return parts
            parts += self._quoted_part()
        raise ArgumentsNotUnderstoodError("a quote is not closed")

    def _quoted_part(self) -> list[Part]:
        char = self._script[self._at]
        if char == "\\":
            escaped = self._script[self._at + 1 : self._at + 2]
            self._at += 2
            kept = escaped if escaped and escaped in '$`"\\' else "\\" + escaped
            return [] if escaped == "\n" else [_text(kept)]
        if char in "$`":
            return [self._expansion(quoted=True)]
        plain = _PLAIN_QUOTED.match(self._script, self._at)
        end = self._at + 1 if plain is None else plain.end()
        text, self._at = self._script[self._at : end], end
        return [_text(text)]

    def inner_parts(self, *, quoted: bool) -> tuple[Part, ...]:
        """The parts of the word inside an expansion; blanks are text there."""
        parts: list[Part] = []
        while self._at < len(self._script):
            if quoted and self._script[self._at] not in "\"'":
                parts += self._quoted_part()
            elif (part := self._part()) is not None:
                parts += part
            else:
                parts.append(Part(text=self._script[self._at], quoted=quoted))
                self._at += 1
        return tuple(parts)

    def _expansion(self, *, quoted: bool) -> Part:
        """The expansion that begins with a dollar or a backquote."""
        script, begin = self._script, self._at
        following = script[begin + 1 : begin + 2]
        if script[begin] == "`":
            self._at = _behind(script, begin, "`")
        elif following == "'" and not quoted:
            self._at = _behind(script, begin + 1, "'", escapes=True)
        elif following in {"(", "{"}:
            self._at = _closing(script, begin + 1, following, ")" if following == "(" else "}")
        elif plain := _PARAMETER.match(script, begin):
            self._at = plain.end()
            return Part(text=plain[0], quoted=quoted, name=plain[1])
        else:
            self._at += 1
            return _text("" if following == '"' and not quoted else "$")
        text = script[begin : self._at]
        found = _BRACED.fullmatch(text)
        if found is None or (found[1] == "#" and found[3]):
            return Part(text=text, quoted=quoted, opaque=True)
        return Part(
            text=text,
            quoted=quoted,
            name=found[1],
            index=found[2] or "",
            operator=found[3] or "",
            word=_Lexer(found[4] or "", self._depth + 1).inner_parts(quoted=quoted),
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
