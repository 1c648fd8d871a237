"""Find the words that start an engine in a container's command and args.

A container runs `command + args`. If that is a shell with a script, the script is read as the shell
would: variables, quotes, branches. A script may start an engine in several places; each is a
separate line. An unknown part is a hole in its word.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePosixPath

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.runtimes.shell.script import NO_STARTERS, commands
from servingslo.runtimes.shell.words import (
    LONGEST_LINE_CHARACTERS,
    NO_VARIABLES,
    Environment,
    Word,
    has_hole,
    hole,
)

_SHELLS = frozenset({"sh", "ash", "dash", "bash", "ksh", "zsh"})
_MULTI_CALL = "busybox"
_OPTION_WITH_FILE = frozenset({"--rcfile", "--init-file"})
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_SHELL_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# With these a program only prints.
_ASKS = frozenset({"--help", "-h", "--version"})
# Programs of an engine's other nodes, and of a cluster of them; vLLM's script only starts Ray.
_NO_SERVERS = frozenset({"sshd", "service", "orted", "sleep", "tail"})
_RAY_SCRIPT = "multi-node-serving.sh"
_RAY_ALONE = re.compile(r"--ray_cluster_size[= ]1(?!\S)")
# Source: the manual of mpirun, Open MPI and MPICH.
_MPI = frozenset({"mpirun", "mpiexec", "orterun", "prterun"})
_MPI_HOSTS = frozenset({"--host", "-host", "-H", "-hosts"})
_MPI_FILES = frozenset({"--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f"})
_TORCH = "torchrun"
# Programs that start another one, possibly the engine; the rest of their words are its own.
_PASSING_ON = frozenset(
    {"env", "exec", "sudo", "tini", "dumb-init", "catatonit", "s6-setuidgid", "gosu", "stdbuf"}
    | {"numactl", "taskset", "nice", "nohup", "timeout", _TORCH, "ray", "nsys", "uv"}
    | {"accelerate", "deepspeed", "opentelemetry-instrument", "trtllm-llmapi-launch", *_MPI}
)
_PYTHON = re.compile(r"python[0-9.]*")
_BEFORE_A_COMMAND = frozenset({"exec", "command", "env", "nohup", "sudo", "builtin"})
TOO_LONG = (
    "command and args, with the variables in them, are longer than "
    f"{LONGEST_LINE_CHARACTERS} characters"
)
# Cached lines: as many as one operator may have workloads.
_LINES_REMEMBERED = 512
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The start command of a container's engine.

    lines: the words of each place that starts it, from its program on; several only in a script.
    started: whether each of them is known to start it. serves: whether anything in it may start a
    server; joins: what makes it one node of several, '' if nothing. script: whether a shell runs a
    script; text: that script. unread: the part that could not be read at all. others: other
    commands and texts of the script.
    """

    lines: tuple[tuple[Word, ...], ...]
    started: bool = True
    serves: bool = True
    joins: str = ""
    script: bool = False
    unread: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    text: str = ""


_Words = Sequence[Word]
# The environment of a container, as the key of a cache.
_Around = tuple[tuple[tuple[str, str], ...], frozenset[str], bool]


def expanded(words: Sequence[str] | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Words with each $(NAME) replaced by its value; unknown names stay, and $$ becomes a plain $.

    Unchanged if the line would become too long. Source: Kubernetes, core/v1 Container.
    """
    words = tuple(words or ())
    named = (m[1] for word in words for m in _REFERENCE.finditer(word) if m[1])
    if sum(len(environment.get(name, "")) for name in named) > LONGEST_LINE_CHARACTERS:
        return words

    def value(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return environment.get(match.group(1), match.group(0))

    return tuple(_REFERENCE.sub(value, word) for word in words)


def references(words: Sequence[str]) -> frozenset[str]:
    """Names of the variables in the words: $(NAME), and in a script the shell's own forms."""
    found = {match[1] for word in words for match in _REFERENCE.finditer(word) if match[1]}
    if any(is_shell(word) for word in words):
        for word in words:
            found.update(_SHELL_REFERENCE.findall(word))
    return frozenset(found)


def in_use(words: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """The known variables that the words need, and that those need: others would waste time."""
    shells = [word for word in words if is_shell(word)]
    found: dict[str, str] = {}
    ahead = references(words)
    while new := {name: known[name] for name in ahead if name in known and name not in found}:
        found |= new
        ahead = references([*shells, *new.values()])
    return found


def command_line(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    starts: Sequence[str] = (),
    environment: Environment = NO_VARIABLES,
    given: Sequence[str] | None = None,
) -> CommandLine:
    """The words of the engine, with the variables of its container.

    command, args: with Kubernetes' own references expanded. starts: the start commands of its
    runtime, such as 'vllm serve'. given: command and args as in the pod, for messages.
    """
    argv = (*(command or ()), *(args or ()))
    held = sum(len(name) + len(value) for name, value in environment.known.items())
    if held + sum(map(len, argv)) > LONGEST_LINE_CHARACTERS:
        return CommandLine(lines=(), unread=(TOO_LONG,))
    given = argv if given is None or len(given) != len(argv) else tuple(given)
    known = tuple(sorted(environment.known.items()))
    around = known, environment.unset, environment.closed
    return _command_line(argv, given, tuple(starts), around, bare=not command)


@lru_cache(maxsize=_LINES_REMEMBERED)
def _command_line(
    argv: tuple[str, ...],
    given: tuple[str, ...],
    starts: tuple[str, ...],
    around: _Around,
    *,
    bare: bool,
) -> CommandLine:
    """around: the environment. bare: without a command; the image's own gets the args."""
    place = _script_of(argv)
    script = place is not None
    words = tuple(
        Word(text=t if at == place else _with_holes(t), source=s)
        for at, (t, s) in enumerate(zip(argv, given, strict=True))
    )
    try:
        every = [words] * bool(words) if place is None else list(_of_script(words, place, around))
    except ArgumentsNotUnderstoodError as error:
        return CommandLine(lines=(), script=script, unread=(f"the shell script: {error}",))
    to_image = bare and not script and not _launches(words)
    possible = [one for one in every if to_image or _may_start(one)]
    chosen = _engines(possible, starts)
    others = (one for one in every if one not in chosen and _program(one) not in NO_STARTERS)
    serves = bool(possible) or not argv
    nothing = "the shell script: " * script + "no command in it starts an engine"
    doubtful = [one for one in chosen or every if place_behind(one, starts) is None]
    unknown = () if to_image or not starts else _unknown_programs(doubtful, starts)
    return CommandLine(
        lines=tuple(_from_program(one, starts) for one in chosen or possible),
        started=bool(chosen),
        serves=serves,
        joins=next(filter(None, (_joins(one, starts) for one in every)), ""),
        script=script,
        unread=tuple(dict.fromkeys([*unknown, *_added(chosen), *[nothing] * (not serves)])),
        others=tuple(" ".join(word.text for word in one) for one in others) if chosen else (),
        text="".join(argv[place : place + 1]) if place is not None else "",
    )


def is_shell(word: str) -> bool:
    """Whether a word is the program of a shell."""
    name = PurePosixPath(word).name
    return name in _SHELLS or name == _MULTI_CALL


def shown(word: str) -> str:
    """A word for a message, shortened: a word may be as long as a whole object."""
    return repr(word if len(word) <= _SHOWN_CHARACTERS else word[:_SHOWN_CHARACTERS] + "…")


def _of_script(
    words: tuple[Word, ...],
    place: int,
    around: _Around,
) -> Iterator[tuple[Word, ...]]:
    """The commands of the script at this place. Expanded values are not shown as their source."""
    texts = [word.text for word in words]
    known, unset, closed = around
    set_before = {
        found[1]: found[2] for found in map(_ASSIGNMENT.fullmatch, texts[:place]) if found
    }
    environment = Environment(known=dict(known) | set_before, unset=unset, closed=closed)
    given = "".join(word.source for word in words[place : place + 1])
    for line in commands("".join(texts[place : place + 1]), environment, texts[place + 2 :]):
        if _script_of([word.text for word in line]) is not None:
            raise ArgumentsNotUnderstoodError("it starts another shell, which is not read")
        yield tuple(word if word.source in given else replace(word, source=given) for word in line)


def _script_of(words: Sequence[str]) -> int | None:
    """The index of a shell's `-c` script, after its options; None if there is none."""
    at = next((at for at, word in enumerate(words) if is_shell(word)), None)
    if at is None:
        return None
    if PurePosixPath(words[at]).name == _MULTI_CALL:
        at += 1
        if at >= len(words) or not is_shell(words[at]):
            return None
    at += 1
    runs = False
    while at < len(words):
        option = words[at]
        if option in {"--", "-"}:
            at += 1
            break
        if option[:1] not in {"-", "+"}:
            break
        if option.startswith("--"):
            at += 2 if option in _OPTION_WITH_FILE else 1
            continue
        runs = runs or (option[0] == "-" and "c" in option)
        at += 1 + option.count("o") + option.count("O")
    return at if runs else None


def _with_holes(text: str) -> str:
    """A word with its unknown variables replaced by holes."""
    return _REFERENCE.sub(lambda found: hole(found[0]) if found[1] else found[0], text)


def _engines(every: Sequence[tuple[Word, ...]], starts: Sequence[str]) -> list[tuple[Word, ...]]:
    """Commands that start the runtime: by all words of a start command, else by its program."""
    if len(every) == 1:
        return list(every)
    for names in (starts, programs_of(starts)):
        found = [one for one in every if place_behind(one, names) is not None]
        if found:
            return found
    return []


def programs_of(starts: Sequence[str]) -> tuple[str, ...]:
    """The first word of each start command."""
    return tuple(start.partition(" ")[0] for start in starts)


def place_behind(words: Sequence[Word], names: Sequence[str]) -> int | None:
    """The index after the words of a start command; None if there is none."""
    found = start_command(words, names)
    return found[1] if found else None


def start_command(words: Sequence[Word], names: Sequence[str]) -> tuple[int, int] | None:
    """Where the words of a start command begin and end; None if there is none."""
    for name in names:
        wanted = name.split()
        for at in range(len(words) - len(wanted) + 1):
            texts = [word.text for word in words[at : at + len(wanted)]]
            first = PurePosixPath(texts[0]).name == wanted[0] or texts[0].startswith(f"{name}.")
            # The file of a module: python3 /app/vllm/entrypoints/openai/api_server.py.
            first = first or (texts[0].endswith(".py") and f"{name.replace('.', '/')}/" in texts[0])
            if first and texts[1:] == wanted[1:]:
                return at, at + len(wanted)
    return None


def _from_program(words: tuple[Word, ...], starts: Sequence[str]) -> tuple[Word, ...]:
    """The words after the start command; all words if there is none.

    A module's own name is kept: no model follows it, unlike after `vllm serve`.
    """
    place = place_behind(words, starts)
    if place is None:
        return words
    return words[place - ("." in words[place - 1].text) :]


def _program(words: Sequence[Word]) -> str:
    """The name of the program that the words start, after `exec`, `env` and assignments."""
    for word in words:
        if word.text not in _BEFORE_A_COMMAND and not _ASSIGNMENT.fullmatch(word.text):
            return PurePosixPath(word.text).name
    return ""


def _added(every: Sequence[_Words]) -> Iterator[str]:
    """Constructs that add words to a command from another source."""
    if any(_program(words) == "xargs" for words in every):
        yield "words that 'xargs' adds may hold flags"


def _may_start(words: _Words) -> bool:
    """Whether a command may start a server, unlike a node that joins a cluster of others."""
    program, texts = _program(words), [word.text for word in words]
    if program == "ray" and "start" in texts:
        return False
    if not _ASKS.isdisjoint(text.partition("=")[0] for text in texts):
        return False
    scripts = {PurePosixPath(text).name for text in texts}
    return program not in NO_STARTERS | _NO_SERVERS and _RAY_SCRIPT not in scripts


def passes_on(word: str) -> bool:
    """Whether a program is known to start another one with the rest of its words."""
    name = PurePosixPath(word).name
    return name in _PASSING_ON or bool(_PYTHON.fullmatch(name))


def _joins(words: _Words, starts: Sequence[str]) -> str:
    """What makes a command one node of several: Ray, or hosts of MPI or torchrun; '' if nothing."""
    texts = [word.text for word in words[: place_behind(words, starts)]]
    program = _program(words)
    if program == "ray" and any(text.startswith("--address") for text in texts):
        return "ray start --address"
    if any(PurePosixPath(text).name == _RAY_SCRIPT for text in texts):
        return _RAY_SCRIPT * (not _RAY_ALONE.search(" ".join(texts)))
    for at, text in enumerate(texts if program in {_TORCH, *_MPI} else ()):
        name, joined, value = text.partition("=")
        value = value if joined else "".join(texts[at + 1 : at + 2])
        if name in _MPI_FILES or (name in _MPI_HOSTS and "," in value):
            return f"{program} {name}"
        if program == _TORCH and name == "--nnodes" and value not in {"1", "1:1"}:
            return f"{program} {name}"
    return ""


def _launches(words: Sequence[Word]) -> bool:
    """Whether args begin with a program, not with words for the image's own."""
    name = PurePosixPath(words[0].text).name if words else ""
    return passes_on(name) or name.endswith((".sh", ".py"))


def _unknown_programs(every: Sequence[_Words], starts: Sequence[str]) -> Iterator[str]:
    """Unknown programs, and scripts that are not read."""
    own = {start.partition(" ")[0] for start in starts}
    for words in every:
        program = _program(words)
        place = next((at for at, w in enumerate(words) if _name(w) == program), None)
        if place is None or not _may_start(words):
            continue
        word, behind = words[place], words[place + 1 :]
        file = next((w for w in behind if w.text[:1] not in {"-", "+"}), None)
        if has_hole(word.text):
            yield f"{shown(word.unknown)} is not known"
        elif program in own:
            if behind and not behind[0].text.startswith("-"):
                yield f"{shown(f'{program} {behind[0].unknown}')} is not known to start a server"
        elif program.endswith((".sh", ".bash")):
            yield f"the script {shown(word.source)} may give flags"
        elif is_shell(program) or program == "source":
            script = "from its input" if file is None else shown(file.source)
            yield f"the script {script} may give flags"
        elif not program.startswith("-"):
            started = file if file is not None and _PYTHON.fullmatch(program) else word
            yield f"the program {shown(started.source)} may set limits of its own"


def _name(word: Word) -> str:
    return PurePosixPath(word.text).name
