"""The command-line words that vLLM reads from the YAML file of its `--config`.

Source: FlexibleArgumentParser._pull_args_from_config and load_config_file of
vllm/utils/argparse_utils.py, read in the wheel of 0.32.0: only `--config FILE` is followed (not
`--config=FILE`). Words on the command line itself come after the file's, so they win.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import yaml

from servingslo.parsing import parsed_yaml

CONFIG_FLAG = "--config"
# A file with every flag of vLLM 0.32.0 has two thirds of this size. A larger file takes the parser
# more than a third of a second.
LARGEST_FILE_CHARACTERS = 16_384
# Nested brackets, at most. The parser's time grows with their square, and vLLM's settings have only
# a few.
DEEPEST_BRACKETS = 64
# Cached files: as many as one operator may have workloads.
_FILES_REMEMBERED = 512
_MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The result of a file: its words, or its problem without any of its content."""

    words: tuple[str, ...] = ()
    problem: str = ""


def config_path(words: Sequence[str]) -> str | None:
    """The path after the only `--config` among the words; None without it."""
    for position, word in enumerate(words[:-1]):
        if word == CONFIG_FLAG:
            return words[position + 1]
    return None


class _MergeKeyError(yaml.YAMLError):
    """A merge key in the file: a few of them can expand to more than the memory."""


class _Loader(yaml.SafeLoader):
    """PyYAML's own parser: in libyaml's, nested brackets can crash the process."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse merge keys. Raises: _MergeKeyError."""
        if any(key.tag == _MERGE_TAG for key, _ in node.value):
            raise _MergeKeyError
        super().flatten_mapping(node)


@lru_cache(maxsize=_FILES_REMEMBERED)
def config_file(text: str) -> ConfigFile:
    """The file's settings as words: `--key value`; lists and mappings are no limits, so omitted.

    For an unreadable file: no words, and its problem.
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
    """Why a file is not parsed; '' if it is."""
    if len(text) > LARGEST_FILE_CHARACTERS:
        return f"is longer than {LARGEST_FILE_CHARACTERS} characters"
    steps = ((char in "[{") - (char in "]}") for char in text)
    if max(accumulate(steps), default=0) > DEEPEST_BRACKETS:
        return f"has more than {DEEPEST_BRACKETS} brackets open at once"
    return ""


def _problem(error: yaml.YAMLError) -> str:
    """The parser's message, without the file's content."""
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
