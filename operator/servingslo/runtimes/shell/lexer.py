"""Split a shell script into tokens, each word with its parts; nothing is expanded here.

Source: POSIX.1-2017, Shell Command Language, 2.2 to 2.6, and bash's arrays, `$'…'`, `<<<` and
`&>`. Comments are left out, here-documents are tokens, other redirections are dropped.
"""

import re
from dataclasses import dataclass
from enum import Enum

from servingslo.errors import ArgumentsNotUnderstoodError

# Nesting levels of ${a:-${b:-…}}; each level is a recursive call.
DEEPEST = 16
# A pod's script has tens of tokens; each takes microseconds.
MOST_TOKENS = 4_000
_OPERATORS = re.compile(r"&>>|&>|&&|\|\||\|&|;;&|;;|;&|<<<|<<-|<<|>>|>&|<&|>\||<>|[();|&<>]")
_REDIRECTIONS = frozenset({"<<<", ">>", ">&", "<&", ">|", "<>", "<", ">", "&>", "&>>"})
_HERE = frozenset({"<<", "<<-"})
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)*")
_PLAIN = re.compile(r"[^\s;&|<>()'\"\\$`]+")
_PLAIN_QUOTED = re.compile(r"[^\"\\$`]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=$")
# Group 1: name; 2: array index; 3: operator.
_BRACED = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#])(\[(?:[@*]|[0-9]+)\])?(?:(:?[-=+?])(.*))?",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


class Kind(Enum):
    """Kind of a part.

    TEXT is literal. PARAMETER and ARITHMETIC are expanded. The value of an OPAQUE is unknown before
    the script runs.
    """

    TEXT = "text"
    PARAMETER = "parameter"
    ARITHMETIC = "arithmetic"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a word. text: its text, or the source of an expansion.

    name, index, operator, word: of a parameter, `${name[index]operator word}`. For an arithmetic,
    word is its expression.
    """

    kind: Kind
    text: str
    quoted: bool = False
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

    @property
    def is_word(self) -> bool:
        """Whether it is a word, not an operator, an array or a here-document."""
        return bool(self.parts)


def tokens(script: str, *, extended: bool = True) -> tuple[Token, ...]:
    """The script's tokens. extended: the shell has bash's extensions.

    Raises: ArgumentsNotUnderstoodError if it cannot be parsed.
    """
    return _Lexer(script, 0, extended=extended).all_tokens()


class _Lexer:
    """Walks over a script once. depth: number of enclosing expansions."""

    def __init__(self, script: str, depth: int, *, extended: bool) -> None:
        if depth > DEEPEST:
            raise ArgumentsNotUnderstoodError("expansions are nested too deeply")
        self._script, self._depth, self._at = script, depth, 0
        self._extended = extended
        self._tokens: list[Token] = []
        # Here-documents whose text follows: index, delimiter, whether tabs are stripped.
        self._awaited: list[tuple[int, str, bool]] = []

    def all_tokens(self) -> tuple[Token, ...]:
        while self._more():
            if self._script[self._at] == "\n":
                self._at += 1
                self._tokens.append(Token(text="\n"))
                self._here_documents()
            elif self._script[self._at] == "#":
                self._skip_comment()
            elif not self._operator():
                self._word_or_array()
            if len(self._tokens) > MOST_TOKENS:
                raise ArgumentsNotUnderstoodError(f"it has more than {MOST_TOKENS} words")
        self._here_documents()
        return tuple(self._tokens)

    def _more(self) -> bool:
        """Skip blanks; returns whether anything is left."""
        blanks = _BLANKS.match(self._script, self._at)
        self._at = blanks.end() if blanks else self._at
        return self._at < len(self._script)

    def _skip_comment(self) -> None:
        end = self._script.find("\n", self._at)
        self._at = len(self._script) if end < 0 else end

    def _operator(self) -> bool:
        """Read an operator, or a redirection with its target; returns whether there was one."""
        found = _OPERATORS.match(self._script, self._at)
        if found is None or self._script.startswith(("<(", ">("), self._at):
            return False
        self._at = found.end()
        name = found[0]
        if name not in _REDIRECTIONS and name not in _HERE:
            self._tokens.append(Token(text=name))
            return True
        if not self._more() or self._script[self._at] == "\n":
            raise ArgumentsNotUnderstoodError(f"{name} has no target")
        target = self._word()
        if name in _HERE:
            delimiter = "".join(part.text for part in target.parts)
            self._awaited.append((len(self._tokens), delimiter, name == "<<-"))
            self._tokens.append(Token(text=name, here=""))
        return True

    def _here_documents(self) -> None:
        """Read the texts of the here-documents that the last line started."""
        for place, delimiter, strips in self._awaited:
            lines = []
            while self._at < len(self._script):
                end = self._script.find("\n", self._at)
                end = len(self._script) if end < 0 else end
                line = self._script[self._at : end]
                self._at = end + 1
                line = line.lstrip("\t") if strips else line
                if line == delimiter:
                    break
                lines.append(line)
            self._tokens[place] = Token(text="<<", here="\n".join(lines))
        self._awaited = []

    def _word_or_array(self) -> None:
        word = self._word()
        following = self._script[self._at : self._at + 1]
        if word.text.isdecimal() and following in {"<", ">"}:
            return  # It is the number of a redirected stream.
        if following == "(" and _ARRAY.match(word.text):
            self._at += 1
            word = Token(text=word.text, elements=tuple(self._elements()))
        self._tokens.append(word)

    def _elements(self) -> list[Token]:
        """The words of an array, to its closing bracket."""
        found: list[Token] = []
        while self._more():
            char = self._script[self._at]
            if char == ")":
                self._at += 1
                return found
            if char == "\n":
                self._at += 1
            elif char == "#":
                self._skip_comment()
            else:
                found.append(self._word())
        raise ArgumentsNotUnderstoodError("an array is not closed")

    def _word(self) -> Token:
        begin = self._at
        parts: list[Part] = []
        while self._at < len(self._script):
            if self._script.startswith(("<(", ">("), self._at):
                self._at += 1
                parts.append(self._opaque(self._at - 1, self._closing("(", ")"), quoted=True))
                continue
            part = self._part()
            if part is None:
                break
            parts.extend(part)
        if not parts:
            raise ArgumentsNotUnderstoodError(f"{self._script[begin : begin + 1]!r} stands alone")
        return Token(text=self._script[begin : self._at], parts=tuple(parts))

    def _part(self) -> list[Part] | None:
        """The next parts of an unquoted word, None at its end."""
        char = self._script[self._at]
        if char == "'":
            return [_text(self._single_quoted())]
        if char == '"':
            self._at += 1
            return self._double_quoted()
        if char == "\\":
            self._at += 2
            escaped = self._script[self._at - 1 : self._at]
            return [] if escaped == "\n" else [_text(escaped or "\\")]
        if char in "$`":
            return self._expansion(quoted=False)
        plain = _PLAIN.match(self._script, self._at)
        if plain is None:
            return None
        self._at = plain.end()
        return [Part(kind=Kind.TEXT, text=plain[0])]

    def _single_quoted(self) -> str:
        end = self._script.find("'", self._at + 1)
        if end < 0:
            raise ArgumentsNotUnderstoodError("a quote is not closed")
        text = self._script[self._at + 1 : end]
        self._at = end + 1
        return text

    def _double_quoted(self) -> list[Part]:
        """The parts up to the closing quote."""
        parts = [_text("")]
        while self._at < len(self._script):
            if self._script[self._at] == '"':
                self._at += 1
                return parts
            parts.extend(self._quoted_part())
        raise ArgumentsNotUnderstoodError("a quote is not closed")

    def _quoted_part(self) -> list[Part]:
        char = self._script[self._at]
        if char == "\\":
            escaped = self._script[self._at + 1 : self._at + 2]
            self._at += 2
            if escaped == "\n":
                return []
            return [_text(escaped if escaped and escaped in '$`"\\' else "\\" + escaped)]
        if char in "$`":
            return self._expansion(quoted=True)
        plain = _PLAIN_QUOTED.match(self._script, self._at)
        end = self._at + 1 if plain is None else plain.end()
        text, self._at = self._script[self._at : end], end
        return [_text(text)]

    def inner_parts(self, *, quoted: bool) -> tuple[Part, ...]:
        """The parts of the word inside an expansion; blanks are text there."""
        parts: list[Part] = []
        while self._at < len(self._script):
            if quoted and self._script[self._at] not in "\"'":
                parts.extend(self._quoted_part())
                continue
            part = self._part()
            if part is None:
                char, self._at = self._script[self._at], self._at + 1
                part = [Part(kind=Kind.TEXT, text=char, quoted=quoted)]
            parts.extend(part)
        return tuple(parts)

    def _expansion(self, *, quoted: bool) -> list[Part]:
        """The parts of an expansion that begins with a dollar or a backquote."""
        begin = self._at
        if self._script[begin] == "`":
            return [self._backquoted(quoted=quoted)]
        self._at += 1
        following = self._script[self._at : self._at + 1]
        if following == "'" and not quoted:
            return [self._ansi_quoted(begin)]
        if following == '"' and not quoted:
            self._at += 1
            return self._double_quoted()
        if following == "(":
            return [self._substitution(begin, self._closing("(", ")"), quoted=quoted)]
        if following == "{":
            return [self._braced(begin, self._closing("{", "}"), quoted=quoted)]
        return [self._plain_parameter(begin, quoted=quoted)]

    def _backquoted(self, *, quoted: bool) -> Part:
        begin, end = self._at, self._at + 1
        while self._script[end : end + 1] not in {"`", ""}:
            end += 2 if self._script[end] == "\\" else 1
        if end >= len(self._script):
            raise ArgumentsNotUnderstoodError("a backquote is not closed")
        self._at = end + 1
        return self._opaque(begin, self._at, quoted=quoted)

    def _substitution(self, begin: int, end: int, *, quoted: bool) -> Part:
        text = self._script[begin:end]
        if not (text.startswith("$((") and text.endswith("))")):
            return self._opaque(begin, end, quoted=quoted)
        inside = _Lexer(text[3:-2], self._depth + 1, extended=self._extended)
        word = inside.inner_parts(quoted=True)
        return Part(kind=Kind.ARITHMETIC, text=text, quoted=quoted, word=word)

    def _plain_parameter(self, begin: int, *, quoted: bool) -> Part:
        name = _NAME.match(self._script, self._at)
        following = self._script[self._at : self._at + 1]
        if name is None and not (following.isdecimal() or following in set("@*#?$!-")):
            return _text("$")
        self._at = name.end() if name else self._at + 1
        text = self._script[begin : self._at]
        return Part(kind=Kind.PARAMETER, text=text, quoted=quoted, name=text[1:])

    def _ansi_quoted(self, begin: int) -> Part:
        r"""`$'…'`: opaque if it has escapes other than \n, \t, \r, quotes and backslashes."""
        text, at, known = "", self._at + 1, True
        while at < len(self._script) and self._script[at] != "'":
            char = self._script[at]
            if char == "\\":
                at += 1
                char = _ESCAPES.get(self._script[at : at + 1], "")
                known = known and bool(char)
            text += char
            at += 1
        if at >= len(self._script):
            raise ArgumentsNotUnderstoodError("a quote is not closed")
        self._at = at + 1
        known = known and self._extended
        return _text(text) if known else self._opaque(begin, self._at, quoted=True)

    def _braced(self, begin: int, end: int, *, quoted: bool) -> Part:
        text = self._script[begin:end]
        found = _BRACED.fullmatch(text[2:-1])
        if found is None or (found[1] == "#" and found[3]):
            return Part(kind=Kind.OPAQUE, text=text, quoted=quoted)
        inside = _Lexer(found[4] or "", self._depth + 1, extended=self._extended)
        return Part(
            kind=Kind.PARAMETER,
            text=text,
            quoted=quoted,
            name=found[1],
            index=(found[2] or "")[1:-1],
            operator=found[3] or "",
            word=inside.inner_parts(quoted=quoted),
        )

    def _closing(self, opening: str, closing: str) -> int:
        """Move after the bracket that closes the one here; quoted brackets do not count."""
        depth = 0
        while self._at < len(self._script):
            char = self._script[self._at]
            if char == "\\":
                self._at += 2
            elif char == "'":
                self._single_quoted()
            elif char == '"':
                self._at = _behind_quotes(self._script, self._at)
            else:
                depth += (char == opening) - (char == closing)
                self._at += 1
                if depth == 0:
                    return self._at
        raise ArgumentsNotUnderstoodError(f"{opening!r} is not closed")

    def _opaque(self, begin: int, end: int, *, quoted: bool) -> Part:
        return Part(kind=Kind.OPAQUE, text=self._script[begin:end], quoted=quoted)


def _behind_quotes(script: str, at: int) -> int:
    """The index after a double-quoted text that begins here."""
    at += 1
    while at < len(script) and script[at] != '"':
        at += 2 if script[at] == "\\" else 1
    return at + 1


def _text(text: str) -> Part:
    """A quoted text: it makes a word even if it is empty."""
    return Part(kind=Kind.TEXT, text=text, quoted=True)
