"""A migration as YAML, with what was and was not taken over as comments."""

from collections.abc import Iterator
from typing import Any

import yaml

from servingslo.api.v1alpha1 import API_VERSION, KIND
from servingslo_lab.cli.autoscalers.migration import Migration, Note

_WIDTH = 100
_LONGEST_VALUE = 160
_EXAMPLE = "An example: state the objectives that users need."


def manifest(migration: Migration) -> str:
    """One document, which kubectl applies as it is."""
    where = f" of namespace {migration.namespace}" if migration.namespace else ""
    lines = [f"# Made by servingslo migrate from {migration.source}{where}."]
    lines += _section("Taken over:", migration.taken)
    lines += _section("Not taken over:", migration.left)
    lines += [f"# {_one_line(step)}" for step in migration.remarks]
    metadata = {"name": migration.name}
    if migration.namespace:
        metadata["namespace"] = migration.namespace
    lines += _yaml({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata})
    lines.append("spec:")
    for name, value in migration.spec.items():
        if name == "objectives" and migration.exemplary:
            lines.append(f"  # {_EXAMPLE}")
        lines += (f"  {line}" for line in _yaml({name: value}))
    return "\n".join(lines) + "\n"


def _section(title: str, notes: tuple[Note, ...]) -> Iterator[str]:
    if notes:
        yield f"# {title}"
    for note in notes:
        value = _one_line(note.value)
        if len(value) > _LONGEST_VALUE:
            value = f"{value[:_LONGEST_VALUE]}..."
        yield f"#   {_one_line(note.field)}{f' {value}' if value else ''}: {_one_line(note.about)}"


def _one_line(text: str) -> str:
    """The text without line breaks and control characters: a comment must not end early."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))


def _yaml(value: dict[str, Any]) -> list[str]:
    written = yaml.safe_dump(value, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return str(written).splitlines()
