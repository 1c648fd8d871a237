"""Batch limits in a container's command line: read them, and change them where that is safe.

A container runs `command + args`. A limit is given as `--flag=value` or `--flag value`, the last
one wins. Inside a shell command (`sh -c "vllm serve … --max-num-seqs 64"`) a limit is read when
there is only one way to read it, and never changed: rewriting a script is guessing.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from servingslo.errors import ArgumentsNotUnderstoodError, InvalidInputError
from servingslo.runtimes.numbers_in_flags import number_of
from servingslo.runtimes.profile import Knob, RuntimeProfile

_SHELLS = frozenset({"sh", "bash", "ash", "dash", "ksh", "zsh", "busybox"})
_SHELL_COMMAND_OPTION = re.compile(r"^-[a-z]*c[a-z]*$")
_SHELL_OPTION_WITH_VALUE = re.compile(r"^[-+][a-z]*[oO]$")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
# No engine has a limit near it; a longer number is a mistake, or is written to take time.
_LARGEST_LIMIT = 10**12
_SHOWN_CHARACTERS = 80
# Of command and args, and of the values of variables in them; flags and a script around are less.
LONGEST_LINE_CHARACTERS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArguments:
    """Batch limits found in a command line; None where not given or not readable.

    max_num_queued_reqs: the server's own bound on what runs and waits. change_refused: why the
    limits cannot be changed there, empty when they can.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int | None = None
    change_refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """What else a command line says of its engines; None where it says nothing.

    flags: fields of the limits that it gives by a plain number.
    """

    flags: tuple[str, ...] = ()
    throughput_mode: bool = False
    chunked_prefill: bool | None = None
    max_model_len: int | None = None
    api_server_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerArguments:
    """A container's command and args, as Kubernetes has them; both may be empty.

    variables: those whose value changes, with the new one.
    """

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """A flag in an argv. value: its text; value_index: the element that holds it."""

    text: str
    value_index: int
    joined: bool


@dataclass(slots=True)
class _Reading:
    """What was found of one knob, and what is wrong with it."""

    found: list[_Occurrence] = field(default_factory=list)
    problem: str = ""


def parse_batch_arguments(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    profile: RuntimeProfile,
    config: Sequence[str] = (),
) -> BatchArguments:
    """The batch limits in force for a container started with this command and these args.

    config: words of the file that they name, which hold where the command line says nothing.
    """
    script, words = _script_and_words(command, args)
    refused = _refusal(command, args, script)
    values: dict[str, int | None] = {}
    for knob in _knobs(profile):
        reading = _find(words, knob, profile)
        if script is not None and len(reading.found) > 1:
            reading.problem = f"{knob.flag} is given {len(reading.found)} times in a shell command"
        value = None if reading.problem else _last_value(reading, knob)
        if not reading.problem and reading.found and value is None:
            reading.problem = (
                f"{knob.flag}: {_shown(reading.found[-1].text)} is not allowed; "
                f"allowed: integers from 1 to {_LARGEST_LIMIT:.0e}"
            )
        if not reading.found and not reading.problem:
            value = _last_value(_find(config, knob, profile), knob)
        values[knob.field] = value
        refused = refused or reading.problem
    return BatchArguments(
        max_num_seqs=values.get("max_num_seqs"),
        max_num_batched_tokens=values.get("max_num_batched_tokens"),
        max_num_queued_reqs=values.get("max_num_queued_reqs"),
        change_refused=refused,
    )


def expanded(words: Sequence[str] | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Words with each $(NAME) replaced by its value; unknown names stay, and $$ is a plain $.

    All as they are where that makes too long a line. Source: Kubernetes, core/v1 Container.
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
    """Names of the variables that words refer to as $(NAME)."""
    return frozenset(match[1] for word in words for match in _REFERENCE.finditer(word) if match[1])


def command_words(command: Sequence[str] | None, args: Sequence[str] | None) -> Sequence[str]:
    """The words of the engine's own command line: those of a shell's script where it runs one."""
    return _script_and_words(command, args)[1]


def parse_launch_arguments(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    profile: RuntimeProfile,
    config: Sequence[str] = (),
) -> LaunchArguments:
    """What defaults of limits and the counting of steps depend on besides the limits.

    config: words of the file that the command line names, which come before it.
    """
    words = [*config, *command_words(command, args)]
    launch = profile.launch

    def number(flag: str) -> int | None:
        knob = Knob(field=flag, flag=flag, human_readable=True)
        return _last_value(_find(words, knob, profile), knob) if flag else None

    flag, value = launch.throughput_mode or ("", "")
    mode = _find(words, Knob(field="mode", flag=flag), profile).found if flag else []
    switches = {launch.chunked_prefill: True, launch.no_chunked_prefill: False}
    switches.pop("", None)
    names = [word.partition("=")[0].replace("_", "-") for word in words]
    chunked = next((switches[name] for name in reversed(names) if name in switches), None)
    counts = (number(flag) for flag in launch.server_counts)
    return LaunchArguments(
        flags=tuple(k.field for k in profile.knobs if _find(words, k, profile).found),
        throughput_mode=bool(mode) and mode[-1].text == value,
        chunked_prefill=chunked,
        max_model_len=number(launch.max_model_len),
        api_server_count=next((count for count in counts if count), None),
    )


def change_refused(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    profile: RuntimeProfile,
    variables: Mapping[str, str],
) -> str:
    """Why the limits cannot be changed without guessing; '' where they can.

    variables: the container's own, with literal values, whose names command or args contain.
    """
    plain = parse_batch_arguments(
        expanded(command, variables), expanded(args, variables), profile
    ).change_refused
    words = [*(command or ()), *(args or ())]
    for name, knobs in _variables_of_limits(words, profile, variables).items():
        flags = " and ".join(knob.flag for knob in knobs)
        uses = sum(word.count(f"$({name})") for word in words)
        if len(knobs) > 1 or uses > 1:
            return f"variable {name} of {flags} stands for something else too"
    hidden = next((k for k in _knobs(profile) if _is_hidden(words, k, profile, variables)), None)
    return plain or (f"{hidden.flag} is given inside a variable" if hidden else "")


def replace_batch_arguments(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    wanted: BatchArguments,
    profile: RuntimeProfile,
    *,
    removed: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> ContainerArguments:
    """The same command line with the wanted limits; a limit of None stays as it is.

    A flag that is there keeps its place and its form, and only its last occurrence changes; one
    that is absent is appended to args; of one whose value is $(NAME) the variable changes.
    Everything else is returned as it came.
    removed: fields of limits whose flag goes, its last occurrence with its value. variables: the
    container's own, with literal values.
    Raises: ArgumentsNotUnderstoodError when the command line cannot be changed without guessing;
    InvalidInputError when a wanted limit is below 1.
    """
    known = variables or {}
    refused = change_refused(command, args, profile, known)
    if refused:
        raise ArgumentsNotUnderstoodError(refused)
    first, rest = list(command or ()), list(args or ())
    for field_name in removed:
        first, rest = _without(first, rest, field_name, profile)
    command_length, argv = len(first), [*first, *rest]
    changed: dict[str, str] = {}
    for knob in _knobs(profile):
        value: int | None = getattr(wanted, knob.field)
        if knob.field in removed or value is None:
            continue
        if value < 1:
            raise InvalidInputError(knob.field, value, "integers ≥ 1")
        found = _find(argv, knob, profile).found
        if not found:
            argv.append(f"{knob.flag}={value}")
            continue
        last = found[-1]
        name = _variable(last.text, known)
        if name is not None:
            # As written, where it is that number already: 8k, for example.
            if number_of(known[name], human_readable=knob.human_readable) != value:
                changed[name] = str(value)
            continue
        flag = argv[last.value_index].partition("=")[0]
        argv[last.value_index] = f"{flag}={value}" if last.joined else str(value)
    return ContainerArguments(
        command=tuple(argv[:command_length]),
        args=tuple(argv[command_length:]),
        variables=changed,
    )


def _knobs(profile: RuntimeProfile) -> tuple[Knob, ...]:
    queue = profile.queue_knob
    return profile.knobs if queue is None else (*profile.knobs, queue)


def _variable(text: str, variables: Mapping[str, str]) -> str | None:
    """The variable that a flag's value is; None where it is none, or one that is not known."""
    match = _REFERENCE.fullmatch(text)
    name = None if match is None else match.group(1)
    return name if name in variables else None


def _variables_of_limits(
    words: Sequence[str], profile: RuntimeProfile, variables: Mapping[str, str]
) -> Mapping[str, Sequence[Knob]]:
    """The knobs whose value is a variable, by its name."""
    found: dict[str, list[Knob]] = {}
    for knob in _knobs(profile):
        reading = _find(words, knob, profile).found
        name = _variable(reading[-1].text, variables) if reading else None
        if name is not None:
            found.setdefault(name, []).append(knob)
    return found


def _is_hidden(
    words: Sequence[str], knob: Knob, profile: RuntimeProfile, variables: Mapping[str, str]
) -> bool:
    """Whether a flag is there only once variables are filled in."""
    filled = _find(expanded(words, variables), knob, profile).found
    return len(filled) > len(_find(words, knob, profile).found)


def _without(
    command: list[str], args: list[str], field_name: str, profile: RuntimeProfile
) -> tuple[list[str], list[str]]:
    """Command and args without the last occurrence of a limit's flag; as they are without one."""
    argv = [*command, *args]
    knob = next(knob for knob in profile.knobs if knob.field == field_name)
    found = _find(argv, knob, profile).found
    if not found:
        return command, args
    end = found[-1].value_index + 1
    begin = end - (1 if found[-1].joined else 2)
    length = len(command)
    return (
        [word for at, word in enumerate(command) if not begin <= at < end],
        [word for at, word in enumerate(args, start=length) if not begin <= at < end],
    )


def _refusal(command: Sequence[str] | None, args: Sequence[str] | None, script: str | None) -> str:
    if script is not None:
        return "the container runs a shell command; give the flags in args of their own"
    if not command and not args:
        return "the container has neither command nor args, so those of the image are unknown"
    if _is_shell([*(command or ()), *(args or ())][0]):
        return "the container runs a shell script; whether it passes its arguments on is unknown"
    return ""


def _script_and_words(
    command: Sequence[str] | None, args: Sequence[str] | None
) -> tuple[str | None, Sequence[str]]:
    """The script of a shell, None without one, and the words that the engine is started with."""
    argv = [*(command or ()), *(args or ())]
    script = _shell_script(argv)
    return script, argv if script is None else _script_words(script)


def _shell_script(argv: Sequence[str]) -> str | None:
    """The script of the first `sh -c script` in an argv, None when there is none."""
    words = iter(argv)
    shell_seen = False
    for word in words:
        if _is_shell(word):
            shell_seen = True
        elif shell_seen and _SHELL_COMMAND_OPTION.match(word):
            return next(words, "")
        elif shell_seen and _SHELL_OPTION_WITH_VALUE.match(word):
            next(words, None)
        elif shell_seen and not word.startswith("-"):
            return None
    return None


def _is_shell(word: str) -> bool:
    return PurePosixPath(word).name in _SHELLS


def _script_words(script: str) -> list[str]:
    """Words of a shell script; empty when it cannot be split. Operators become words."""
    lexer = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return list(lexer)
    except ValueError:
        return []


def _find(argv: Sequence[str], knob: Knob, profile: RuntimeProfile) -> _Reading:
    reading = _Reading()
    for position, word in enumerate(argv):
        name, joined, text = word.partition("=")
        if not name.startswith("--"):
            continue
        if profile.underscores_in_flags:
            name = name.replace("_", "-")
        if name != knob.flag:
            if _abbreviates(name, knob, profile):
                short = _shown(word)
                reading.problem = f"{short} may abbreviate {knob.flag}; write the flag in full"
            continue
        if joined:
            reading.found.append(_Occurrence(text, position, joined=True))
        elif position + 1 < len(argv) and not argv[position + 1].startswith("--"):
            reading.found.append(_Occurrence(argv[position + 1], position + 1, joined=False))
        else:
            reading.problem = f"{_shown(word)} has no value"
    return reading


def _abbreviates(name: str, knob: Knob, profile: RuntimeProfile) -> bool:
    """Whether argparse may read it as the knob: it takes an unambiguous prefix of a flag."""
    fitting = [other for other in profile.knobs if other.flag.startswith(name)]
    return name != "--" and fitting == [knob]


def _shown(word: str) -> str:
    """A word of a command line as it is quoted: a container's may be as long as a whole object."""
    return repr(word if len(word) <= _SHOWN_CHARACTERS else word[:_SHOWN_CHARACTERS] + "…")


def _last_value(reading: _Reading, knob: Knob) -> int | None:
    """The limit that the last occurrence gives; None where it is none that an engine can have."""
    value = (
        number_of(reading.found[-1].text, human_readable=knob.human_readable)
        if reading.found
        else 0
    )
    return value if 1 <= value <= _LARGEST_LIMIT else None
