"""Parse untrusted JSON and YAML: every problem raises the same kind of error."""

import json
from typing import Any

import yaml

_TOO_DEEP = "it nests too deeply"
_HALF = "it holds half of a character (\\ud800 to \\udfff without the other half)"
# PyYAML's constructors raise these for a scalar that does not fit its tag: `!!int ""`,
# `!!bool x`, `!!timestamp x`, a date such as 2001-99-99.
_NOT_MADE = (ValueError, LookupError, AttributeError, TypeError)


class OnceLoader(yaml.SafeLoader):
    """Refuses a duplicate key, as the API server does; in plain PyYAML the last one wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping. Raises: yaml.YAMLError for a duplicate key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"{key.value} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _holds_half(value: Any, text: str | bytes) -> bool:
    """Whether a string in it cannot be written: UTF-8 has no half of a surrogate pair."""
    escape = "\\ud" if isinstance(text, str) else b"\\ud"
    if escape not in text.lower():  # type: ignore[operator]
        return False
    try:
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode()
    except UnicodeEncodeError:
        return True
    return False


def parsed_json(text: str | bytes) -> Any:
    """The value. Raises: json.JSONDecodeError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise json.JSONDecodeError(_TOO_DEEP, "", 0) from error


def written_json(text: str | bytes) -> Any:
    """The value, if all of its strings can be written again.

    For untrusted text. Long answers come from servers in Go, which send no half of a character, so
    they do not need it. Raises: json.JSONDecodeError if it is invalid.
    """
    value = parsed_json(text)
    if _holds_half(value, text):
        raise json.JSONDecodeError(_HALF, "", 0)
    return value


def parsed_documents(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> list[Any]:
    """Each document of a YAML text. Raises: yaml.YAMLError if one is invalid."""
    try:
        documents = list(yaml.load_all(text, loader))
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error
    except _NOT_MADE as error:
        raise yaml.YAMLError(f"a value is not what its tag or form says ({error})") from error
    if _holds_half(documents, text):
        raise yaml.YAMLError(_HALF)
    return documents


def parsed_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """The only document, None if there is none. Raises: yaml.YAMLError."""
    documents = parsed_documents(text, loader)
    if len(documents) > 1:
        raise yaml.YAMLError("it holds several documents")
    return documents[0] if documents else None


def yaml_problem(error: yaml.YAMLError) -> str:
    """Why a text is no YAML, in one line: "line 5: could not find expected ':'"."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        problem = " ".join((error.problem or error.context or "not YAML").split())
        last = error.problem_mark.line + 1
        first = last if error.context_mark is None else error.context_mark.line + 1
        return f"line {first}: {problem}" if first == last else f"line {first} to {last}: {problem}"
    # What follows the first line is a position in Python's words.
    return str(error).partition("\n")[0]
