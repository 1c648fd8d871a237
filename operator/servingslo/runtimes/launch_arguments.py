"""What a command line says of an engine besides its limits.

That is what default limits depend on, and how many processes count its steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servingslo.runtimes.command_line import CommandLine, command_line, shown
from servingslo.runtimes.flags import Occurrence, is_given, occurrences, switched, words_as_they_are
from servingslo.runtimes.numbers_in_flags import LARGEST_NUMBER, number_of
from servingslo.runtimes.profile import LaunchFlags, RuntimeProfile
from servingslo.runtimes.shell_words import Word

# What vLLM takes for the longest sequence that fits, which no command line tells.
_LONGEST_THAT_FITS = frozenset({"-1", "auto"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """What else a command line says of its engines; None where it says nothing.

    flags: fields of the limits that it gives. api_server_count: processes that count each step; 0
    where the pod has engines and no server. unread: what was not understood, each with its word.
    """

    flags: tuple[str, ...] = ()
    throughput_mode: bool = False
    chunked_prefill: bool | None = None
    max_model_len: int | None = None
    api_server_count: int | None = None
    unread: tuple[str, ...] = ()


_NOTHING = LaunchArguments()
_AGREED = ("throughput_mode", "chunked_prefill", "max_model_len", "api_server_count")


@dataclass(slots=True)
class _Reader:
    """Reads the words of one line, and notes what is not understood."""

    words: Sequence[Word]
    profile: RuntimeProfile
    unread: list[str] = field(default_factory=list)

    def has(self, flags: Sequence[str]) -> bool:
        return any(is_given(self.words, flag, self.profile) for flag in flags)

    def last(self, flag: str) -> Occurrence | None:
        """The occurrence in force; None where there is none that can be read."""
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
        """Whether prompts are computed in chunks."""
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
        """API servers of the pod, as vLLM's `serve` counts them where no count is given.

        Source: ServeSubcommand.cmd of vllm/entrypoints/cli/serve.py.
        """
        if not launch.server_counts:
            return None
        count, size = launch.server_counts
        if launch.headless and self.has([launch.headless]):
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


def parse_launch_arguments(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    profile: RuntimeProfile,
    config: Sequence[str] = (),
) -> LaunchArguments:
    """What defaults of limits and the counting of steps depend on besides the limits.

    config: words of the file that the command line names, which come before it.
    """
    return launch_arguments(command_line(command, args, profile.starts), profile, config)


def launch_arguments(
    line: CommandLine, profile: RuntimeProfile, config: Sequence[str] = ()
) -> LaunchArguments:
    """The same of a command line that was read; nothing of what its places differ in."""
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
    return replace(found[0], **agreed, unread=tuple(dict.fromkeys(unread)))


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
        unread=tuple(dict.fromkeys(reader.unread)),
    )
