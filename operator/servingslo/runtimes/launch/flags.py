"""Find a flag among the words of a command line, in every form that an engine's parser accepts.

Source: argparse, `_parse_optional` and `allow_abbrev` of Python 3.12: `--flag value`,
`--flag=value`, an unambiguous prefix of a long flag; the last occurrence wins. vLLM reads
underscores in a long flag as dashes. Click, which TensorRT-LLM uses, accepts no abbreviations.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servingslo.runtimes.launch.command_line import shown
from servingslo.runtimes.profile import RuntimeProfile
from servingslo.runtimes.shell.words import Word, has_hole, holes

_LEAST_ABBREVIATION = len("--") + 1
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?$")
# Prefixes of long flags without a value, in vLLM and SGLang; the next word is not their value.
_SWITCHES = re.compile(
    r"--(no|enable|disable|skip|use|trust|enforce|async|return|log|allow|headless|language)\b"
)
# Usual names of variables that contain flags.
_NAME_OF_FLAGS = re.compile(r"ARG|OPT|FLAG|EXTRA|PARAM|CMD|COMMAND", re.IGNORECASE)
# All positional parameters, all elements of an array, or flags in the source itself.
_SURELY_FLAGS = re.compile(r"\$\{?[@*]|\[[@*]\]|(?:^|[\s\"'=+-])--[a-z]")

# No real limit is near this; a longer number is a mistake or an attack on the parser's time.
LARGEST_NUMBER = 10**12
_PLAIN_INTEGER = re.compile(r"^\d{1,15}$")
# Source: human_readable_int of vllm/utils/argparse_utils.py: lower case is decimal and may have a
# fraction, of which the whole part counts; upper case is binary.
_HUMAN_READABLE = re.compile(r"^(\d{1,15}(?:\.\d{1,15})?)([kmgtKMGT])$")
_MULTIPLIER = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A flag among words. value_index: of the word with its value; its own index for --flag=value.

    text: the value, '' if there is none. source: the text in the pod. problem: why it cannot be
    read, whatever the value; '' if it can.
    """

    text: str
    source: str
    value_index: int
    joined: bool
    problem: str = ""


def words_as_they_are(words: Sequence[str]) -> tuple[Word, ...]:
    """Words without any expansion."""
    return tuple(Word(text=word, source=word) for word in words)


def number_of(text: str, *, human_readable: bool) -> int:
    """The number as vLLM reads it, 0 if it is invalid."""
    if _PLAIN_INTEGER.match(text):
        return int(text)
    human = _HUMAN_READABLE.match(text) if human_readable else None
    if human is None:
        return 0
    number, unit = human.groups()
    if unit.isupper() and "." in number:
        return 0
    return int(float(number) * _MULTIPLIER[unit])


def occurrences(words: Sequence[Word], flag: str, profile: RuntimeProfile) -> list[Occurrence]:
    """Every place where a flag is given, or may be given; the last one applies."""
    shorts = {short for short, full in profile.launch.short_names if full == flag}
    beginning = flag[:_LEAST_ABBREVIATION].lower()
    found = []
    for position, word in enumerate(words):
        if not word.text.startswith("-"):
            continue
        name, joined, text = word.text.partition("=")
        if name not in shorts and name[:_LEAST_ABBREVIATION].lower() != beginning:
            continue
        if name in shorts or _spelt(name, profile) == flag:
            found.append(_occurrence(words, position, text, joined=bool(joined)))
        elif problem := _near(name, flag, profile):
            found.append(
                Occurrence(
                    text="", source=word.source, value_index=position, joined=True, problem=problem
                )
            )
    return found


def is_given(words: Sequence[Word], flag: str, profile: RuntimeProfile) -> bool:
    """Whether a flag is among the words, with or without a value."""
    return bool(flag) and bool(occurrences(words, flag, profile))


def switched(
    words: Sequence[Word], on: str, off: str, profile: RuntimeProfile
) -> Occurrence | None:
    """The last occurrence of a switch, with text 'true', 'false' or text that is not understood.

    vLLM up to 0.8 takes a value (StoreBoolean of vllm/utils.py). Later versions take none, and
    refuse to start with one (argparse.BooleanOptionalAction).
    """
    last: Occurrence | None = None
    for position, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, joined, text = word.text.partition("=")
        name = _spelt(name, profile)
        if any(_near(name, flag, profile) for flag in (on, off) if flag):
            last = Occurrence(text="", source=word.source, value_index=position, joined=True)
        if name not in {on, off} - {""}:
            continue
        following = words[position + 1].text if position + 1 < len(words) else ""
        if not joined:
            text = following if following.lower() in {"true", "false"} else "true"
        said = text.lower()
        if name == off:
            said = {"true": "false", "false": "true"}.get(said, said)
        last = Occurrence(text=said, source=word.source, value_index=position, joined=bool(joined))
    return last


def may_hold_flags(words: Sequence[Word], profile: RuntimeProfile) -> Iterator[str]:
    """Unknown words that may be flags, as in the pod.

    A word after a flag with a value is that value. The first word is the model: words are those
    after `vllm serve`, or another start command of the engine.
    """
    for position, word in enumerate(words):
        name = word.text.partition("=")[0]
        if name.startswith("--") and "{" in name:
            # --max-num-{seqs=4,batched-tokens=64}: a shell expands it to several words.
            yield word.source
            continue
        if not has_hole(word.text) or (word.text.startswith("-") and not has_hole(name)):
            continue
        sources = " ".join(holes(word.text))
        certain = name.startswith("-") or _SURELY_FLAGS.search(sources)
        if certain or _NAME_OF_FLAGS.search(sources) or not _is_value(words, position, profile):
            yield word.unknown


def _is_value(words: Sequence[Word], position: int, profile: RuntimeProfile) -> bool:
    """Whether a word is at the position of a value or of the model."""
    if position == 0:
        return True
    before = words[position - 1].text
    if not before.startswith("-") or "=" in before:
        return False
    return not _SWITCHES.match(_spelt(before, profile))


def _spelt(name: str, profile: RuntimeProfile) -> str:
    long = name.startswith("--") and profile.underscores_in_flags
    return name.replace("_", "-") if long else name


def _occurrence(words: Sequence[Word], position: int, text: str, *, joined: bool) -> Occurrence:
    word = words[position]
    if joined:
        source = " ".join(holes(text)) or word.source.partition("=")[2].strip("'\"") or word.source
        return Occurrence(text=text, source=source, value_index=position, joined=True)
    following = words[position + 1] if position + 1 < len(words) else None
    if following is None or _is_flag(following.text):
        problem = f"{shown(word.text.partition('=')[0])} has no value"
        return Occurrence(
            text="", source=word.source, value_index=position, joined=True, problem=problem
        )
    return Occurrence(
        text=following.text, source=following.unknown, value_index=position + 1, joined=False
    )


def _is_flag(text: str) -> bool:
    return text.startswith("-") and not _NEGATIVE_NUMBER.match(text)


def _near(name: str, flag: str, profile: RuntimeProfile) -> str:
    """Why a word may be meant as the flag; '' if it is not."""
    full = _spelt(name, profile)
    if profile.abbreviations and len(full) >= _LEAST_ABBREVIATION and flag.startswith(full):
        own = {knob.flag for knob in profile.knobs} | set(profile.launch.server_counts)
        if full not in own:
            return f"{shown(name)} may abbreviate {flag}; write the flag in full"
    if full.split(maxsplit=1)[0:1] == [flag]:
        return f"{shown(name)} is one word; give flag and value as two"
    if full.replace("_", "-").lower() == flag.replace("_", "-").lower():
        return f"{shown(name)} is not how the runtime spells {flag}"
    return ""
