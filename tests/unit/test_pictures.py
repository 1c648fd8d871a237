"""Pictures of the pages are those that their sources draw."""

from pathlib import Path

import pytest
from tests.pictures import architecture, draw

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
NAMES = [f"{name}.svg" for name in (*draw.RECORDED, *draw.FIGURES)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them, drawn by this checkout."""
    folder = tmp_path_factory.mktemp("pictures")
    draw.draw(folder, ".svg")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_picture_is_what_its_source_draws(drawn: Path, name: str) -> None:
    """To the letter; `make pictures` writes them again."""
    wanted = (drawn / name).read_text(encoding="utf-8")
    assert (FOLDER / name).read_text(encoding="utf-8") == wanted


def test_every_picture_is_drawn_and_shown() -> None:
    """No picture without a source, and none that no page shows."""
    root = FOLDER.parents[1]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert sorted(path.name for path in FOLDER.glob("*.svg")) == sorted(NAMES)
    assert [name for name in NAMES if f"pictures/{name})" not in text] == []


def test_every_arrow_joins_two_boxes() -> None:
    """And no box of the architecture stands alone."""
    ends = {name for start, _, end, _ in architecture.ARROWS for name in (start, end)}
    assert ends == set(architecture.BOXES)
