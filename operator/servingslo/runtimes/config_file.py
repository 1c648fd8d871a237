"""The words of a command line that a vLLM reads from the YAML file of its `--config`.

Source: FlexibleArgumentParser._pull_args_from_config and load_config_file of
vllm/utils/argparse_utils.py, read in the wheel of 0.32.0: `--config FILE` alone is followed (not
`--config=FILE`), and what stands on the command line itself comes after it, so it wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import yaml

from servingslo.parsing import parsed_yaml

CONFIG_FLAG = "--config"
# A file of every flag that vLLM 0.32.0 has would be two thirds of it; a larger one takes the parser
# more than a third of a second.
LARGEST_FILE_CHARACTERS = 16_384
# Brackets that are open at once; the parser's time grows with their square, and no setting of vLLM
# has more than a few.
DEEPEST_BRACKETS = 64
# As many different files are remembered as there may be workloads of one operator.
_FILES_REMEMBERED = 512
_MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What a file gives: its words, or what is wrong with it, without a word of its content."""

    words: tuple[str, ...] = ()
    problem: str = ""


def config_path(words: Sequence[str]) -> str | None:
    """The path after the one `--config` among the words; None without it."""
    for position, word in enumerate(words[:-1]):
        if word == CONFIG_FLAG:
            return words[position + 1]
    return None


class _MergeKeyError(yaml.YAMLError):
    """A merge key: followed, a few of them unfold to more than memory holds."""


class _Loader(yaml.SafeLoader):
    """Not libyaml's parser: a file of nested brackets ends the process there."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse merge keys. Raises: _MergeKeyError."""
        if any(key.tag == _MERGE_TAG for key, _ in node.value):
            raise _MergeKeyError
        super().flatten_mapping(node)


@lru_cache(maxsize=_FILES_REMEMBERED)
def config_file(text: str) -> ConfigFile:
    """The file's settings as words: `--key value`; lists and mappings are no limits, so left out.

    A file that cannot be read gives no words and its problem.
    """
    if problem := _unreadable(text):
        return ConfigFile(problem=problem)
    try:
        document = parsed_yaml(text, _Loader)
    except yaml.YAMLError as error:
        return ConfigFile(problem=_problem(error))
    if not isinstance(document, dict):
        return ConfigFile(problem="is no mapping of settings")
    return ConfigFile(words=tuple(word for pair in document.items() for word in _words(*pair)))


def _unreadable(text: str) -> str:
    """Why a file is not given to the parser; '' where it is."""
    if len(text) > LARGEST_FILE_CHARACTERS:
        return f"is longer than {LARGEST_FILE_CHARACTERS} characters"
    steps = ((char in "[{") - (char in "]}") for char in text)
    if max(accumulate(steps), default=0) > DEEPEST_BRACKETS:
        return f"has more than {DEEPEST_BRACKETS} brackets open at once"
    return ""


def _problem(error: yaml.YAMLError) -> str:
    """What the parser says, without the words of the file."""
    if isinstance(error, _MergeKeyError):
        return "has merge keys (<<), which are not followed"
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    where = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
    return f"is no YAML{where}"


def _words(key: object, value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (f"--{key}" if value else f"--no-{key}",)
    if isinstance(key, str) and isinstance(value, str | int | float):
        return (f"--{key}", str(value))
    return ()
