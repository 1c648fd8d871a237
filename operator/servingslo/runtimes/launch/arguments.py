"""Read batch limits in a container's command line, and change them if that is safe.

A container runs `command + args`. A limit is given as `--flag=value` or `--flag value`; the last
one wins. Inside a shell command (`sh -c "vllm serve … --max-num-seqs 64"`) it is read as the shell
would, and never changed, because rewriting a script is guessing. A flag that is present but not
understood is not treated as absent: its limit is unknown, and the unread text is reported.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from servingslo.errors import ArgumentsNotUnderstoodError, InvalidInputError
from servingslo.runtimes.launch.command_line import (
    CommandLine,
    command_line,
    expanded,
    is_shell,
    shown,
)
from servingslo.runtimes.launch.flags import (
    LARGEST_NUMBER,
    Occurrence,
    is_given,
    may_hold_flags,
    number_of,
    occurrences,
    words_as_they_are,
)
from servingslo.runtimes.profile import Knob, RuntimeProfile
from servingslo.runtimes.shell.words import NO_VARIABLES, Environment, Word, has_hole

# This program runs other engines as backends, each with the flags in its model.json.
_HOST = "tritonserver"
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArguments:
    """Batch limits found in a command line; None if not given or not readable.

    max_num_queued_reqs: the server's own bound on running plus waiting requests. unread_limits:
    fields of the given but unreadable limits. unread: the problems, each with its word.
    change_refused: why the limits cannot be changed there; empty if they can.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int | None = None
    unread_limits: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    change_refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerArguments:
    """A container's command and args, as in Kubernetes; both may be empty.

    variables: the changed variables, with the new value.
    """

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One limit as read. problem: why it cannot be read; '' if it can or is absent.

    off: it is turned off, and the value applies instead.
    """

    value: int | None = None
    given: bool = False
    problem: str = ""
    off: bool = False


def parse_batch_arguments(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    profile: RuntimeProfile,
    config: Sequence[str] = (),
) -> BatchArguments:
    """The batch limits in force for a container started with this command and these args.

    config: words of the file that they name; used if the command line does not set the limit.
    """
    line = command_line(command, args, profile.starts)
    found = batch_arguments(line, profile, config)
    refused = _refusal(command, args, line) or found.change_refused
    return replace(found, change_refused=refused)


def batch_arguments(
    line: CommandLine, profile: RuntimeProfile, config: Sequence[str] = ()
) -> BatchArguments:
    """The batch limits in a command line, and its parts that were not understood.

    change_refused: why the words themselves are unclear.
    """
    readings = {knob.field: _read(line, knob, profile, config) for knob in _knobs(profile)}
    problems = [one.problem for one in readings.values() if one.problem]
    off = [knob.flag for knob in _knobs(profile) if readings[knob.field].off]
    doubts = list(dict.fromkeys(_doubts(line, profile)))
    turned_off = [f"{flag} is turned off" for flag in off]
    refused = [*problems, *turned_off, *doubts, *line.unread]
    values = {name: reading.value for name, reading in readings.items()}
    return BatchArguments(
        max_num_seqs=values.get("max_num_seqs"),
        max_num_batched_tokens=values.get("max_num_batched_tokens"),
        max_num_queued_reqs=values.get("max_num_queued_reqs"),
        unread_limits=tuple(name for name, reading in readings.items() if reading.problem),
        unread=tuple(dict.fromkeys([*line.unread, *problems, *doubts])),
        change_refused=refused[0] if refused else "",
    )


def command_words(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    environment: Environment = NO_VARIABLES,
) -> Sequence[str]:
    """The words of the engine's own command line: from the script, if a shell runs one."""
    line = command_line(command, args, environment=environment)
    return [word.text for words in line.lines for word in words]


def change_refused(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    profile: RuntimeProfile,
    variables: Mapping[str, str],
) -> str:
    """Why the limits cannot be changed without guessing; '' if they can.

    variables: the container's own literal variables whose names are in command or args.
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
    variables: Mapping[str, str] | None = None,
) -> ContainerArguments:
    """The same command line with the wanted limits; a limit of None is not changed.

    A present flag keeps its place and its form, and only its last occurrence changes. An absent
    flag is appended to args. If its value is $(NAME), the variable changes. Everything else is
    returned unchanged.
    variables: the container's own literal variables.
    Raises: ArgumentsNotUnderstoodError if the command line cannot be changed without guessing;
    InvalidInputError if a wanted limit is below 1.
    """
    known = variables or {}
    refused = change_refused(command, args, profile, known)
    if refused:
        raise ArgumentsNotUnderstoodError(refused)
    first, rest = list(command or ()), list(args or ())
    command_length, argv = len(first), [*first, *rest]
    changed: dict[str, str] = {}
    for knob in _knobs(profile):
        value: int | None = getattr(wanted, knob.field)
        if value is None:
            continue
        if value < 1:
            raise InvalidInputError(knob.field, value, "integers ≥ 1")
        found = occurrences(words_as_they_are(argv), knob.flag, profile)
        if not found:
            argv.append(f"{knob.flag}={value}")
            continue
        last = found[-1]
        name = _variable(last.text, known)
        if name is not None:
            # Keep the text if it already is this number: 8k, for example.
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
    """The variable in a flag's value; None if there is none or it is unknown."""
    match = _VARIABLE.fullmatch(text)
    name = None if match is None else match.group(1)
    return name if name in variables else None


def _variables_of_limits(
    words: Sequence[str], profile: RuntimeProfile, variables: Mapping[str, str]
) -> Mapping[str, Sequence[Knob]]:
    """The knobs whose value is a variable, by the variable's name."""
    found: dict[str, list[Knob]] = {}
    for knob in _knobs(profile):
        reading = occurrences(words_as_they_are(words), knob.flag, profile)
        name = _variable(reading[-1].text, variables) if reading else None
        if name is not None:
            found.setdefault(name, []).append(knob)
    return found


def _is_hidden(
    words: Sequence[str], knob: Knob, profile: RuntimeProfile, variables: Mapping[str, str]
) -> bool:
    """Whether a flag appears only after variables are expanded."""
    filled = words_as_they_are(expanded(words, variables))
    plain = words_as_they_are(words)
    return len(occurrences(filled, knob.flag, profile)) > len(
        occurrences(plain, knob.flag, profile)
    )


def _refusal(command: Sequence[str] | None, args: Sequence[str] | None, line: CommandLine) -> str:
    if line.script:
        return "the container runs a shell command; give the flags in args of their own"
    if not command and not args:
        return "the container has neither command nor args, so those of the image are unknown"
    if is_shell([*(command or ()), *(args or ())][0]):
        return "the container runs a shell script; whether it passes its arguments on is unknown"
    if any(word.text == "--" for words in line.lines for word in words):
        return "behind '--' a flag is not read as one"
    return ""


def _read(
    line: CommandLine, knob: Knob, profile: RuntimeProfile, config: Sequence[str]
) -> _Reading:
    """One limit, from every place that starts an engine; all places must agree."""
    readings = [_of_words(words, knob, profile) for words in line.lines]
    if not line.started:
        readings = [one for one in readings if one.given] or readings[:1]
    if len({(one.given, one.value) for one in readings}) > 1:
        places = len(readings)
        return _Reading(
            given=True, problem=f"{knob.flag} differs between {places} places of a shell command"
        )
    reading = readings[0] if readings else _Reading()
    if reading.given:
        again = not reading.problem and _given_again(line, knob, profile)
        return replace(reading, value=None, problem=again) if again else reading
    if config:
        reading = _of_words(words_as_they_are(config), knob, profile)
        if reading.problem:
            return replace(reading, problem=f"{knob.flag} in its file is no number that is allowed")
    if reading.given:
        return reading
    unknown = any(has_hole(word.text) for words in line.lines for word in words)
    elsewhere = (*line.others, line.text) if unknown else line.others
    if any(_mentions(text, knob.flag) for text in elsewhere):
        problem = f"{knob.flag} stands in a part of the script that starts no engine"
        return _Reading(problem=problem)
    return reading


def _given_again(line: CommandLine, knob: Knob, profile: RuntimeProfile) -> str:
    """Why an unknown word may give a limit again that a script names elsewhere; '' if none does."""
    named = line.text.replace("_", "-").count(knob.flag.replace("_", "-"))
    for words in line.lines:
        found = occurrences(words, knob.flag, profile)
        behind = words[found[-1].value_index :] if named > len(found) else ()
        for source in may_hold_flags(behind, profile):
            return f"{knob.flag} may stand in {shown(source)} again"
    return ""


def _of_words(words: Sequence[Word], knob: Knob, profile: RuntimeProfile) -> _Reading:
    found = occurrences(words, knob.flag, profile)
    behind = words[found[-1].value_index + 1 :] if found else words
    # An unknown word behind the flag may give it again.
    hiding = (w for w in behind if _mentions(w.text, knob.flag) and (has_hole(w.text) or not found))
    if hides := next(hiding, None):
        return _Reading(given=True, problem=f"{knob.flag} stands inside of {shown(hides.source)}")
    if not found or found[-1].problem:
        return _Reading(given=bool(found), problem=found[-1].problem if found else "")
    last = found[-1]
    if divided := _divided(words, knob, profile):
        return _Reading(given=True, problem=f"{knob.flag}: {divided} it by its ranks")
    if last.text in knob.off and knob.when_off is not None:
        return _when_off(words, last, knob, profile)
    value = number_of(last.text, human_readable=knob.human_readable)
    if 1 <= value <= LARGEST_NUMBER:
        return _Reading(given=True, value=value)
    return _Reading(given=True, problem=_not_a_limit(last, knob.flag))


def _divided(words: Sequence[Word], knob: Knob, profile: RuntimeProfile) -> str:
    """Which flag divides a limit, in words; '' if none does."""
    switch = profile.launch.divided_by_ranks
    if is_given(words, switch, profile):
        return f"{switch} divides"
    ranks = occurrences(words, knob.divided_by, profile) if knob.divided_by else []
    return f"{knob.divided_by} may divide" if ranks and ranks[-1].text != "1" else ""


def _when_off(
    words: Sequence[Word], last: Occurrence, knob: Knob, profile: RuntimeProfile
) -> _Reading:
    """The bound on a step of an engine if its limit is turned off."""
    flag, default = knob.when_off or ("", 0)
    lengths = occurrences(words, profile.launch.max_model_len, profile)
    bounds = occurrences(words, flag, profile)
    longest = number_of(lengths[-1].text, human_readable=True) if lengths else 0
    bound = number_of(bounds[-1].text, human_readable=True) if bounds else default
    if longest and bound:
        return _Reading(given=True, value=max(longest, bound), off=True)
    missing = profile.launch.max_model_len if not longest else flag
    return _Reading(
        given=True,
        off=True,
        problem=f"{knob.flag} {last.text} turns it off; what bounds a step then needs {missing}",
    )


def _not_a_limit(found: Occurrence, flag: str) -> str:
    if has_hole(found.text):
        return f"{flag}: {shown(found.source)} is not known"
    return (
        f"{flag}: {shown(found.source)} is not allowed; "
        f"allowed: integers from 1 to {LARGEST_NUMBER:.0e}"
    )


def _mentions(text: str, flag: str) -> bool:
    return flag in text or flag in text.replace("_", "-")


def _doubts(line: CommandLine, profile: RuntimeProfile) -> Iterator[str]:
    """Unknown parts of the command line that may set limits."""
    for words in line.lines:
        if profile.starts and any(PurePosixPath(word.text).name == _HOST for word in words):
            yield f"{_HOST} gives {profile.name} its limits in the model repository"
        for source in may_hold_flags(words, profile):
            yield f"{shown(source)} is not known and may hold flags"
        for flag in profile.launch.other_files:
            if occurrences(words, flag, profile):
                yield f"the file of {flag} is not read"
