"""Rooms of both distributions are small; each says what is in it and what it must not import."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = (ROOT / "operator/servingslo", ROOT / "lab/servingslo_lab")
LARGEST_FOLDER = 15
FOLDERS = sorted(path.parent for top in DISTRIBUTIONS for path in top.rglob("__init__.py"))
ROOMS = [folder for folder in FOLDERS if folder not in DISTRIBUTIONS]


def named(path: Path) -> str:
    """A test's name for a folder."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("room", FOLDERS, ids=named)
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
