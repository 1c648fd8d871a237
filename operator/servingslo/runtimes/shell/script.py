"""Find the commands that a shell script runs, with expanded words; nothing is executed.

Every path through the script is followed: for an unknown condition, both branches. A variable that
differs between two branches is unknown after them. An unknown part stays a hole in its word.
Source: POSIX.1-2017, Shell Command Language, 2.9, and bash's `[[`, `function` and `+=`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.runtimes.shell.builtins import (
    BUILTINS,
    DECLARING,
    DECLARING_EVERYWHERE,
    Outcome,
    assigned,
    defaulted,
    forgotten,
    tested,
)
from servingslo.runtimes.shell.lexer import DEEPEST, MOST_TOKENS, Token, tokens
from servingslo.runtimes.shell.words import Scope, Word, as_script, fields, has_hole, merged

# A script starts one engine, rarely two.
MOST_COMMANDS = 256
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_SEPARATORS = frozenset({";", "&", "\n"})
_ENDS = _SEPARATORS | {"&&", "||", "|", "|&", "(", ")", ";;", ";&", ";;&"}
_CASE_ENDS = frozenset({";;", ";&", ";;&", "esac"})
_TESTS = frozenset({"[", "test", ":"})
_LOOPS = frozenset({"while", "until"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that a script runs. here: its input text; scope: the known variables there."""

    words: tuple[Word, ...]
    here: str
    scope: Scope


def commands(script: str, scope: Scope, depth: int = 0) -> tuple[Command, ...]:
    """The commands of a script, in its order.

    Raises: ArgumentsNotUnderstoodError if it cannot be parsed.
    """
    if depth > DEEPEST:
        raise ArgumentsNotUnderstoodError("scripts are nested too deeply")
    reader = _Reader(tokens(script, extended=scope.extended), scope, depth)
    reader.whole_list(frozenset())
    if reader.is_left:
        raise ArgumentsNotUnderstoodError(f"{reader.here!r} stands where no command begins")
    return tuple(reader.found)


class _Reader:
    """Walks over the tokens once, and again over the body of each called function."""

    def __init__(self, found: Sequence[Token], scope: Scope, depth: int) -> None:
        self._tokens, self._scope, self._depth = found, scope, depth
        self._at = self._steps = 0
        self._functions: dict[str, int] = {}
        self._outcome: Outcome = None
        self.found: list[Command] = []

    @property
    def scope(self) -> Scope:
        """The scope at the current token."""
        return self._scope

    @property
    def is_left(self) -> bool:
        """Whether tokens are left that belong to no command."""
        return self._at < len(self._tokens)

    @property
    def here(self) -> str:
        """The text of the current token, '' at the end."""
        return self._tokens[self._at].text if self.is_left else ""

    def _take(self, text: str) -> None:
        if self.here != text:
            raise ArgumentsNotUnderstoodError(f"{text!r} is missing before {self.here!r}")
        self._at += 1

    def _skip_newlines(self) -> None:
        while self.here == "\n":
            self._at += 1

    def _separate(self) -> None:
        while self.here in _SEPARATORS:
            self._at += 1

    def whole_list(self, stops: frozenset[str]) -> None:
        """Read commands up to one of these words, or the end."""
        self._separate()
        while self.is_left and self.here not in stops and self.here != ")":
            if self.here in _CASE_ENDS:
                return
            self._and_or()
            self._separate()

    def _and_or(self) -> None:
        """Read commands joined by && and ||; the success of each may be known."""
        self._pipeline()
        success, failed = self._ways()
        while self.here in {"&&", "||"}:
            on_success = self.here == "&&"
            self._at += 1
            self._skip_newlines()
            self._scope = success if on_success else failed
            self._pipeline()
            succeeds, fails = self._ways()
            if on_success:
                success, failed = succeeds, merged(failed, fails)
            else:
                success, failed = merged(success, succeeds), fails
        self._scope = merged(success, failed)
        self._outcome = None if success.alive and failed.alive else success.alive

    def _ways(self) -> tuple[Scope, Scope]:
        """The scopes after success and after failure of the last command."""
        dead = replace(self._scope, alive=False)
        return (
            dead if self._outcome is False else self._scope,
            dead if self._outcome is True else self._scope,
        )

    def _pipeline(self) -> None:
        negated = False
        while self.here in {"!", "time"}:
            negated = negated != (self.here == "!")
            self._at += 1
        before = self._scope
        self._command()
        if self.here in {"|", "|&"}:
            while self.here in {"|", "|&"}:
                self._at += 1
                self._skip_newlines()
                self._scope = before
                self._command()
            self._scope, self._outcome = before, None
        elif negated and self._outcome is not None:
            self._outcome = not self._outcome

    def _command(self) -> None:
        self._steps += 1
        if self._depth > DEEPEST or self._steps > MOST_TOKENS:
            raise ArgumentsNotUnderstoodError("its commands are nested too deeply")
        compound = self._compounds().get(self.here)
        if compound is None:
            self._simple()
            return
        self._depth += 1
        self._outcome = None
        compound()
        self._depth -= 1
        while self.is_left and self._tokens[self._at].here is not None:
            self._at += 1

    def _compounds(self) -> dict[str, Callable[[], None]]:
        return {
            "(": self._subshell,
            "{": self._group,
            "if": self._if,
            "while": self._loop,
            "until": self._loop,
            "for": self._for,
            "select": self._for,
            "case": self._case,
            "[[": self._double_brackets,
            "function": self._function,
        }

    def _subshell(self) -> None:
        before = self._scope
        self._take("(")
        self.whole_list(frozenset())
        self._take(")")
        self._scope = before

    def _group(self) -> None:
        self._take("{")
        self.whole_list(frozenset({"}"}))
        self._take("}")

    def _if(self) -> None:
        """Read all branches; afterwards, known is what all possible branches agree on."""
        ends: list[Scope] = []
        while self.here in {"if", "elif"}:
            self._at += 1
            self.whole_list(frozenset({"then"}))
            self._take("then")
            taken, otherwise = self._ways()
            self._scope = taken
            self.whole_list(frozenset({"elif", "else", "fi"}))
            ends.append(self._scope)
            self._scope = otherwise
        if self.here == "else":
            self._at += 1
            self.whole_list(frozenset({"fi"}))
        self._take("fi")
        for end in ends:
            self._scope = merged(self._scope, end)
        self._outcome = None

    def _loop(self) -> None:
        self._at += 1
        self._forget_what_changes()
        before = self._scope
        self.whole_list(frozenset({"do"}))
        self._body(before)

    def _for(self) -> None:
        self._at += 1
        name = self.here
        self._forget_what_changes()
        while self.is_left and self.here != "do":
            self._at += 1
        self._scope = self._scope.with_variable(name, None)
        self._body(self._scope)

    def _body(self, before: Scope) -> None:
        self._take("do")
        self.whole_list(frozenset({"done"}))
        self._take("done")
        self._scope = merged(before, self._scope)
        self._outcome = None

    def _forget_what_changes(self) -> None:
        """Forget the variables that a loop's body changes, because the body runs again."""
        depth = 1
        for token in self._tokens[self._at :]:
            depth += (token.text in _LOOPS or token.text in {"for", "select"}) and token.is_word
            depth -= token.text == "done"
            if depth == 0:
                break
            name = _ASSIGNMENT.match(token.text)
            if name is not None:
                self._scope = self._scope.with_variable(name[1], None).with_array(name[1], None)
                if token.elements is None:
                    arrays = {k: v for k, v in self._scope.arrays.items() if k != name[1]}
                    self._scope = replace(self._scope, arrays=arrays)
            elif token.text in {"set", "shift"}:
                self._scope = replace(self._scope, positional=None)

    def _case(self) -> None:
        self._at += 2
        self._skip_newlines()
        self._take("in")
        self._skip_newlines()
        before = self._scope
        after = before
        while self.is_left and self.here != "esac":
            while self.is_left and self.here != ")":
                self._at += 1
            self._take(")")
            self._scope = before
            self.whole_list(frozenset())
            after = merged(after, self._scope)
            if self.here in _CASE_ENDS - {"esac"}:
                self._at += 1
            self._skip_newlines()
        self._take("esac")
        self._scope, self._outcome = after, None

    def _double_brackets(self) -> None:
        words: list[str] = []
        while self.is_left and self.here != "]]":
            token = self._tokens[self._at]
            text = [word.text for word in fields(token, self._scope)] if token.is_word else None
            words.extend([token.text] if text is None else text or [""])
            self._at += 1
        self._take("]]")
        self._outcome = tested(words[1:]) if self._scope.extended else None

    def _function(self) -> None:
        self._at += 1
        self._define(self.here)

    def _define(self, name: str) -> None:
        """Remember the start of a function's body, and skip the body."""
        self._at += 1
        if self.here == "(":
            self._at += 1
            self._take(")")
        self._skip_newlines()
        self._functions[name] = self._at
        before = self._scope
        self._scope = replace(before, alive=False)
        self._command()
        self._scope, self._outcome = before, True

    def _simple(self) -> None:
        assignments: list[Token] = []
        words: list[Word] = []
        here = ""
        begin = self._at
        declares = False
        while self.is_left and self.here not in _ENDS:
            token = self._tokens[self._at]
            self._at += 1
            if token.here is not None:
                here += token.here
            elif (not words or declares) and _ASSIGNMENT.match(token.text):
                assignments.append(token)
            elif token.elements is not None:
                raise ArgumentsNotUnderstoodError(f"{token.text!r} is no word of a command")
            else:
                strict = not words or words[0].text not in _TESTS
                words.extend(fields(token, replace(self._scope, strict=strict)))
                self._scope = defaulted(token, self._scope)
                declares = bool(words) and words[0].text in DECLARING
        if self.here == "(" and len(words) == 1 and not assignments:
            self._define_here(words[0].text)
        elif self._at == begin:
            raise ArgumentsNotUnderstoodError(f"{self.here!r} stands where a command begins")
        elif self._scope.alive:
            self._run(assignments, words, here)

    def _define_here(self, name: str) -> None:
        self._at -= 1
        self._define(name)

    def _run(self, assignments: list[Token], words: list[Word], here: str) -> None:
        """Apply the command's effect on the script, or record the command."""
        scope = self._scope
        for token in assignments:
            scope = assigned(token, scope)
        name = words[0].text if words else ""
        if name in DECLARING and any(has_hole(word.text) for word in words):
            self._scope, self._outcome = forgotten(scope), True
        elif not words or name in DECLARING_EVERYWHERE or (name in DECLARING and scope.extended):
            self._scope, self._outcome = scope, True
        elif name in DECLARING:
            self._scope, self._outcome = merged(self._scope, scope), None
        elif name in self._functions:
            self._call(name, words)
        elif name in {"exit", "return"}:
            self._scope = replace(self._scope, alive=False)
        elif name == "eval":
            self._evaluate(" ".join(word.text for word in words[1:]))
        elif name in BUILTINS:
            self._scope, self._outcome = BUILTINS[name]([w.text for w in words], self._scope)
        else:
            self._outcome = None
            self._note(Command(words=tuple(words), here=here, scope=scope))
            if name == "exec" and len(words) > 1:
                self._scope = replace(self._scope, alive=False)

    def _note(self, command: Command) -> None:
        self.found.append(command)
        if len(self.found) > MOST_COMMANDS:
            raise ArgumentsNotUnderstoodError(f"it runs more than {MOST_COMMANDS} commands")

    def _call(self, name: str, words: list[Word]) -> None:
        """Read a function's body with the words as its positional parameters."""
        back, positional = self._at, self._scope.positional
        self._at = self._functions[name]
        self._scope = replace(self._scope, positional=tuple(word.text for word in words))
        self._command()
        self._at, self._outcome = back, None
        self._scope = replace(self._scope, positional=positional, alive=True)

    def _evaluate(self, text: str) -> None:
        """Read words as a separate script in the same scope."""
        if has_hole(text):
            self._scope = forgotten(self._scope)
        inner = _Reader(
            tokens(as_script(text), extended=self._scope.extended), self._scope, self._depth + 1
        )
        inner.whole_list(frozenset())
        for command in inner.found:
            self._note(command)
        self._scope, self._outcome = inner.scope, None
