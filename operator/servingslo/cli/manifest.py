"""Reads manifests, an administrator's runtimes, and lines from a file or standard input."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from servingslo.api.convert import parse_spec
from servingslo.api.runtime_profiles import runtimes_of
from servingslo.api.v1alpha1 import API_VERSION, GROUP, KIND, VERSIONS
from servingslo.errors import InvalidInputError
from servingslo.parsing import OnceLoader, parsed_documents, parsed_yaml, yaml_problem
from servingslo.runtimes import catalogue

STANDARD_INPUT = "-"
_BYTE_ORDER_MARK = "\ufeff"


class Loader(OnceLoader):
    """Reads 4e-05 as a number, as kubectl reads and writes it; YAML 1.1 asks for a point."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+([.][0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_spec(path: Path) -> Mapping[str, Any]:
    """The spec of the only ServingSLO in a YAML file, checked. Raises: as read_resource."""
    return read_resource(path)[1]


def read_resource(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Metadata and checked spec of the only ServingSLO in a YAML file.

    Raises: InvalidInputError naming the file, the field's path, the value and what is allowed.
    """
    with _readable(path, "-f", "a manifest"):
        documents = parsed_documents(path.read_text(encoding="utf-8"), Loader)
    found = [one for one in objects_of(documents) if one.get("kind") == KIND]
    if len(found) != 1:
        raise InvalidInputError(f"{path}: kind", f"{len(found)} of kind {KIND}", "exactly one")
    if found[0].get("apiVersion") not in {f"{GROUP}/{version}" for version in VERSIONS}:
        raise InvalidInputError(f"{path}: apiVersion", found[0].get("apiVersion"), API_VERSION)
    spec: Mapping[str, Any] = found[0].get("spec") or {}
    with blamed_on(str(path)):
        parse_spec(spec)
    metadata = found[0].get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}, spec


def objects_of(documents: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Each object, also of a List, as `kubectl get` prints several."""
    for document in documents:
        if not isinstance(document, dict):
            continue
        items = document.get("items")
        if str(document.get("kind") or "").endswith("List") and isinstance(items, list):
            yield from objects_of(items)
        else:
            yield document


def add_runtimes(path: Path) -> None:
    """Know the runtimes that an administrator's file adds or changes from here on.

    Raises: InvalidInputError naming file or field, value and range.
    """
    with _readable(path, "--runtime-profiles", "a file"):
        document = parsed_yaml(path.read_text(encoding="utf-8"), Loader)
    catalogue.add(runtimes_of(document))


@contextmanager
def _readable(path: Path, flag: str, what: str) -> Iterator[None]:
    """Raises: InvalidInputError naming flag and file, for one that is no such YAML."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(flag, str(path), f"a readable file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(flag, str(path), f"{what} in YAML, as UTF-8") from error
    except yaml.YAMLError as error:
        allowed = f"{what} in YAML ({yaml_problem(error)})"
        raise InvalidInputError(flag, str(path), allowed) from error


@contextmanager
def lines_of(source: str, flag: str) -> Iterator[Iterator[str]]:
    """The lines of a file, or of standard input as they come.

    Raises: InvalidInputError when the file cannot be read, or a line of it was refused inside.
    """
    name = "standard input" if source == STANDARD_INPUT else source
    with blamed_on(name):
        try:
            if source == STANDARD_INPUT:
                # readline instead of iteration: a line is answered before the next one comes.
                yield _without_mark(iter(sys.stdin.readline, ""))
                return
            with _opened(source, flag) as file:
                yield iter(file)
        except UnicodeDecodeError as error:
            raise InvalidInputError(flag, source, "text in UTF-8") from error


def _without_mark(lines: Iterator[str]) -> Iterator[str]:
    """The lines without the byte order mark that editors on Windows begin a file with."""
    for index, line in enumerate(lines):
        yield line if index else line.removeprefix(_BYTE_ORDER_MARK)


def _opened(source: str, flag: str) -> IO[str]:
    try:
        return Path(source).open(encoding="utf-8-sig")
    except OSError as error:
        allowed = f"a readable file ({error.strerror}), or - for standard input"
        raise InvalidInputError(flag, source, allowed) from error


@contextmanager
def blamed_on(file: str) -> Iterator[None]:
    """Put the file before the field that an error names, unless it names a flag."""
    try:
        yield
    except InvalidInputError as error:
        if error.field.startswith("-"):
            raise
        raise type(error)(*_blamed(error, file)) from error


def _blamed(error: InvalidInputError, file: str) -> tuple[Any, ...]:
    problems = getattr(error, "problems", None)
    if problems is None:
        return f"{file}: {error.field}", error.value, error.allowed
    blamed = tuple(InvalidInputError(f"{file}: {p.field}", p.value, p.allowed) for p in problems)
    return (blamed,)
