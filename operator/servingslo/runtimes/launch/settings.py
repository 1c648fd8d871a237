"""Settings in an engine's command line besides its limits.

These are the inputs of default limits, the number of processes that count its steps, and flags that
turn all metrics off.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from servingslo.runtimes.launch.command_line import CommandLine, command_line, programs_of, shown
from servingslo.runtimes.launch.flags import (
    LARGEST_NUMBER,
    Occurrence,
    is_given,
    may_hold_flags,
    number_of,
    occurrences,
    switched,
    words_as_they_are,
)
from servingslo.runtimes.profile import LaunchFlags, RuntimeProfile
from servingslo.runtimes.shell.words import Word

# Values that turn a switch off.
_FALSE = frozenset({"false", "0", "off", "no"})
_NODE = "a pod is one node of an engine"
# vLLM's values for the longest sequence that fits; the command line does not show its length.
_LONGEST_THAT_FITS = frozenset({"-1", "auto"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """Other engine settings in a command line; None if not given.

    flags: fields of the given limits. api_server_count: processes that count each step; 0 if the
    pod has no server. node: why the pod is only one node of an engine; '' if it is not. unread: the
    problems, each with its word.
    """

    flags: tuple[str, ...] = ()
    throughput_mode: bool = False
    chunked_prefill: bool | None = None
    max_model_len: int | None = None
    api_server_count: int | None = None
    node: str = ""
    unread: tuple[str, ...] = ()


_NOTHING = LaunchArguments()
_AGREED = ("throughput_mode", "chunked_prefill", "max_model_len", "api_server_count")


@dataclass(slots=True)
class _Reader:
    """Reads the words of one line, and collects parts that are not understood."""

    words: Sequence[Word]
    profile: RuntimeProfile
    unread: list[str] = field(default_factory=list)

    def has(self, flags: Sequence[str]) -> bool:
        return any(is_given(self.words, flag, self.profile) for flag in flags)

    def last(self, flag: str) -> Occurrence | None:
        """The applied occurrence; None if there is no readable one."""
        found = occurrences(self.words, flag, self.profile) if flag else []
        if found and found[-1].problem:
            self.unread.append(found[-1].problem)
            return None
        return found[-1] if found else None

    def number(self, flag: str, unsaid: frozenset[str] = frozenset()) -> int | None:
        found = self.last(flag)
        if found is None or found.text.strip().lower() in unsaid:
            return None
        value = number_of(found.text, human_readable=True)
        if 1 <= value <= LARGEST_NUMBER:
            return value
        self.unread.append(f"{flag}: {shown(found.source)} is not understood")
        return None

    def chunked(self, launch: LaunchFlags) -> bool | None:
        """Whether prompts are processed in chunks."""
        for knob in self.profile.knobs:
            found = occurrences(self.words, knob.flag, self.profile) if knob.off else []
            if found and found[-1].text in knob.off:
                return False
        on, off = launch.chunked_prefill, launch.no_chunked_prefill
        found_switch = switched(self.words, on, off, self.profile)
        if found_switch is None or found_switch.text in {"true", "false"}:
            return None if found_switch is None else found_switch.text == "true"
        self.unread.append(f"{on}: {shown(found_switch.source)} is not understood")
        return None

    def servers(self, launch: LaunchFlags) -> int | None:
        """Number of the pod's API servers, by the rules of vLLM's `serve`.

        Source: ServeSubcommand.cmd of vllm/entrypoints/cli/serve.py.
        """
        place = self.last(launch.rank)
        if self.has([launch.headless]) or (place and number_of(place.text, human_readable=False)):
            return 0
        if not launch.server_counts:
            return None
        count, size = launch.server_counts
        if (told := self.last(count)) and told.text == "0":
            return 0
        if self.has([count]):
            servers = self.number(count)
        elif self.has(launch.external):
            servers = 1
        elif self.has(launch.hybrid):
            servers = self.number(launch.local_count)
            servers = servers if self.has([launch.local_count]) else 1
        else:
            servers = self.number(size)
        if servers and launch.single_server and self.has([launch.single_server]):
            return 1
        return servers

    def node(self, launch: LaunchFlags) -> str:
        """Why the pod is only one node of an engine; '' if it is not."""
        given = occurrences(self.words, launch.nodes, self.profile) if launch.nodes else []
        marks = (*launch.rank_marks, launch.local_count)
        mark = next((flag for flag in marks if self.has([flag])), None)
        if given:
            # One that is not read, such as an abbreviation, may name several nodes.
            alone = given[-1].text == "1"
            mark = f"{launch.nodes} {shown(given[-1].source)}"
        else:
            size = self.last(launch.server_counts[-1] if launch.server_counts else "")
            local = self.last(launch.local_count)
            alone = size is None and mark == launch.local_count
            alone = alone or (size and size.text) in {"1", local.text if local else "1"}
        return "" if mark is None or alone else f"{mark}: {_NODE}"


def parse_launch_arguments(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    profile: RuntimeProfile,
    config: Sequence[str] = (),
) -> LaunchArguments:
    """Settings besides the limits that default limits and the counting of steps depend on.

    config: words of the file that the command line names; they precede its own words.
    """
    return launch_arguments(command_line(command, args, profile.starts), profile, config)


def launch_arguments(
    line: CommandLine, profile: RuntimeProfile, config: Sequence[str] = ()
) -> LaunchArguments:
    """The settings of a parsed command line; None for settings in which its places differ."""
    found = [_of_words(words, profile, config) for words in line.lines or ((),)]
    agreed: dict[str, Any] = {}
    unread = [told for one in found for told in one.unread]
    for name in _AGREED:
        nothing = getattr(_NOTHING, name)
        values = {getattr(one, name) for one in found}
        if len(values) > 1 and not line.started:
            values.discard(nothing)
        agreed[name] = values.pop() if len(values) == 1 else nothing
        if values:
            unread.append(f"{name} differs between places of a shell command")
    if not line.serves:
        agreed["api_server_count"] = 0
    node = next((one.node for one in found if one.node), "")
    node = node or f"{line.joins}: {_NODE}" * bool(line.joins)
    return replace(found[0], **agreed, node=node, unread=tuple(dict.fromkeys(unread)))


def _of_words(
    words: Sequence[Word], profile: RuntimeProfile, config: Sequence[str]
) -> LaunchArguments:
    reader = _Reader([*words_as_they_are(config), *words], profile)
    launch = profile.launch
    flag, value = launch.throughput_mode or ("", "")
    mode = reader.last(flag)
    return LaunchArguments(
        flags=tuple(k.field for k in profile.knobs if is_given(reader.words, k.flag, profile)),
        throughput_mode=mode is not None and mode.text == value,
        chunked_prefill=reader.chunked(launch),
        max_model_len=reader.number(launch.max_model_len, _LONGEST_THAT_FITS),
        api_server_count=reader.servers(launch),
        node=reader.node(launch),
        unread=tuple(dict.fromkeys(reader.unread)),
    )


def metrics_switched_off(words: Sequence[str], profiles: Iterable[RuntimeProfile]) -> str:
    """Why an engine with this command line exports no metrics; '' if it may export them.

    words: its command line, and further flags from its file.
    """
    for profile in profiles:
        launch = profile.launch
        if launch.metrics_off and _given_as(words, *launch.metrics_off, profile):
            flag, value = launch.metrics_off
            shown = f"{flag}={value}" if value else flag
            return f"{shown} turns the metrics of {profile.name} off"
        wanted = launch.metrics_on
        if not wanted or not _runs(words, profile) or _given_as(words, wanted, "", profile):
            continue
        known = words_as_they_are(words)
        files = any(is_given(known, flag, profile) for flag in launch.other_files)
        if not files and not any(may_hold_flags(known, profile)):
            return f"{profile.name} exports metrics with {wanted} only, which is not given"
    return ""


def _given_as(words: Sequence[str], flag: str, value: str, profile: RuntimeProfile) -> bool:
    """Whether the flag is given, in full or abbreviated, with this value or none."""
    given = False
    for place, word in enumerate(words):
        name, equals, text = word.partition("=")
        if profile.underscores_in_flags:
            name = name.replace("_", "-")
        if not _names(name, flag, profile):
            continue
        following = words[place + 1] if place + 1 < len(words) else ""
        said = (text if equals else following).lower()
        given = said in _FALSE if value else not (equals and said in _FALSE)
    return given


def _names(name: str, flag: str, profile: RuntimeProfile) -> bool:
    """Whether the name is this flag, or an unambiguous prefix of it."""
    if name == flag:
        return True
    shortest = flag[: flag.rindex("-") + 2]
    return profile.abbreviations and name.startswith(shortest) and flag.startswith(name)


def _runs(words: Sequence[str], profile: RuntimeProfile) -> bool:
    programs = programs_of(profile.starts)
    return any(PurePosixPath(word).name in programs for word in words if word)
