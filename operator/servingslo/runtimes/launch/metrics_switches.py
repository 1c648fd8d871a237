"""Command-line flags that turn off all metrics of an engine."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from servingslo.runtimes.profile import RuntimeProfile

_FALSE = frozenset({"false", "0", "off", "no"})


def metrics_switched_off(words: Sequence[str], profiles: Iterable[RuntimeProfile]) -> str:
    """Why an engine with this command line exports no metrics; '' if it may export them.

    words: its command line, and further flags from its file.
    """
    for profile in profiles:
        launch = profile.launch
        if launch.metrics_off and _is_given(words, *launch.metrics_off, profile):
            flag, value = launch.metrics_off
            shown = f"{flag}={value}" if value else flag
            return f"{shown} turns the metrics of {profile.name} off"
        wanted = launch.metrics_on
        if wanted and _runs(words, launch.programs) and not _is_given(words, wanted, "", profile):
            return f"{profile.name} exports metrics with {wanted} only, which is not given"
    return ""


def _is_given(words: Sequence[str], flag: str, value: str, profile: RuntimeProfile) -> bool:
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
    if not profile.launch.abbreviations:
        return False
    shortest = flag[: flag.rindex("-") + 2]
    return name.startswith(shortest) and flag.startswith(name)


def _runs(words: Sequence[str], programs: Sequence[str]) -> bool:
    return any(PurePosixPath(word).name in programs for word in words if word)
