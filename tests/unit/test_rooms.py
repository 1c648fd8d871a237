"""The rooms of the pure core are small, and each says what is in it and what it must not import."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "operator/servingslo"
LARGEST_FOLDER = 15
ROOMS = sorted(
    path.parent
    for layer in ("models", "estimation")
    for path in (PACKAGE / layer).rglob("__init__.py")
)


def named(path: Path) -> str:
    """A test's name for a folder."""
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("room", ROOMS, ids=named)
def test_a_folder_holds_at_most_fifteen_files(room):
    """Its own `__init__` aside."""
    assert len([path for path in room.glob("*.py") if path.stem != "__init__"]) <= LARGEST_FOLDER


@pytest.mark.parametrize("room", ROOMS, ids=named)
def test_a_folder_says_in_three_lines_what_it_must_not_import(room):
    """The question it answers, what is in it, and what it must not import."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 3
    assert "must not import" in lines[-1].lower()
